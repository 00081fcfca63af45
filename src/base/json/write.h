/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON to a file as it goes: members of the object that is open, or with a NULL key values
 * of the list that is, or the whole. A failed write is the file's error, for its owner to find.
 */
#ifndef BASE_JSON_WRITE_H
#define BASE_JSON_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json_writer {
	FILE *file;
	unsigned indent; /* blanks for each level; 0: all on one line */
	unsigned depth;
	bool more; /* a value stands before in the same object or list */
};

static inline struct json_writer json_to(FILE *file, unsigned indent)
{
	return (struct json_writer){.file = file, .indent = indent};
}

void json_open_object(struct json_writer *json, const char *key);
void json_close_object(struct json_writer *json);
void json_open_list(struct json_writer *json, const char *key);
void json_close_list(struct json_writer *json);

/* Text of any bytes: where it is not UTF-8, each byte that is not ASCII becomes a '?'. */
void json_text(struct json_writer *json, const char *key, const char *text);
void json_bool(struct json_writer *json, const char *key, bool value);
void json_null(struct json_writer *json, const char *key);
void json_count(struct json_writer *json, const char *key, uint64_t count);
void json_signed(struct json_writer *json, const char *key, int64_t number);
/* With six decimals, as fio writes them; 0 where JSON has no number for it. */
void json_real(struct json_writer *json, const char *key, double value);
/* In the fewest digits that read back as the same; null where JSON has no number for it. */
void json_exact(struct json_writer *json, const char *key, double value);
/* As printf formats it. */
void json_number(struct json_writer *json, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
