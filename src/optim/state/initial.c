/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State is created from the caller's weights, and copied back to them.
 */
#include <assert.h>

#include "base/error.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

/* ---- Creating state ---- */

void init_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	struct segment segment;

	assert(is_fresh(&optimizer->tiles[tile]) && from + n <= optimizer->tile_numel);
	for (unsigned part = 0; part < PARTS; part++)
		part_clear(optimizer, tile, part, from, n);
	while (next_segment(optimizer, &at, end, &segment)) {
		const struct group *group = &optimizer->groups[segment.group];

		if (group->weights)
			optimizer->kernel->convert(
				state_open(optimizer, tile, &segment).master, NVS_F32,
				group->weights + segment.offset * nvs_dtype_size(group->dtype),
				group->dtype, 1, segment.numel);
	}
}

static bool has_none(const struct nvs_optimizer *optimizer, size_t tile)
{
	return is_fresh(&optimizer->tiles[tile]);
}

static int make_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned thread)
{
	(void)arg;
	(void)thread;
	init_slice(optimizer, tile, from, n);
	return 0;
}

int init_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.writes = true, .wants = has_none, .slice = make_slice};
	int rc = pass_run(optimizer, &kind, NULL, NULL, error);

	optimizer->passes += !rc;
	return rc;
}

/* ---- Weights ---- */

static bool has_state(const struct nvs_optimizer *optimizer, size_t tile)
{
	return !is_fresh(&optimizer->tiles[tile]);
}

void give_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
		  const float *master)
{
	const struct group *group = &optimizer->groups[segment->group];

	assert(segment->offset + segment->numel <= group->numel);
	if (group->weights)
		optimizer->kernel->convert(group->weights +
						   segment->offset * nvs_dtype_size(group->dtype),
					   group->dtype, master, NVS_F32, 1, segment->numel);
}

void give_tile_weights(const struct nvs_optimizer *optimizer, size_t tile, uint64_t from,
		       uint64_t n)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	const float *master = tile_part(optimizer, tile, NVS_MASTER);
	struct segment segment;

	assert(from + n <= optimizer->tile_numel);
	while (next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment,
			     master + (segment.at - tile * optimizer->tile_numel));
}

static int weights_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			 uint64_t n, unsigned thread)
{
	(void)arg;
	(void)thread;
	assert(has_state(optimizer, tile));
	give_tile_weights(optimizer, tile, from, n);
	return 0;
}

int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	/* A fresh tile's state would be made from the weights, so they are unchanged. */
	static const struct pass_kind kind = {
		.master_only = true, .wants = has_state, .slice = weights_slice};
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	rc = pass_run(optimizer, &kind, NULL, NULL, error);
	optimizer_check(optimizer);
	call_end(optimizer);
	return rc;
}
