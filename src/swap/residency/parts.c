/* SPDX-License-Identifier: Apache-2.0 */
/*
 * External memory that a tensor's transfer reads or writes. Parts of one tensor are read one after
 * another: those that follow the one in flight wait in a list.
 */
#include <assert.h>
#include <stdlib.h>

#include "swap/residency/internal.h"

static void set_part(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes)
{
	assert(tensor->memory == MEMORY_EXTERNAL && tensor->io == IO_IDLE);
	assert(offset <= tensor->nbytes && nbytes <= tensor->nbytes - offset);
	tensor->data = (char *)(uintptr_t)data;
	tensor->rest->part_offset = offset;
	tensor->rest->part_nbytes = nbytes;
}

void lend(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes)
{
	assert(tensor->memory == MEMORY_NONE && tensor->io == IO_IDLE);
	assert(!tensor->pins.count && tensor->on_landing == LANDING_STAYS);
	assert(tensor->placement == PLACED_NOWHERE);
	tensor->memory = MEMORY_EXTERNAL;
	set_part(tensor, data, offset, nbytes);
	assert(is_external(tensor) && (data || !nbytes));
}

void lend_before(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes,
		 struct part **spare)
{
	struct part *part = *spare;

	assert(is_external(tensor) && tensor->io == IO_IDLE && part);
	assert(data && nbytes && tensor->content == CONTENT_DRIVE);
	assert(tensor->rest->part_nbytes && tensor->data);
	*spare = part->next;
	*part = (struct part){tensor->rest->parts, tensor->data, tensor->rest->part_offset,
			      tensor->rest->part_nbytes};
	tensor->rest->parts = part;
	set_part(tensor, data, offset, nbytes);
}

void lend_next(struct nvs_tensor *tensor)
{
	struct part *part = tensor->rest->parts;

	assert(part && part->nbytes);
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
