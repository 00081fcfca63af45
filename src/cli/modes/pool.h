/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of a job's pool: from --pool or the configuration, or else a default that suits the
 * mode and what memory the process may take.
 */
#ifndef CLI_MODES_POOL_H
#define CLI_MODES_POOL_H

#include "cli/jobs/bench.h"

/* The size of generated tensors if none is given: smaller than 64 MiB if memory is short. */
uint64_t pool_tensor_size(const struct bench_options *options);
/*
 * Sets the block's buffers to the size of the pool. -E2BIG if the pool is too small for the longest
 * tensor, or with rw=params for the longest layer, with sufficient settings in *error. -EINVAL if
 * the size is out of range.
 */
int pool_choose(const struct bench_options *options, const struct model *model,
		struct nvs_config *config, enum nvs_block block, struct nvs_error *error);

#endif
