/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares a job from its options: the configuration, its block with the paths, the model, and the
 * pool's size.
 */
#ifndef CLI_BENCH_PREPARE_H
#define CLI_BENCH_PREPARE_H

#include "cli/jobs/jobs.h"

/*
 * Fills in job->config, block and model; bench_release frees them. -EINVAL and others with *error;
 * -EDESTADDRREQ if no path is given.
 */
int bench_prepare(struct bench_job *job, struct nvs_error *error);
void bench_release(struct bench_job *job);

#endif
