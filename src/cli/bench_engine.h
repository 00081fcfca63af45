/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a benchmark, with the model's tensors in it, from opening to closing.
 */
#ifndef CLI_BENCH_ENGINE_H
#define CLI_BENCH_ENGINE_H

#include "bench.h"

struct bench_engine {
	struct nvs_engine *engine;   /* NULL: it did not open */
	struct nvs_tensor **tensors; /* in the order of the model */
	uint64_t pool_bytes;
};

/* Errors are result->error. bench_engine_close comes after it, whatever is returned. */
int bench_engine_open(struct bench_engine *opened, const struct nvs_config *config,
		      enum nvs_block block, const struct model *model, struct bench_result *result);
/* Notes the engine's statistics and closes it. Returns rc, or the error of closing if that is 0. */
int bench_engine_close(struct bench_engine *opened, int rc, struct bench_result *result);
/* Says of -EEXIST what it means to a benchmark. Returns rc. */
int bench_opened(int rc, struct nvs_error *error);

#endif
