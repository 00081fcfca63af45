/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: leases for tensors, and the eviction of unpinned ones. The plan's tensors go in
 * the order of their next use, last needed first; the others least recently used first.
 */
#include <assert.h>

#include "swap/residency/internal.h"

/* ---- Leases ---- */

uint64_t free_bytes(const struct nvs_engine *engine)
{
	struct nvs_pool_stats stats;

	pool_get_stats(engine->pool, &stats);
	return stats.bytes - stats.used;
}

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

/* Small tensors, those needed again soon and those read ahead don't count for max_in_cpu. */
static bool counts(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	if (tensor->prefetched)
		return false;
	return !tensor->planned ||
	       (!tensor->small &&
		plan_distance(&engine->plan, tensor->next_use) > engine->max_reuse_distance);
}

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
	tensor->held = counts(engine, tensor);
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

static bool may_evict(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		      const struct eviction *eviction)
{
	if (!eviction->own && tensor->batch == engine->batch)
		return false;
	if ((eviction->held && !tensor->held) || (tensor->prefetched && !eviction->ahead))
		return false;
	return !tensor->dirty || eviction->writes;
}

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

static void evict_from(struct nvs_engine *engine, struct tensor_list *list, bool newest_first,
		       struct eviction *eviction)
{
	struct nvs_tensor *tensor = newest_first ? TAILQ_LAST(list, tensor_list)
						 : TAILQ_FIRST(list);

	while (tensor && !eviction->enough(engine, eviction)) {
		struct nvs_tensor *next = newest_first ? TAILQ_PREV(tensor, tensor_list, idle)
						       : TAILQ_NEXT(tensor, idle);

		if (may_evict(engine, tensor, eviction))
			evict(engine, tensor, eviction);
		tensor = next;
	}
}

static void evict_planned(struct nvs_engine *engine, enum plan_class class,
			  struct eviction *eviction)
{
	const struct plan *plan = &engine->plan;
	size_t at = plan_last(plan, class);
	size_t until = eviction->needed_by;

	while (at != PLAN_NONE && !eviction->enough(engine, eviction)) {
		struct nvs_tensor *tensor = plan->order[at].tensor;

		if (until != PLAN_NONE && plan_rank(plan, at) <= plan_rank(plan, until))
			break;
		if (may_evict(engine, tensor, eviction))
			evict(engine, tensor, eviction);
		at = plan_last_before(plan, class, at);
	}
}

void evict_until_enough(struct nvs_engine *engine, struct eviction *eviction)
{
	evict_from(engine, &engine->idle, false, eviction);
	if (eviction->ahead)
		evict_from(engine, &engine->ahead, true, eviction);
	evict_planned(engine, PLAN_LARGE, eviction);
	if (eviction->small)
		evict_planned(engine, PLAN_SMALL, eviction);
}

bool reached_goal(const struct nvs_engine *engine, const struct eviction *eviction)
{
	(void)engine;
	return eviction->reached >= eviction->goal;
}
