/* SPDX-License-Identifier: Apache-2.0 */
/* Performs a list of accesses on an engine of its own: a mode of a job, like those in modes/. */
#ifndef CLI_REPLAY_REPLAY_H
#define CLI_REPLAY_REPLAY_H

#include "cli/jobs/jobs.h"

/*
 * Reads options.replay into job->accesses and job->model, and sets options.pool if neither it nor a
 * configuration is given; replay_release frees them. Errors of accesses_load.
 */
int replay_load(struct bench_job *job, struct nvs_error *error);
void replay_release(struct bench_job *job);
/* -E2BIG if job->config's pool is smaller than the tensors in use at the same time. */
int replay_check_pool(const struct bench_job *job, struct nvs_error *error);

struct job_watch; /* jobs/watch.h */

/* A mode like those of modes/modes.h. */
int bench_replay(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);

#endif
