/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Swapping to and from external memory: whole tensors and reading parts of them without the pool;
 * writing parts through it, so that they go to the drive with the rest of the tensor, and a kept
 * store stays copy-on-write and a checksum that of all bytes.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

static int await_external(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			  bool contents, struct nvs_error *error)
{
	const struct turn turn = {
		.tensors = tensors, .n = n, .copying = contents ? COPIED_OUT : COPIED_NOT};
	int rc = wait_for_engine(engine, turn, error);

	for (size_t i = 0; i < n && !rc && contents; i++)
		rc = report_failed_write(engine, tensors[i], error)
			     ?: check_readable(tensors[i], error);
	return rc;
}

static int check_data(struct nvs_tensor *const *tensors, const void *const *data, size_t n,
		      struct nvs_error *error)
{
	if (n && !data)
		return error_set(error, -EINVAL, "data is NULL");
	for (size_t i = 0; i < n; i++)
		if (!data[i] && tensors[i]->nbytes)
			return error_named(error, -EINVAL, tensors[i]->rest->name,
					   ": data[%zu] is NULL", i);
	return 0;
}

int batch_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			const void *const *data, size_t n, struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_arguments(engine, tensors, n, error)
			 ?: check_data(tensors, data, n, error)
			 ?: check_writable(engine, error);

	if (rc)
		return rc;
	engine_lock(engine);
	rc = await_external(engine, tensors, n, false, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_OUT_FROM, tensors, n);
		for (size_t i = 0; i < n; i++) {
			/* The caller's data supersedes the copy in the pool. */
			drop(engine, tensors[i]);
			lend(tensors[i], data[i], 0, tensors[i]->nbytes);
			engine->scratch[i] = tensors[i];
		}
		list = runs_build(engine, engine->scratch, n, NVS_WRITE);
		events_changed(engine);
	}
	engine_unlock(engine);
	launch(engine, list);
	return rc;
}

int nvs_tensor_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			     const void *const *data, size_t n, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, WRITE_STATE, error)
		       ?: batch_swap_out_from(engine, tensors, data, n, error);
}

/* Pins a tensor that is in the pool while it is copied without the lock. False: it is not. */
static bool begin_copy(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	tensor->status = 0;
	if (tensor_state(tensor) != NVS_RESIDENT)
		return false;
	assert(!tensor->rest->copy_pin);
	number_pin(engine);
	tensor_pin(engine, tensor);
	/* The copy is what the caller read it ahead for. */
	if (tensor->ahead == AHEAD_FOR_CALLER)
		set_ahead(engine, tensor, AHEAD_NOT);
	copy_begins(engine, tensor, COPIED_OUT);
	tensor->rest->copy_pin = engine->last_pin;
	tensor_check(tensor);
	return true;
}

/* Until the reads of a call are launched, it alone looks at `copy_pin`. */
static void copy_pinned(const struct nvs_tensor *tensor, void *data, uint64_t offset,
			uint64_t nbytes)
{
	if (nbytes && tensor->rest->copy_pin)
		memcpy(data, first_byte(tensor) + offset, nbytes);
}

/* Ends the copies of these tensors, and launches the reads of the others. */
static void end_reading(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			struct transfer *list)
{
	engine_lock(engine);
	for (size_t i = 0; i < n; i++) {
		uint64_t pin = tensors[i]->rest->copy_pin;

		tensors[i]->rest->copy_pin = 0;
		if (!pin)
			continue;
		copy_ends(engine, tensors[i]);
		tensor_unpin(engine, tensors[i], pin);
	}
	events_changed(engine);
	engine_unlock(engine);
	launch(engine, list);
}

int batch_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
		     void *const *data, size_t n, struct nvs_error *error)
{
	struct transfer *list = NULL;
	size_t count = 0;
	int rc = check_arguments(engine, tensors, n, error)
			 ?: check_data(tensors, (const void *const *)data, n, error);

	if (rc)
		return rc;
	engine_lock(engine);
	rc = await_external(engine, tensors, n, true, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_IN_TO, tensors, n);
		for (size_t i = 0; i < n; i++) {
			if (begin_copy(engine, tensors[i]))
				continue;
			lend(tensors[i], data[i], 0, tensors[i]->nbytes);
			engine->scratch[count++] = tensors[i];
		}
		list = runs_build(engine, engine->scratch, count, NVS_READ);
	}
	engine_unlock(engine);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		copy_pinned(tensors[i], data[i], 0, tensors[i]->nbytes);
	end_reading(engine, tensors, n, list);
	return 0;
}

int nvs_tensor_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			  void *const *data, size_t n, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, READ_STATE, error)
		       ?: batch_swap_in_to(engine, tensors, data, n, error);
}

/* ---- Parts ---- */

/* The ranges of a call that have bytes, checked, and the tensors of these, each once. */
#define RANGES_FEW 64
struct ranged {
	size_t n, ntensors;
	struct nvs_tensor_range *ranges, few[RANGES_FEW];
	struct nvs_tensor **tensors, *few_tensors[RANGES_FEW];
};

static void ranged_free(struct ranged *ranged)
{
	if (ranged->ranges == ranged->few)
		return;
	free(ranged->ranges);
	free(ranged->tensors);
}

/* Without the lock. -EINVAL: the engine or the array is NULL, or a range is not one of its tensor;
 * -E2BIG: it has fields of a later version; -ENOMEM. */
