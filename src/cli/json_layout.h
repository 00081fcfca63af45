/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in the text of a JSON document its top-level members stand, and those of chosen blocks
 * among them: what has to be known to change a value and leave every other byte.
 */
#ifndef CLI_JSON_LAYOUT_H
#define CLI_JSON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes from `at` up to, and not with, `end`. An `end` of 0: it is not there. */
struct json_span {
	size_t at, end;
};

#define JSON_LAYOUT_KEYS 8

struct json_object {
	const char *const *keys; /* that are looked for, up to a NULL; the caller's */
	struct json_span values[JSON_LAYOUT_KEYS];
	struct json_span text; /* from its { to behind its } */
	unsigned members;
	struct json_span last_key, last_value;
};

struct json_layout {
	struct json_object root;
	struct json_object *blocks; /* by index of root.keys; the caller's */
};

/*
 * Fills in the layout of a text that is known to be JSON with an object at its top. -ENOMEM, or
 * -EINVAL where it was no such text after all.
 */
int json_layout(struct json_layout *layout, const char *text, size_t nbytes);

#endif
