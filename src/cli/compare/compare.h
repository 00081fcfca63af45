/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap compare`: results side by side. The first result is the base; the jobs of the others are
 * matched to its jobs.
 */
#ifndef CLI_COMPARE_COMPARE_H
#define CLI_COMPARE_COMPARE_H

#include <stdio.h>

#include "cli/compare/verdict.h"
#include "cli/options/options.h"

extern const struct command_spec compare_command;

#define RUNS_MAX 64 /* of a side */

/* A file, and its jobs in the order of the base's. */
struct compare_run {
	struct results results;
	const struct json_value **jobs; /* NULL: missing */
	struct job_figures *figures;	/* zero where missing */
};

/* A result: one run, or several of the same settings. */
struct compare_side {
	char *label; /* printable */
	struct compare_run *runs;
	unsigned nruns;
};

struct comparison {
	struct compare_side *sides;
	unsigned nsides;
	char **jobs; /* names of the base's jobs, printable */
	unsigned njobs;
	double threshold; /* per cent */
	bool by_order;	  /* a side shares no job name with the base */
};

/* The figures of a job, in the order in which they are shown. */
enum figure { BANDWIDTH, IOPS, LATENCY_P50, LATENCY_P99, CPU_TIME };
struct metric {
	enum figure figure;
	enum nvs_direction direction; /* of rates and latencies */
	const char *name, *unit;
	const char *key; /* in JSON output; values are in fio's units there */
	double scale;	 /* from fio's unit to `unit` */
	bool less_is_better;
};
#define METRICS 9
extern const struct metric metrics[METRICS];

/*
 * Operands are FILE[,FILE...] or LABEL=FILE[,FILE...]; an operand that is an existing file is never
 * split. Returns STATUS_USAGE after reporting an unreadable file; call comparison_free even then.
 */
int comparison_read(struct comparison *comparison, char **operands, unsigned n);
void comparison_free(struct comparison *comparison);

/* Over the runs of a side that have the job; value 0: none has. */
struct estimate comparison_estimate(const struct comparison *comparison, unsigned side,
				    unsigned job, const struct metric *metric);
/* From the base to another side. */
struct change comparison_change(const struct comparison *comparison, unsigned side, unsigned job,
				const struct metric *metric);
/* Whether any side has a value. */
bool comparison_has(const struct comparison *comparison, unsigned job, const struct metric *metric);
/* "faster", "same" and so on. */
const char *verdict_name(const struct metric *metric, enum verdict verdict);
/* Sentences that explain the output. */
void comparison_notes(const struct comparison *comparison, char notes[512]);

void compare_text(FILE *file, const struct comparison *comparison);
void compare_json(FILE *file, const struct comparison *comparison);

#endif
