/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and values from files and drives may hold escape sequences. Nothing here depends on the
 * locale.
 */
#include "base/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/numbers.h"

size_t utf8_length(const char *text, size_t left)
{
	static const struct {
		unsigned char mask, lead;
		uint32_t first; /* smaller code points have a shorter encoding */
	} forms[] = {
		{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};

	const unsigned char *bytes = (const unsigned char *)text;

	for (size_t n = 0; n < 4; n++) {
		uint32_t point = bytes[0] & (unsigned char)~forms[n].mask;

		if ((bytes[0] & forms[n].mask) != forms[n].lead)
			continue;
		for (size_t i = 1; i <= n; i++) {
			if (i >= left || (bytes[i] & 0xc0) != 0x80)
				return 0;
			point = point << 6 | (bytes[i] & 0x3f);
		}
		if (point < forms[n].first || point > 0x10ffff || (point >> 11) == 0x1b)
			return 0;
		return n + 1;
	}
	return 0;
}

bool text_is_utf8(const char *text)
{
	size_t left = strlen(text), length;

	for (; left; text += length, left -= length) {
		length = utf8_length(text, left);
		if (!length)
			return false;
	}
	return true;
}

uint32_t utf8_point(const char *text, size_t length)
{
	uint32_t point = (unsigned char)text[0];

	if (length > 1)
		point &= 0xffu >> (length + 1);
	for (size_t i = 1; i < length; i++)
		point = point << 6 | ((unsigned char)text[i] & 0x3f);
	return point;
}

bool utf8_is_control(const char *text, size_t length)
{
	static const struct {
		uint32_t first, last;
	} controls[] = {
		{0, 0x1f},	  {0x7f, 0x9f},	    {0x61c, 0x61c},
		{0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069},
	};

	uint32_t point = utf8_point(text, length);

	for (size_t i = 0; i < COUNT_OF(controls); i++)
		if (point >= controls[i].first && point <= controls[i].last)
			return true;
	return false;
}

const char *visible_text(const char *text, size_t left, char *buffer, size_t nbytes)
{
	size_t n = 0;

	while (left) {
		size_t length = utf8_length(text, left);
		bool shown = length && !utf8_is_control(text, length);
		size_t taken = length ? length : 1, room = shown ? taken : 4 * taken;

		if (n + room >= nbytes)
			break;
		if (shown)
			memcpy(buffer + n, text, taken);
		for (size_t i = 0; i < taken && !shown; i++)
			snprintf(buffer + n + 4 * i, 5, "\\x%02x", (unsigned char)text[i]);
		n += room;
		text += taken;
		left -= taken;
	}
	buffer[n] = '\0';
	return buffer;
}

void print_visible(FILE *file, const char *text)
{
	size_t length = strlen(text), nbytes = 4 * length + 1;
	char *visible = malloc(nbytes);

	fputs(visible ? visible_text(text, length, visible, nbytes) : "?", file);
	free(visible);
}

bool is_name_of_removed(const char *name)
{
	return !strncmp(name, ".nfs", 4) || !strncmp(name, ".fuse_hidden", 12);
}

bool text_ends_with(const char *text, const char *suffix)
{
	size_t length = strlen(text), n = strlen(suffix);

	return length >= n && !strcmp(text + length - n, suffix);
}

bool text_lists(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (; *list; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
		if (strcspn(list, ",") == n && !strncmp(list, word, n))
			return true;
	return false;
}

static bool is_variable(const char *text)
{
	return text[0] == '$' &&
	       (isalpha((unsigned char)text[1]) || (text[1] && strchr("_{(", text[1])));
}

const char *path_stands_for(const char *path)
{
	if (*path == '~')
		return "begins with ~, which only a shell expands: write the path out (a directory "
		       "that has this name by its absolute path)";
	if (is_variable(path))
		return "begins with a variable, which only a shell expands: write the path out (a "
		       "directory that has this name by its absolute path)";
	if (!strcasecmp(path, "none") || !strcasecmp(path, "auto"))
		return "is no path: accelerate writes it where its YAML keys for NVMe paths are "
		       "not passed on. Name the directory in a DeepSpeed file, and that file by "
		       "its deepspeed_config_file (a directory that has this name by its absolute "
		       "path)";
	return NULL;
}

bool path_has_variable(const char *path)
{
	for (; *path; path++)
		if (is_variable(path))
			return true;
	return false;
}
