/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of one part of the state, read and written by nvs_optimizer_get and nvs_optimizer_set.
 * Only that part moves.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

/* The tensors of a tile that hold a part, to be pinned: of a fresh tile all. */
struct pinned {
	struct nvs_tensor *tensors[PARTS];
	unsigned n; /* 0: the tile is in memory anyway */
	uint64_t pin;
};

/* Pins a part of a tile's state; creates all of a fresh tile's. */
static int pin_part(struct nvs_optimizer *optimizer, size_t i, unsigned part, struct pinned *pinned,
		    struct nvs_error *error)
{
	struct tile *tile = &optimizer->tiles[i];
	int rc = 0;

	assert(i < optimizer->ntiles && tile->task == TASK_NONE);
	*pinned = (struct pinned){0};
	for (unsigned other = 0;
	     other < optimizer->rule->nparts && i < optimizer->noffloaded && !is_held(tile);
	     other++)
		if (is_fresh(tile) || part_needs(optimizer, i, part, other))
			pinned->tensors[pinned->n++] = tile->parts[other];
	if (pinned->n && !is_fresh(tile))
		return pin_and_read(optimizer, i, pinned->tensors, pinned->n, &pinned->pin, error);
	if (pinned->n)
		rc = pin_in_room(optimizer, NULL, i, pinned->tensors, pinned->n, false,
				 &pinned->pin, error);
	if (!rc && is_fresh(tile))
		init_slice(optimizer, i, 0, optimizer->tile_numel);
	return rc;
}

/* Elements of one part of a group's state, to read (to) or to write (from). */
struct part_range {
	const struct group *group;
	size_t index;  /* of the group */
	unsigned part; /* of the rule */
	uint64_t offset, numel;
	float *to;
	const float *from;
};

/* Copies the range's `n` elements from `done` on, which lie in one tile. */
static int copy_within_tile(struct nvs_optimizer *optimizer, const struct part_range *range,
			    uint64_t done, uint64_t n, struct nvs_error *error)
{
	uint64_t at = range->group->at + range->offset + done;
	size_t i = at / optimizer->tile_numel;
	const struct segment segment = {
		.group = range->index, .offset = range->offset + done, .at = at, .numel = n};
	struct pinned pinned;
	int rc;

	assert(!range->to != !range->from && i < optimizer->ntiles);
	assert(n && at % optimizer->tile_numel + n <= optimizer->tile_numel);
	if (range->to && is_fresh(&optimizer->tiles[i])) {
		float initial = rule_initial(optimizer->rule, &optimizer->config.adam, range->part);
		uint64_t offset = range->offset + done;
		float *to = range->to + done;

		/* Fills `to` with a part of a fresh tile's state, which needs no memory of the
		 * pool. */
		if (range->part || !range->group->weights)
			for (uint64_t k = 0; k < n; k++)
				to[k] = initial;
		else
			optimizer->kernel->convert(
				to, NVS_F32,
				range->group->weights +
					offset * nvs_dtype_size(range->group->dtype),
				range->group->dtype, 1, n);
		return 0;
	}
	rc = pin_part(optimizer, i, range->part, &pinned, error);
	if (rc)
		return rc;
	for (unsigned part = 0; part < optimizer->rule->nparts && i < optimizer->noffloaded; part++)
		if (part_needs(optimizer, i, range->part, part))
			walks_visit(optimizer, part, i);
	part_move(optimizer, i, range->part, &segment, range->to ? range->to + done : NULL,
		  range->from ? range->from + done : NULL);

	bool changed = !range->to;
	struct tile *tile = &optimizer->tiles[i];

	if (changed)
		tile_set_place(optimizer, tile, is_held(tile) ? TILE_HELD_CHANGED : TILE_LOOSE);
	if (!pinned.n)
		return 0;
	return batch_release(optimizer->engine, pinned.tensors, pinned.n, pinned.pin,
			     changed ? NVS_DIRTY : NVS_CLEAN, error);
}

static int move_range(struct nvs_optimizer *optimizer, size_t group, enum nvs_optimizer_part part,
		      struct part_range *range, struct nvs_error *error)
{
	const struct rule *rule;
	int rc = check_given(range->to ? range->to : range->from, "data", error), found;

	if (!rc)
		rc = call_begin(optimizer, range->from ? CALL_CHANGES | CALL_BETWEEN_STEPS : 0,
				error);
	if (rc)
		return rc;
	rule = optimizer->rule;
	found = rule_part(rule, part);
	range->part = (unsigned)found;
	if ((unsigned)part > NVS_SUM)
		rc = error_set(error, -EINVAL, "there is no part %d of the state", (int)part);
	else if (found < 0)
		rc = error_set(error, -EINVAL, "%s has no %s: its state is %s%s%s", rule->name,
			       part_name(part), part_name(rule->parts[1]),
			       rule->nparts > 2 ? " and " : "",
			       rule->nparts > 2 ? part_name(rule->parts[2]) : "");
	else
		rc = check_range(optimizer, group, range->offset, range->numel, error);
	if (!rc) {
		range->group = &optimizer->groups[group];
		range->index = group;

		uint64_t at = range->group->at + range->offset, n;

		walks_begin(optimizer);
		for (uint64_t done = 0; done < range->numel && !rc; done += n) {
			n = min_u64(optimizer->tile_numel - (at + done) % optimizer->tile_numel,
				    range->numel - done);
			rc = copy_within_tile(optimizer, range, done, n, error);
		}
		rc = !rc && range->from ? check_writes(optimizer, &optimizer->walk_failures, error)
					: rc;
	}
	call_end(optimizer);
	return rc;
}

int nvs_optimizer_get(struct nvs_optimizer *optimizer, size_t group, enum nvs_optimizer_part part,
		      uint64_t offset, uint64_t numel, float *data, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct part_range range = {.offset = offset, .numel = numel, .to = data};

	return move_range(optimizer, group, part, &range, error);
}

int nvs_optimizer_set(struct nvs_optimizer *optimizer, size_t group, enum nvs_optimizer_part part,
		      uint64_t offset, uint64_t numel, const float *data, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct part_range range = {.offset = offset, .numel = numel, .from = data};

	return move_range(optimizer, group, part, &range, error);
}
