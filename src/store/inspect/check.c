/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of a store that is open for inspection, asserted wherever it was read or is used.
 * Bytes of the drive may be anything; these functions check only what was decoded from them.
 */
#include <assert.h>

#include "store/inspect/internal.h"

void inspect_check(const struct nvs_store *store)
{
	const struct nvs_store_info *info = &store->info;
	const struct manifest_header *header = &store->found.header;

	assert(store->npaths >= 1 && store->npaths <= NVS_PATHS_MAX);
	for (unsigned i = 0; i < store->npaths; i++) {
		const struct open_result *result = &store->open_results[i];
		const struct member *member = &store->members[i];

		/* A member that could not be opened is described by its error. */
		assert(!result->rc || (result->rc < 0 && result->rc == result->why.code));
		assert(member->fd >= 0 || result->rc);
		if (member->fd >= 0)
			member_open_check(member);
		assert(member->read_only && member->kind != MEMBER_MEMORY);
		assert(!store->locked || !member->in_use);
		if (!result->rc && !member->blank)
			label_check(&member->label);
	}
	assert(info->state <= NVS_STORE_DAMAGED);
	assert((info->state == NVS_STORE_KEPT || info->state == NVS_STORE_TEMPORARY) ==
	       !info->problem[0]);
	/* Only a kept store's first member has manifests. */
	if (store->has_slots)
		slots_check(&store->slots);
	assert(!store->has_slots ||
	       (store->members[0].label.kept && !store->members[0].label.index));
	manifest_check(&store->found);
	assert(store->has_slots || !header->generation);
	assert(info->tensors == header->count && info->note_bytes == header->note_bytes);
	assert(info->state != NVS_STORE_KEPT || info->commit == header->generation);
	assert(!info->truncated ||
	       (info->state == NVS_STORE_DAMAGED && info->commit == header->generation));
	assert(info->free_bytes <= info->data_bytes);
	/* Data is read only while no engine writes any. */
	assert(!store->file || (store->locked && store->aio));
}

void inspect_copy_check(const struct nvs_store_copy *copy)
{
	assert(copy->path && *copy->path);
	assert(copy->state <= NVS_STORE_COPY_DAMAGED);
	assert((copy->state == NVS_STORE_COPY_DAMAGED) == (copy->problem[0] != 0));
	assert(copy->kind == NVS_STORE_MANIFEST || copy->offset % LABEL_DISTANCE == 0);
}
