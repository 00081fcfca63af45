/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options as data: from one table follow the parser, its errors, the text of --help, the manual
 * page and the completion.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

/* The type says what the value is stored as, at `offset` of the structure of values. */
enum option_type {
	OPTION_FLAG,	    /* bool; takes no argument, or 0 or 1, or one of the choices if it has
			       any, of which the first is off */
	OPTION_COUNT,	    /* uint64_t */
	OPTION_SIZE,	    /* uint64_t, bytes: 4096, 4k, 1M, 1gb, 1GiB; factors of 1024 */
	OPTION_AMOUNT,	    /* struct option_amount, bytes as OPTION_SIZE or a share: 50% */
	OPTION_DURATION,    /* uint64_t, milliseconds: 30, 30s, 500ms, 2000us, 5m, 1h, 1d */
	OPTION_SHARE,	    /* double, above 0 to 1 */
	OPTION_CHOICE,	    /* unsigned, index into choices */
	OPTION_MODE,	    /* struct option_mode: a choice, and what follows a colon: randread:8 */
	OPTION_STRING,	    /* const char *, not empty but where may_be_empty */
	OPTION_LIST,	    /* struct option_list; may be typed several times, or with : between;
			       one in a name is typed \: */
	OPTION_SIZES,	    /* uint64_t[2], bytes by enum nvs_direction: 4k for both, or 4k,8k; 0 of
			       one that is left out */
	OPTION_MIX,	    /* struct option_mix[2] by enum nvs_direction, fio's bssplit:
			       64k/70:1m/30; what has no share gets an equal part of what is left of
			       100. For both, or 4k/50:8k/50,64k/100; n is 0 of one left out */
	OPTION_RATES,	    /* as OPTION_SIZES, bytes a second */
	OPTION_PERCENTILES, /* struct option_percentiles: 50:99:99.9; rising however given */
	OPTION_CHOICES,	    /* unsigned, a bit for each of the choices: normal,json */
	OPTION_PERCENT,	    /* double, 0 to 100: 2, 0.5 */
};

/* Where an option may stand. */
enum option_scope {
	OPTION_OF_JOB,	/* on the command line, in [global], and in the section of a job */
	OPTION_OF_RUN,	/* on the command line and in [global] */
	OPTION_OF_LINE, /* on the command line alone */
	OPTION_OF_FILE, /* in a job file alone, any section: stonewall, new_group */
};

#define OPTION_MIX_MAX	       64
#define OPTION_PERCENTILES_MAX 20 /* as fio has it */

struct option_mix {
	uint64_t nbytes[OPTION_MIX_MAX];
	double percent[OPTION_MIX_MAX]; /* 100 together */
	unsigned n;			/* 0: none was given */
};

/* One of the two is given; both 0: none was. */
struct option_amount {
	uint64_t nbytes;
	uint64_t percent; /* 1 to 100 */
};

struct option_mode {
	unsigned choice;
	uint64_t suffix; /* a number, or bytes as OPTION_SIZE; 0: none was given */
};

struct option_percentiles {
	double at[OPTION_PERCENTILES_MAX];
	unsigned n;
};

struct option_list {
	const char *items[NVS_PATHS_MAX];
	unsigned n;
};

#define OPTIONS_MAX 96

struct option_spec {
	const char *name;     /* without the dashes; - and _ are the same in it */
	const char *argument; /* what it stands for in the help; NULL for a flag */
	enum option_type type;
	size_t offset;
	uint64_t min, max;	     /* of counts, sizes, amounts of bytes and durations */
	uint64_t multiple;	     /* that a size must be of; 0: any */
	const char *const *choices;  /* up to a NULL */
	const char *const *excludes; /* options it can't stand beside, up to a NULL; or NULL */
	const char *help;	     /* with line breaks where it has several lines */
	enum option_scope scope;
	const char *const *aliases; /* its other names, fio's for one, up to a NULL; or NULL */
	/* Pairs of another word for a choice and the choice, up to a NULL; or NULL. */
	const char *const *synonyms;
	bool may_be_empty;  /* a string; a bare key of a job file is an empty one */
	const char *manual; /* mdoc, for the manual page in place of `help`; or NULL */
};

struct command_spec {
	const char *name;    /* as it is typed after "nvswap" */
	const char *summary; /* what it does; a paragraph of the help */
	const char *notes;   /* a paragraph after the options; or NULL */
	const char
		*operand; /* what arguments beside options are, such as "[FILE.ini]..."; or NULL */
	const struct option_spec *options;
	unsigned noptions;
	const void *defaults; /* the structure of values where nothing is given */
};

/* The text of each option that was given, by index in the table; NULL: it was not. */
struct options_given {
	const char *text[OPTIONS_MAX];
	char **operands; /* what was typed beside options */
	unsigned noperands;
};

enum { OPTIONS_HELP = 1 };
/*
 * Parses what follows argv[0] into *values, which begins as the defaults. 0; OPTIONS_HELP where
 * --help was asked for; -EINVAL after saying on standard error what is wrong. Names may be typed
 * with _ for - too. Orders argv anew where operands stand before options.
 */
int options_parse(const struct command_spec *command, int argc, char **argv, void *values,
		  struct options_given *given);
/* Writes the help to standard output; returns the exit status. */
int options_help(const struct command_spec *command);

/* The option of that name or alias; NULL: there is none. */
const struct option_spec *options_find(const struct command_spec *command, const char *name);

/*
 * Gives an option of a job file its value (NULL: a bare key), over what it has; options that it
 * excludes lose theirs. -ENOENT if there is none of that name or alias, with nothing said; -EINVAL
 * after saying what is wrong, beginning with `where` ("jobs.ini:12"). The text of value is kept,
 * not copied.
 */
int options_set(const struct command_spec *command, const char *key, const char *value,
		const char *where, void *values, struct options_given *given);

/* Gives *to all that was given of *from, over what it has, as options_set does. */
void options_copy(const struct command_spec *command, const void *from,
		  const struct options_given *from_given, void *to, struct options_given *to_given);

/* -EINVAL, said, if of two options that exclude each other both were given. */
int options_check_exclusions(const struct command_spec *command, const struct options_given *given,
			     const char *where);

/* Frees what lists of several names in one text lie in; their items are gone. */
void options_forget_lists(void);

/* Of all names, the one that `text` was most likely meant to be; NULL if none is near. */
const char *nearest_name(const char *text, const char *const *names, unsigned n);

#endif
