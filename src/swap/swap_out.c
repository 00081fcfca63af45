/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Swapping out at the request of the caller.
 */
#include "base/error.h"
#include "swap/calls.h"

static struct transfer *swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
				 size_t n)
{
	size_t ndirty = 0;

	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensors[i];

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
	return runs_build(engine, engine->scratch, ndirty, NVS_WRITE);
}

int nvs_tensor_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_array(engine, tensors, n, error);

	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	rc = check_unpinned(engine, tensors, n, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_OUT, tensors, n);
		list = swap_out(engine, tensors, n);
		events_changed(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}
