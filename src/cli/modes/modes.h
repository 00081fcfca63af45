/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modes of a benchmark. Each opens what it needs, runs, and closes it; it returns 0 or a
 * negative errno, with a text in result->error if the errno alone is unclear.
 */
#ifndef CLI_MODES_MODES_H
#define CLI_MODES_MODES_H

#include "cli/jobs/jobs.h"

struct job_watch; /* watch.h; NULL: none */

/* Modes read, write, randread and randwrite. */
int bench_blocks(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);
/*
 * Makes a file to work on, also that of `nvswap tune`. It has no name, so that nothing is left of it
 * however the process ends, and `nbytes` are reserved where the file system can. Returns the
 * descriptor. -ENOSPC and other errors of making a file.
 */
int make_scratch_file(const char *directory, uint64_t nbytes, struct nvs_error *error);
int bench_swap(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);
int bench_step(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);
/* Computing in a visit is a span of the job's trace. */
int bench_params(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);

#endif
