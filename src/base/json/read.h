/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON document that knows where in its text each value and key stands. Strict (RFC 8259): no
 * comments, no trailing commas, valid UTF-8, and a bound on length, depth and memory. Relies on
 * libyajl for the grammar; never changes a document once it is parsed.
 */
#ifndef CONFIG_JSON_H
#define CONFIG_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

#define JSON_TEXT_MAX	((size_t)64 << 20)  /* bytes of text */
#define JSON_MEMORY_MAX ((size_t)256 << 20) /* bytes that a document and its parsing may take */
#define JSON_DEPTH_MAX	512		    /* objects and lists inside each other */

enum json_type {
	JSON_NULL,
	JSON_FALSE,
	JSON_TRUE,
	JSON_NUMBER,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT
};

/* Where a token begins, both from 1; the column counts characters, not bytes. */
struct json_place {
	uint32_t line, column;
};

struct json_value {
	enum json_type type;
	uint32_t count; /* values in an array or object */
	struct json_place place;
	const char *raw; /* as written, in the text that was parsed; the bracket of a container */
	size_t raw_length;
	const char *string; /* JSON_STRING: decoded, followed by a NUL; may hold others */
	size_t length;
	struct json_value *first; /* of an array or object, in the order of the text */
	struct json_value *next;  /* in the same array or object */

	/* of a member of an object, else NULL and 0 */
	const char *key;
	size_t key_length;
	struct json_place key_place;
	const struct json_value *earlier; /* an earlier member with the same key */

	const struct json_value *duplicate; /* JSON_OBJECT: its first member with an earlier one */
};

struct json_document;

/*
 * Parses `text`, which must stay as long as the document. `name` stands for it in errors: -EINVAL
 * with line and column, -EFBIG (text or depth over the bounds above), -ENOMEM (memory_max, or none
 * to be had).
 */
int json_parse(struct json_document **document, const char *text, size_t nbytes, const char *name,
	       size_t memory_max, struct nvs_error *error);
void json_free(struct json_document *document); /* NULL is fine */
const struct json_value *json_root(const struct json_document *document);

/* A JSON_NUMBER as a whole one, exact however it is written: 1e8, 100000000, 1.0. */
enum json_whole { JSON_WHOLE, JSON_FRACTION, JSON_NEGATIVE, JSON_TOO_LARGE };
enum json_whole json_read_whole(const struct json_value *number, uint64_t *whole);
/* A JSON_NUMBER as the nearest double, whatever the locale. -ERANGE: none is near. -ENOMEM. */
int json_read_real(const struct json_value *number, double *real);

/* Whether a JSON_STRING or a key, as written, has a \u escape that is half of a pair. */
bool json_has_lone_surrogate(const char *raw, size_t raw_length);

/* A file's name as errors show it: the end of it where it is long. */
const char *json_file_label(const char *name, char label[208]);

#endif
