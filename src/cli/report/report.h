/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run came to, in fio's three forms: text that reads as fio's, JSON that loads where fio's
 * loads, and terse lines. Jobs with group_reporting are told as one.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdio.h>

#include "compare.h"
#include "jobs.h"

/* What a drive did between two points, as /proc/diskstats has it. */
struct disk_use {
	char name[32];
	uint64_t ios[2], merges[2], ticks_ms[2], sectors[2]; /* by enum nvs_direction */
	uint64_t in_queue_ms, busy_ms, elapsed_ms;
};

#define REPORT_DISKS_MAX 32
/* The drives beneath the paths of a plan, and what stands on their counters. */
struct disk_watch {
	struct disk_use at[REPORT_DISKS_MAX];
	unsigned n;
	uint64_t since_ns;
};
void disks_begin(struct disk_watch *watch, const struct bench_plan *plan);
/* The counters become what came since; once for each beginning. */
void disks_end(struct disk_watch *watch);

struct bench_report {
	const struct bench_plan *plan;
	const struct bench_result *const *results; /* of each job of the plan */
	const struct disk_watch *disks;		   /* NULL: not known */
	const struct compare_row *compared;
	unsigned ncompared; /* 0: not asked for */
	bool status;	    /* in the middle of a run, by --status-interval */
};

/* 0, or -ENOMEM; whether everything was written, output_close() tells. */
int report_text(FILE *file, const struct bench_report *report);
int report_json(FILE *file, const struct bench_report *report);
int report_terse(FILE *file, const struct bench_report *report);

/* Figures that several forms tell. */
const char *bench_rw_name(unsigned rw);
double cpu_ms_per_gib(const struct bench_result *result);

#endif
