/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON to a file incrementally: members of the open object, or, with a NULL key, elements of
 * the open list or the document. A failed write sets the stream's error, which its owner checks.
 *
 * Or the same members as text for people: a line each, "numa_nodes" as "numa nodes", with those of
 * an object indented below its key. Members that are null or empty are left out, numbers of bytes
 * are sizes, "memory_bytes" as "memory" and 1.50 GiB, and characters that a terminal obeys are
 * \xHH.
 */
#ifndef BASE_JSON_WRITE_H
#define BASE_JSON_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json_writer {
	FILE *file;
	unsigned indent; /* spaces for each level; 0: everything on one line */
	unsigned depth;
	bool more; /* the open object or list has a value already */
	/* Of plain text: */
	bool plain, begun, in_row;
	char name[64];	/* of the last member */
	uint64_t keyed; /* a bit for each open object or list, set if it has a key */
};

static inline struct json_writer json_to(FILE *file, unsigned indent)
{
	return (struct json_writer){.file = file, .indent = indent};
}

static inline struct json_writer json_as_text(FILE *file)
{
	return (struct json_writer){.file = file, .plain = true};
}

void json_open_object(struct json_writer *json, const char *key);
/* An element of the open list, which text has on one line. */
void json_open_row(struct json_writer *json);
void json_close_object(struct json_writer *json); /* a row, too */
void json_open_list(struct json_writer *json, const char *key);
void json_close_list(struct json_writer *json);

/* Text of any bytes: in invalid UTF-8, each byte that is not ASCII becomes a '?'. */
void json_text(struct json_writer *json, const char *key, const char *text);
/* A list of texts, such as paths. */
void json_texts(struct json_writer *json, const char *key, const char *const *texts, unsigned n);
void json_bool(struct json_writer *json, const char *key, bool value);
void json_null(struct json_writer *json, const char *key);
void json_count(struct json_writer *json, const char *key, uint64_t count);
/* With six decimals, like fio; 0 for values that JSON cannot represent. */
void json_real(struct json_writer *json, const char *key, double value);
/*
 * With the fewest digits that read back as the same value; null for values that JSON cannot
 * represent.
 */
void json_exact(struct json_writer *json, const char *key, double value);
/* Formatted by printf. */
void json_number(struct json_writer *json, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
