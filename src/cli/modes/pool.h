/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of a job's pool: as --pool or the configuration has it, or else one that shows what the
 * mode is to show.
 */
#ifndef CLI_MODES_POOL_H
#define CLI_MODES_POOL_H

#include "cli/jobs/bench.h"
#include "config/config.h"

/*
 * Sets the buffers of the block to the size of the pool. -E2BIG where the pool can't hold what must
 * be in it at a time (the longest tensor, or with rw=params the longest layer), with the settings
 * that would do in *error.
 */
int pool_choose(const struct bench_options *options, const struct model *model,
		struct nvs_config *config, enum nvs_block block, struct nvs_error *error);
static inline struct offload_config *pool_block(struct nvs_config *config, enum nvs_block block)
{
	return &config->offload[block];
}

#endif
