/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of tiles and of groups' gradients, and what must hold of them between the calls of an
 * optimizer. Nothing here is for bad input, which is refused before.
 *
 * A tile's place (enum tile_place) lasts from call to call, its progress until the step is
 * finished, its task as long as a pass.
 */
#include <math.h>

#include "base/state_checks.h"
#include "optim/internal.h"

void tile_check(const struct nvs_optimizer *optimizer, const struct tile *tile)
{
	size_t i = (size_t)(tile - optimizer->tiles);
	bool offloaded = i < optimizer->noffloaded;

	assert(i < optimizer->ntiles);
	assert(tile->place <= TILE_SUSPENDED && tile->progress <= TILE_UPDATED);
	if (tile->place > TILE_LOOSE)
		assert(offloaded && tile->pin);
	for (unsigned part = 0; part < optimizer->rule->nparts; part++)
		assert(tile->place == TILE_FRESH || !offloaded || tile->parts[part]);
	/* Only offloaded tiles that have state are read ahead. */
	if (tile->progress == TILE_AHEAD)
		assert(offloaded && tile->place != TILE_FRESH);
	if (tile->progress == TILE_UPDATED)
		assert(is_unfinished(optimizer));
}

void tile_set_place(const struct nvs_optimizer *optimizer, struct tile *tile, enum tile_place place)
{
	assert(place != TILE_FRESH);
	assert(place != TILE_SUSPENDED || is_held(tile));
	tile->place = place;
	tile_check(optimizer, tile);
}

void group_check(const struct nvs_optimizer *optimizer, const struct group *group)
{
	assert(group->name && group->numel && group->numel <= HEADER_NUMEL_MAX);
	assert(group->at % TILE_UNIT == 0 && group->at + group->numel <= optimizer->flat);
	assert((group->gradients == NVS_GRADIENTS_LENT) == (group->lent != NULL));
	assert((group->gradients == NVS_GRADIENTS_ADDED) == (group->added != 0));
	if (group->gradients == NVS_GRADIENTS_OWED)
		assert(optimizer->step_state == STEP_INHERITED);
}

void group_set_gradients(const struct nvs_optimizer *optimizer, struct group *group,
			 enum nvs_gradients gradients)
{
	/* Lent and added gradients never replace each other. */
	assert(group->gradients == NVS_GRADIENTS_NONE || group->gradients == gradients ||
	       gradients == NVS_GRADIENTS_NONE || group->gradients == NVS_GRADIENTS_OWED);
	group->gradients = gradients;
	group_check(optimizer, group);
}

void layout_check(const struct nvs_optimizer *optimizer)
{
	uint64_t end = 0;

	assert(optimizer->tile_numel && optimizer->tile_numel % TILE_UNIT == 0);
	assert(optimizer->tile_numel <= HEADER_NUMEL_MAX);
	assert(optimizer->ntiles && optimizer->noffloaded <= optimizer->ntiles);
	assert(optimizer->ncached <= optimizer->noffloaded);
	assert((optimizer->ntiles - 1) * optimizer->tile_numel < optimizer->flat);
	assert(optimizer->ntiles * optimizer->tile_numel >= optimizer->flat);
	assert(optimizer->gradient_numel % optimizer->tile_numel == 0);
	assert(optimizer->ngradients * optimizer->gradient_numel >= optimizer->flat);
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		const struct group *group = &optimizer->groups[i];

		assert(group->at >= end);
		end = group->at + group->numel;
		group_check(optimizer, group);
	}
}

void optimizer_check(const struct nvs_optimizer *optimizer)
{
	if (!STATE_CHECKS)
		return;
	assert(optimizer->engine && optimizer->threads && optimizer->landing && optimizer->kernel);
	assert(optimizer->keep == (optimizer->header != NULL));
	assert(optimizer->step <= STEPS_MAX - is_unfinished(optimizer));
	assert(is_scale(optimizer->scaler.scale));
	if (is_unfinished(optimizer))
		assert(optimizer->step_lr >= 0 && isfinite(optimizer->step_lr));
	layout_check(optimizer);
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		tile_check(optimizer, &optimizer->tiles[i]);
		assert(optimizer->tiles[i].task == TASK_NONE);
		assert(optimizer->tiles[i].place < TILE_SUSPENDED);
	}
	for (size_t i = 0; i < optimizer->ngradients; i++) {
		assert(!optimizer->gradients[i].valid || optimizer->gradients[i].tensor);
		assert(!optimizer->gradients[i].sharers);
	}
}
