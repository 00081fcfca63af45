/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a plan's jobs with fio, for `bench --compare`: the job file, fio's process and its figures.
 */
#ifndef CLI_FIO_FIO_H
#define CLI_FIO_FIO_H

#include "cli/compare/results.h"
#include "cli/jobs/jobs.h"

/* How many jobs from plan->jobs[first] on are one job of fio's: it and its clones. */
unsigned fio_clones(const struct bench_plan *plan, unsigned first);
/* 0, or -ENOTSUP with the reason if fio can't do the same. */
int fio_check(const struct bench_plan *plan, struct nvs_error *error);
/*
 * The plan as a job file of fio's, malloc'ed into *text: section `run`-I for the job I and its
 * clones. `results` say which engine each job used. -ENOMEM.
 */
int fio_job_file(const struct bench_plan *plan, const struct bench_result *const *results,
		 const char *run, bool huge_pages, bool fixed_buffers, char **text);
/* Removes the files that fio made for that job file, if it was ended before it removed them. */
void fio_remove_files(const struct bench_plan *plan, const char *run);
/*
 * Runs fio on a job file and returns its standard output, malloc'ed and NUL-terminated. -ENOENT:
 * not installed; -EINTR: this process and fio were asked to end; -EIO: it failed.
 */
int fio_run(const char *jobs, char **json, struct nvs_error *error);
/* Figures of each of fio's n jobs. Frees `json`. -EINVAL: it has others, or one failed. */
int fio_read(char *json, struct job_figures *figures, unsigned n, struct nvs_error *error);

#endif
