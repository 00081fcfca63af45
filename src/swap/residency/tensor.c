/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor's state as the caller sees it, the changes of its contents, its pins, and the external
 * memory that its transfer reads or writes. Parts of one tensor are read one after another: those
 * that follow the one in flight wait in a list.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "swap/residency/internal.h"

enum nvs_tensor_state tensor_state(const struct nvs_tensor *tensor)
{
	switch (tensor->io) {
	case IO_READING:
		return NVS_READING;
	case IO_WRITING:
		return NVS_WRITING;
	case IO_IDLE:
		break;
	}
	if (tensor->memory == MEMORY_POOL)
		return NVS_RESIDENT;
	return tensor->content == CONTENT_DRIVE ? NVS_ON_DRIVE : NVS_EMPTY;
}

/* ---- Changes of the contents ---- */

void set_clean(struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE);
	assert(tensor->content == CONTENT_DRIVE || !tensor->extent);
	tensor->content = CONTENT_BOTH;
}

void forget_pool(struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_IDLE);
	tensor->content = on_drive(tensor->content) ? CONTENT_DRIVE : CONTENT_NONE;
}

/* ---- External memory ---- */

static void set_part(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes)
{
	tensor->data = (char *)(uintptr_t)data;
	tensor->rest->part_offset = offset;
	tensor->rest->part_nbytes = nbytes;
}

void lend(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes)
{
	assert(tensor->memory == MEMORY_NONE && tensor->io == IO_IDLE);
	tensor->memory = MEMORY_EXTERNAL;
	set_part(tensor, data, offset, nbytes);
}

void lend_before(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes,
		 struct part **spare)
{
	struct part *part = *spare;

	assert(is_external(tensor) && tensor->io == IO_IDLE && part);
	*spare = part->next;
	*part = (struct part){tensor->rest->parts, tensor->data, tensor->rest->part_offset,
			      tensor->rest->part_nbytes};
	tensor->rest->parts = part;
	set_part(tensor, data, offset, nbytes);
}

void parts_free(struct part *part)
{
	while (part) {
		struct part *next = part->next;

		free(part);
		part = next;
	}
}

bool parts_alloc(struct part **list, size_t n)
{
	assert(!*list);
	for (; n; n--) {
		struct part *part = malloc(sizeof(*part));

		if (!part) {
			parts_free(*list);
			*list = NULL;
			return false;
		}
		part->next = *list;
		*list = part;
	}
	return true;
}

/*
 * ---- Pins ----
 *
 * Their numbers, ascending: a few in the tensor, and in memory of their own when it has more. With
 * the error of a failed read, which ends them, the highest number assigned by then is kept: the
 * owner of a pin that ended so gets the error from its next call.
 */
static uint64_t *pins_of(const struct nvs_tensor *tensor)
{
	return tensor->pins.max ? tensor->pins.many : (uint64_t *)(uintptr_t)tensor->pins.few;
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
	assert(pins_of(tensor)[0] > pins->failed);
	assert(pins_of(tensor)[pins->count - 1] <= tensor->engine->last_pin);
}

bool pins_reserve(struct pins *pins)
{
	uint32_t max = pins->max ? pins->max : PINS_FEW;
	uint64_t *many;

	if (pins->count < max)
		return true;
	assert(pins->count == max && max <= UINT32_MAX / 2);
	many = realloc(pins->max ? pins->many : NULL, 2 * (size_t)max * sizeof(*many));
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
	if (!tensor->pins.count)
		tensor->pins.since_ns = now_ns;
	pins_of(tensor)[tensor->pins.count++] = pin; /* the highest number so far */
	pins_check(tensor);
}

void pins_remove(struct nvs_tensor *tensor, uint64_t pin)
{
	uint64_t *pins = pins_of(tensor), *last = &pins[--tensor->pins.count];

	while (*pins != pin) {
		assert(pins < last);
		pins++;
	}
	memmove(pins, pins + 1, (size_t)(last - pins) * sizeof(*pins));
	pins_check(tensor);
}

bool pins_have(const struct nvs_tensor *tensor, uint64_t pin)
{
	for (uint32_t i = 0; i < tensor->pins.count; i++)
		if (pins_of(tensor)[i] == pin)
			return true;
	return false;
}

size_t pins_list(const struct nvs_tensor *tensor, uint64_t *list, size_t max)
{
	size_t n = min_u64(tensor->pins.count, max);

	memcpy(list, pins_of(tensor), n * sizeof(*list));
	return n;
}

void pins_fail(struct nvs_tensor *tensor)
{
	if (!tensor->pins.count)
		return;
	tensor->pins.count = 0;
	tensor->placement = PLACED_NOWHERE;
	tensor->pins.failed = tensor->engine->last_pin;
	tensor->pins.status = tensor->status;
	tensor->pins.error_offset = tensor->rest->error_offset;
	pins_check(tensor);
}

int pin_check(const struct nvs_tensor *tensor, uint64_t pin, struct nvs_error *error)
{
	if (pin_failed(tensor, pin) || pins_have(tensor, pin))
		return 0;
	if (!tensor->pins.count)
		return error_named(error, -EINVAL, tensor->rest->name, " is not pinned");
	return error_named(error, -EINVAL, tensor->rest->name,
			   " is not pinned by pin %" PRIu64
			   ": give the pin that its nvs_tensor_swap_in or nvs_tensor_pin returned",
			   pin);
}
