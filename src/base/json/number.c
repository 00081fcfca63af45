/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers from the raw text of JSON tokens, whose grammar the parser has checked. Whole numbers
 * never pass through a double, which is exact only up to 2^53.
 */
#include "base/json/read.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum json_whole json_read_whole(const struct json_value *number, uint64_t *whole)
{
	const char *text = number->raw, *end = text + number->raw_length, *last = NULL, *c;
	bool negative = *text == '-', point = false, below;
	long exponent = 0, scale = 0; /* scale: of the last digit */
	uint64_t value = 0;

	assert(number->type == JSON_NUMBER && number->raw_length);
	text += negative;
	for (c = text; c < end && (isdigit((unsigned char)*c) || *c == '.'); c++) {
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
		return JSON_WHOLE; /* zero, in any notation */
	if (negative)
		return JSON_NEGATIVE;
	/* The exponent ("e+8"), limited to values that are out of any range. */
	below = end - c > 1 && c[1] == '-';
	for (const char *digit = c; digit < end; digit++)
		if (isdigit((unsigned char)*digit) && exponent < LONG_MAX / 100)
			exponent = exponent * 10 + (*digit - '0');
	exponent = (below ? -exponent : exponent) + scale;
	for (const char *zero = last + 1; zero < c; zero++)
		exponent += *zero != '.';
	if (exponent < 0)
		return JSON_FRACTION;
	for (c = text; c <= last; c++)
		if (isdigit((unsigned char)*c) &&
		    (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
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
	/* The raw text need not have a NUL. */
	char *text = strndup(number->raw, number->raw_length);
	int result = plain && text ? 0 : -ENOMEM;
	double value = 0;

	assert(number->type == JSON_NUMBER);
	if (!result) {
		errno = 0;
		value = strtod_l(text, NULL, plain);
		/* ERANGE with another value means a subnormal number, which is precise enough. */
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
