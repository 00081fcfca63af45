/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts what the engine moves on its own in a planned step: reads the next tensors ahead, writes
 * dirty ones behind, and keeps to the budgets. policy.c decides which. It never waits.
 */
#include <assert.h>

#include "swap/moves/moves.h"

/* ---- Budgets ---- */

static struct transfer *keep_to(struct nvs_engine *engine, struct eviction eviction)
{
	lock_check(engine);
	evict_until_enough(engine, &eviction);
	assert(eviction.writes && eviction.own);
	assert(eviction.ndirty <= eviction.ntaken);
	return runs_build_own(engine, engine->scratch, eviction.ndirty, NVS_WRITE);
}

struct transfer *keep_to_max_in_cpu(struct nvs_engine *engine)
{
	return keep_to(engine, eviction_to_max_in_cpu());
}

struct transfer *keep_to_max_live(struct nvs_engine *engine)
{
	return engine->plan.n ? keep_to(engine, eviction_to_max_live()) : NULL;
}

/* ---- Reading ahead ---- */

/* Puts the plan's next tensors to read that have room, `max` at most, into engine->scratch. */
static size_t choose(struct nvs_engine *engine, size_t max)
{
	struct eviction eviction = eviction_for_plan();
	size_t rank = engine->plan.ready, count = 0;
	struct nvs_tensor *tensor;

	assert(max && rank <= engine->plan.n);
	while (count < max && (tensor = policy_next_read(engine, &rank, eviction.numel))) {
		eviction.goal += tensor->extent;
		eviction.numel += tensor->numel;
		eviction.needed_by = tensor->rest->next_use;
		evict_until_enough(engine, &eviction);
		assert(!eviction.ndirty);
		if (!policy_may_read(engine, &eviction))
			break;
		assert(count < engine->ntensors && needs_memory(tensor));
		engine->scratch[count++] = tensor;
		rank++;
	}
	assert(rank <= engine->plan.n);
	return count;
}

/* Returns whether it evicted a tensor. */
static bool join_pieces(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	struct eviction eviction = eviction_to_join(engine, tensor->rest->next_use);

	assert(needs_memory(tensor));
	evict_until_enough(engine, &eviction);
	assert(!eviction.ndirty);
	return eviction.ntaken;
}

static struct transfer *read_ahead(struct nvs_engine *engine)
{
	size_t count = choose(engine, SIZE_MAX);

	while (count && !lease_all(engine, count)) {
		if (count > 1)
			count = choose(engine, count / 2);
		else if (!join_pieces(engine, engine->scratch[0]))
			count = 0;
	}
	for (size_t i = 0; i < count; i++) {
		assert(in_plan(engine->scratch[i]) && !engine->scratch[i]->pins.count);
		assert(!engine->scratch[i]->status && !engine->scratch[i]->unread);
		set_ahead(engine, engine->scratch[i], AHEAD_FOR_PLAN);
	}
	return runs_build_own(engine, engine->scratch, count, NVS_READ);
}

/* ---- Writing behind ---- */

static struct transfer *write_behind(struct nvs_engine *engine)
{
	size_t count;

	assert(engine->step.begun && !engine->waiting);
	assert(engine->plan.ready <= engine->plan.n);
	if (engine->inflight[NVS_READ] || engine->inflight[NVS_WRITE])
		return NULL;
	count = policy_choose_writes(engine);
	if (!count)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		assert(is_dirty(engine->scratch[i]) && is_listed(engine->scratch[i]));
		assert(!engine->scratch[i]->status && !engine->scratch[i]->pins.count);
		leave_idle(engine, engine->scratch[i]);
	}
	return runs_build_own(engine, engine->scratch, count, NVS_WRITE);
}

struct transfer *move_ahead(struct nvs_engine *engine)
{
	struct transfer *list;

	lock_check(engine);
	if (!engine->step.begun || !engine->plan.n || engine->waiting)
		return NULL;
	list = read_ahead(engine);
	return list ? list : write_behind(engine);
}
