/* SPDX-License-Identifier: Apache-2.0 */
/* Options as data: one table drives the parser, its errors, --help, the manual page and the
 * completion. */
#ifndef CLI_OPTIONS_OPTIONS_H
#define CLI_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json/write.h"
#include "nvswap.h"

/* The type of the value stored at `offset` in the structure of values. */
enum option_type {
	OPTION_FLAG,	 /* bool; takes no argument, or 0 or 1; only 1 where min is 1 */
	OPTION_COUNT,	 /* uint64_t */
	OPTION_SIZE,	 /* uint64_t, bytes: 4096, 4k, 1M, 1gb, 1GiB; factors of 1024 */
	OPTION_DURATION, /* uint64_t, milliseconds: 30, 30s, 500ms, 2000us, 5m, 1h, 1d */
	OPTION_SHARE,	 /* double, above 0 to 1 */
	OPTION_CHOICE,	 /* unsigned, index into choices */
	OPTION_STRING,	 /* const char *, not empty */
	OPTION_LIST,	 /* struct option_list; given several times, or separated by : */
	OPTION_CHOICES,	 /* unsigned, a bit per choice: normal,json */
	OPTION_PERCENT,	 /* double, 0 to 100: 2, 0.5 */
};

enum option_scope {
	OPTION_OF_JOB,	/* on the command line, in [global], and in the section of a job */
	OPTION_OF_RUN,	/* on the command line and in [global] */
	OPTION_OF_LINE, /* on the command line alone */
	OPTION_OF_FILE, /* in a job file alone, any section: stonewall, new_group */
};

struct option_list {
	const char *items[NVS_PATHS_MAX];
	unsigned n;
};

#define OPTIONS_MAX 96

extern const char *ioengine_names[];

struct option_spec {
	const char *name;     /* without dashes; - and _ are equal */
	const char *argument; /* its value's name in the help; NULL for a flag */
	enum option_type type;
	size_t offset;
	uint64_t min, max;	     /* of counts, sizes and durations */
	uint64_t multiple;	     /* of a size; 0: any */
	const char *const *choices;  /* ended by NULL */
	const char *const *fios;     /* values that only fio has, ended by NULL; or NULL */
	const char *const *excludes; /* options it excludes, ended by NULL; or NULL */
	unsigned modes;	  /* a bit for each rw of bench, or action of store, that has it; 0: all */
	const char *help; /* shown wrapped; a line break is a blank */
	enum option_scope scope;
	const char *const *aliases; /* other names, ended by NULL; or NULL */
};

struct command_spec {
	const char *name;    /* the word after "nvswap" */
	const char *summary; /* a paragraph of the help */
	const char *notes;   /* a paragraph after the options; or NULL */
	const char *operand; /* the other arguments, such as "[FILE.ini]..."; or NULL */
	const struct option_spec *options;
	unsigned noptions;
	const void *defaults; /* the structure of values when no option is given */
};

/* The text of each option, by index in the table; NULL: not given. */
struct options_given {
	const char *text[OPTIONS_MAX];
	char **operands; /* arguments that are no options */
	unsigned noperands;
};

enum { OPTIONS_HELP = 1 };
/* Parses the arguments after argv[0] into *values, which must hold the defaults. Returns 0;
 * OPTIONS_HELP for --help; -EINVAL after printing the reason. Moves operands to the beginning of
 * argv, and cuts the texts of lists. */
int options_parse(const struct command_spec *command, int argc, char **argv, void *values,
		  struct options_given *given);
/* Writes the help to standard output; returns the exit status. */
int options_help(const struct command_spec *command);

/* Fills lines of at most 80 columns from `indent` on; an empty line separates paragraphs. */
void write_wrapped(FILE *file, const char *text, size_t indent);

/* The option of that name or alias, or NULL. */
const struct option_spec *options_find(const struct command_spec *command, const char *name);
/* The nearest name of an option that is not of the scope; or NULL. */
const char *options_nearest(const struct command_spec *command, const char *name,
			    enum option_scope without);
bool options_exclude(const struct option_spec *a, const struct option_spec *b);

/* Writes "a, b and c" from names that end with NULL. Returns their number. */
unsigned join_names(const char *const *names, char text[384]);
bool option_names_equal(const char *a, const char *b);
/* The name, and from k = 1 on its aliases; NULL after them. */
static inline const char *option_name(const struct option_spec *spec, unsigned k)
{
	return !k ? spec->name : spec->aliases ? spec->aliases[k - 1] : NULL;
}

/* Sets an option from a job file; value NULL is a bare key. Options that it excludes get their
 * defaults back. Returns -ENOENT, silently, for an unknown name; -EINVAL after printing the reason,
 * which begins with `where` ("jobs.ini:12"). Keeps the value's text, and cuts a list's. */
int options_set(const struct command_spec *command, const char *key, char *value, const char *where,
		void *values, struct options_given *given);

size_t option_value_bytes(enum option_type type);

struct unit {
	const char *name; /* in any case; NULL ends the table */
	uint64_t factor;
};
extern const struct unit size_units[], time_units[]; /* of bytes; of nanoseconds */
/* Reads "4k" or "2.5e3ms". False: no number with such a unit, not whole, or above 64 bits. */
bool read_amount(const char *text, const struct unit *units, uint64_t *value);

/* --output-format and --output of the commands that write one report, as text or JSON. */
enum report_format { REPORT_NORMAL, REPORT_JSON };

struct report_options {
	unsigned format;    /* enum report_format */
	const char *output; /* a file; NULL: standard output */
};

extern const char *const report_formats[];

static inline struct json_writer report_writer(const struct report_options *options, FILE *file)
{
	return options->format == REPORT_JSON ? json_to(file, 4) : json_as_text(file);
}

/* The two rows of a table of options; `place` is the offset of a struct report_options. */
#define REPORT_OPTIONS(place)                                                                      \
	{.name = "output-format",                                                                  \
	 .argument = "FORMAT",                                                                     \
	 .type = OPTION_CHOICE,                                                                    \
	 .offset = (place) + offsetof(struct report_options, format),                              \
	 .choices = report_formats,                                                                \
	 .help = "normal (the default) or json"},                                                  \
	{                                                                                          \
		.name = "output", .argument = "FILE", .type = OPTION_STRING,                       \
		.offset = (place) + offsetof(struct report_options, output),                       \
		.help = "write the report to FILE instead of standard output",                     \
	}

#endif
