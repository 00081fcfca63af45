/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan: prepare its jobs and report (command.c), forecast what they need (forecast.c),
 * run them in stages, each in a process of its own (stage.c). */
#ifndef CLI_BENCH_RUN_H
#define CLI_BENCH_RUN_H

#include "base/json/write.h"
#include "cli/jobs/jobs.h"

/* Checks that the file systems have the space that each stage of prepared jobs needs. -ENOSPC with
 * the path and what to do in *error, and the job's index; errno of nvs_path_get_info. */
int forecast_space(const struct bench_plan *plan, unsigned *index, struct nvs_error *error);
/* --dry-run: the forecast of each job, and the bytes of all. */
void forecast_write(struct json_writer *json, const struct bench_plan *plan);

/* Called at each --status-interval with the figures so far; results[i] is that of plan->jobs[i]. */
typedef void stages_status_fn(void *arg, const struct bench_result *const *results);
/* Runs all jobs. Sets results[i] to the result of plan->jobs[i], valid until the process ends, or
 * to NULL without memory. Returns 0; STATUS_FAILED if a job failed, or 128 + the signal, after
 * printing the reason. Forks, so the caller must not have started a thread. */
int stages_run(struct bench_plan *plan, const struct bench_result **results,
	       stages_status_fn *status, void *arg);
/* Prints a message, with the job's name if the plan has several jobs. */
void say_of_job(const struct bench_plan *plan, unsigned index, const char *text);

#endif
