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

int sole_open(const struct nvs_store_place *place, struct nvs_store **store,
	      struct nvs_error *error)
{
	int rc = nvs_store_open(place, NVS_STORE_LOCK, store, error);

	for (unsigned i = 0; !rc && i < (*store)->npaths; i++) {
		struct member *member = &(*store)->members[i];

		assert(!member->in_use && !member->beside);
		if (inspect_opened(*store, i)) {
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
	assert(rc || (*store)->locked);
	if (rc) {
		nvs_store_close(*store);
		*store = NULL;
	}
	return rc;
}
