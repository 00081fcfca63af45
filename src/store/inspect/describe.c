/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells what was read of a store: as a whole, each copy of its metadata, each tensor. No I/O here.
 */
#include <stdio.h>

#include "base/shape.h"
#include "base/struct_size.h"
#include "store/inspect/internal.h"

/* ---- Copies ---- */

static void check_copy(const struct nvs_store_copy *copy)
{
	assert(copy->path && *copy->path);
	assert(copy->state <= NVS_STORE_COPY_DAMAGED);
	assert((copy->state == NVS_STORE_COPY_DAMAGED) == (copy->problem[0] != 0));
	assert(copy->kind == NVS_STORE_MANIFEST || copy->offset % LABEL_DISTANCE == 0);
}

static void put_state(struct nvs_store_copy *copy, enum nvs_store_copy_state state, const char *why)
{
	copy->state = state;
	snprintf(copy->problem, sizeof(copy->problem), "%s", why);
}

static void describe_label(const struct nvs_store *store, unsigned member, unsigned i,
			   struct nvs_store_copy *copy)
{
	const struct member *of = &store->members[member];

	*copy = (struct nvs_store_copy){
		.kind = NVS_STORE_LABEL, .path = of->path, .offset = i * LABEL_DISTANCE};
	if (store->open_results[member].rc && !inspect_missing(store, member)) {
		put_state(copy, NVS_STORE_COPY_DAMAGED, "it is damaged, or can't be read");
		return;
	}
	switch (of->copies[i]) {
	case LABEL_WHOLE:
		/* A manifest may prove a later commit. */
		put_state(copy,
			  of->label.generation < store->info.commit && !member
				  ? NVS_STORE_COPY_OLDER
				  : NVS_STORE_COPY_CURRENT,
			  "");
		copy->commit = of->label.generation;
		break;
	case LABEL_STALE:
		put_state(copy, NVS_STORE_COPY_OLDER, "");
		break;
	case LABEL_ABSENT:
		put_state(copy, NVS_STORE_COPY_UNUSED, "");
		break;
	case LABEL_DAMAGED:
		put_state(copy, NVS_STORE_COPY_DAMAGED, "it is damaged, or can't be read");
		break;
	default:
		assert(false);
	}
}

/* -ENODATA: there are no more. */
static int describe_copy(const struct nvs_store *store, unsigned index, struct nvs_store_copy *copy)
{
	for (unsigned member = 0; member < store->npaths; member++) {
		if (!inspect_opened(store, member))
			continue;
		if (index < LABEL_COPY_COUNT) {
			describe_label(store, member, index, copy);
			return 0;
		}
		index -= LABEL_COPY_COUNT;
	}
	if (!store->has_slots || index >= MANIFEST_SLOT_COUNT)
		return -ENODATA;

	const struct slots *slots = &store->slots;
	const struct slot *slot = &slots->slot[index];
	uint64_t commit = store->info.commit;
	bool lost = slots->current == MANIFEST_TURN_COUNT;
	bool mine = commit && (lost ? slot->generation == commit || !slot->generation
				    : index % MANIFEST_TURN_COUNT == slots->current);

	/* Copies of the older manifest are never read again, so they can't count as damaged. */
	*copy = (struct nvs_store_copy){.kind = NVS_STORE_MANIFEST,
					.path = slot->path,
					.offset = slot->base,
					.commit = slot->generation};
	if (!mine)
		put_state(copy, slot->generation ? NVS_STORE_COPY_OLDER : NVS_STORE_COPY_UNUSED,
			  "");
	else if (slot->generation == commit && !slot->why[0])
		put_state(copy, NVS_STORE_COPY_CURRENT, "");
	else
		put_state(copy, NVS_STORE_COPY_DAMAGED,
			  slot->why[0] ? slot->why : "it is of another commit");
	return 0;
}

int nvs_store_get_copy(const struct nvs_store *store, unsigned index, struct nvs_store_copy *copy)
{
	struct nvs_store_copy full;
	int rc;

	if (!store || !struct_sized(copy))
		return -EINVAL;
	rc = describe_copy(store, index, &full);
	if (!rc)
		check_copy(&full);
	return rc ?: struct_out(copy, &full, sizeof(full));
}

/* ---- The whole, and tensors ---- */

int nvs_store_get_info(const struct nvs_store *store, struct nvs_store_info *info)
{
	struct nvs_store_info full;
	struct nvs_store_copy copy;

	if (!store || !struct_sized(info))
		return -EINVAL;
	inspect_check(store);
	full = store->info;
	while (!describe_copy(store, full.copies, &copy)) {
		check_copy(&copy);
		full.copies++;
		full.damaged_copies += copy.state == NVS_STORE_COPY_DAMAGED;
	}
	return struct_out(info, &full, sizeof(full));
}

int nvs_store_get_tensor(const struct nvs_store *store, uint64_t index,
			 struct nvs_store_tensor *tensor)
{
	struct nvs_store_tensor full;
	const struct store_entry *entry;
	const uint64_t *shape;
	unsigned member;
	size_t ndim;

	if (!store || !struct_sized(tensor))
		return -EINVAL;
	if (index >= store->found.header.count)
		return -ENODATA;
	entry = &store->found.entries[index];
	entry_check(entry, store->info.unit);
	shape = shape_dimensions(entry->shape, entry->ndim, &entry->numel, &ndim);
	full = (struct nvs_store_tensor){.name = entry->name,
					 .dtype = entry->dtype,
					 .numel = entry->numel,
					 .nbytes = entry->nbytes,
					 .written = entry->written,
					 .has_checksum = entry->has_checksum,
					 .checksum = entry->checksum,
					 .ndim = ndim,
					 .shape = shape};
	member = member_of(store, entry->offset, &full.offset);
	full.path = member < store->npaths ? store->members[member].path : NULL;
	return struct_out(tensor, &full, sizeof(full));
}
