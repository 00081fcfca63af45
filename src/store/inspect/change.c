/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes a store without an engine, locked against readers too: removes it, or writes damaged
 * copies of labels and manifests anew from valid ones.
 *
 * Of a store that is removed the manifests go first and the data last, so that what a crash leaves
 * is still found and can be removed. Only nvswap's own names are unlinked, in directories that are
 * open. A valid copy of the last commit is never written over, so a crash at any point of a repair
 * leaves what was readable.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "store/disk.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

/* Opens a store as nvs_store_open with NVS_STORE_LOCK, and locks it against readers, too. */
static int sole_open(const struct nvs_store_place *place, struct nvs_store **store,
		     struct nvs_error *error)
{
	int rc = nvs_store_open(place, NVS_STORE_LOCK, store, error);

	assert(rc || *store);
	for (unsigned i = 0; !rc && i < (*store)->npaths; i++) {
		struct member *member = &(*store)->members[i];

		if (member->fd >= 0) {
			/* Between the shared lock and this one another process may have removed the
			 * store. */
			rc = flock(member->fd, LOCK_EX | LOCK_NB) ? -errno : 0;
			if (rc == -EWOULDBLOCK)
				rc = error_set(
					error, -EBUSY,
					"a process reads the store at %s: wait until it ends",
					member->path);
			else if (rc)
				rc = member_cannot(error, "lock", member->path, rc);
			else
				rc = member_check_place(member, error);
		} else if (lacks_data(member)) {
			bool locked = !flock(member->directory_fd, LOCK_EX | LOCK_NB);

			/* The lock is on the data file. Where that is missing, manifests keep
			 * engines from making another one, and other removers are kept out by a
			 * lock of the directory. */
			rc = member_find_manifests(member, error);
			if (!rc &&
			    (!locked || !member->has_manifests ||
			     !faccessat(member->directory_fd, "data", F_OK, AT_SYMLINK_NOFOLLOW)))
				rc = error_set(error, -EBUSY,
					       "the store at %s is being changed by "
					       "another process: try again",
					       member->path);
		}
	}
	if (rc) {
		nvs_store_close(*store);
		*store = NULL;
	}
	return rc;
}

/* ---- Removing ---- */

static int remove_files(const struct member *member, struct nvs_error *error)
{
	char names[MANIFEST_SLOT_COUNT][MANIFEST_NAME];
	off_t sizes[MANIFEST_SLOT_COUNT]; /* -1: it is not there */
	struct stat st;
	int rc = 0;

	/* Empty ones first: where the data is missing, an engine may make a new store, with
	 * manifests of the same names, as soon as the last one that is not empty is gone. So only
	 * those that were there before are removed. */
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		manifest_name(i, names[i]);
		sizes[i] = fstatat(member->directory_fd, names[i], &st, AT_SYMLINK_NOFOLLOW)
				   ? -1
				   : st.st_size;
	}
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++)
		if (!sizes[i])
			rc = member_unlink(member, names[i], error);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++)
		if (sizes[i] > 0)
			rc = member_unlink(member, names[i], error);
	/* Data that was missing is not this store's any more. */
	if (!rc && member->fd >= 0)
		rc = member_unlink(member, "data", error);
	/* Other files, and other stores, keep the directories. */
	if (!rc) {
		unlinkat(member->nvswap_fd, strrchr(member->directory, '/') + 1, AT_REMOVEDIR);
		unlinkat(member->parent_fd, "nvswap", AT_REMOVEDIR);
	}
	return rc;
}

/*
 * Of a store that is removed and closed, or that was never there. False: none was empty, or another
 * process is removing a store of that path and tells of it.
 */
