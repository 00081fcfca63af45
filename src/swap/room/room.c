/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: leases for tensors, the lists of unpinned ones, and their eviction. policy.c
 * decides which of them goes.
 */
#include "swap/room/room.h"

/* ---- Leases ---- */

static void end_lease(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	engine->room.live_numel -= tensor->numel;
	if (in_plan(tensor))
		engine->plan.resident -= tensor->extent;
	if (tensor->extent)
		pool_release(engine->pool, tensor->data, tensor->extent);
	tensor->data = NULL;
	tensor->memory = MEMORY_NONE;
}

bool lease_all(struct nvs_engine *engine, size_t n)
{
	struct nvs_tensor **tensors = engine->scratch;
	size_t i = 0;

	lock_check(engine);
	sort_by_place(tensors, n, NVS_READ);
	while (i < n) {
		uint64_t nbytes, longest = pool_largest_free(engine->pool);
		size_t k = run_length(engine, tensors + i, n - i, longest, &nbytes);
		char *data = pool_data(engine->pool);

		if (nbytes)
			data = pool_lease(engine->pool, nbytes);
		if (!data)
			break;
		for (; k; k--, i++) {
			assert(tensors[i]->memory == MEMORY_NONE);
			tensors[i]->memory = MEMORY_POOL;
			tensors[i]->data = data;
			data += tensors[i]->extent;
			engine->room.live_numel += tensors[i]->numel;
			if (in_plan(tensors[i]))
				engine->plan.resident += tensors[i]->extent;
		}
	}
	if (i == n)
		return true;
	while (i--) {
		end_lease(engine, tensors[i]);
		tensor_check(tensors[i]);
	}
	return false;
}

/* ---- Unpinned tensors in the pool ---- */

void make_idle(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->placement == PLACED_NOWHERE && tensor->memory == MEMORY_POOL);
	assert(tensor->io == IO_IDLE && in_pool(tensor->content));
	if (in_plan(tensor))
		tensor->placement = PLACED_PLANNED;
	else
		tensor->placement = is_ahead(tensor) ? PLACED_AHEAD : PLACED_IDLE;
	TAILQ_INSERT_TAIL(&engine->room.lists[tensor->placement], tensor, idle);
	if (in_plan(tensor))
		plan_mark_idle(&engine->plan, tensor, true);
	tensor->counted = policy_counts(engine, tensor);
	if (tensor->counted)
		engine->room.counted_numel += tensor->numel;
}

void leave_idle(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (!is_listed(tensor))
		return;
	TAILQ_REMOVE(&engine->room.lists[tensor->placement], tensor, idle);
	tensor->placement = PLACED_NOWHERE;
	if (in_plan(tensor))
		plan_mark_idle(&engine->plan, tensor, false);
	if (tensor->counted)
		engine->room.counted_numel -= tensor->numel;
	tensor->counted = false;
}

void set_on_landing(struct nvs_engine *engine, struct nvs_tensor *tensor, enum on_landing value)
{
	if (tensor->on_landing == value)
		return;
	tensor->on_landing = value;
	if (in_flight(tensor))
		tensor->run_first->rest->room += value == LANDING_EVICTS ? tensor->extent
									 : -tensor->extent;
	if (value == LANDING_EVICTS) {
		assert(tensor->memory == MEMORY_POOL && !tensor->pins.count);
		engine->room.landing += tensor->extent;
		engine->room.landing_numel += tensor->numel;
	} else {
		engine->room.landing -= tensor->extent;
		engine->room.landing_numel -= tensor->numel;
	}
}

void set_ahead(struct nvs_engine *engine, struct nvs_tensor *tensor, enum read_ahead value)
{
	bool before = is_ahead(tensor);

	assert(value == AHEAD_NOT || tensor->memory == MEMORY_POOL);
	tensor->ahead = value;
	if (!in_plan(tensor) || is_ahead(tensor) == before)
		return;
	if (before)
		engine->room.ahead_numel -= tensor->numel;
	else
		engine->room.ahead_numel += tensor->numel;
}

void drop(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_IDLE && !tensor->pins.count);
	leave_idle(engine, tensor);
	set_on_landing(engine, tensor, LANDING_STAYS);
	set_ahead(engine, tensor, AHEAD_NOT);
	if (tensor->memory == MEMORY_POOL)
		end_lease(engine, tensor);
	forget_pool(tensor);
	if (in_plan(tensor))
		plan_needs_read(&engine->plan, tensor);
}

/* ---- Landing ---- */

void stay_or_leave(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (tensor->pins.count)
		return;
	if (tensor->on_landing == LANDING_EVICTS && !is_dirty(tensor))
		drop(engine, tensor);
	else
		make_idle(engine, tensor);
}

void return_external(struct nvs_tensor *tensor)
{
	tensor->memory = MEMORY_NONE;
	tensor->data = NULL;
}

/* ---- Pins ---- */

void number_pin(struct nvs_engine *engine)
{
	lock_check(engine);
	engine->last_pin++;
	engine->last_pin_ns = clock_ns();
}

void tensor_pin(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL);
	leave_idle(engine, tensor);
	pins_add(tensor, engine->last_pin, engine->last_pin_ns);
	tensor->placement = PLACED_PINNED;
}

void tensor_unpin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin)
{
	pins_remove(tensor, pin);
	if (!tensor->pins.count) {
		tensor->placement = PLACED_NOWHERE;
		if (is_unwritten(tensor))
			drop(engine, tensor);
		else if (!in_flight(tensor))
			make_idle(engine, tensor);
	}
	tensor_check(tensor);
}

/* ---- Evictions ---- */

void evict_until_enough(struct nvs_engine *engine, struct eviction *eviction)
{
	struct nvs_tensor *tensor;

	eviction_restart(engine, eviction);
	while ((tensor = eviction_next(engine, eviction))) {
		eviction->ntaken++;
		eviction->reached += tensor->extent;
		engine->room.evictions++;
		if (!is_dirty(tensor)) {
			drop(engine, tensor);
			tensor_check(tensor);
			continue;
		}
		eviction->nfailed += tensor->status != 0;
		leave_idle(engine, tensor);
		set_ahead(engine, tensor, AHEAD_NOT);
		set_on_landing(engine, tensor, LANDING_EVICTS);
		engine->scratch[eviction->ndirty++] = tensor;
	}
}
