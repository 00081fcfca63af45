/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a job's options to what it runs with: the configuration, the block of it that says where to,
 * the model, and a pool that suits both.
 */
#ifndef CLI_BENCH_PREPARE_H
#define CLI_BENCH_PREPARE_H

#include "jobs.h"

/*
 * Fills in job->config, block and model; bench_release undoes it. -EINVAL and others with *error;
 * -EDESTADDRREQ where nothing says where to swap to.
 */
int bench_prepare(struct bench_job *job, struct nvs_error *error);
void bench_release(struct bench_job *job);

#endif
