/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options as data: from one table follow the parser, its errors and the text of --help.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

/* The type says what the value is stored as, at `offset` of the structure of values. */
enum option_type {
	OPTION_FLAG,	 /* bool; takes no argument */
	OPTION_COUNT,	 /* uint64_t */
	OPTION_SIZE,	 /* uint64_t, bytes: 4096, 4k, 1M, 1g, 1GiB; factors of 1024 */
	OPTION_DURATION, /* uint64_t, milliseconds: 30, 30s, 500ms, 5m, 1h */
	OPTION_SHARE,	 /* double, above 0 to 1 */
	OPTION_CHOICE,	 /* unsigned, index into choices */
	OPTION_STRING,	 /* const char *, not empty */
	OPTION_LIST,	 /* struct option_list; may be given several times */
};

struct option_list {
	const char *items[NVS_PATHS_MAX];
	unsigned n;
};

#define OPTIONS_MAX 32

struct option_spec {
	const char *name;     /* without the dashes */
	const char *argument; /* what it stands for in the help; NULL for a flag */
	enum option_type type;
	size_t offset;
	uint64_t min, max;	     /* of counts, sizes and durations */
	uint64_t multiple;	     /* that a size must be of; 0: any */
	const char *const *choices;  /* up to a NULL */
	const char *const *excludes; /* options it can't stand beside, up to a NULL; or NULL */
	const char *help;	     /* with line breaks where it has several lines */
};

struct command_spec {
	const char *name;    /* as it is typed after "nvswap" */
	const char *summary; /* what it does; a paragraph of the help */
	const char *notes;   /* a paragraph after the options; or NULL */
	const struct option_spec *options;
	unsigned noptions;
};

/* The text of each option that was given, by index in the table; NULL: it was not. */
struct options_given {
	const char *text[OPTIONS_MAX];
};

enum { OPTIONS_HELP = 1 };
/*
 * Parses what follows argv[0] into *values, which holds the defaults. 0; OPTIONS_HELP where --help
 * was asked for; -EINVAL after saying on standard error what is wrong.
 */
int options_parse(const struct command_spec *command, int argc, char **argv, void *values,
		  struct options_given *given);
/* Writes the help to standard output; returns the exit status. */
int options_help(const struct command_spec *command);

/* Of all names, the one that `text` was most likely meant to be; NULL if none is near. */
const char *nearest_name(const char *text, const char *const *names, unsigned n);

#endif
