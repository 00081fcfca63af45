/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Separators come before a value: each function begins by calling begin_value. Text for people has
 * the names on the left and values from column VALUE_COLUMN on.
 */
#include "base/json/write.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

#define VALUE_COLUMN 28

static void new_line(const struct json_writer *json)
{
	if (json->indent)
		fprintf(json->file, "\n%*s", (int)(json->indent * json->depth), "");
}

/*
 * Returns the escape of a character that JSON requires to be escaped, or that a terminal would
 * obey; else NULL.
 */
static const char *escape_of(const char *text, size_t length, char buffer[8])
{
	static const char names[] = "bfnrt\"\\", bytes[] = "\b\f\n\r\t\"\\";
	const char *special = strchr(bytes, *text);

	if (length == 1 && (unsigned char)*text >= 0x80)
		return "?";
	if (special)
		snprintf(buffer, 8, "\\%c", names[special - bytes]);
	else if (utf8_is_control(text, length))
		snprintf(buffer, 8, "\\u%04X", utf8_point(text, length) & 0xffff);
	else
		return NULL;
	return buffer;
}

static void put_string(const struct json_writer *json, const char *text)
{
	bool utf8 = text_is_utf8(text);
	size_t left = strlen(text), length;

	fputc('"', json->file);
	for (; left; text += length, left -= length) {
		char buffer[8];
		const char *escaped;

		length = utf8 ? utf8_length(text, left) : 1;
		escaped = escape_of(text, length, buffer);
		if (escaped)
			fputs(escaped, json->file);
		else
			fwrite(text, 1, length, json->file);
	}
	fputc('"', json->file);
}

/* Sets the writer's `name` to what the key stands for. A size has its unit, so "free_bytes" is
 * "free"; behind "tensors", "tensor_bytes" is "tensor bytes". */
static void name_line(struct json_writer *json, const char *key)
{
	char name[sizeof(json->name)];
	size_t rest;

	snprintf(name, sizeof(name), "%s", key);
	for (char *c = name; *c; c++)
		*c = *c == '_' ? ' ' : *c;
	rest = strlen(name) - strlen(" bytes");
	if (text_ends_with(name, " bytes") && strncmp(json->name, name, rest) != 0)
		name[rest] = '\0';
	memcpy(json->name, name, sizeof(name));
}

/* Begins a line of text for people: the name that the key stands for, or a dash for an element.
 * Width 0: of an object or list, whose key is its name. */
static void begin_line(struct json_writer *json, const char *key, int width)
{
	int indent = 2 * __builtin_popcountll(json->keyed);
	const char *name = key ? key : "-";

	if (key && width) {
		name_line(json, key);
		name = json->name;
	}
	if (json->in_row && json->more)
		fprintf(json->file, "%s%s", key ? ", " : "", key ? name : "");
	else
		fprintf(json->file, "%s%*s%s%-*s", json->begun ? "\n" : "", indent, "",
			json->in_row ? "- " : "",
			key && width && !json->in_row ? width - indent : 0, name);
	json->begun = json->more = true;
}

static void begin_value(struct json_writer *json, const char *key)
{
	if (json->plain) {
		begin_line(json, key, VALUE_COLUMN);
		fputc(' ', json->file);
		return;
	}
	if (json->more)
		fputc(',', json->file);
	if (json->depth)
		new_line(json);
	json->more = true;
	if (!key)
		return;
	put_string(json, key);
	fputs(json->indent ? ": " : ":", json->file);
}

static void open_container(struct json_writer *json, const char *key, char bracket)
{
	if (!json->plain) {
		begin_value(json, key);
		fputc(bracket, json->file);
	} else if (key) {
		begin_line(json, key, 0);
	} else if (json->more) {
		fputc('\n', json->file);
	}
	json->depth++;
	json->keyed = json->keyed << 1 | (key && !json->in_row);
	json->more = json->in_row && json->more;
}

static void close_container(struct json_writer *json, char bracket)
{
	assert(json->depth);
	json->depth--;
	if (json->plain) {
		fputs(!json->more && json->keyed & 1 ? " none" : "", json->file);
	} else {
		if (!json->more && json->indent)
			fputc('\n', json->file); /* like fio, in an empty list */
		new_line(json);
		fputc(bracket, json->file);
	}
	json->keyed >>= 1;
	json->more = true;
	if (!json->depth && (json->indent || json->plain))
		fputc('\n', json->file);
}

void json_open_object(struct json_writer *json, const char *key)
{
	open_container(json, key, '{');
}

void json_open_row(struct json_writer *json)
{
	json->more &= !json->plain; /* no line between it and the row before */
	open_container(json, NULL, '{');
	json->in_row = json->plain;
}

void json_close_object(struct json_writer *json)
{
	json->in_row = false;
	close_container(json, '}');
}

void json_open_list(struct json_writer *json, const char *key)
{
	open_container(json, key, '[');
}

void json_close_list(struct json_writer *json)
{
	close_container(json, ']');
}

void json_text(struct json_writer *json, const char *key, const char *text)
{
	if (json->plain && !*text)
		return;
	begin_value(json, key);
	if (json->plain)
		print_visible(json->file, text);
	else
		put_string(json, text);
}

void json_texts(struct json_writer *json, const char *key, const char *const *texts, unsigned n)
{
	json_open_list(json, key);
	for (unsigned i = 0; i < n; i++)
		json_text(json, NULL, texts[i]);
	json_close_list(json);
}

void json_bool(struct json_writer *json, const char *key, bool value)
{
	begin_value(json, key);
	fputs(json->plain ? value ? "yes" : "no" : value ? "true" : "false", json->file);
}

void json_null(struct json_writer *json, const char *key)
{
	if (json->plain)
		return;
	begin_value(json, key);
	fputs("null", json->file);
}

void json_number(struct json_writer *json, const char *key, const char *format, ...)
{
	va_list args;

	begin_value(json, key);
	va_start(args, format);
	vfprintf(json->file, format, args);
	va_end(args);
}

void json_count(struct json_writer *json, const char *key, uint64_t count)
{
	char size[32];

	if (json->plain && key && strstr(key, "bytes"))
		json_number(json, key, "%s", size_text(count, size));
	else
		json_number(json, key, "%" PRIu64, count);
}

void json_real(struct json_writer *json, const char *key, double value)
{
	if (json->plain)
		json_exact(json, key, value);
	else
		json_number(json, key, "%f", isfinite(value) ? value : 0);
}

void json_exact(struct json_writer *json, const char *key, double value)
{
	char text[32];

	if (!isfinite(value)) {
		json_null(json, key);
		return;
	}
	if (json->plain && key && strstr(key, "bytes")) {
		json_count(json, key, value < 0x1p63 ? (uint64_t)value : INT64_MAX);
		return;
	}
	for (int digits = json->plain ? 4 : 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (json->plain ? !strchr(text, 'e') || fabs(value) < 1
				: strtod(text, NULL) == value)
			break;
	}
	json_number(json, key, "%s", text);
}
