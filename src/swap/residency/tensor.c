/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor's state as the caller sees it, and the changes of its contents.
 */
#include "swap/residency/tensor.h"

#include <assert.h>

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
	assert(!in_pool(tensor->content));
	return tensor->content == CONTENT_DRIVE ? NVS_ON_DRIVE : NVS_EMPTY;
}

/* ---- Changes of the contents ---- */

void set_dirty(struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE);
	assert(!tensor->engine->read_only);
	tensor->content = on_drive(tensor->content) ? CONTENT_NEWER : CONTENT_POOL;
	assert(is_dirty(tensor) && !is_unwritten(tensor));
}

void set_clean(struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE);
	assert(tensor->content == CONTENT_DRIVE || !tensor->extent);
	tensor->content = CONTENT_BOTH;
	assert(!is_dirty(tensor));
}

void forget_pool(struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_IDLE);
	tensor->content = on_drive(tensor->content) ? CONTENT_DRIVE : CONTENT_NONE;
	assert(!in_pool(tensor->content) && !is_dirty(tensor));
}

void forget_drive(struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_WRITING && tensor->content != CONTENT_BOTH);
	assert(tensor->place == tensor->offset);
	tensor->content = in_pool(tensor->content) ? CONTENT_POOL : CONTENT_NONE;
	tensor->checksum_state = CHECKSUM_NONE;
	assert(!on_drive(tensor->content));
}
