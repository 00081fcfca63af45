/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio beside nvswap: the same jobs as an fio command, run in turn with nvswap's, and what the two
 * came to side by side.
 */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include <stdio.h>

#include "jobs.h"

/* What one of the two came to in a round of a job; its clones added up. */
struct compare_figures {
	uint64_t bytes[2]; /* by enum nvs_direction */
	double bytes_per_s[2], iops[2];
	double p50_ns[2], p99_ns[2]; /* completion latency of an I/O */
	double cpu_ms_per_gib;	     /* of nvswap's processes; of the threads of fio's jobs */
};

struct compare_row {
	char job[JOB_NAME_MAX + 1];
	unsigned rounds;
	struct compare_figures ours, theirs; /* medians over the rounds */
	double ratio; /* of bytes a second, both directions together; median of the rounds' */
};

struct stages;

/*
 * Runs the plan, which was prepared, `rounds` times with fio in turn. *stages and results are those
 * of the last of nvswap's runs, as stages_run has them. rows has room for plan->n; *nrows are
 * filled, none where it failed. Returns the exit status, after saying what is wrong: fio is not
 * there or fails, or a job is of a kind that fio has not (step, params, striped, verified).
 */
int compare_run(struct bench_plan *plan, struct stages **stages,
		const struct bench_result **results, struct compare_row *rows, unsigned *nrows);
void compare_text(FILE *file, const struct compare_row *rows, unsigned nrows);

/* ---- The parts of it */

/* How many jobs from plan->jobs[first] on are one to fio: it and its clones. */
unsigned compare_clones(const struct bench_plan *plan, unsigned first);
/* 0, or -ENOTSUP with the reason where fio can't do the same. */
int compare_check(const struct bench_plan *plan, struct nvs_error *error);
/*
 * The plan as a job file of fio's, malloc'ed into *text: section `run`-I for the job I and its
 * clones. `results` say which engine each job took. -ENOMEM.
 */
int compare_fio_jobs(const struct bench_plan *plan, const struct bench_result *const *results,
		     const char *run, bool huge_pages, bool fixed_buffers, char **text);
/* Removes what fio left of the files of that job file: nothing, where it came to its end. */
void compare_fio_remove(const struct bench_plan *plan, const char *run);
/*
 * Runs fio on a job file and gives what it wrote to standard output, malloc'ed and ended by a zero.
 * -ENOENT: it is not installed; -EINTR: asked to end, as fio was; -EIO: it failed.
 */
int compare_fio_run(const char *jobs, char **json, struct nvs_error *error);
/* Figures of the I-th job of fio's JSON into figures[I], for n. -EINVAL where it isn't that. */
int compare_fio_read(const char *json, struct compare_figures *figures, unsigned n,
		     struct nvs_error *error);

#endif
