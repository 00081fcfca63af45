/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes damaged copies of labels and manifests anew from valid ones. A valid copy of the last
 * commit is never written over, so a crash at any point leaves what was readable.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/files.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "store/disk.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

/* ---- Labels ---- */

static unsigned count_bad(const struct member *member)
{
	unsigned n = 0;

	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		n += member->copies[i] != LABEL_WHOLE;
	return n;
}

/* The member is open for reading alone: its label is written through a descriptor of its own. */
static int write_labels(struct member *member, struct nvs_error *error)
{
	struct member writer = *member;
	int rc;

	label_check(&member->label);
	rc = member->kind == MEMBER_FILE ? file_may_grow(member->path, LABEL_AREA_BYTES, error) : 0;
	if (rc)
		return rc;
	if (member->kind == MEMBER_RAW)
		writer.fd = open(member->path, O_RDWR | O_CLOEXEC | O_NOCTTY);
	else
		writer.fd = openat(member->directory_fd, "data",
				   O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
	if (writer.fd < 0)
		return member_cannot(error, "open", member->path, -errno);
	writer.read_only = false;
	rc = member_write_label(&writer, error);
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		member->copies[i] = writer.copies[i];
	close(writer.fd);
	return rc;
}

/* ---- Manifests ---- */

/* The store is open for reading alone: a slot is written through a descriptor of its own. */
static int open_slot(const struct nvs_store *store, unsigned i, int *fd, struct nvs_error *error)
{
	const struct member *first = &store->members[0];
	char name[MANIFEST_NAME];

	manifest_name(i, name);
	if (first->kind == MEMBER_RAW)
		*fd = open(first->path, O_RDWR | O_CLOEXEC | O_NOCTTY);
	else
		*fd = openat(first->directory_fd, name,
			     O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
			     0600);
	return *fd < 0 ? member_cannot(error, "open", store->slots.slot[i].path, -errno) : 0;
}

static int write_slot(struct nvs_store *store, unsigned i, struct nvs_error *error)
{
	const struct slot *slot = &store->slots.slot[i];
	const struct manifest_header *header = &store->found.header;
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	int fd, rc = 0;

	assert(i % MANIFEST_TURN_COUNT == store->slots.current);
	/* A valid copy of the commit is never written over. */
	assert(slot->generation != header->generation || slot->why[0]);
	manifest_check(&store->found);
	if (slot->owned)
		rc = file_may_grow(slot->path, MANIFEST_HEADER_BYTES + header->body_bytes, error);
	rc = rc ?: open_slot(store, i, &fd, error);
	if (rc)
		return rc;
	manifest_encode_header(header, bytes);
	if (header->body_bytes)
		rc = disk_write(fd, slot->path, store->found.body, header->body_bytes,
				slot->base + MANIFEST_HEADER_BYTES, error);
	rc = rc ?: disk_write(fd, slot->path, bytes, sizeof(bytes), slot->base, error);
	rc = rc ?: disk_sync(fd, slot->path, error);
	close(fd);
	if (!rc && slot->owned && fsync(store->members[0].directory_fd))
		rc = member_cannot(error, "make durable the name", slot->path, -errno);
	return rc;
}

/* Takes back that the commit in a slot was made, once labels name an earlier one. */
static int unmark_slot(const struct nvs_store *store, unsigned i, struct nvs_error *error)
{
	const struct slot *slot = &store->slots.slot[i];
	struct manifest_header header;
	uint8_t bytes[MANIFEST_HEADER_BYTES];
	int fd, rc = open_slot(store, i, &fd, error);

	if (rc)
		return rc;
	rc = disk_read(fd, slot->path, bytes, sizeof(bytes), slot->base, error);
	if (!rc && !manifest_decode_header(bytes, &header)) {
		header.committed = false;
		manifest_encode_header(&header, bytes);
		rc = disk_write(fd, slot->path, bytes, sizeof(bytes), slot->base, error);
		rc = rc ?: disk_sync(fd, slot->path, error);
	}
	close(fd);
	return rc;
}

/* ---- The commit before ---- */

static int roll_back(struct nvs_store *store, struct nvs_store_repairs *repairs,
		     struct nvs_error *error)
{
	struct label *label = &store->members[0].label;
	const struct nvs_log silent = {.fn = NULL};
	int rc;

	rc = slots_read(&store->slots, &store->members[0], true, &store->found, &silent, error);
	rc = rc ?: inspect_check_data(store, error);
	if (rc)
		return rc;
	repairs->lost = store->slots.last;
	label->generation = store->found.header.generation;
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		store->members[0].copies[i] = LABEL_DAMAGED;
	return 0;
}

/* Whether the labels lead to the last commit, and only its manifest may be lost. */
static bool labels_are_known(const struct nvs_store *store)
{
	const struct label *first = &store->members[0].label;
	bool known = first->kept && !first->index && first->count == store->npaths;

	for (unsigned i = 0; i < store->npaths && known; i++)
		known = !store->open_results[i].rc && !store->members[i].blank;
	return known && store->has_slots;
}

int nvs_store_repair(const struct nvs_store_place *place, unsigned flags,
		     struct nvs_store_repairs *out, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_store_repairs repairs = {.labels = 0};
	struct nvs_store *store;
	int rc;

	if (flags & ~(unsigned)NVS_STORE_ROLLBACK || (out && !struct_sized(out)))
		return error_set(error, -EINVAL, "a flag is unknown, or repairs->size is not set");
	rc = sole_open(place, &store, error);
	if (rc)
		return rc;
	inspect_check(store);

	const struct nvs_store_info *info = &store->info;

	if (info->state == NVS_STORE_DAMAGED && !info->truncated && labels_are_known(store) &&
	    flags & NVS_STORE_ROLLBACK)
		rc = roll_back(store, &repairs, error);
	else if (info->state != NVS_STORE_KEPT)
		rc = error_set(error, -EUCLEAN, "%s",
			       info->problem[0] ? info->problem : "the store is not kept");
	/* Labels name a commit only once its manifest is whole. */
	if (!rc && store->members[0].label.generation) {
		struct slots *slots = &store->slots;

		for (unsigned i = slots->current; i < MANIFEST_SLOT_COUNT && !rc;
		     i += MANIFEST_TURN_COUNT) {
			const struct slot *slot = &slots->slot[i];

			if (slot->generation == store->found.header.generation && !slot->why[0])
				continue;
			rc = write_slot(store, i, error);
			repairs.manifests += !rc;
		}
	}
	if (!rc) {
		for (unsigned i = store->npaths; i-- > 0 && !rc;) {
			unsigned n = count_bad(&store->members[i]);

			if (!n)
				continue;
			rc = write_labels(&store->members[i], error);
			repairs.labels += rc ? 0 : n;
		}
	}
	/* Only a lost commit is later than the one that labels name now. */
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && repairs.lost && !rc; i++)
		if (store->slots.slot[i].committed &&
		    i % MANIFEST_TURN_COUNT != store->slots.current)
			rc = unmark_slot(store, i, error);
	repairs.commit = store->members[0].label.generation;

	nvs_store_close(store);
	return rc || !out ? rc : struct_out(out, &repairs, sizeof(repairs));
}
