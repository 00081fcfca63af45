/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pass does with each tile: decided at its beginning, and from then on one step after the
 * other, so that no tile is computed twice or while it is read.
 */
#include <assert.h>

#include "optim/pass/pass.h"

static enum tile_task first_task(const struct pass *pass, size_t tile)
{
	if (!pass->kind->wants(pass->optimizer, tile))
		return TASK_NONE;
	return is_offloaded(pass, tile) || tile_gradients(pass, tile) ? TASK_QUEUED : TASK_AT_HAND;
}

void tasks_begin(const struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;

	for (size_t i = 0; i < optimizer->ngradients; i++)
		optimizer->gradients[i].users = 0;
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		struct tile *tile = &optimizer->tiles[i];
		struct gradient_tile *gradients = tile_gradients(pass, i);

		tile_check(optimizer, tile);
		tile->task = first_task(pass, i);
		if (gradients && tile->task != TASK_NONE)
			gradients->users++;
	}
}

static void task_check(const struct pass *pass, const struct tile *tile)
{
	size_t i = (size_t)(tile - pass->optimizer->tiles);

	assert(i < pass->optimizer->ntiles);
	assert(pass->front <= pass->nlanded && pass->nlanded <= pass->nfetched);
	assert(pass->nfetched <= pass->optimizer->ntiles);
	assert(tile->task != TASK_AT_HAND || !is_offloaded(pass, i));
	assert(tile->task != TASK_FETCHED || !is_offloaded(pass, i) || tile->pin);
	assert(tile->task == TASK_COMPUTED || tile->task == TASK_FAILED || !tile->slices);
}

void task_set(struct pass *pass, size_t tile, enum tile_task task)
{
	static const unsigned before[] = {
		[TASK_NONE] = 1 << TASK_LANDED | 1 << TASK_COMPUTED | 1 << TASK_FAILED,
		[TASK_FETCHED] = 1 << TASK_QUEUED,
		[TASK_LANDED] = 1 << TASK_FETCHED,
		[TASK_COMPUTED] = 1 << TASK_LANDED | 1 << TASK_AT_HAND,
		[TASK_FAILED] = 1 << TASK_COMPUTED | 1 << TASK_FAILED,
	};
	struct tile *changed = &pass->optimizer->tiles[tile];

	assert(before[task] & 1u << changed->task);
	changed->task = task;
	task_check(pass, changed);
}

void tasks_end(struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;

	assert(pass->all_fetched && !pass->nactive && !pass->front_taken && !pass->host_taken);
	assert(pass->front == pass->nfetched);
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		struct tile *tile = &optimizer->tiles[i];

		if (pass->rc && (tile->task == TASK_QUEUED || tile->task == TASK_AT_HAND))
			tile->task = TASK_NONE;
		tile_check(optimizer, tile);
	}
	for (size_t i = 0; i < optimizer->ngradients; i++)
		assert(!optimizer->gradients[i].sharers);
}
