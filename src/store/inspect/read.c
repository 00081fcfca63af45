/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads labels and manifests of a store, and decides what state it is in. Beside a running engine
 * this is safe because no engine writes to the manifest that the newest label names, but for
 * marking one copy after the other as committed, and every copy has a checksum: what changes
 * between two reads is read again.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
		const struct nvs_log silent = {.fn = NULL};

		manifest_free(&store->found);
		rc = slots_read(&store->slots, first, false, &store->found, &silent, why);
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
		used += 2 * round_to_unit(store->found.entries[i].nbytes, info->unit);
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

		if (inspect_opened(store, i))
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
