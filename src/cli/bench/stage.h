/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the jobs of a plan, each in its own process like a rank, so that processor time, memory and
 * page faults are its own. Jobs of a stage open and fill first and begin to measure together;
 * stages run one after another. A signal ends all jobs at their next batch.
 */
#ifndef CLI_BENCH_STAGE_H
#define CLI_BENCH_STAGE_H

#include "cli/jobs/watch.h"

/* Called at each --status-interval with the figures so far; results[i] is that of plan->jobs[i]. */
typedef void stages_status_fn(void *arg, const struct bench_result *const *results);

/*
 * Runs all jobs. Sets results[i] to the result of plan->jobs[i], valid until stages_free(), or to
 * NULL without memory. Always call stages_free() afterwards. Returns 0; STATUS_FAILED if a job
 * failed, or 128 + the signal, after printing the reason. Forks, so the caller must not have
 * started a thread.
 */
struct stages;
int stages_run(struct stages **stages, struct bench_plan *plan, const struct bench_result **results,
	       stages_status_fn *status, void *arg);
void stages_free(struct stages *stages);
/* Prints a message, with the job's name if the plan has several jobs. */
void say_of_job(const struct bench_plan *plan, unsigned index, const char *text);

#endif
