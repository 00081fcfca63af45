/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Swapping to and from external memory, without the pool.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "swap/calls.h"

static int check_external(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			  bool contents, struct nvs_error *error)
{
	int rc = wait_for_engine(engine, tensors, n, error);

	if (!rc)
		rc = check_unpinned(engine, tensors, n, error);
	for (size_t i = 0; i < n && !rc; i++) {
		if (in_flight(tensors[i]))
			rc = error_about(error, -EBUSY, tensors[i]->name, 0, 0,
					 "%s is in flight: wait for it first", tensors[i]->name);
		else if (contents)
			rc = report_failed_write(engine, tensors[i], error);
		if (!rc && contents && tensors[i]->state == NVS_EMPTY)
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
			return error_about(error, -EINVAL, tensors[i]->name, 0, 0,
					   "%s: data[%zu] is NULL", tensors[i]->name, i);
	return 0;
}

static void lend(struct nvs_tensor *tensor, const void *data)
{
	tensor->external = true;
	tensor->data = (char *)(uintptr_t)data;
}

int nvs_tensor_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
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
	pthread_mutex_lock(&engine->lock);
	rc = check_external(engine, tensors, n, false, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_OUT_FROM, tensors, n);
		for (size_t i = 0; i < n; i++) {
			/* The caller's data supersedes the copy in the pool. */
			drop(engine, tensors[i]);
			lend(tensors[i], data[i]);
			engine->scratch[i] = tensors[i];
		}
		list = runs_build(engine, engine->scratch, n, NVS_WRITE);
		events_changed(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	launch(engine, list);
	return rc;
}

/* Pins those that are in the pool while they are copied without the lock. */
static size_t begin_reads(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			  void *const *data, size_t n)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		tensors[i]->status = 0;
		if (tensors[i]->state == NVS_RESIDENT) {
			leave_idle(engine, tensors[i]);
			tensors[i]->copy_pin = ++engine->last_pin;
			pins_add(tensors[i], tensors[i]->copy_pin);
		} else {
			lend(tensors[i], data[i]);
			engine->scratch[count++] = tensors[i];
		}
	}
	return count;
}

static void copy_resident(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			  void *const *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (tensors[i]->copy_pin && tensors[i]->nbytes)
			memcpy(data[i], tensors[i]->data, tensors[i]->nbytes);
	pthread_mutex_lock(&engine->lock);
	for (size_t i = 0; i < n; i++) {
		if (!tensors[i]->copy_pin)
			continue;
		pins_remove(tensors[i], tensors[i]->copy_pin);
		tensors[i]->copy_pin = 0;
		if (!tensors[i]->uses && tensors[i]->state == NVS_RESIDENT)
			make_idle(engine, tensors[i]);
	}
	events_changed(engine);
	pthread_mutex_unlock(&engine->lock);
}

int nvs_tensor_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			  void *const *data, size_t n, struct nvs_error *error)
{
	struct transfer *list = NULL;
	int rc = check_arguments(engine, tensors, n, error);

	if (!rc)
		rc = check_data(tensors, (const void *const *)data, n, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	rc = check_external(engine, tensors, n, true, error);
	if (!rc) {
		trace_calls(engine, TRACE_SWAP_IN_TO, tensors, n);
		list = runs_build(engine, engine->scratch, begin_reads(engine, tensors, data, n),
				  NVS_READ);
	}
	pthread_mutex_unlock(&engine->lock);
	if (rc)
		return rc;
	/* Until the others are launched, only this call looks at `copy_pin`. */
	copy_resident(engine, tensors, data, n);
	launch(engine, list);
	return 0;
}
