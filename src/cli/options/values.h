/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Within the parser: an option's text and where it was given.
 */
#ifndef CLI_OPTIONS_VALUES_H
#define CLI_OPTIONS_VALUES_H

#include "cli/options/options.h"

struct option_source {
	const struct option_spec *spec;
	const char *where; /* file and line; NULL: the command line */
	const char *text;  /* NULL: none */
};

/* Stores the value at `at`. -EINVAL after printing the reason. */
int option_store(const struct option_source *source, void *at);
/* Size of the stored value. */
size_t option_value_bytes(enum option_type type);

/* Whether the names are equal, with - and _ equal. */
bool option_names_equal(const char *a, const char *b);

#endif
