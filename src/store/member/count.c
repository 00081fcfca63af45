/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The count of the bytes that runs with a write budget have written below a path: the file
 * <path>/nvswap/written, a line of text. It is read and replaced under its lock, by the stores of
 * all ranks. Its line lies in one sector, so a power failure leaves the old one or the new one. The
 * user may remove it at any time. The file stays open: nvswap.torch removes the directory of a
 * store that is not kept once it is open, and links the file of the user's path there.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/disk.h"
#include "store/member/internal.h"

#define COUNT_FORMAT "%020" PRIu64 " bytes written\n"
#define COUNT_BYTES  (sizeof("00000000000000000000 bytes written\n") - 1)

static int open_count(struct member *member, const char *path, struct nvs_error *error)
{
	struct stat st;

	member->count_fd = openat(member->nvswap_fd, MEMBER_COUNT_NAME,
				  O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
				  0600);
	if (member->count_fd < 0)
		return member_cannot(error, "open", path, -errno);
	if (fstat(member->count_fd, &st))
		return member_cannot(error, "look at", path, -errno);
	return S_ISREG(st.st_mode) && st.st_uid == geteuid()
		       ? 0
		       : member_refuse(error, path, "is no plain file of this user");
}

static int lock_count(struct member *member, const char *path, struct nvs_error *error)
{
	uint64_t since = clock_ns();
	struct stat st;
	int rc;

	do {
		rc = member->count_fd < 0 ? open_count(member, path, error) : 0;
		if (rc) {
			member_close_fd(&member->count_fd);
			return rc;
		}
		if (flock(member->count_fd, LOCK_EX | LOCK_NB))
			rc = -errno;
		else if (!fstat(member->count_fd, &st) && st.st_nlink)
			return 0;
		else /* it was removed: the next run makes another, or has made it */
			member_close_fd(&member->count_fd);
	} while ((!rc || rc == -EWOULDBLOCK) && member_owner_may_end(since));
	return rc && rc != -EWOULDBLOCK
		       ? member_cannot(error, "lock", path, rc)
		       : error_set(error, -EBUSY,
				   "another process has locked %s for more than a second", path);
}

static int read_count(int fd, const char *path, uint64_t *count, struct nvs_error *error)
{
	char text[COUNT_BYTES + 1] = "", again[COUNT_BYTES + 1];
	struct stat st;
	int rc;

	*count = 0;
	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	if (!st.st_size)
		return 0;
	rc = disk_read(fd, path, text, COUNT_BYTES, 0, error);
	if (rc)
		return rc;
	*count = strtoull(text, NULL, 10);
	snprintf(again, sizeof(again), COUNT_FORMAT, *count);
	if ((uint64_t)st.st_size == COUNT_BYTES && !memcmp(text, again, COUNT_BYTES))
		return 0;
	return error_set(error, -EUCLEAN,
			 "%s is not a count of bytes written: remove it to count from 0", path);
}

int member_change_count(struct member *member, int64_t change, uint64_t limit, uint64_t *count,
			struct nvs_error *error)
{
	char *path = NULL, had[32], may[32], text[COUNT_BYTES + 1];
	int rc = member_compose(&path, error, "%s/nvswap/" MEMBER_COUNT_NAME, member->parent);

	rc = rc ?: lock_count(member, path, error);
	if (rc) {
		free(path);
		return rc;
	}
	rc = read_count(member->count_fd, path, count, error);
	if (!rc && *count >= limit)
		rc = error_about(error, -EDQUOT, "nvswap.write_budget", 0, 0,
				 "%s were written below %s, as %s counts, and nvswap.write_budget "
				 "is %s: raise the budget, or remove that file to count from 0",
				 size_text(*count, had), member->parent, path,
				 size_text(limit, may));
	if (!rc) {
		/* The user may have removed the file since this run added to it. */
		*count += change < 0 ? -min_u64(-(uint64_t)change, *count)
				     : min_u64((uint64_t)change, UINT64_MAX - *count);
		snprintf(text, sizeof(text), COUNT_FORMAT, *count);
		rc = disk_write(member->count_fd, path, text, COUNT_BYTES, 0, error);
		rc = rc ?: disk_sync(member->count_fd, path, error);
		/* The file may be new. */
		rc = rc ?: disk_sync(member->nvswap_fd, path, error);
	}
	(void)flock(member->count_fd, LOCK_UN);
	free(path);
	return rc;
}
