/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes a store: the manifests first and the data last, so that what a crash leaves is still
 * found and can be removed. Only nvswap's own names are unlinked, in directories that are open.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/threads/cancel.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

static int remove_files(const struct member *member, struct nvs_error *error)
{
	int rc = 0;
	bool there[MANIFEST_SLOT_COUNT], empty[MANIFEST_SLOT_COUNT];
	char names[MANIFEST_SLOT_COUNT][MANIFEST_NAME];
	struct stat st;

	/* Empty ones first: where the data is missing, an engine may make a new store, with
	 * manifests of the same names, as soon as the last one that is not empty is gone. */
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT; i++) {
		manifest_name(i, names[i]);
		there[i] = !fstatat(member->directory_fd, names[i], &st, AT_SYMLINK_NOFOLLOW);
		empty[i] = there[i] && !st.st_size;
	}
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++)
		if (empty[i])
			rc = member_unlink(member, names[i], error);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++)
		if (there[i] && !empty[i])
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
	place_name(&place, name);
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

		if (!(inspect_opened(store, i) && !store->open_results[i].rc &&
		      !store->members[i].blank))
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
		if (inspect_opened(store, i) || lacks_data(&store->members[i]))
			rc = store->members[i].kind == MEMBER_RAW
				     ? clear_device(&store->members[i], error)
				     : remove_files(&store->members[i], error);
	nvs_store_close(store);
	/* FUSE and NFS keep the files in them until they are closed. */
	if (!rc)
		remove_directories(place);
	return rc;
}
