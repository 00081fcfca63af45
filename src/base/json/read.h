/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON text as a tree of values with their places in the text. Strict (RFC 8259): no comments, no
 * trailing commas, valid UTF-8, also behind escapes. A relaxed document may have what people and
 * Python write into DeepSpeed's files. A parsed document never changes.
 */
#ifndef BASE_JSON_READ_H
#define BASE_JSON_READ_H

#include "nvswap.h"

#define JSON_DEPTH_MAX 512 /* maximum nesting of objects and lists */
/* What a document takes of memory at most, beside its text of `nbytes`: a value needs two bytes. */
#define JSON_BYTES(nbytes) ((64u << 10) + 64 * (size_t)(nbytes))

enum json_type {
	JSON_NULL,
	JSON_FALSE,
	JSON_TRUE,
	JSON_NUMBER,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT,
	JSON_NONFINITE /* Infinity, -Infinity or NaN, of a relaxed document */
};

/* Where a token begins, both from 1; the column counts characters, not bytes. */
struct json_place {
	uint32_t line, column;
};

struct json_value {
	enum json_type type;
	uint32_t count; /* values in an array or object */
	struct json_place place;
	const char *raw; /* as written in the text, with quotes or brackets */
	size_t raw_length;
	const char *string; /* JSON_STRING: decoded, with a NUL behind it; may contain NULs */
	size_t length;
	bool lone_surrogate;	  /* JSON_STRING of a relaxed document: contains half of a \u pair,
				     decoded as U+FFFD */
	struct json_value *first; /* first value of an array or object, in the order of the text */
	struct json_value *next;  /* in the same array or object */

	/* of a member of an object; else NULL and 0 */
	const char *key; /* decoded, as `string` */
	size_t key_length;
	const char *key_raw; /* its opening quote in the text */
	struct json_place key_place;
	const struct json_value *earlier; /* an earlier member with the same key */

	const struct json_value *duplicate; /* JSON_OBJECT: its first member with an earlier one */
};

struct json_document;

/*
 * Parses `text`, which must outlive the document, in linear time. The document takes at most
 * memory_max bytes beside it. `name` stands for the text in errors: -EINVAL with line and column,
 * -EFBIG (deeper than JSON_DEPTH_MAX, or 4 GiB of text), -ENOMEM (memory_max, or malloc failed).
 */
int json_parse(struct json_document **document, const char *text, size_t nbytes, const char *name,
	       size_t memory_max, struct nvs_error *error);
/* The same for text that may also have comments (#, // and slash-star), a comma behind the last
 * member or value, a byte order mark, the Infinity, -Infinity and NaN that Python's json writes,
 * and
 * half of a \u pair. */
int json_parse_relaxed(struct json_document **document, const char *text, size_t nbytes,
		       const char *name, size_t memory_max, struct nvs_error *error);
void json_free(struct json_document *document); /* `document` may be NULL */
const struct json_value *json_root(const struct json_document *document);

/* The first member of that name; NULL: none, or `object` is NULL or not an object. */
const struct json_value *json_member(const struct json_value *object, const char *key);
bool json_is_string(const struct json_value *value, const char *text);

/* Reads a JSON_NUMBER as an integer, exactly, in any notation: 1e8, 100000000, 1.0. */
enum json_whole { JSON_WHOLE, JSON_FRACTION, JSON_NEGATIVE, JSON_TOO_LARGE };
enum json_whole json_read_whole(const struct json_value *number, uint64_t *whole);
/* Reads a JSON_NUMBER as the nearest double, in any locale. -ERANGE: out of range. -ENOMEM. */
int json_read_real(const struct json_value *number, double *real);

/* A file's name for errors: the end of a long one. */
const char *json_file_label(const char *name, char label[208]);

#endif