static int ranged_take(struct ranged *taken, struct nvs_engine *engine,
		       const struct nvs_tensor_range *ranges, size_t n, struct nvs_error *error)
{
	bool few = n <= RANGES_FEW;
	int rc = 0;

	if (!engine || (n && !ranges)) {
		error_set(error, -EINVAL, "%s is NULL", engine ? "ranges" : "engine");
		return -EINVAL;
	}
	taken->n = taken->ntensors = 0;
	taken->ranges = few ? taken->few : calloc(n, sizeof(*taken->ranges));
	taken->tensors = few ? taken->few_tensors : calloc(n, sizeof(struct nvs_tensor *));
	if (!taken->ranges || !taken->tensors) {
		ranged_free(taken);
		error_set(error, -ENOMEM, "out of memory for %zu parts of tensors", n);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_range *range = &taken->ranges[taken->n];
		uint64_t nbytes;

		rc = struct_in_at(range, sizeof(*range), ranges, i);
		if (rc)
			struct_refused(error, rc, "nvs_tensor_range", "ranges[%zu]", i);
		rc = rc ?: check_tensor(engine, range->tensor, i, error);
		if (rc)
			break;
		nbytes = range->tensor->nbytes;
		if (range->offset > nbytes || range->nbytes > nbytes - range->offset)
			rc = error_about(
				error, -EINVAL, range->tensor->rest->name, 0, range->offset,
				"%s: %" PRIu64 " bytes from offset %" PRIu64
				" are not within its %" PRIu64 " bytes",
				range->tensor->rest->name, range->nbytes, range->offset, nbytes);
		else if (range->nbytes && !range->data)
			rc = error_named(error, -EINVAL, range->tensor->rest->name,
					 ": the data of ranges[%zu] is NULL", i);
		taken->n += range->nbytes > 0;
	}
	if (rc) {
		ranged_free(taken);
		return rc;
	}
	engine_lock(engine);
	begin_batch(engine);
	for (size_t i = 0; i < taken->n; i++) {
		struct nvs_tensor *tensor = taken->ranges[i].tensor;

		if (tensor->batch != engine->batch)
			taken->tensors[taken->ntensors++] = tensor;
		tensor->batch = engine->batch;
	}
	engine_unlock(engine);
	return 0;
}

/* Backwards, so that the first part of each tensor is read first. */
static size_t begin_parts(struct nvs_engine *engine, const struct ranged *ranged,
			  struct part **spare)
{
	size_t count = 0;

	for (size_t i = ranged->n; i--;) {
		const struct nvs_tensor_range *range = &ranged->ranges[i];
		struct nvs_tensor *tensor = range->tensor;

		if (is_external(tensor)) {
			lend_before(tensor, range->data, range->offset, range->nbytes, spare);
		} else if (!tensor->rest->copy_pin && !begin_copy(engine, tensor)) {
			lend(tensor, range->data, range->offset, range->nbytes);
			engine->scratch[count++] = tensor;
		}
	}
	return count;
}

int nvs_tensor_read(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		    struct nvs_error *error)
{
	HOLD_CANCEL;
	struct transfer *list = NULL;
	struct part *spare = NULL;
	struct ranged ranged;
	int rc = check_unowned(engine, READ_STATE, error)
			 ?: ranged_take(&ranged, engine, ranges, n, error);

	if (rc)
		return rc;
	engine_lock(engine);
	rc = await_external(engine, ranged.tensors, ranged.ntensors, true, error);
	/* Parts beyond the first of each tensor. */
	if (!rc && !parts_alloc(&spare, ranged.n - ranged.ntensors))
		rc = error_set(error, -ENOMEM, "out of memory for %zu parts of tensors", n);
	if (!rc) {
		trace_calls(engine, TRACE_READ_PART, ranged.tensors, ranged.ntensors);
		list = runs_build(engine, engine->scratch, begin_parts(engine, &ranged, &spare),
				  NVS_READ);
	}
	engine_unlock(engine);
	parts_free(spare);
	for (size_t i = 0; i < ranged.n && !rc; i++)
		copy_pinned(ranged.ranges[i].tensor, ranged.ranges[i].data, ranged.ranges[i].offset,
			    ranged.ranges[i].nbytes);
	if (!rc)
		end_reading(engine, ranged.tensors, ranged.ntensors, list);
	ranged_free(&ranged);
	return rc;
}

int nvs_tensor_write(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		     int timeout_ms, struct nvs_error *error)
{
	HOLD_CANCEL;
	uint64_t pin, deadline = deadline_ns(timeout_ms);
	struct ranged ranged;
	int rc = check_unowned(engine, WRITE_STATE, error)
			 ?: check_writable(engine, error)
			 ?: ranged_take(&ranged, engine, ranges, n, error);

	if (rc)
		return rc;
	rc = pin_to_copy(engine, ranged.tensors, ranged.ntensors, deadline, &pin, error);
	if (!rc) {
		rc = wait_until(engine, ranged.tensors, ranged.ntensors, pin, deadline, error);
		for (size_t i = 0; i < ranged.n && !rc; i++) {
			const struct nvs_tensor_range *range = &ranged.ranges[i];

			memcpy(first_byte(range->tensor) + range->offset, range->data,
			       range->nbytes);
		}
		end_copies(engine, ranged.tensors, ranged.ntensors, pin,
			   rc ? NVS_CLEAN : NVS_DIRTY);
	}
	ranged_free(&ranged);
	return rc;
}
