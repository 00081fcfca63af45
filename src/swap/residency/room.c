/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: leases for tensors, the lists of unpinned ones, and their eviction. policy.c
 * decides which of them goes.
 */
#include <assert.h>

#include "swap/residency/internal.h"

/* ---- Leases ---- */

static void count_in_pool(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	engine->live_numel += tensor->numel;
	if (tensor->planned)
		engine->plan.resident += tensor->extent;
}

static void count_out_of_pool(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	engine->live_numel -= tensor->numel;
	if (tensor->planned)
		engine->plan.resident -= tensor->extent;
}

bool lease_all(struct nvs_engine *engine, size_t n)
{
	struct nvs_tensor **tensors = engine->scratch;
	size_t i = 0;

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
			tensors[i]->data = data;
			data += tensors[i]->extent;
		}
	}
	if (i == n) {
		for (i = 0; i < n; i++)
			count_in_pool(engine, tensors[i]);
		return true;
	}
	while (i--) {
		if (tensors[i]->extent)
			pool_release(engine->pool, tensors[i]->data, tensors[i]->extent);
		tensors[i]->data = NULL;
	}
	return false;
}

/* Puts those of the batch that are not in the pool into engine->scratch. */
size_t collect(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	       uint64_t *need)
{
	size_t count = 0;

	*need = 0;
	for (size_t i = 0; i < n; i++)
		if (needs_memory(tensors[i])) {
			engine->scratch[count++] = tensors[i];
			*need += tensors[i]->extent;
		}
	return count;
}

/* ---- Unpinned tensors in the pool ---- */

void make_idle(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(!tensor->uses && !tensor->list && tensor->state == NVS_RESIDENT);
	if (tensor->planned)
		tensor->list = &engine->planned;
	else
		tensor->list = tensor->prefetched ? &engine->ahead : &engine->idle;
	TAILQ_INSERT_TAIL(tensor->list, tensor, idle);
	if (tensor->planned)
		plan_mark_idle(&engine->plan, tensor, true);
	tensor->held = policy_counts(engine, tensor);
	if (tensor->held)
		engine->held_numel += tensor->numel;
}

void leave_idle(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (!tensor->list)
		return;
	TAILQ_REMOVE(tensor->list, tensor, idle);
	tensor->list = NULL;
	if (tensor->planned)
		plan_mark_idle(&engine->plan, tensor, false);
	if (tensor->held)
		engine->held_numel -= tensor->numel;
	tensor->held = false;
}

/* The memory of a tensor that is evicted after its write will come free. */
void set_drop(struct nvs_engine *engine, struct nvs_tensor *tensor, bool value)
{
	if (tensor->drop == value)
		return;
	tensor->drop = value;
	if (value) {
		engine->landing += tensor->extent;
		engine->landing_numel += tensor->numel;
	} else {
		engine->landing -= tensor->extent;
		engine->landing_numel -= tensor->numel;
	}
}

void set_prefetched(struct nvs_engine *engine, struct nvs_tensor *tensor, bool value)
{
	tensor->fetched = tensor->fetched && value;
	if (tensor->prefetched == value)
		return;
	tensor->prefetched = value;
	if (!tensor->planned)
		return;
	if (value)
		engine->ahead_numel += tensor->numel;
	else
		engine->ahead_numel -= tensor->numel;
}

void drop(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	assert(!in_flight(tensor) && !tensor->uses);
	leave_idle(engine, tensor);
	set_drop(engine, tensor, false);
	set_prefetched(engine, tensor, false);
	if (tensor->data)
		count_out_of_pool(engine, tensor);
	if (tensor->data && tensor->extent)
		pool_release(engine->pool, tensor->data, tensor->extent);
	tensor->data = NULL;
	tensor->dirty = tensor->leased = false;
	tensor->state = tensor->has_contents ? NVS_ON_DRIVE : NVS_EMPTY;
	if (tensor->planned)
		plan_unsettle(&engine->plan, tensor);
}

/* ---- Evictions ---- */

static void evict(struct nvs_engine *engine, struct nvs_tensor *tensor, struct eviction *eviction)
{
	eviction->ntaken++;
	eviction->reached += tensor->extent;
	engine->evictions++;
	if (!tensor->dirty) {
		drop(engine, tensor);
		return;
	}
	eviction->nfailed += tensor->status != 0;
	leave_idle(engine, tensor);
	set_prefetched(engine, tensor, false);
	set_drop(engine, tensor, true);
	engine->scratch[eviction->ndirty++] = tensor;
}

void evict_until_enough(struct nvs_engine *engine, struct eviction *eviction)
{
	struct nvs_tensor *tensor;

	eviction_restart(engine, eviction);
	while ((tensor = eviction_next(engine, eviction)))
		evict(engine, tensor, eviction);
}
