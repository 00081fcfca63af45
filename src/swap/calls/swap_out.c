/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Swapping out at the request of the caller.
 */
#include <assert.h>

#include "base/error.h"
#include "swap/calls/calls.h"

static struct transfer *swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				 size_t n)
{
	size_t ndirty = 0;

	lock_check(engine);
	assert(n <= engine->ntensors);
	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensors[i];

		assert(!tensor->pins.count && !is_external(tensor));
		if (needs_memory(tensor))
			continue;
		if (in_flight(tensor)) {
			set_on_landing(engine, tensor, LANDING_EVICTS);
		} else if (is_dirty(tensor)) {
			leave_idle(engine, tensor);
			set_ahead(engine, tensor, AHEAD_NOT);
			set_on_landing(engine, tensor, LANDING_EVICTS);
			engine->scratch[ndirty++] = tensor;
		} else {
			drop(engine, tensor);
			tensor->status = 0;
			tensor_check(tensor);
		}
	}
	assert(ndirty <= n);
	return runs_build(engine, engine->scratch, ndirty, NVS_WRITE);
}

int batch_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_arguments(engine, tensors, n, error);

	if (rc)
		return rc;
	engine_lock(engine);
	wait_for_copies(engine, tensors, n);
	rc = check_unpinned(engine, tensors, n, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_OUT, tensors, n);
		list = swap_out(engine, tensors, n);
		events_changed(engine);
	}
	assert(!rc || !list);
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int nvs_tensor_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			struct nvs_error *error)
{
	int rc = check_unowned(engine, WRITE_STATE, error);

	return rc ? rc : batch_swap_out(engine, tensors, n, error);
}
