/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes a store: the manifests first and the data last, so that what a crash leaves is still
 * found and can be removed. Only nvswap's own names are unlinked, in directories that are open.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

static int unlink_file(const struct member *member, const char *name, struct nvs_error *error)
{
	assert(member_is_file_name(name));
	assert(member->directory_fd >= 0);
	if (!unlinkat(member->directory_fd, name, 0) || errno == ENOENT)
		return 0;
	return error_set(error, -errno, "cannot remove %s/%s: %s", member->directory, name,
			 nvs_strerror(-errno));
}

static int remove_files(const struct member *member, struct nvs_error *error)
{
	char name[32];
	int rc = 0;

	member_open_check(member);
	assert(member->kind == MEMBER_FILE && !member->in_use);
	for (unsigned i = 0; i < MANIFEST_SLOT_COUNT && !rc; i++) {
		snprintf(name, sizeof(name), "manifest.%u", i);
		rc = unlink_file(member, name, error);
	}
	if (!rc)
		rc = unlink_file(member, "data", error);
	/* Other files, and other stores, keep the directories. */
	if (!rc) {
		unlinkat(member->nvswap_fd, strrchr(member->directory, '/') + 1, AT_REMOVEDIR);
		unlinkat(member->parent_fd, "nvswap", AT_REMOVEDIR);
	}
	return rc;
}

static int clear_device(const struct member *member, struct nvs_error *error)
{
	int fd = open(member->path, O_WRONLY | O_EXCL | O_CLOEXEC | O_NOCTTY), rc;

	member_open_check(member);
	assert(member->kind == MEMBER_RAW && !member->in_use);
	if (fd < 0)
		return member_cannot(error, "open", member->path, -errno);
	rc = member_clear_places(member, fd, error);
	close(fd);
	return rc;
}

/* All that is there must be the store's, on all of its paths. */
static int check_whole(const struct nvs_store *store, struct nvs_error *error)
{
	const struct member *first = &store->members[0];
	bool known = !store->looks[0].rc && !first->blank;

	assert(store->locked);
	for (unsigned i = 1; i < store->npaths; i++) {
		const struct member *member = &store->members[i];

		if (known && look_opened(store, i) && !store->looks[i].rc && !member->blank &&
		    memcmp(member->label.id, first->label.id, STORE_ID_SIZE) != 0)
			return error_set(error, -EUCLEAN, "%s and %s belong to different stores",
					 first->path, member->path);
	}
	if (known && (first->label.index || first->label.count != store->npaths))
		return error_set(error, -EUCLEAN, "%s",
				 store->info.problem[0]
					 ? store->info.problem
					 : "the store lies on other paths, too: give all of them");
	return 0;
}

int nvs_store_remove(const struct nvs_store_place *place, struct nvs_error *error)
{
	struct nvs_store *store;
	int rc = sole_open(place, &store, error);

	if (rc)
		return rc;
	inspect_check(store);
	rc = check_whole(store, error);
	/* The first member, which leads to the others, comes last. */
	for (unsigned i = store->npaths; i-- > 0 && !rc;)
		if (look_opened(store, i))
			rc = store->members[i].kind == MEMBER_RAW
				     ? clear_device(&store->members[i], error)
				     : remove_files(&store->members[i], error);
	nvs_store_close(store);
	return rc;
}
