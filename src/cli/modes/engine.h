/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a benchmark with the model's tensors in it: opening, verifying, closing.
 */
#ifndef CLI_MODES_ENGINE_H
#define CLI_MODES_ENGINE_H

#include "cli/jobs/bench.h"
#include "cli/modes/model/pattern.h"

struct bench_engine {
	struct nvs_engine *engine;   /* NULL: opening failed */
	struct nvs_tensor **tensors; /* in the order of the model */
	uint64_t pool_bytes;
	struct nvs_error difference; /* the first difference found */
};

/* Errors are in result->error. Call bench_engine_close afterwards, whatever is returned. */
int bench_engine_open(struct bench_engine *opened, const struct nvs_config *config,
		      enum nvs_block block, const struct model *model, struct bench_result *result);
/*
 * Compares tensors [first, first + n), which are pinned, with their pattern. Differences are
 * counted in *result, and the first of them is kept; other errors are returned.
 */
int bench_engine_compare(struct bench_engine *opened, const struct pattern *pattern, size_t first,
			 size_t n, uint32_t generation, struct bench_result *result);
/* Returns rc, or, if that is 0 and contents differed, -EBADMSG with the first difference. */
int bench_engine_verdict(const struct bench_engine *opened, int rc, struct bench_result *result);
/*
 * Stores the engine's statistics and closes it. Returns rc, or, if that is 0, the error of closing.
 */
int bench_engine_close(struct bench_engine *opened, int rc, struct bench_result *result);
/* Explains -EEXIST, a kept store. Returns rc. */
int bench_opened(int rc, struct nvs_error *error);

#endif
