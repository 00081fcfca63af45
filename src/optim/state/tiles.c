/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All state out or in by whole tiles, for a caller that transfers them itself: its transfers of
 * several tiles are in flight while others are read from the store or written to it.
 */
#include <assert.h>

#include "optim/internal.h"

static int begin_tile(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned flight)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	const struct tile_mover *mover = arg;
	struct segment segment;

	assert(!from && n == optimizer->tile_numel);
	assert(flight < pass_flights(optimizer));
	if (is_fresh(&optimizer->tiles[tile]))
		init_slice(optimizer, tile, from, n);
	while (next_segment(optimizer, &at, end, &segment)) {
		const struct nvs_state_run run = state_run(optimizer, tile, &segment);

		mover->begin(mover->arg, &run, flight);
	}
	return 0;
}

static int complete_tile(struct nvs_optimizer *optimizer, void *arg, size_t tile, unsigned flight)
{
	const struct tile_mover *mover = arg;
	int rc = mover->complete(mover->arg, flight);

	assert(tile < optimizer->ntiles && flight < pass_flights(optimizer));
	assert(rc <= 0);
	return rc;
}

static int complete_import(struct nvs_optimizer *optimizer, void *arg, size_t tile, unsigned flight)
{
	int rc = complete_tile(optimizer, arg, tile, flight);

	if (!rc)
		give_tile_weights(optimizer, tile, 0, optimizer->tile_numel);
	return rc;
}

unsigned optimizer_flights(const struct nvs_optimizer *optimizer)
{
	return pass_flights(optimizer);
}

int optimizer_export_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.wants = every_tile, .slice = begin_tile, .complete = complete_tile};
	struct tile_mover own = *mover;

	return bulk_run(optimizer, &kind, &own, error);
}

int optimizer_import_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {.writes = true,
					      .overwrites = true,
					      .wants = every_tile,
					      .slice = begin_tile,
					      .complete = complete_import};
	struct tile_mover own = *mover;

	return bulk_run(optimizer, &kind, &own, error);
}
