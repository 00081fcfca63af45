/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks of nvs_optimizer_get and nvs_optimizer_set: their calls mostly go through a part from one
 * tile to the next. The tile that was visited last stays in the pool, unpinned, and those behind it
 * are read ahead, until the part's next call is elsewhere or a pass begins.
 *
 * Up to 16 tiles are read ahead, no more than a third of the pool, so walks through all
 * parts do not evict what another has read.
 */

#include "base/error.h"
#include "optim/internal.h"

static void walk_check(const struct nvs_optimizer *optimizer, const struct walk *walk)
{
	assert(walk->from <= walk->at && walk->at <= walk->end);
	assert(walk->end <= optimizer->noffloaded);
}

/* Gives up the pool memory of a part of the tiles [from, end). */
static void leave(struct nvs_optimizer *optimizer, unsigned part, size_t from, size_t end)
{
	for (size_t i = from; i < end; i++) {
		struct tile *tile = &optimizer->tiles[i];

		/* A tensor that can't be evicted now is evicted when its room is needed. */
		if (!is_held(tile) && !is_fresh(tile))
			batch_swap_out(optimizer->engine, &tile->parts[part], 1, NULL);
	}
}

void walks_end(struct nvs_optimizer *optimizer)
{
	for (unsigned part = 0; part < optimizer->rule->nparts; part++) {
		struct walk *walk = &optimizer->walks_of[part];

		leave(optimizer, part, walk->from, walk->end);
		*walk = (struct walk){0};
	}
	optimizer->walking = false;
}

/* A range may be set after it was read and end in the next tile, so the tile before stays. */
void walks_visit(struct nvs_optimizer *optimizer, unsigned part, size_t tile)
{
	struct walk *walk = &optimizer->walks_of[part];
	bool onward = walk->end && (tile == walk->at || tile == walk->at + 1);
	size_t keep = tile > walk->from ? tile - 1 : tile;

	walk_check(optimizer, walk);
	if (tile < walk->from || tile > walk->end) {
		leave(optimizer, part, walk->from, walk->end);
		walk->from = walk->end = tile;
	} else {
		leave(optimizer, part, walk->from, keep);
		walk->from = keep;
	}
	walk->at = tile;
	if (walk->end == tile)
		walk->end++;
	if (onward) {
		size_t end = min_u64(walk->at + 1 + optimizer->tiles_ahead, optimizer->noffloaded);

		for (; walk->end < end; walk->end++) {
			struct tile *next = &optimizer->tiles[walk->end];

			if (is_held(next) || is_fresh(next))
				continue;
			if (batch_prefetch(optimizer->engine, &next->parts[part], 1, NULL) != 1)
				break;
		}
	}
	walk_check(optimizer, walk);
}

void walks_begin(struct nvs_optimizer *optimizer)
{
	struct nvs_error last = {.size = sizeof(last)};

	if (!optimizer->walking)
		optimizer->walk_failures = engine_write_failures(optimizer->engine, &last);
	optimizer->walking = true;
}

int check_writes(const struct nvs_optimizer *optimizer, uint64_t *failures, struct nvs_error *error)
{
	struct nvs_error last = {.size = sizeof(last)};
	uint64_t now = engine_write_failures(optimizer->engine, &last);

	if (now == *failures)
		return 0;
	*failures = now;
	error_copy(error, &last);
	return last.code;
}
