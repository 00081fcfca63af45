/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a run: text, and JSON in fio's form, which its tools read. Jobs with
 * group_reporting are reported as one.
 */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include <stdio.h>

#include "cli/jobs/jobs.h"

/* Counters of a drive from /proc/diskstats. */
struct disk_use {
	char name[32];
	uint64_t ios[2], merges[2], ticks_ms[2], sectors[2]; /* by enum nvs_direction */
	uint64_t in_queue_ms, busy_ms, elapsed_ms;
};

#define REPORT_DISKS_MAX 32
/* The drives under the paths of a plan. */
struct disk_watch {
	struct disk_use at[REPORT_DISKS_MAX];
	unsigned n;
	uint64_t since_ns;
};
/* Finds the drives and reads their counters. */
void disks_begin(struct disk_watch *watch, const struct bench_plan *plan);
/* Makes the counters those since disks_begin; once for each. */
void disks_end(struct disk_watch *watch);

struct bench_report {
	const struct bench_plan *plan;
	const struct bench_result *const *results; /* of each job of the plan */
	const struct disk_watch *disks;		   /* NULL: unknown */
	bool status;				   /* during a run, for --status-interval */
};

/* 0 or -ENOMEM; output_close() reports failed writes. */
int report_text(FILE *file, const struct bench_report *report);
int report_json(FILE *file, const struct bench_report *report);

/* Used beyond reports, too. */
double cpu_ms_per_gib(const struct bench_result *result);

#endif
