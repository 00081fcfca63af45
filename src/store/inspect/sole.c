/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store for a process that changes it without an engine: locked against readers as well, and
 * still below its path.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

/* Between the shared lock and this one another process may have removed the store. */
static int lock_alone(struct nvs_store *store, struct member *member, struct nvs_error *error)
{
	int rc;

	assert(member->fd >= 0 && member->read_only);
	assert(store->locked);
	assert(!member->in_use && !member->beside);
	rc = flock(member->fd, LOCK_EX | LOCK_NB) ? -errno : 0;
	if (rc == -EWOULDBLOCK)
		return error_set(error, -EBUSY,
				 "a process reads the store at %s: wait until it ends",
				 member->path);
	if (rc)
		return member_cannot(error, "lock", member->path, rc);
	return member_check_place(member, error);
}

/*
 * The lock is on the data file. Where that is missing, manifests keep engines from making another
 * one, and other removers are kept out by a lock of the directory.
 */
static int lock_without_data(struct member *member, struct nvs_error *error)
{
	bool locked = !flock(member->directory_fd, LOCK_EX | LOCK_NB);
	int rc = member_find_manifests(member, error);

	assert(member->read_only && member->fd < 0);
	assert(member->kind == MEMBER_FILE && member->directory_fd >= 0);
	if (rc)
		return rc;
	if (!locked || !member->has_manifests ||
	    !faccessat(member->directory_fd, "data", F_OK, AT_SYMLINK_NOFOLLOW))
		return error_set(error, -EBUSY,
				 "the store at %s is being changed by another process: try again",
				 member->path);
	return 0;
}

int sole_open(const struct nvs_store_place *place, struct nvs_store **store,
	      struct nvs_error *error)
{
	int rc = nvs_store_open(place, NVS_STORE_LOCK, store, error);

	for (unsigned i = 0; !rc && i < (*store)->npaths; i++) {
		struct member *member = &(*store)->members[i];

		assert(!member->in_use && !member->beside);
		if (inspect_opened(*store, i))
			rc = lock_alone(*store, member, error);
		else if (lacks_data(member))
			rc = lock_without_data(member, error);
	}
	assert(rc || (*store)->locked);
	if (rc) {
		nvs_store_close(*store);
		*store = NULL;
	}
	return rc;
}
