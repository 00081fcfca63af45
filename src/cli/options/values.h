/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parser's parts hand each other: a text that was given for an option, on its way to a
 * value.
 */
#ifndef CLI_OPTIONS_VALUES_H
#define CLI_OPTIONS_VALUES_H

#include "options.h"

struct option_source {
	const struct option_spec *spec;
	const char *where; /* file and line; NULL: typed */
	const char *text;  /* NULL: none */
};

/* Stores the value where `at` says. -EINVAL after saying what is wrong with it. */
int option_store(const struct option_source *source, void *at);
/* Of the value that an option of this type is stored as. */
size_t option_value_bytes(enum option_type type);

/* Whether names are equal up to - and _. */
bool option_names_equal(const char *a, const char *b);

#endif
