/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from a tensor's state, and the changes of its contents.
 */
#include "swap/residency/tensor.h"

#include <assert.h>

bool in_flight(const struct nvs_tensor *tensor)
{
	return tensor->io != IO_IDLE;
}

bool is_external(const struct nvs_tensor *tensor)
{
	return tensor->memory == MEMORY_EXTERNAL;
}

bool is_part(const struct nvs_tensor *tensor)
{
	return is_external(tensor) && tensor->part_nbytes != tensor->nbytes;
}

bool needs_memory(const struct nvs_tensor *tensor)
{
	return tensor->memory == MEMORY_NONE;
}

bool in_pool(enum content content)
{
	return content >= CONTENT_BOTH;
}

bool on_drive(enum content content)
{
	return content != CONTENT_NONE && content != CONTENT_POOL;
}

bool is_dirty(const struct nvs_tensor *tensor)
{
	return tensor->content >= CONTENT_NEWER && tensor->io != IO_WRITING;
}

bool is_unwritten(const struct nvs_tensor *tensor)
{
	return tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE && !in_pool(tensor->content);
}

bool is_listed(const struct nvs_tensor *tensor)
{
	return tensor->placement >= PLACED_IDLE;
}

bool in_plan(const struct nvs_tensor *tensor)
{
	return tensor->class != PLAN_OUTSIDE;
}

bool is_ahead(const struct nvs_tensor *tensor)
{
	return tensor->ahead == AHEAD_FOR_CALLER ||
	       (tensor->ahead == AHEAD_FOR_PLAN && in_plan(tensor));
}

bool is_overdue(const struct nvs_tensor *tensor)
{
	return tensor->hangs_at != NOWHERE;
}

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
	assert(!in_pool(tensor->content));
	return tensor->content == CONTENT_DRIVE ? NVS_ON_DRIVE : NVS_EMPTY;
}

/* ---- Changes of the contents ---- */

void set_dirty(struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE);
	tensor->content = on_drive(tensor->content) ? CONTENT_NEWER : CONTENT_POOL;
}

void set_clean(struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL);
	tensor->content = CONTENT_BOTH;
}

void forget_pool(struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_IDLE);
	tensor->content = on_drive(tensor->content) ? CONTENT_DRIVE : CONTENT_NONE;
}

void forget_drive(struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_WRITING && tensor->content != CONTENT_BOTH);
	tensor->content = in_pool(tensor->content) ? CONTENT_POOL : CONTENT_NONE;
	tensor->checksum_state = CHECKSUM_NONE;
}
