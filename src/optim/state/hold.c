/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles that stay pinned between steps: the host cache. A commit unpins them for a moment.
 */
#include <assert.h>

#include "optim/internal.h"

int tiles_suspend(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	assert(optimizer->keep && !optimizer->read_only);
	for (size_t i = 0; i < optimizer->noffloaded && !rc; i++) {
		struct tile *tile = &optimizer->tiles[i];
		bool changed = tile->place == TILE_HELD_CHANGED;

		if (!is_held(tile))
			continue;
		rc = batch_release(optimizer->engine, tile->parts, PARTS, tile->pin,
				   changed ? NVS_DIRTY : NVS_CLEAN, error);
		if (!rc)
			tile_set_place(optimizer, tile,
				       changed ? TILE_SUSPENDED_CHANGED : TILE_SUSPENDED);
	}
	return rc;
}

/* A tile that can't be pinned again is fetched like any other when its turn comes. */
void tiles_resume(struct nvs_optimizer *optimizer, bool written)
{
	for (size_t i = 0; i < optimizer->noffloaded; i++) {
		struct tile *tile = &optimizer->tiles[i];
		bool changed = tile->place == TILE_SUSPENDED_CHANGED && !written;
		enum tile_place place = changed ? TILE_HELD_CHANGED : TILE_HELD;

		if (tile->place != TILE_SUSPENDED && tile->place != TILE_SUSPENDED_CHANGED)
			continue;
		if (engine_pin(optimizer->engine, tile->parts, PARTS, &tile->pin, NULL))
			place = TILE_LOOSE;
		tile_set_place(optimizer, tile, place);
	}
}
