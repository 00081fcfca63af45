/* SPDX-License-Identifier: Apache-2.0 */
#include "swap/sole_owner.h"

#include <errno.h>

#include "swap/residency/internal.h"

static uint64_t newest_pin(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	uint64_t pin = 0;

	engine_lock(engine);
	pin = pins_newest(tensor);
	engine_unlock(engine);
	return pin;
}

/* The number of leading tensors with the same pin, which is stored in *pin. */
static size_t pinned_together(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			      size_t n, uint64_t *pin)
{
	size_t i = 1;

	*pin = newest_pin(engine, tensors[0]);
	while (i < n && newest_pin(engine, tensors[i]) == *pin)
		i++;
	return i;
}

int sole_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 int timeout_ms, struct nvs_error *error)
{
	uint64_t pin;

	return nvs_tensor_swap_in(engine, tensors, n, timeout_ms, &pin, error);
}

int sole_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, int timeout_ms,
	     struct nvs_error *error)
{
	uint64_t pin;

	return nvs_tensor_pin(engine, tensors, n, timeout_ms, &pin, error);
}

static bool must_wait_again(int rc)
{
	return rc == -EAGAIN || rc == -ETIMEDOUT;
}

/* As in one call, a transfer still in flight takes precedence over a failed one. */
int sole_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, struct nvs_error *error)
{
	struct nvs_error last = {.size = sizeof(last)};
	int rc = 0;

	for (size_t i = 0, k; i < n && !must_wait_again(rc); i += k) {
		uint64_t pin;
		int failure;

		k = pinned_together(engine, tensors + i, n - i, &pin);
		failure = nvs_tensor_wait(engine, tensors + i, k, pin, timeout_ms, &last);
		if (!failure || (rc && !must_wait_again(failure)))
			continue;
		rc = failure;
		if (error)
			*error = last;
	}
	return rc;
}

int sole_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 enum nvs_how how, struct nvs_error *error)
{
	uint64_t pin;
	size_t k;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		if (!newest_pin(engine, tensors[i]))
			return nvs_tensor_release(engine, tensors, n,
						  newest_pin(engine, tensors[0]), how, error);
	for (size_t i = 0; i < n && !rc; i += k) {
		k = pinned_together(engine, tensors + i, n - i, &pin);
		rc = nvs_tensor_release(engine, tensors + i, k, pin, how, error);
	}
	return rc;
}
