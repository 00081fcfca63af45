/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers are written as text, for yajl's own have 63 bits, and digits of doubles that nobody
 * asked for. yajl keeps an error until the end, so single calls are not checked.
 */
#include "json_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void json_write(void *arg, const char *text, size_t nbytes)
{
	(void)fwrite(text, 1, nbytes, (FILE *)arg);
}

yajl_gen json_to(FILE *file)
{
	yajl_gen gen = yajl_gen_alloc(NULL);

	if (!gen)
		return NULL;
	yajl_gen_config(gen, yajl_gen_beautify, 1);
	yajl_gen_config(gen, yajl_gen_validate_utf8, 1);
	yajl_gen_config(gen, yajl_gen_print_callback, json_write, file);
	return gen;
}

void put_text(yajl_gen gen, const char *text)
{
	size_t n = strlen(text);
	char ascii[4096];

	if (yajl_gen_string(gen, (const unsigned char *)text, n) != yajl_gen_invalid_string)
		return;
	if (n > sizeof(ascii))
		n = sizeof(ascii);
	for (size_t i = 0; i < n; i++)
		ascii[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
	yajl_gen_string(gen, (const unsigned char *)ascii, n);
}

static void put_number(yajl_gen gen, const char *text)
{
	yajl_gen_number(gen, text, strlen(text));
}

void put_exact(yajl_gen gen, double value)
{
	char text[32];

	if (!isfinite(value)) {
		yajl_gen_null(gen);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	put_number(gen, text);
}

void text_field(yajl_gen gen, const char *key, const char *text)
{
	put_text(gen, key);
	put_text(gen, text);
}

void count_field(yajl_gen gen, const char *key, uint64_t count)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, count);
	put_text(gen, key);
	put_number(gen, text);
}

void real_field(yajl_gen gen, const char *key, double value)
{
	char text[400];

	snprintf(text, sizeof(text), "%f", isfinite(value) ? value : 0);
	put_text(gen, key);
	put_number(gen, text);
}

void exact_field(yajl_gen gen, const char *key, double value)
{
	put_text(gen, key);
	put_exact(gen, value);
}

void bool_field(yajl_gen gen, const char *key, bool value)
{
	put_text(gen, key);
	yajl_gen_bool(gen, value);
}

void open_map(yajl_gen gen, const char *key)
{
	if (key)
		put_text(gen, key);
	yajl_gen_map_open(gen);
}

void open_array(yajl_gen gen, const char *key)
{
	if (key)
		put_text(gen, key);
	yajl_gen_array_open(gen);
}
