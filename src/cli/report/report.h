/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a run: text, and JSON in fio's form. An entry is a job, or neighbouring jobs of
 * the plan with group_reporting added up as one. */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include <stdio.h>

#include "cli/jobs/jobs.h"

struct bench_report {
	const struct bench_plan *plan;
	const struct bench_result *const *results; /* of each job of the plan */
	bool status;				   /* during a run, for --status-interval */
};

/* output_close() reports failed writes. */
void report_text(FILE *file, const struct bench_report *report);
void report_json(FILE *file, const struct bench_report *report);

/* Figures of a direction, by fio's definitions. */
struct report_way {
	/* The longest window of jobs that moved anything this way: the base of rates. */
	uint64_t window_ns;
	uint64_t runtime_ms; /* the same rounded up; 0 if nothing moved */
	double bytes_per_s, iops;
	/* Of all jobs with the same groupid, also outside the entry: */
	uint64_t all_bytes;
	double all_bytes_per_s;
};

/* Too large for a stack. */
struct report_group {
	const struct bench_job *job;	 /* the first, for name and options */
	unsigned njobs;			 /* starting with it */
	bool one_mode;			 /* all have the same rw */
	unsigned asked_verify, compared; /* jobs with verify, and those that compared something */
	uint64_t verify_errors;		 /* of the command and of the engine */
	uint64_t run_ns;		 /* sum of all windows, the base of CPU shares */
	struct report_way way[2];	 /* by enum nvs_direction */
	struct bench_result result;	 /* its window is the longest */

	/* Of jobs that all ran steps of one kind: */
	bool has_steps;
	double hidden_share;  /* the hidden part of the shorter of I/O and compute */
	uint64_t rest_bytes;  /* peak memory without pool, state and the caller's own */
	const char *no_moves; /* why the steps show nothing of swapping; NULL: they do */
};

/* Advances to the next entry, or if the group has no job to the first; false at the end. */
bool report_group_next(const struct bench_report *report, struct report_group *group);

/* CPU time of the whole process per GiB moved in both directions together, without generating and
 * comparing contents and without an optimizer's updates and norm. */
double cpu_ms_per_gib(const struct bench_result *result);
double samples_mean(const struct bench_samples *samples);
double samples_stddev(const struct bench_samples *samples);
/* The mean over the measured steps of a sum. */
double per_step(const struct report_group *group, uint64_t sum);

#endif
