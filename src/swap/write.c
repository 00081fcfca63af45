/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing parts of tensors. The bytes go into the pool, and from there to the drive with the rest
 * of the tensor, so a kept store stays copy-on-write and a checksum that of all bytes.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "swap/calls.h"

/* Stores in `tensors` each tensor of which bytes are written, once. */
static int collect_tensors(struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
			   size_t n, struct nvs_tensor **tensors, size_t *ntensors,
			   struct nvs_error *error)
{
	int rc = 0;

	*ntensors = 0;
	engine_lock(engine);
	engine_sums_check(engine);
	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_range range = range_at(ranges, i);

		if (!range.nbytes || range.tensor->batch == engine->batch)
			continue;
		rc = check_in_batch(engine, range.tensor, i, error);
		if (!rc)
			rc = check_unpinned_one(range.tensor, error);
		assert(*ntensors < n);
		tensors[(*ntensors)++] = range.tensor;
	}
	assert(*ntensors <= n);
	engine_sums_check(engine);
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

/* Pins the tensors when they are in the pool and nothing of them is in flight. */
static int pin_landed(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	uint64_t deadline = deadline_ns(timeout_ms);
	int rc = batch_swap_in(engine, tensors, n, timeout_ms, pin, error);

	if (rc)
		return rc;
	rc = batch_wait(engine, tensors, n, *pin, remaining_ms(deadline), error);
	for (size_t i = 0; i < n && rc; i++)
		engine_unpin(engine, tensors[i], *pin);
	return rc;
}

int batch_write(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		int timeout_ms, struct nvs_error *error)
{
	struct nvs_tensor **tensors = NULL;
	uint64_t pin;
	size_t ntensors;
	int rc = check_ranges(engine, ranges, n, error);

	if (!rc)
		rc = check_writable(engine, error);
	if (rc || !n)
		return rc;
	tensors = calloc(n, sizeof(struct nvs_tensor *));
	if (!tensors)
		return error_set(error, -ENOMEM, "out of memory while writing parts of tensors");
	rc = collect_tensors(engine, ranges, n, tensors, &ntensors, error);
	if (!rc)
		rc = pin_landed(engine, tensors, ntensors, timeout_ms, &pin, error);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_range range = range_at(ranges, i);

		if (!range.nbytes)
			continue;
		assert(range.tensor->memory == MEMORY_POOL && range.tensor->data);
		assert(range.offset + range.nbytes <= range.tensor->nbytes);
		memcpy(range.tensor->data + range.offset, range.data, range.nbytes);
	}
	if (!rc)
		rc = batch_release(engine, tensors, ntensors, pin, NVS_DIRTY, error);
	free(tensors);
	return rc;
}
