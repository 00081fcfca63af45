/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of entries per tensor: a few inside it, and in memory of its own when it has more; and what
 * each thread has pinned. A thread has a number of its own, so the entries of up to PINNERS threads
 * that were started one after another differ.
 *
 * A call that pins tensors makes one pin of them, numbered in ascending order. A failed read ends
 * the pins of its tensor; the highest number assigned by then is kept with the error, so the owner
 * of a pin that the read ended gets the error from its next call, and later pins are unaffected.
 */
#include "swap/residency/pins.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/state_checks.h"
#include "swap/residency/internal.h"

/* Of an entry, whose order is that of the numbers. */
#define PINNER_BITS 8
_Static_assert(PINNERS == 1u << PINNER_BITS, "a thread's entry has that many bits");

/* ---- The threads that pin ---- */

uint32_t pinner_self(void)
{
	static atomic_uint threads;
	static _Thread_local unsigned number; /* 0: none yet */

	if (!number)
		number = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % PINNERS;
	return number - 1;
}

static void stop_counting(struct nvs_tensor *tensor)
{
	struct pinners *pinners = &tensor->engine->pinners;

	assert(pinners->held[tensor->pins.pinner] >= tensor->extent);
	pinners->held[tensor->pins.pinner] -= tensor->extent;
	pinners->all -= tensor->extent;
}

static void count_for(struct nvs_tensor *tensor, uint32_t pinner)
{
	struct pinners *pinners = &tensor->engine->pinners;

	tensor->pins.pinner = pinner;
	pinners->held[pinner] += tensor->extent;
	pinners->all += tensor->extent;
}

void pinners_check(const struct pinners *pinners)
{
	if (!STATE_CHECKS)
		return;

	uint64_t sum = 0;

	for (unsigned i = 0; i < PINNERS; i++) {
		assert(pinners->held[i] <= pinners->all);
		sum += pinners->held[i];
	}
	assert(sum == pinners->all);
}

/* ---- The pins of a tensor ---- */

static uint64_t number_of(uint64_t entry)
{
	return entry >> PINNER_BITS;
}

static uint64_t *all_pins(struct nvs_tensor *tensor)
{
	return tensor->pins.max ? tensor->pins.many : tensor->pins.few;
}

static const uint64_t *pins_of(const struct nvs_tensor *tensor)
{
	return tensor->pins.max ? tensor->pins.many : tensor->pins.few;
}

static const uint64_t *find_pin(const struct nvs_tensor *tensor, uint64_t pin)
{
	const uint64_t *pins = pins_of(tensor);

	for (uint32_t i = 0; i < tensor->pins.count; i++)
		if (number_of(pins[i]) == pin)
			return &pins[i];
	return NULL;
}

/* What must hold of the tensor's pins. */
static void pins_check(const struct nvs_tensor *tensor)
{
	if (!STATE_CHECKS)
		return;

	const struct pins *pins = &tensor->pins;

	assert(pins->count <= (pins->max ? pins->max : PINS_FEW));
	assert(!pins->max || (pins->many && pins->max > PINS_FEW));
	assert((pins->failed != 0) == (pins->status < 0));
	assert(pins->failed <= tensor->engine->last_pin);
	if (!pins->count)
		return;
	assert(number_of(pins_of(tensor)[0]) > pins->failed);
	assert(number_of(pins_of(tensor)[0]) <= tensor->engine->last_pin);
}

bool pins_grow(struct pins *pins)
{
	uint32_t max = pins->max ? pins->max : PINS_FEW;
	uint64_t *many = realloc(pins->max ? pins->many : NULL, 2 * (size_t)max * sizeof(*many));

	assert(pins->count == max && max <= UINT32_MAX / 2);
	if (!many)
		return false;
	if (!pins->max)
		memcpy(many, pins->few, sizeof(pins->few));
	pins->many = many;
	pins->max = 2 * max;
	return true;
}

void pins_add(struct nvs_tensor *tensor, uint64_t pin, uint64_t now_ns)
{
	assert(tensor->pins.count < (tensor->pins.max ? tensor->pins.max : PINS_FEW));
	if (tensor->pins.count)
		stop_counting(tensor);
	else
		tensor->pins.since_ns = now_ns;
	count_for(tensor, pinner_self());
	all_pins(tensor)[tensor->pins.count++] = pin << PINNER_BITS | tensor->pins.pinner;
	pins_check(tensor);
}

void pins_remove(struct nvs_tensor *tensor, uint64_t pin)
{
	uint64_t *pins = all_pins(tensor), newest = 0;
	const uint64_t *found = find_pin(tensor, pin);

	assert(found);
	pins[found - pins] = pins[--tensor->pins.count];
	stop_counting(tensor);
	for (uint32_t i = 0; i < tensor->pins.count; i++)
		newest = max_u64(newest, pins[i]);
	if (tensor->pins.count)
		count_for(tensor, newest % PINNERS);
	pins_check(tensor);
}

bool pins_have(const struct nvs_tensor *tensor, uint64_t pin)
{
	return find_pin(tensor, pin);
}

size_t pins_list(const struct nvs_tensor *tensor, uint64_t *list, size_t max)
{
	uint64_t after = 0;
	size_t n = 0;

	for (; n < max && n < tensor->pins.count; n++) {
		list[n] = UINT64_MAX;
		for (uint32_t i = 0; i < tensor->pins.count; i++) {
			uint64_t pin = number_of(pins_of(tensor)[i]);

			if (pin > after && pin < list[n])
				list[n] = pin;
		}
		after = list[n];
	}
	return n;
}

void pins_fail(struct nvs_tensor *tensor)
{
	if (!tensor->pins.count)
		return;
	tensor->pins.count = 0;
	stop_counting(tensor);
	tensor->placement = PLACED_NOWHERE;
	tensor->pins.failed = tensor->engine->last_pin;
	tensor->pins.status = tensor->status;
	tensor->pins.error_offset = tensor->rest->error_offset;
	pins_check(tensor);
}

int pin_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
	      struct nvs_error *error)
{
	const struct transfer transfer = {.file = store_file(engine->store),
					  .direction = NVS_READ,
					  .status = tensor->pins.status,
					  .error_offset = tensor->pins.error_offset};

	return transfer_error(&transfer, tensor->rest->name, error);
}

int pin_check(const struct nvs_tensor *tensor, uint64_t pin, struct nvs_error *error)
{
	if (pin_failed(tensor, pin) || pins_have(tensor, pin))
		return 0;
	if (!tensor->pins.count)
		return error_about(error, -EINVAL, tensor->rest->name, 0, 0, "%s is not pinned",
				   tensor->rest->name);
	return error_about(error, -EINVAL, tensor->rest->name, 0, 0,
			   "%s is not pinned by pin %" PRIu64
			   ": give the pin that its nvs_tensor_swap_in or nvs_tensor_pin returned",
			   tensor->rest->name, pin);
}

void pins_free(struct nvs_tensor *tensor)
{
	if (tensor->pins.max)
		free(tensor->pins.many);
}
