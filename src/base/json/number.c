/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and escapes from the raw text of JSON tokens, whose grammar the parser has checked.
 * Whole numbers never pass through a double, which is exact only up to 2^53.
 */
#include "config/json.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The exponent at `text` ("e+8"), no nearer to infinity than needed to be out of any range. */
static long read_exponent(const char *text, const char *end)
{
	long exponent = 0;
	bool negative = false;

	if (text == end)
		return 0;
	assert(*text == 'e' || *text == 'E');
	text++;
	if (*text == '-' || *text == '+')
		negative = *text++ == '-';
	for (; text < end; text++)
		if (exponent < LONG_MAX / 100)
			exponent = exponent * 10 + (*text - '0');
	return negative ? -exponent : exponent;
}

enum json_whole json_read_whole(const struct json_value *number, uint64_t *whole)
{
	const char *text = number->raw, *end = text + number->raw_length, *last = NULL, *c;
	bool negative = *text == '-', point = false;
	long exponent, scale = 0; /* scale: of the digit after `last`, against the last one */
	uint64_t value = 0;

	assert(number->type == JSON_NUMBER && number->raw_length);
	text += negative;
	for (c = text; c < end && (is_digit(*c) || *c == '.'); c++) {
		if (*c == '.') {
			point = true;
			continue;
		}
		if (point)
			scale--;
		if (*c != '0')
			last = c;
	}
	*whole = 0;
	if (!last)
		return JSON_WHOLE; /* zero, however it is written */
	if (negative)
		return JSON_NEGATIVE;
	exponent = read_exponent(c, end) + scale;
	for (const char *zero = last + 1; zero < c; zero++)
		exponent += *zero != '.';
	if (exponent < 0)
		return JSON_FRACTION;
	for (c = text; c <= last; c++)
		if (is_digit(*c) && (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
				     __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value)))
			return JSON_TOO_LARGE;
	for (; exponent; exponent--)
		if (__builtin_mul_overflow(value, (uint64_t)10, &value))
			return JSON_TOO_LARGE;
	*whole = value;
	return JSON_WHOLE;
}

int json_read_real(const struct json_value *number, double *real)
{
	locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	char *text = strndup(number->raw, number->raw_length);
	int result = plain && text ? 0 : -ENOMEM;
	double value = 0;

	assert(number->type == JSON_NUMBER);
	if (!result) {
		errno = 0;
		value = strtod_l(text, NULL, plain);
		/* ERANGE with another value is a subnormal number, which is near enough. */
		if (errno == ERANGE && (value == 0 || isinf(value)))
			result = -ERANGE;
	}
	if (!result)
		*real = value;
	free(text);
	if (plain)
		freelocale(plain);
	return result;
}

/* The code unit of the escape \uXXXX at `raw`; 0: another escape, or none. */
static unsigned read_escape(const char *raw, const char *end)
{
	unsigned unit = 0;

	if (end - raw < 6 || raw[0] != '\\' || raw[1] != 'u')
		return 0;
	for (int i = 2; i < 6; i++) {
		char c = raw[i];

		unit = unit << 4 | (unsigned)(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
	}
	return unit;
}

bool json_has_lone_surrogate(const char *raw, size_t raw_length)
{
	const char *end = raw + raw_length;

	while (raw < end) {
		unsigned unit = read_escape(raw, end);

		if (unit >= 0xdc00 && unit <= 0xdfff)
			return true;
		if (unit >= 0xd800 && unit <= 0xdbff) {
			unsigned low = read_escape(raw + 6, end);

			if (low < 0xdc00 || low > 0xdfff)
				return true;
			raw += 12;
		} else if (*raw == '\\') {
			raw += 2;
		} else {
			raw++;
		}
	}
	return false;
}
