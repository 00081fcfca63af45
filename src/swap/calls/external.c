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

	for (size_t i = 0; i < n && !rc && contents; i++) {
		rc = report_failed_write(engine, tensors[i], error);
		if (!rc && tensor_state(tensors[i]) == NVS_EMPTY)
			rc = no_contents(tensors[i], error);
	}
	return rc;
}

static int check_data(struct nvs_tensor *const *tensors, const void *const *data, size_t n,
		      struct nvs_error *error)
{
	if (n && !data)
		return error_set(error, -EINVAL, "data is NULL");
	for (size_t i = 0; i < n; i++)
		if (!data[i] && tensors[i]->nbytes)
			return error_about(error, -EINVAL, tensors[i]->rest->name, 0, 0,
					   "%s: data[%zu] is NULL", tensors[i]->rest->name, i);
	return 0;
}

int batch_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			const void *const *data, size_t n, struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_arguments(engine, tensors, n, error);

	if (!rc)
		rc = check_data(tensors, data, n, error);
	if (!rc)
		rc = check_writable(engine, error);
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
	int rc = check_unowned(engine, WRITE_STATE, error);

	return rc ? rc : batch_swap_out_from(engine, tensors, data, n, error);
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
	int rc = check_arguments(engine, tensors, n, error);

	if (!rc)
		rc = check_data(tensors, (const void *const *)data, n, error);
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
	int rc = check_unowned(engine, READ_STATE, error);

	return rc ? rc : batch_swap_in_to(engine, tensors, data, n, error);
}

/* ---- Parts ---- */

/* One of the ranges that check_ranges() has checked. */
static struct nvs_tensor_range range_at(const struct nvs_tensor_range *ranges, size_t i)
{
	struct nvs_tensor_range range;
	int rc = struct_in_at(&range, sizeof(range), ranges, i);

	assert(!rc);
	(void)rc;
	return range;
}

/* Without the lock: the tensors of which bytes are named, each once, in `few` if it has room, else
 * in memory that ranged_free() frees; NULL without memory. */
#define RANGED_FEW 64
static struct nvs_tensor **ranged_tensors(struct nvs_engine *engine,
					  const struct nvs_tensor_range *ranges, size_t n,
					  struct nvs_tensor *few[RANGED_FEW], size_t *count,
					  struct nvs_error *error)
{
	struct nvs_tensor **tensors = few;

	*count = 0;
	if (n > RANGED_FEW)
		tensors = calloc(n, sizeof(struct nvs_tensor *));
	if (!tensors) {
		error_set(error, -ENOMEM, "out of memory for %zu parts of tensors", n);
		return NULL;
	}
	engine_lock(engine);
	begin_batch(engine);
	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor_range range = range_at(ranges, i);

		if (!range.nbytes)
			continue;
		if (range.tensor->batch != engine->batch)
			tensors[(*count)++] = range.tensor;
		range.tensor->batch = engine->batch;
	}
	engine_unlock(engine);
	return tensors;
}

static void ranged_free(struct nvs_tensor *few[RANGED_FEW], struct nvs_tensor **tensors)
{
	if (tensors != few)
		free(tensors);
}

/* -EINVAL: the engine or the array is NULL, or a range is not one of its tensor; -E2BIG: it has
 * fields of a later version. */
static int check_ranges(const struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
			size_t n, struct nvs_error *error)
{
	struct nvs_tensor_range range;
	uint64_t nbytes;
	int rc = 0;

	if (!engine || (n && !ranges))
		return error_set(error, -EINVAL, "%s is NULL", engine ? "ranges" : "engine");
	for (size_t i = 0; i < n && !rc; i++) {
		rc = struct_in_at(&range, sizeof(range), ranges, i);
		if (rc)
			return struct_refused(error, rc, "nvs_tensor_range", "ranges[%zu]", i);
		rc = check_tensor(engine, range.tensor, i, error);
		if (rc)
			break;
		nbytes = range.tensor->nbytes;
		if (range.offset > nbytes || range.nbytes > nbytes - range.offset)
			rc = error_about(error, -EINVAL, range.tensor->rest->name, 0, range.offset,
					 "%s: %" PRIu64 " bytes from offset %" PRIu64
					 " are not within its %" PRIu64 " bytes",
					 range.tensor->rest->name, range.nbytes, range.offset,
					 nbytes);
		else if (range.nbytes && !range.data)
			rc = error_about(error, -EINVAL, range.tensor->rest->name, 0, 0,
					 "%s: the data of ranges[%zu] is NULL",
					 range.tensor->rest->name, i);
	}
	return rc;
}

