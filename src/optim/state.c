/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state as the caller sees it: created from the weights, read and written for checkpoints, and
 * copied back to the weights.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "optim/internal.h"

/* ---- Creating state ---- */

void init_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n)
{
	uint64_t begin = tile * optimizer->tile_numel, at = begin + from, end = at + n;
	float *master = tile_part(optimizer, tile, NVS_MASTER);
	struct segment segment;

	for (int part = NVS_MASTER; part <= NVS_EXP_AVG_SQ; part++)
		memset(tile_part(optimizer, tile, part) + from, 0, n * sizeof(float));
	while (next_segment(optimizer, &at, end, &segment)) {
		const struct group *group = &optimizer->groups[segment.group];

		if (group->weights)
			optimizer->kernel->convert(
				master + (segment.at - begin), NVS_F32,
				group->weights + segment.offset * nvs_dtype_size(group->dtype),
				group->dtype, 1, segment.numel);
	}
}

static bool is_fresh(const struct nvs_optimizer *optimizer, size_t tile)
{
	return optimizer->tiles[tile].fresh;
}

static void make_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		       uint64_t n, unsigned thread)
{
	(void)arg;
	(void)thread;
	init_slice(optimizer, tile, from, n);
}

int init_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.writes = true, .wants = is_fresh, .slice = make_slice};
	int rc = pass_run(optimizer, &kind, NULL, NULL, error);

	optimizer->walks += !rc;
	return rc;
}

/* ---- Weights ---- */

static bool has_state(const struct nvs_optimizer *optimizer, size_t tile)
{
	return !optimizer->tiles[tile].fresh;
}

void give_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
		  const float *master)
{
	const struct group *group = &optimizer->groups[segment->group];

	if (group->weights)
		optimizer->kernel->convert(group->weights +
						   segment->offset * nvs_dtype_size(group->dtype),
					   group->dtype, master, NVS_F32, 1, segment->numel);
}

static void weights_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			  uint64_t n, unsigned thread)
{
	uint64_t begin = tile * optimizer->tile_numel, at = begin + from, end = at + n;
	struct segment segment;

	(void)arg;
	(void)thread;
	while (next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment,
			     tile_part(optimizer, tile, NVS_MASTER) + (segment.at - begin));
}

int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	/* A fresh tile's weights are what its state would be created from. */
	static const struct pass_kind kind = {.wants = has_state, .slice = weights_slice};
	int rc = check_given(optimizer, "optimizer", error);

	if (rc)
		return rc;
	pthread_mutex_lock(&optimizer->lock);
	rc = pass_run(optimizer, &kind, NULL, NULL, error);
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}

/* ---- Reading and writing state ---- */

/* Pins one tile's state; creates that of a fresh tile. */
static int pin_tile(struct nvs_optimizer *optimizer, size_t i, struct nvs_error *error)
{
	struct tile *tile = &optimizer->tiles[i];
	int rc = 0;

	if (i >= optimizer->noffloaded || tile->held) {
		if (tile->fresh)
			init_slice(optimizer, i, 0, optimizer->tile_numel);
		return 0;
	}
	if (tile->fresh) {
		rc = nvs_tensor_pin(optimizer->engine, &tile->tensor, 1, -1, &tile->pin, error);
		if (!rc)
			init_slice(optimizer, i, 0, optimizer->tile_numel);
		return rc;
	}
	return engine_pin(optimizer->engine, tile->tensor, &tile->pin, error);
}

static int end_tile(struct nvs_optimizer *optimizer, size_t i, bool changed,
		    struct nvs_error *error)
{
	struct tile *tile = &optimizer->tiles[i];
	int rc;

	if (changed)
		tile->fresh = false;
	if (i >= optimizer->noffloaded)
		return 0;
	if (tile->held) {
		tile->changed |= changed;
		return 0;
	}
	rc = nvs_tensor_release(optimizer->engine, &tile->tensor, 1, tile->pin,
				changed ? NVS_DIRTY : NVS_CLEAN, error);
	/* Only held tiles and gradients stay in the pool. */
	return rc ? rc : nvs_tensor_swap_out(optimizer->engine, &tile->tensor, 1, error);
}

/* Reads (to != NULL) or writes a run of one part of a group's state. */
static int copy(struct nvs_optimizer *optimizer, uint64_t at, uint64_t numel,
		enum nvs_optimizer_part part, float *to, const float *from, struct nvs_error *error)
{
	uint64_t end = at + numel;
	int rc = 0;

	while (at < end && !rc) {
		size_t i = at / optimizer->tile_numel;
		uint64_t within = at % optimizer->tile_numel, n = optimizer->tile_numel - within;
		uint64_t done = numel - (end - at);
		float *state;

		if (n > end - at)
			n = end - at;
		rc = pin_tile(optimizer, i, error);
		if (rc)
			break;
		state = tile_part(optimizer, i, part) + within;
		if (to)
			memcpy(to + done, state, n * sizeof(float));
		else
			memcpy(state, from + done, n * sizeof(float));
		rc = end_tile(optimizer, i, !to, error);
		at += n;
	}
	return rc;
}

static int check_part(const struct nvs_optimizer *optimizer, size_t group,
		      enum nvs_optimizer_part part, uint64_t offset, uint64_t numel,
		      struct nvs_error *error)
{
	if ((unsigned)part >= PARTS)
		return error_set(error, -EINVAL, "there is no part %d of the state", (int)part);
	return check_range(optimizer, group, offset, numel, error);
}

int nvs_optimizer_get(struct nvs_optimizer *optimizer, size_t group, enum nvs_optimizer_part part,
		      uint64_t offset, uint64_t numel, float *data, struct nvs_error *error)
{
	int rc = check_given(optimizer, "optimizer", error);

	if (!rc)
		rc = check_given(data, "data", error);
	if (rc)
		return rc;
	pthread_mutex_lock(&optimizer->lock);
	rc = check_part(optimizer, group, part, offset, numel, error);
	if (!rc)
		rc = copy(optimizer, optimizer->groups[group].at + offset, numel, part, data, NULL,
			  error);
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}

int nvs_optimizer_set(struct nvs_optimizer *optimizer, size_t group, enum nvs_optimizer_part part,
		      uint64_t offset, uint64_t numel, const float *data, struct nvs_error *error)
{
	uint64_t failures;
	int rc = check_given(optimizer, "optimizer", error);

	if (!rc)
		rc = check_given(data, "data", error);
	if (rc)
		return rc;
	pthread_mutex_lock(&optimizer->lock);
	failures = engine_write_failures(optimizer->engine,
					 &(struct nvs_error){.size = sizeof(struct nvs_error)});
	rc = check_part(optimizer, group, part, offset, numel, error);
	if (!rc)
		rc = refuse_unfinished(optimizer, error);
	if (!rc)
		rc = copy(optimizer, optimizer->groups[group].at + offset, numel, part, NULL, data,
			  error);
	if (!rc)
		rc = wait_landed(optimizer, failures, error);
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}
