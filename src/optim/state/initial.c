/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State is created from the caller's weights, and copied back to them.
 */

#include "base/error.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

void init_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	struct segment segment;

	assert(is_fresh(&optimizer->tiles[tile]) && from + n <= optimizer->tile_numel);
	state_clear(optimizer, tile, from, n);
	/* The master weights of a split tile are the weights already. */
	while (!optimizer->tiles[tile].split && next_segment(optimizer, &at, end, &segment)) {
		void *weights = group_weights(optimizer, &segment);

		if (weights)
			optimizer->kernel->convert(
				state_packed(optimizer, tile, &segment).master, NVS_F32, weights,
				optimizer->groups[segment.group].dtype, 1, segment.numel);
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

/* A fresh tile's state would be made from the weights, and a split tile's master weights are the
 * weights, which are unchanged in both. */
static bool has_weights(const struct nvs_optimizer *optimizer, size_t tile)
{
	return !is_fresh(&optimizer->tiles[tile]) && !optimizer->tiles[tile].split;
}

static int weights_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			 uint64_t n, unsigned thread)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	const float *master = tile_part(optimizer, tile, NVS_MASTER);
	struct segment segment;

	(void)arg;
	(void)thread;
	assert(has_weights(optimizer, tile) && from + n <= optimizer->tile_numel);
	while (next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment,
			     master + (segment.at - tile * optimizer->tile_numel));
	return 0;
}

int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	static const struct pass_kind kind = {
		.master_only = true, .wants = has_weights, .slice = weights_slice};
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	rc = pass_run(optimizer, &kind, NULL, NULL, error);
	optimizer_check(optimizer);
	call_end(optimizer);
	return rc;
}
