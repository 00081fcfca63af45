/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts what the engine moves on its own in a planned step: reads the next tensors ahead, writes
 * dirty ones behind, and keeps to the budgets. policy.c decides which. It never waits.
 */
#include "swap/moves/moves.h"

/* ---- Budgets ---- */

struct transfer *keep_to_budget(struct nvs_engine *engine, bool counted)
{
	struct eviction eviction = eviction_to_budget(counted);

	if (!counted && !engine->plan.n)
		return NULL;
	evict_until_enough(engine, &eviction);
	return runs_build_own(engine, engine->scratch, eviction.ndirty, NVS_WRITE);
}

/* ---- The plan ---- */

/* Puts the plan's next tensors to read that have room, `max` at most, into engine->scratch. */
static size_t choose_reads(struct nvs_engine *engine, size_t max)
{
	struct eviction eviction = eviction_for_plan(0, PLAN_NONE);
	size_t rank = engine->plan.ready, count = 0;
	struct nvs_tensor *tensor;

	while (count < max && (tensor = policy_next_read(engine, &rank, eviction.numel))) {
		eviction.goal += tensor->extent;
		eviction.numel += tensor->numel;
		eviction.needed_by = tensor->rest->next_use;
		evict_until_enough(engine, &eviction);
		if (!policy_may_read(engine, &eviction))
			break;
		engine->scratch[count++] = tensor;
		rank++;
	}
	return count;
}

struct transfer *move_ahead(struct nvs_engine *engine)
{
	struct transfer *list;
	size_t count;

	if (!engine->step.begun || !engine->plan.n || engine->room.waiting || !queue_empty(engine))
		return NULL;
	count = choose_reads(engine, SIZE_MAX);
	while (count && !lease_all(engine, count)) {
		struct eviction eviction;

		if (count > 1) {
			count = choose_reads(engine, count / 2);
			continue;
		}
		/* Enough is free, but fragmented. */
		eviction = eviction_for_plan(pool_free_bytes(engine->pool) + 1,
					     engine->scratch[0]->rest->next_use);
		evict_until_enough(engine, &eviction);
		count = eviction.ntaken ? 1 : 0;
	}
	for (size_t i = 0; i < count; i++)
		set_ahead(engine, engine->scratch[i], AHEAD_FOR_PLAN);
	list = runs_build_own(engine, engine->scratch, count, NVS_READ);
	if (list || runs_in_flight(&engine->moves))
		return list;
	/* Nothing to read, and the drive is idle: write behind. */
	count = policy_choose_writes(engine);
	for (size_t i = 0; i < count; i++)
		leave_idle(engine, engine->scratch[i]);
	return runs_build_own(engine, engine->scratch, count, NVS_WRITE);
}
