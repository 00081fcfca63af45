/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing parts of tensors. The bytes go into the pool, and from there to the drive with the rest
 * of the tensor, so a kept store stays copy-on-write and a checksum that of all bytes.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

/* Stores in `tensors` each tensor of which bytes are written, once. */
static int collect_tensors(struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
			   size_t n, struct nvs_tensor **tensors, size_t *ntensors,
			   struct nvs_error *error)
{
	int rc = 0;

	*ntensors = 0;
	engine_lock(engine);
	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_range range = range_at(ranges, i);

		if (!range.nbytes || range.tensor->batch == engine->batch)
			continue;
		rc = check_in_batch(engine, range.tensor, i, error);
		tensors[(*ntensors)++] = range.tensor;
	}
	engine_unlock(engine);
	return rc;
}

/* At least 1 ms of a time limit, so that one that has passed is reported as such. */
static int remaining_ms(uint64_t deadline)
{
	uint64_t now = clock_ns();

	if (!deadline || deadline == UINT64_MAX)
		return deadline ? -1 : 0;
	/* Deadlines are made of an int of milliseconds. */
	assert(deadline <= now || (deadline - now) / 1000000 <= INT_MAX);
	return deadline > now ? (int)((deadline - now + 999999) / 1000000) : 1;
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
	tensors = ranged_alloc(few, n, error);
	if (!tensors)
		return -ENOMEM;
	rc = collect_tensors(engine, ranges, n, tensors, &ntensors, error);
	if (!rc)
		rc = pin_to_copy(engine, tensors, ntensors, remaining_ms(deadline), &pin, error);
	if (!rc) {
		rc = batch_wait(engine, tensors, ntensors, pin, remaining_ms(deadline), error);
		for (size_t i = 0; i < n && !rc; i++) {
			struct nvs_tensor_range range = range_at(ranges, i);

			if (range.nbytes)
				memcpy(range.tensor->data + range.offset, range.data, range.nbytes);
		}
		end_copies(engine, tensors, ntensors, pin, rc ? NVS_CLEAN : NVS_DIRTY);
	}
	ranged_free(few, tensors);
	return rc;
}
