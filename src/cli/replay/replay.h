/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Performs a list of accesses on an engine of its own: a mode of a job, as those in modes/.
 */
#ifndef CLI_REPLAY_REPLAY_H
#define CLI_REPLAY_REPLAY_H

#include "cli/jobs/jobs.h"
#include "config/config.h"

/*
 * Reads options.replay into job->accesses and job->model, and sets options.pool where neither it
 * nor a configuration is given. Errors are those of accesses_load. replay_release undoes it.
 */
int replay_load(struct bench_job *job, struct nvs_error *error);
void replay_release(struct bench_job *job);
/* -E2BIG where job->config's pool can't hold what the list has in use at once. */
int replay_check_pool(const struct bench_job *job, struct nvs_error *error);

struct job_watch; /* jobs/watch.h */

/* As the modes in modes/modes.h. */
int bench_replay(const struct bench_job *job, const struct nvs_config *config,
		 struct job_watch *watch, struct bench_result *result);

#endif
