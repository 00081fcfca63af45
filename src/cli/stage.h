/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the jobs of a plan: a process for each, so that processor time, memory and faults are its
 * own, as those of ranks are. Jobs of a stage open and fill first, and begin to measure together;
 * stages follow each other. What is in flight everywhere ends where it is when a signal comes.
 */
#ifndef CLI_STAGE_H
#define CLI_STAGE_H

#include "job_watch.h"

/* Told of what was measured so far, as --status-interval asks; results[i] is that of plan->jobs[i].
 */
typedef void stages_status_fn(void *arg, const struct bench_result *const *results);

/*
 * Runs all. results[i] becomes that of plan->jobs[i], in memory that stays until stages_free(),
 * which comes after it whatever is returned; NULLs where there is no memory for them. 0, or
 * STATUS_FAILED where a job failed, or 128 + the signal, after saying why. No thread may have been
 * made before, for it forks.
 */
struct stages;
int stages_run(struct stages **stages, struct bench_plan *plan, const struct bench_result **results,
	       stages_status_fn *status, void *arg);
void stages_free(struct stages *stages);
/* Says it, and of which job where there are several. */
void say_of_job(const struct bench_plan *plan, unsigned index, const char *text);

#endif
