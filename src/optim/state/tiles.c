/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All state out or in by whole tiles, for a caller that transfers them itself: its transfers of
 * several tiles are in flight while others are read from the store or written to it. And the host
 * cache: tiles that stay pinned between steps, which a commit unpins for a moment.
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
		const struct state_run packed = state_packed(optimizer, tile, &segment);
		const struct nvs_state_run run = state_open(optimizer, &packed, &segment, 0, false);

		assert(!is_packed(&packed));
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
	uint64_t at = tile * optimizer->tile_numel, end = at + optimizer->tile_numel;
	int rc = complete_tile(optimizer, arg, tile, flight);
	struct segment segment;

	while (!rc && next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment, state_packed(optimizer, tile, &segment).master);
	return rc;
}

/* ---- By slices, where the state is not float32 ---- */

/* Through the float32 memory of the thread, whose number is that of its flight. */
static int transfer_run(void *arg, const struct nvs_state_run *run, unsigned thread)
{
	const struct tile_mover *mover = arg;
	int rc;

	mover->begin(mover->arg, run, thread);
	rc = mover->complete(mover->arg, thread);
	assert(rc <= 0);
	return rc;
}

static int export_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			uint64_t n, unsigned thread)
{
	return move_slice(optimizer, tile, from, n, thread, false, transfer_run, arg);
}

static int import_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			uint64_t n, unsigned thread)
{
	return move_slice(optimizer, tile, from, n, thread, true, transfer_run, arg);
}

/* ---- The calls ---- */

unsigned optimizer_flights(const struct nvs_optimizer *optimizer)
{
	return pass_flights(optimizer);
}

int optimizer_export_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.wants = every_tile, .slice = begin_tile, .complete = complete_tile};
	static const struct pass_kind by_slices = {.wants = every_tile, .slice = export_slice};
	struct tile_mover own = *mover;

	return bulk_run(optimizer, optimizer->floats ? &by_slices : &kind, &own, error);
}

int optimizer_import_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {.writes = true,
					      .overwrites = true,
					      .wants = every_tile,
					      .slice = begin_tile,
					      .complete = complete_import};
	static const struct pass_kind by_slices = {
		.writes = true, .overwrites = true, .wants = every_tile, .slice = import_slice};
	struct tile_mover own = *mover;

	return bulk_run(optimizer, optimizer->floats ? &by_slices : &kind, &own, error);
}

/* ---- Tiles that stay pinned between steps ---- */

int tiles_suspend(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	assert(optimizer->keep && !optimizer->read_only);
	for (size_t i = 0; i < optimizer->noffloaded && !rc; i++) {
		struct tile *tile = &optimizer->tiles[i];
		bool changed = tile->place == TILE_HELD_CHANGED;

		if (!is_held(tile))
			continue;
		rc = batch_release(optimizer->engine, tile->parts, optimizer->nparts, tile->pin,
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
		if (engine_pin(optimizer->engine, tile->parts, optimizer->nparts, &tile->pin, NULL))
			place = TILE_LOOSE;
		tile_set_place(optimizer, tile, place);
	}
}