/* Backwards, so that the first part of each tensor is read first. */
static size_t begin_parts(struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
			  size_t n, struct part **spare)
{
	size_t count = 0;

	while (n--) {
		struct nvs_tensor_range range = range_at(ranges, n);
		struct nvs_tensor *tensor = range.tensor;

		if (!range.nbytes)
			continue;
		if (is_external(tensor)) {
			lend_before(tensor, range.data, range.offset, range.nbytes, spare);
			continue;
		}
		if (tensor->rest->copy_pin || begin_copy(engine, tensor))
			continue;
		lend(tensor, range.data, range.offset, range.nbytes);
		engine->scratch[count++] = tensor;
	}
	return count;
}

int nvs_tensor_read(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		    struct nvs_error *error)
{
	HOLD_CANCEL;
	struct transfer *list = NULL;
	struct nvs_tensor *few[RANGED_FEW], **tensors;
	struct part *spare = NULL;
	size_t count = 0;
	int rc = check_unowned(engine, READ_STATE, error);

	if (!rc)
		rc = check_ranges(engine, ranges, n, error);
	if (rc || !n)
		return rc;
	tensors = ranged_tensors(engine, ranges, n, few, &count, error);
	if (!tensors)
		return -ENOMEM;
	engine_lock(engine);
	rc = await_external(engine, tensors, count, true, error);
	/* Parts beyond the first of each tensor. */
	if (!rc && !parts_alloc(&spare, n - count))
		rc = error_set(error, -ENOMEM, "out of memory for %zu parts of tensors", n);
	if (!rc) {
		trace_calls(engine, TRACE_READ_PART, tensors, count);
		list = runs_build(engine, engine->scratch, begin_parts(engine, ranges, n, &spare),
				  NVS_READ);
	}
	engine_unlock(engine);
	parts_free(spare);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_range range = range_at(ranges, i);

		copy_pinned(range.tensor, range.data, range.offset, range.nbytes);
	}
	if (!rc)
		end_reading(engine, tensors, count, list);
	ranged_free(few, tensors);
	return rc;
}

int nvs_tensor_write(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		     int timeout_ms, struct nvs_error *error)
{
	HOLD_CANCEL;
	uint64_t pin, deadline = deadline_ns(timeout_ms);
	struct nvs_tensor *few[RANGED_FEW], **tensors;
	size_t ntensors;
	int rc = check_unowned(engine, WRITE_STATE, error);

	if (!rc)
		rc = check_ranges(engine, ranges, n, error);
	if (!rc)
		rc = check_writable(engine, error);
	if (rc || !n)
		return rc;
	tensors = ranged_tensors(engine, ranges, n, few, &ntensors, error);
	if (!tensors)
		return -ENOMEM;
	rc = pin_to_copy(engine, tensors, ntensors, deadline, &pin, error);
	if (!rc) {
		rc = wait_until(engine, tensors, ntensors, pin, deadline, error);
		for (size_t i = 0; i < n && !rc; i++) {
			struct nvs_tensor_range range = range_at(ranges, i);

			if (range.nbytes)
				memcpy(first_byte(range.tensor) + range.offset, range.data,
				       range.nbytes);
		}
		end_copies(engine, tensors, ntensors, pin, rc ? NVS_CLEAN : NVS_DIRTY);
	}
	ranged_free(few, tensors);
	return rc;
}
