/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads labels and manifests of a store, decides what state it is in, and tells what was read: of
 * the whole, each copy of its metadata, each tensor. Beside a running engine this is safe because
 * no engine writes to the manifest that the newest label names, but for marking one copy after the
 * other as committed, and every copy has a checksum: what changes between two reads is read again.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/shape.h"
#include "base/struct_size.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

/* Commits that may come between while a store in use is read; each takes milliseconds at least. */
#define TRIES 100

static void __attribute__((format(printf, 3, 4)))
refuse(struct nvs_store *store, enum nvs_store_state state, const char *format, ...)
{
	va_list args;

	store->info.state = state;
	va_start(args, format);
	vsnprintf(store->info.problem, sizeof(store->info.problem), format, args);
	va_end(args);
}

/* ---- Manifests ---- */

/* Reads until no commit came between the label and the manifest. */
static int read_manifest(struct nvs_store *store, struct nvs_error *why)
{
	struct member *first = &store->members[0];
	int rc;

	rc = slots_open(&store->slots, first, why);
	store->has_slots = !rc;
	if (rc)
		slots_close(&store->slots);
	for (int i = 0; i < TRIES && !rc; i++) {
		uint64_t generation = first->label.generation;

		manifest_free(&store->found);
		rc = slots_read(&store->slots, first, false, &store->found, NULL, why);
		if (!first->in_use || rc == -ENOMEM)
			break;
		if (member_read_label(first, why) || first->blank)
			return error_set(why, -ENODATA, "%s is being removed", first->path);
		/* A header that is being marked as committed may look damaged, once. */
		if (first->label.generation == generation && (i || !(rc || store->slots.damaged)))
			break;
		rc = 0;
	}
	return rc;
}

/* ---- Members ---- */

static void check_members(struct nvs_store *store)
{
	const struct label *first = &store->members[0].label;
	const char *path = store->members[0].path;

	if (first->index)
		refuse(store, NVS_STORE_PARTIAL,
		       "%s is member %" PRIu32 " (counted from 0) of a store of %" PRIu32
		       " paths: give all of them, in their order",
		       path, first->index, first->count);
	else if (first->count != store->npaths)
		refuse(store, NVS_STORE_PARTIAL,
		       "the store at %s lies on %" PRIu32 " paths, and %u %s given: give all of "
		       "them, in their order",
		       path, first->count, store->npaths, store->npaths == 1 ? "is" : "are");
	for (unsigned i = 1; i < store->npaths && !store->info.problem[0]; i++) {
		const struct open_result *result = &store->open_results[i];
		const struct label *label = &store->members[i].label;

		if (result->rc == -EUCLEAN || result->rc == -EIO)
			refuse(store, NVS_STORE_DAMAGED, "%s", result->why.text);
		else if (result->rc)
			refuse(store, NVS_STORE_PARTIAL, "%s", result->why.text);
		else if (store->members[i].blank ||
			 memcmp(label->id, first->id, STORE_ID_SIZE) != 0 || label->index != i ||
			 label->count != first->count)
			refuse(store, NVS_STORE_PARTIAL,
			       "%s is not member %u of the store at %s: give the paths of one "
			       "store, in their order",
			       store->members[i].path, i, path);
	}
}

/* ---- The data ---- */

int inspect_check_data(const struct nvs_store *store, struct nvs_error *error)
{
	const struct label *first = &store->members[0].label;
	uint64_t nbytes, share;
	int rc = 0;

	label_check(first);
	share = member_share(store->found.end, store->npaths, first->stripe);
	for (unsigned i = 0; i < store->npaths && !rc; i++)
		rc = member_space_of(&store->members[i], share, &nbytes, error);
	return rc;
}

/* ---- The whole ---- */

static void put_label(struct nvs_store_info *info, const struct label *label)
{
	label_check(label);
	info->rank = label->rank;
	info->optimizer = label->optimizer;
	info->member = label->index;
	info->nmembers = label->count;
	info->unit = label->unit;
	info->stripe_size = label->stripe;
	info->commit = label->generation;
	for (unsigned i = 0; i < STORE_ID_SIZE; i++)
		snprintf(info->id + 2 * i, 3, "%02x", label->id[i]);
}

