/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State read and written piece by piece, as nvs_optimizer_get and nvs_optimizer_set do. Calls
 * mostly walk through a group, so a tile stays in the pool, unpinned, until the walk comes to
 * another group or a pass begins, and the tiles behind it are read ahead.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "optim/internal.h"

/* ---- The walk ---- */

#define TILES_AHEAD 4u

/* Gives up the pool memory of the tiles [from, end) that the walk has left there. */
static void leave(struct nvs_optimizer *optimizer, size_t from, size_t end)
{
	for (size_t i = from; i < end; i++) {
		struct tile *tile = &optimizer->tiles[i];

		/* A tile that can't be evicted now is evicted when its room is needed. */
		if (tile->walked)
			nvs_tensor_swap_out(optimizer->engine, &tile->tensor, 1, NULL);
		tile->walked = false;
	}
}

void walk_end(struct nvs_optimizer *optimizer)
{
	if (optimizer->walk.active)
		leave(optimizer, 0, optimizer->noffloaded);
	optimizer->walk.active = false;
}

static bool has_room(struct nvs_optimizer *optimizer)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	nvs_engine_get_stats(optimizer->engine, &stats);
	return stats.pool.bytes - stats.pool.used >= optimizer->tile_numel * STATE_BYTES;
}

/*
 * Reads the tiles behind `tile` ahead. Beyond the group only into free room: the group's other
 * parts may be asked for next, in the tiles that would have to go.
 */
static void walk_ahead(struct nvs_optimizer *optimizer, const struct group *group, size_t tile)
{
	size_t last = (group->at + group->numel - 1) / optimizer->tile_numel;

	for (size_t i = tile + 1; i <= tile + TILES_AHEAD && i < optimizer->noffloaded; i++) {
		struct tile *ahead = &optimizer->tiles[i];

		if (ahead->held || ahead->fresh)
			continue;
		if (i > last && !has_room(optimizer))
			break;
		if (nvs_tensor_prefetch(optimizer->engine, &ahead->tensor, 1, NULL) != 1)
			break;
		ahead->walked = true;
	}
}

/* The walk comes to a tile of the group, which is pinned. */
static void walk_to(struct nvs_optimizer *optimizer, const struct group *group, size_t tile)
{
	struct walk *walk = &optimizer->walk;
	bool onward = walk->active && (tile == walk->tile || tile == walk->tile + 1);

	if (onward && walk->ahead != tile) {
		walk_ahead(optimizer, group, tile);
		walk->ahead = tile;
	}
	if (tile < optimizer->noffloaded && !optimizer->tiles[tile].held)
		optimizer->tiles[tile].walked = true;
	if (!walk->active)
		walk->ahead = SIZE_MAX;
	walk->active = true;
	walk->tile = tile;
}

/* The walk comes to a group: what it has left of the groups before makes room. */
static void walk_begin(struct nvs_optimizer *optimizer, const struct group *group)
{
	struct walk *walk = &optimizer->walk;
	size_t first = group->at / optimizer->tile_numel;
	struct nvs_error last = {.size = sizeof(last)};

	if (!walk->active)
		walk->failures = engine_write_failures(optimizer->engine, &last);
	if (walk->active && first > walk->first)
		leave(optimizer, walk->first, least(first, optimizer->noffloaded));
	walk->first = first;
}

/* Whether what was set and written behind has failed since it was told last. */
static int check_written(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	struct nvs_error last = {.size = sizeof(last)};
	uint64_t failures = engine_write_failures(optimizer->engine, &last);

	if (failures == optimizer->walk.failures)
		return 0;
	optimizer->walk.failures = failures;
	error_copy(error, &last);
	return last.code;
}

/* ---- Tiles ---- */

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

	if (changed)
		tile->fresh = false;
	if (i >= optimizer->noffloaded)
		return 0;
	if (tile->held) {
		tile->changed |= changed;
		return 0;
	}
	return nvs_tensor_release(optimizer->engine, &tile->tensor, 1, tile->pin,
				  changed ? NVS_DIRTY : NVS_CLEAN, error);
}

/* Fills `to` with a part of a fresh tile's state, which needs no memory of the pool. */
static void copy_fresh(struct nvs_optimizer *optimizer, const struct group *group, uint64_t offset,
		       uint64_t n, enum nvs_optimizer_part part, float *to)
{
	if (part != NVS_MASTER || !group->weights)
		memset(to, 0, n * sizeof(float));
	else
		optimizer->kernel->convert(to, NVS_F32,
					   group->weights + offset * nvs_dtype_size(group->dtype),
					   group->dtype, 1, n);
}

/* A run of one part of a group's state, to read (to) or to write (from). */
struct piece {
	const struct group *group;
	enum nvs_optimizer_part part;
	uint64_t offset, numel;
	float *to;
	const float *from;
};

/* Copies the piece's `n` elements from `done` on, which lie in one tile. */
static int copy_some(struct nvs_optimizer *optimizer, const struct piece *piece, uint64_t done,
		     uint64_t n, struct nvs_error *error)
{
	uint64_t at = piece->group->at + piece->offset + done;
	size_t i = at / optimizer->tile_numel;
	float *state;
	int rc;

	if (piece->to && optimizer->tiles[i].fresh) {
		copy_fresh(optimizer, piece->group, piece->offset + done, n, piece->part,
			   piece->to + done);
		return 0;
	}
	rc = pin_tile(optimizer, i, error);
	if (rc)
		return rc;
	walk_to(optimizer, piece->group, i);
	state = tile_part(optimizer, i, piece->part) + at % optimizer->tile_numel;
	if (piece->to)
		memcpy(piece->to + done, state, n * sizeof(float));
	else
		memcpy(state, piece->from + done, n * sizeof(float));
	return end_tile(optimizer, i, !piece->to, error);
}

static int copy(struct nvs_optimizer *optimizer, const struct piece *piece, struct nvs_error *error)
{
	uint64_t at = piece->group->at + piece->offset, n;
	int rc = 0;

	walk_begin(optimizer, piece->group);
	for (uint64_t done = 0; done < piece->numel && !rc; done += n) {
		n = least(optimizer->tile_numel - (at + done) % optimizer->tile_numel,
			  piece->numel - done);
		rc = copy_some(optimizer, piece, done, n, error);
	}
	return rc;
}

/* ---- The calls ---- */

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
		rc = copy(
			optimizer,
			&(struct piece){&optimizer->groups[group], part, offset, numel, data, NULL},
			error);
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}

int nvs_optimizer_set(struct nvs_optimizer *optimizer, size_t group, enum nvs_optimizer_part part,
		      uint64_t offset, uint64_t numel, const float *data, struct nvs_error *error)
{
	int rc = check_given(optimizer, "optimizer", error);

	if (!rc)
		rc = check_given(data, "data", error);
	if (rc)
		return rc;
	pthread_mutex_lock(&optimizer->lock);
	rc = check_part(optimizer, group, part, offset, numel, error);
	if (!rc)
		rc = refuse_unfinished(optimizer, error);
	if (!rc)
		rc = copy(
			optimizer,
			&(struct piece){&optimizer->groups[group], part, offset, numel, NULL, data},
			error);
	if (!rc)
		rc = check_written(optimizer, error);
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}
