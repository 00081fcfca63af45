/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a plan, and one of its jobs.
 */
#ifndef CLI_BENCH_RUN_H
#define CLI_BENCH_RUN_H

#include "cli/jobs/watch.h"

/* Prepares the jobs of a plan, runs them and reports; frees the plan. Returns the exit status. */
int bench_run_plan(struct bench_plan *plan);
/*
 * Runs a prepared job and returns result->error.code. After SIGINT or SIGTERM it stops at the next
 * batch.
 */
int bench_run(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);

#endif
