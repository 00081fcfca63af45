/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the reader and the rules say of a file or of a single setting: the place, and text of the
 * file, quoted so that a terminal only shows it.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/reader.h"

int reader_complain(struct reader *r, const struct json_place *place, const char *subject,
		    const char *format, ...)
{
	char text[768];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (r->from_call)
		return error_about(r->error, -EINVAL, subject, 0, 0, "%s", text);
	if (!place)
		return error_about(r->error, -EINVAL, subject, 0, 0, "%s: %s", r->file, text);
	return error_about(r->error, -EINVAL, subject, place->line, 0, "%s:%u:%u: %s", r->file,
			   place->line, place->column, text);
}

void reader_say(struct reader *r, enum nvs_log_level level, const struct json_place *place,
		const char *format, ...)
{
	char text[768];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (r->from_call)
		log_say(&r->config.log, level, "%s", text);
	else
		log_say(&r->config.log, level, "%s:%u:%u: %s", r->file, place->line, place->column,
			text);
}

const char *reader_show(const char *bytes, size_t length, char shown[SHOWN_BYTES + 8])
{
	size_t n = length, kept = 0;

	if (n > SHOWN_BYTES) {
		n = SHOWN_BYTES;
		while (n && ((unsigned char)bytes[n] & 0xc0) == 0x80)
			n--;
	}
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)bytes[i];

		if (c == 0xc2 && i + 1 < n && (unsigned char)bytes[i + 1] < 0xa0)
			continue; /* first byte of a two-byte control character */
		if (i && (unsigned char)bytes[i - 1] == 0xc2 && c < 0xa0)
			c = '?';
		if (c < ' ' || c == 0x7f)
			c = '?';
		shown[kept++] = (char)c;
	}
	memcpy(shown + kept, length > n ? "..." : "", length > n ? 4 : 1);
	return shown;
}

const char *reader_show_value(const struct json_value *value, char shown[SHOWN_BYTES + 8])
{
	if (value->type == JSON_OBJECT)
		return "an object";
	if (value->type == JSON_ARRAY)
		return "a list";
	return reader_show(value->raw, value->raw_length, shown);
}