static bool remove_directories(const struct nvs_store_place *asked)
{
	struct nvs_store_place place;
	bool removed = false;
	char name[64];

	if (place_in(&place, asked, NULL))
		return false;
	member_name(place.rank, place.optimizer, name);
	for (unsigned i = 0; i < place.npaths; i++) {
		int parent_fd = open(place.paths[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		int nvswap_fd = -1;

		if (parent_fd >= 0)
			nvswap_fd = openat(parent_fd, "nvswap",
					   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (nvswap_fd >= 0 &&
		    (!flock(nvswap_fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) &&
		    member_remove_empty(parent_fd, nvswap_fd, name))
			removed = true;
		member_close_fd(&nvswap_fd);
		member_close_fd(&parent_fd);
	}
	return removed;
}

static int clear_device(const struct member *member, struct nvs_error *error)
{
	int fd = open(member->path, O_WRONLY | O_EXCL | O_CLOEXEC | O_NOCTTY), rc;

	member_open_check(member);
	if (fd < 0)
		return member_cannot(error, "open", member->path, -errno);
	rc = member_clear_places(member, fd, error);
	close(fd);
	return rc;
}

/* All that is there must be the store's, on all of its paths. */
static int check_whole(const struct nvs_store *store, struct nvs_error *error)
{
	const struct member *first = NULL;

	for (unsigned i = 0; i < store->npaths; i++) {
		const struct member *member = &store->members[i];

		if (member->fd < 0 || store->open_results[i].rc || member->blank)
			continue;
		if (member->label.index != i || member->label.count != store->npaths)
			return error_set(error, -EUCLEAN,
					 "%s is member %" PRIu32 " (counted from 0) of a store "
					 "that lies on %" PRIu32 " paths: give all of them, in "
					 "their order, also those that are lost",
					 member->path, member->label.index, member->label.count);
		if (first && memcmp(member->label.id, first->label.id, STORE_ID_SIZE) != 0)
			return error_set(error, -EUCLEAN, "%s and %s belong to different stores",
					 first->path, member->path);
		first = first ? first : member;
	}
	return 0;
}

int nvs_store_remove(const struct nvs_store_place *place, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_error why = {.size = sizeof(why)};
	struct nvs_store *store;
	int rc = sole_open(place, &store, &why);

	/* A run that was killed may have left them. */
	if (rc == -ENODATA && remove_directories(place))
		return 0;
	if (rc) {
		error_copy(error, &why);
		return rc;
	}
	inspect_check(store);
	rc = check_whole(store, error);
	/* Keeps out remove_directories() of other processes, where the file system has such
	 * locks. */
	for (unsigned i = 0; i < store->npaths; i++)
		if (store->members[i].nvswap_fd >= 0)
			(void)flock(store->members[i].nvswap_fd, LOCK_EX | LOCK_NB);
	/* The first member, which leads to the others, comes last. */
	for (unsigned i = store->npaths; i-- > 0 && !rc;)
		if (store->members[i].fd >= 0 || lacks_data(&store->members[i]))
			rc = store->members[i].kind == MEMBER_RAW
				     ? clear_device(&store->members[i], error)
				     : remove_files(&store->members[i], error);
	nvs_store_close(store);
	/* FUSE and NFS keep the files in them until they are closed. */
	if (!rc)
		remove_directories(place);
	return rc;
}

/* ---- Repairing ---- */

/*
 * The store is open for reading alone: what is written goes through a descriptor of its own. `path`
 * is that of the file `name`, for messages.
 */
static int open_to_write(const struct member *member, const char *name, const char *path,
			 int create, int *fd, struct nvs_error *error)
{
	if (member->kind == MEMBER_RAW)
		*fd = open(member->path, O_RDWR | O_CLOEXEC | O_NOCTTY);
	else
		*fd = openat(member->directory_fd, name,
			     O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | create,
			     0600);
	return *fd < 0 ? member_cannot(error, "open", path, -errno) : 0;
}

static int write_labels(struct member *member, struct nvs_error *error)
{
	struct member writer = *member;
	int rc = 0;

	label_check(&member->label);
	if (member->kind == MEMBER_FILE)
		rc = file_may_grow(member->path, LABEL_AREA_BYTES, error);
	rc = rc ?: open_to_write(member, "data", member->path, 0, &writer.fd, error);
	if (rc)
		return rc;
	writer.read_only = false;
	rc = member_write_label(&writer, error);
	for (unsigned i = 0; i < LABEL_COPY_COUNT; i++)
		member->copies[i] = writer.copies[i];
	close(writer.fd);
	return rc;
}

static int open_slot(const struct nvs_store *store, unsigned i, int *fd, struct nvs_error *error)
{
	char name[MANIFEST_NAME];

	manifest_name(i, name);
	return open_to_write(&store->members[0], name, store->slots.slot[i].path, O_CREAT, fd,
			     error);
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

static int roll_back(struct nvs_store *store, struct nvs_store_repairs *repairs,
		     struct nvs_error *error)
{
	struct label *label = &store->members[0].label;
	int rc;

	rc = slots_read(&store->slots, &store->members[0], true, &store->found, NULL, error);
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
	for (unsigned i = store->npaths; i-- > 0 && !rc;) {
		unsigned n = 0;

		for (unsigned j = 0; j < LABEL_COPY_COUNT; j++)
			n += store->members[i].copies[j] != LABEL_WHOLE;
		if (!n)
			continue;
		rc = write_labels(&store->members[i], error);
		repairs.labels += rc ? 0 : n;
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
