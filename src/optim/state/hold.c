/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles that stay pinned between steps: the host cache. A commit unpins them for a moment.
 */
#include <assert.h>

#include "optim/internal.h"

void tile_check(const struct nvs_optimizer *optimizer, const struct tile *tile)
{
	assert(tile >= optimizer->tiles && tile < optimizer->tiles + optimizer->ntiles);
	if (tile->hold == TILE_LOOSE)
		return;
	assert(tile < optimizer->tiles + optimizer->noffloaded);
	assert(tile->parts[NVS_MASTER] && tile->pin);
	assert(!tile->fresh);
}

void tile_set_hold(const struct nvs_optimizer *optimizer, struct tile *tile, enum tile_hold hold)
{
	bool suspended = hold == TILE_SUSPENDED || hold == TILE_SUSPENDED_CHANGED;

	assert(!suspended || is_held(tile));
	tile->hold = hold;
	tile_check(optimizer, tile);
}

int tiles_suspend(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < optimizer->noffloaded && !rc; i++) {
		struct tile *tile = &optimizer->tiles[i];
		bool changed = tile->hold == TILE_HELD_CHANGED;

		if (!is_held(tile))
			continue;
		rc = nvs_tensor_release(optimizer->engine, tile->parts, PARTS, tile->pin,
					changed ? NVS_DIRTY : NVS_CLEAN, error);
		if (!rc)
			tile_set_hold(optimizer, tile,
				      changed ? TILE_SUSPENDED_CHANGED : TILE_SUSPENDED);
	}
	return rc;
}

/* A tile that can't be pinned again is fetched like any other when its turn comes. */
void tiles_resume(struct nvs_optimizer *optimizer, bool written)
{
	for (size_t i = 0; i < optimizer->noffloaded; i++) {
		struct tile *tile = &optimizer->tiles[i];
		bool changed = tile->hold == TILE_SUSPENDED_CHANGED && !written;
		enum tile_hold hold = changed ? TILE_HELD_CHANGED : TILE_HELD;

		if (tile->hold != TILE_SUSPENDED && tile->hold != TILE_SUSPENDED_CHANGED)
			continue;
		if (engine_pin(optimizer->engine, tile->parts, PARTS, &tile->pin, NULL))
			hold = TILE_LOOSE;
		tile_set_hold(optimizer, tile, hold);
	}
}
