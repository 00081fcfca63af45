/* SPDX-License-Identifier: Apache-2.0 */
/* Reading ahead at the request of the caller. */
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

/* A read that the plan started counts as the caller's from now on: its failure is reported. */
static void claim(struct nvs_tensor *tensor)
{
	if (tensor->io == IO_READING)
		tensor->origin = ORIGIN_CALL;
}

/* Returns how many of the tensors, from the first, are in the pool or being read; the reads that
 * this takes are in *list. */
static size_t read_ahead(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct transfer **list)
{
	uint64_t need = 0, have;
	size_t count = 0;

	/* While a call waits for room nothing is read: what is in the pool already stays there. */
	if (!queue_empty(engine)) {
		while (count < n && tensors[count]->memory == MEMORY_POOL &&
		       tensors[count]->on_landing == LANDING_STAYS)
			claim(tensors[count++]);
		return count;
	}
	for (size_t i = 0; i < n; i++)
		need += needs_memory(tensors[i]) ? tensors[i]->extent : 0;
	if (need > pool_free_bytes(engine->pool)) {
		struct eviction eviction = eviction_for_prefetch(engine, need);

		evict_until_enough(engine, &eviction);
	}
	/* Those that fit, from the first. */
	have = pool_free_bytes(engine->pool);
	for (need = 0; count < n; count++) {
		need += needs_memory(tensors[count]) ? tensors[count]->extent : 0;
		if (need > have)
			break;
	}
	for (n = count; n; n /= 2) {
		count = 0;
		for (size_t i = 0; i < n; i++)
			if (needs_memory(tensors[i]))
				engine->scratch[count++] = tensors[i];
		if (lease_all(engine, count))
			break;
	}
	if (!n)
		return 0;
	for (size_t i = 0; i < count; i++)
		set_ahead(engine, engine->scratch[i], AHEAD_FOR_CALLER);
	/* Cancel the eviction of tensors that are being written. */
	for (size_t i = 0; i < n; i++) {
		set_on_landing(engine, tensors[i], LANDING_STAYS);
		claim(tensors[i]);
	}
	*list = runs_build(engine, engine->scratch, count, NVS_READ);
	return n;
}

long batch_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error)
{
	struct transfer *list = NULL;
	long rc = check_array(engine, tensors, n, error);

	if (rc)
		return rc;
	engine_lock(engine);
	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		load_later(tensors, i, n);
		rc = check_in_batch(engine, tensors[i], i, error)
			     ?: check_readable(tensors[i], error);
	}
	if (!rc)
		rc = (long)read_ahead(engine, tensors, n, &list);
	if (rc >= 0)
		trace_calls(engine, TRACE_PREFETCH, tensors, n);
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

long nvs_tensor_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, READ_STATE, error)
		       ?: batch_prefetch(engine, tensors, n, error);
}