static void put_manifest(struct nvs_store *store)
{
	const struct manifest_header *header = &store->found.header;
	struct nvs_store_info *info = &store->info;
	const struct store_note note = manifest_note(&store->found);
	uint64_t used = 0;

	info->commit_time = header->made;
	info->tensors = header->count;
	info->note = note.nbytes ? note.data : NULL;
	info->note_bytes = note.nbytes;
	if (header->writer)
		snprintf(info->writer, sizeof(info->writer), "%u.%u.%u", header->writer >> 16 & 255,
			 header->writer >> 8 & 255, header->writer & 255);
	for (uint64_t i = 0; i < header->count; i++) {
		info->tensor_bytes += store->found.entries[i].nbytes;
		used += 2 * align_up(store->found.entries[i].nbytes, info->unit);
	}
	info->free_bytes = used < info->data_bytes ? info->data_bytes - used : 0;
}

int inspect_read(struct nvs_store *store, struct nvs_error *error)
{
	const struct member *first = &store->members[0];
	struct nvs_error why = {.size = sizeof(why)};
	int rc = 0;

	for (unsigned i = 0; i < store->npaths && !rc; i++) {
		uint64_t nbytes = 0;

		if (store->members[i].fd >= 0)
			rc = member_space(&store->members[i], &nbytes, error);
		store->info.data_bytes += nbytes;
	}
	store->info.free_bytes = store->info.data_bytes;
	if (rc)
		return rc;
	if (store->open_results[0].rc || first->blank) {
		if (inspect_missing(store, 0))
			refuse(store, NVS_STORE_PARTIAL, "%s", store->open_results[0].why.text);
		else if (store->open_results[0].rc)
			refuse(store, NVS_STORE_DAMAGED, "%s", store->open_results[0].why.text);
		else
			store->info.state = NVS_STORE_TEMPORARY;
		return 0;
	}
	put_label(&store->info, &first->label);
	if (!first->label.kept) {
		store->info.state = NVS_STORE_TEMPORARY;
		return 0;
	}
	check_members(store);
	if (first->label.index)
		return 0;
	rc = read_manifest(store, &why);
	if (rc && rc != -EUCLEAN && rc != -EIO) {
		error_copy(error, &why);
		return rc;
	}
	put_label(&store->info, &first->label);
	if (rc) {
		if (store->has_slots)
			store->info.commit = store->slots.last;
		refuse(store, NVS_STORE_DAMAGED, "%s", why.text);
		return 0;
	}
	put_manifest(store);
	/* Only now: an engine grows the files before it commits what lies in them. */
	rc = store->info.problem[0] ? 0 : inspect_check_data(store, &why);
	if (rc && rc != -EUCLEAN) {
		error_copy(error, &why);
		return rc;
	}
	store->info.truncated = rc;
	if (rc)
		refuse(store, NVS_STORE_DAMAGED, "%s", why.text);
	return 0;
}

/* ---- Describing ---- */

/* Bytes of the drive may be anything; only what was decoded from them is asserted. */
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
	static const enum nvs_store_copy_state states[] = {
		[LABEL_WHOLE] = NVS_STORE_COPY_CURRENT,
		[LABEL_STALE] = NVS_STORE_COPY_OLDER,
		[LABEL_ABSENT] = NVS_STORE_COPY_UNUSED,
		[LABEL_DAMAGED] = NVS_STORE_COPY_DAMAGED};
	const struct member *of = &store->members[member];
	enum nvs_store_copy_state state = states[of->copies[i]];

	*copy = (struct nvs_store_copy){
		.kind = NVS_STORE_LABEL, .path = of->path, .offset = i * LABEL_DISTANCE};
	if (store->open_results[member].rc && !inspect_missing(store, member)) {
		state = NVS_STORE_COPY_DAMAGED;
	} else if (state == NVS_STORE_COPY_CURRENT) {
		copy->commit = of->label.generation;
		/* A manifest may prove a later commit. */
		if (!member && copy->commit < store->info.commit)
			state = NVS_STORE_COPY_OLDER;
	}
	put_state(copy, state,
		  state == NVS_STORE_COPY_DAMAGED ? "it is damaged, or can't be read" : "");
}

/* -ENODATA: there are no more. */
static int describe_copy(const struct nvs_store *store, unsigned index, struct nvs_store_copy *copy)
{
	for (unsigned member = 0; member < store->npaths; member++) {
		if (store->members[member].fd < 0)
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
