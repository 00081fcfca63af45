/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a benchmark with the model's tensors in it: opening, filling, verifying, closing.
 */
#ifndef CLI_MODES_ENGINE_H
#define CLI_MODES_ENGINE_H

#include "cli/jobs/jobs.h"
#include "cli/modes/model/pattern.h"

struct bench_engine {
	struct nvs_engine *engine;   /* NULL: opening failed */
	struct nvs_tensor **tensors; /* in the order of the model */
	const struct model *model;
	struct bench_result *result;
	uint64_t pool_bytes;
	struct nvs_error difference; /* the first difference found */
};

/* Errors are in result->error. Call bench_engine_close afterwards, whatever is returned. */
int bench_engine_open(struct bench_engine *opened, const struct bench_job *job,
		      struct bench_result *result);
/*
 * Neighbours from tensor `first` on that move together: a part of the pool, but no more than keeps a
 * drive busy, nor than a fraction of a second at `rate`. At least one tensor.
 */
struct layer bench_engine_batch(const struct bench_engine *opened, size_t first, uint64_t rate);
/*
 * Generates tensors that are pinned. Time of filling and comparing is added to result->data_us.
 */
void bench_engine_generate(struct bench_engine *opened, const struct pattern *pattern,
			   const struct layer *tensors, uint32_t generation);
/* Writes that generation of each tensor whose entry in `chosen` is true to the drive; NULL: of all. */
int bench_engine_fill(struct bench_engine *opened, const struct pattern *pattern,
		      uint32_t generation, const bool *chosen);
/*
 * Compares tensors that are pinned with their pattern. Differences are counted in the result, and the
 * first of them is kept for the verdict.
 */
void bench_engine_compare(struct bench_engine *opened, const struct pattern *pattern,
			  const struct layer *tensors, uint32_t generation);
/* Waits until no tensor is in flight. */
int bench_engine_wait(struct bench_engine *opened);
/* Returns rc, or, if that is 0 and contents differed, -EBADMSG with the first difference. */
int bench_engine_verdict(const struct bench_engine *opened, int rc);
/*
 * Stores the engine's statistics and closes it. Returns rc, or, if that is 0, the error of closing.
 */
int bench_engine_close(struct bench_engine *opened, int rc, struct bench_result *result);
/* Explains -EEXIST, a kept store. Returns rc. */
int bench_opened(int rc, struct nvs_error *error);

#endif
