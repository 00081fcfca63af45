/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap compare`: results side by side. The first is the base; the jobs of the others are matched
 * to its jobs. What is read stays in memory until the command ends. */
#ifndef CLI_COMPARE_COMPARE_H
#define CLI_COMPARE_COMPARE_H

#include "base/json/read.h"
#include "cli/options/options.h"

extern const struct command_spec compare_command;

#define RUNS_MAX 64 /* of a side */
/* What a file of results of `nbytes` takes of memory at most. */
#define RESULTS_BYTES(nbytes) (JSON_BYTES(nbytes) + 256 * (size_t)(nbytes))
#define METRICS		      9

/* Members of fio's JSON: a rate, and the statistics of its samples. */
struct rate {
	const char *value, *mean, *deviation, *samples;
};

/* The figures of a job, in the order in which they are shown: name, unit, and where they stand. */
struct metric {
	const char *name, *unit;
	const char *key;	 /* in JSON output; values are in fio's units there */
	double scale;		 /* from fio's unit to `unit` */
	const char *direction;	 /* of fio's JSON; NULL: CPU time */
	const struct rate *rate; /* NULL: a latency */
	const char *percentile;	 /* of clat_ns */
};
extern const struct metric metrics[METRICS];

/* A figure, of one run or several, and how well it is known. */
struct estimate {
	double value;	/* 0: none */
	double error;	/* standard error, as a share of the value */
	double freedom; /* degrees of it; below 1: the error is not known */
};

/* A figure of a job over the runs of a side. Half widths are of 95 % intervals. */
struct cell {
	struct estimate estimate;
	double half_width; /* in per cent of the value; NAN: unknown */
	/* From the base, in per cent of it; NAN: base or this has no value, or unknown. */
	double change, change_half_width;
	const char *verdict;   /* "faster", "same" and so on */
	bool beyond_threshold; /* worse or better, and by more than that */
};

struct compare_job {
	const struct json_value *json; /* NULL: missing */
	struct estimate figures[METRICS];
};

/* A result: one run, or several of the same settings. */
struct compare_side {
	char *label;		   /* printable */
	struct compare_job **runs; /* the jobs of each file, in the order of the base's */
	struct results *results;   /* of the files */
	unsigned nruns;
	struct cell (*cells)[METRICS]; /* of each job of the base */
};

struct comparison {
	struct compare_side *sides;
	unsigned nsides;
	const struct json_value *base; /* the jobs of the first file */
	double threshold;	       /* per cent */
	bool by_order;		       /* a side shares no job name with the base */
	bool slower;		       /* a rate or latency is worse, beyond threshold and noise */
};

/* Operands are FILE[,FILE...] or LABEL=FILE[,FILE...]; an operand that is an existing file is never
 * split. Returns STATUS_USAGE after reporting an unreadable file. */
int comparison_read(struct comparison *comparison, char **operands, unsigned n);
/* Whether any side has a value. */
bool comparison_has(const struct comparison *comparison, unsigned job, unsigned metric);
/* A job's name, printable; valid until the next call. */
const char *comparison_job_name(const struct comparison *comparison, unsigned job);

#endif
