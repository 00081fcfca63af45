/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor's state as the caller sees it, the changes of its contents, and the external memory that
 * its transfer reads or writes. Parts of one tensor are read one after another: those that follow
 * the one in flight wait in a list.
 */
#include <stdlib.h>

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

void set_dirty(struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_POOL && tensor->io == IO_IDLE);
	assert(!tensor->engine->read_only);
	tensor->content = on_drive(tensor->content) ? CONTENT_NEWER : CONTENT_POOL;
}

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

void forget_drive(struct nvs_tensor *tensor)
{
	assert(tensor->io == IO_WRITING && tensor->content != CONTENT_BOTH);
	assert(tensor->place == tensor->offset);
	tensor->content = in_pool(tensor->content) ? CONTENT_POOL : CONTENT_NONE;
	tensor->checksum_state = CHECKSUM_NONE;
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

void lend_next(struct nvs_tensor *tensor)
{
	struct part *part = tensor->rest->parts;

	/* A part that failed is the last one. */
	assert(tensor->content == CONTENT_DRIVE && !tensor->status);
	lend(tensor, part->data, part->offset, part->nbytes);
	tensor->rest->parts = part->next;
	free(part);
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
