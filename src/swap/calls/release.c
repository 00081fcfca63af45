/* SPDX-License-Identifier: Apache-2.0 */
/* Ending pins, and swapping out what is not pinned. */
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

/* A tensor whose read failed is not pinned any more. */
static void end_pin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin,
		    enum nvs_how how)
{
	if (pin_failed(tensor, pin))
		return;
	if (how == NVS_DIRTY) {
		assert(tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE);
		assert(!engine->read_only);
		tensor->content = on_drive(tensor->content) ? CONTENT_NEWER : CONTENT_POOL;
		tensor->unreported = 0;
	}
	tensor_unpin(engine, tensor, pin);
}

/* Transfers to launch after tensors were unpinned. */
static struct transfer *after_release(struct nvs_engine *engine)
{
	struct transfer *list = join(keep_to_budget(engine, true), keep_to_budget(engine, false));

	list = join(list, move_ahead(engine));
	events_changed(engine);
	return list;
}

int batch_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  uint64_t pin, enum nvs_how how, struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_array(engine, tensors, n, error);

	if (rc)
		return rc;
	if (how != NVS_CLEAN && how != NVS_DIRTY)
		return error_set(error, -EINVAL, "how is %d: neither NVS_CLEAN nor NVS_DIRTY",
				 (int)how);
	if (how == NVS_DIRTY)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	engine_lock(engine);
	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		load_later(tensors, i, n);
		rc = check_in_batch(engine, tensors[i], i, error);
		if (!rc)
			rc = pin_check(tensors[i], pin, error);
		if (rc || pin_failed(tensors[i], pin))
			continue;
		if (tensors[i]->io == IO_READING)
			rc = error_named(error, -EBUSY, tensors[i]->rest->name,
					 " is still being read: wait for it before releasing it");
		else if (tensors[i]->io == IO_WRITING && how == NVS_DIRTY)
			rc = error_named(error, -EBUSY, tensors[i]->rest->name,
					 " is still being written: wait for it before changing it "
					 "and releasing it dirty");
	}
	for (size_t i = 0; i < n && !rc; i++)
		end_pin(engine, tensors[i], pin, how);
	if (!rc) {
		trace_calls(engine, how == NVS_DIRTY ? TRACE_RELEASE_DIRTY : TRACE_RELEASE_CLEAN,
			    tensors, n);
		list = after_release(engine);
	}
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int nvs_tensor_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       uint64_t pin, enum nvs_how how, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, WRITE_STATE, error)
		       ?: batch_release(engine, tensors, n, pin, how, error);
}

static void unpin_one(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin,
		      bool discard)
{
	struct transfer *list;

	engine_lock(engine);
	if (pins_have(tensor, pin)) {
		trace_calls(engine, TRACE_RELEASE_CLEAN, &tensor, 1);
		end_pin(engine, tensor, pin, NVS_CLEAN);
	}
	if (discard && tensor_state(tensor) == NVS_RESIDENT && !tensor->pins.count)
		drop(engine, tensor);
	tensor_check(tensor);
	list = after_release(engine);
	engine_unlock(engine);
	launch(engine, list);
}

void engine_unpin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin)
{
	unpin_one(engine, tensor, pin, false);
}

void engine_discard(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin)
{
	unpin_one(engine, tensor, pin, true);
}

void end_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		uint64_t pin, enum nvs_how how)
{
	struct transfer *list;

	engine_lock(engine);
	for (size_t i = 0; i < n; i++) {
		copy_ends(engine, tensors[i]);
		end_pin(engine, tensors[i], pin, how);
	}
	trace_calls(engine, how == NVS_DIRTY ? TRACE_RELEASE_DIRTY : TRACE_RELEASE_CLEAN, tensors,
		    n);
	list = after_release(engine);
	engine_unlock(engine);
	launch(engine, list);
}

/* ---- Swapping out ---- */

int batch_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	struct transfer *list = NULL;
	size_t ndirty = 0;
	int rc = check_arguments(engine, tensors, n, error);

	if (rc)
		return rc;
	engine_lock(engine);
	wait_for_copies(engine, tensors, n);
	rc = check_unpinned(engine, tensors, n, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_OUT, tensors, n);
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
		list = runs_build(engine, engine->scratch, ndirty, NVS_WRITE);
		events_changed(engine);
	}
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int nvs_tensor_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, WRITE_STATE, error)
		       ?: batch_swap_out(engine, tensors, n, error);
}
