/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of a store that is not kept has no name, so that nothing of it is left on the drive if
 * the process is killed. The file `data` is empty then; it has the lock, by which others find the
 * store.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>

#include "store/member/internal.h"

int member_make_nameless(struct member *member, struct nvs_error *error)
{
	int fd;

	member_open_check(member);
	assert(!member->read_only && member->lock_fd < 0 && member->direct_fd < 0);
	if (member->kind != MEMBER_FILE)
		return 0;
	fd = openat(member->directory_fd, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EOPNOTSUPP)
		return 0;
	if (fd < 0)
		return member_cannot(error, "make a file in", member->directory, -errno);
	member->lock_fd = member->fd;
	member->fd = fd;
	return 0;
}
