/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pass does with each tile: decided at its beginning, and from then on one step after the
 * other, so that no tile is computed twice or while it is read.
 */
#include <assert.h>

#include "optim/pass/pass.h"

void tasks_begin(const struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;

	for (size_t i = 0; i < optimizer->ngradients; i++)
		optimizer->gradients[i].users = 0;
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		struct tile *tile = &optimizer->tiles[i];
		struct gradient_tile *gradients = tile_gradients(pass, i);

		tile_check(optimizer, tile);
		if (!pass->kind->wants(optimizer, i))
			tile->task = TASK_NONE;
		else
			tile->task = is_offloaded(pass, i) || gradients ? TASK_QUEUED
									: TASK_AT_HAND;
		if (gradients && tile->task != TASK_NONE)
			gradients->users++;
	}
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

	size_t i = (size_t)(changed - pass->optimizer->tiles);

	assert(i < pass->optimizer->ntiles);
	assert(pass->front <= pass->nlanded && pass->nlanded <= pass->nfetched);
	assert(pass->nfetched <= pass->optimizer->ntiles);
	assert(changed->task != TASK_AT_HAND || !is_offloaded(pass, i));
	assert(changed->task != TASK_FETCHED || !is_offloaded(pass, i) || changed->pin);
	assert(changed->task == TASK_COMPUTED || changed->task == TASK_FAILED || !changed->slices);
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
