/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are read. Headers and records are read with pread, never mapped, so a file that is
 * truncated during a read is an error and not a signal. A checkpoint's data is read by the places
 * that its headers gave, after the files were closed and opened again: those places mean nothing in
 * another file, which its stamp tells.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

int read_at(int fd, const char *path, uint64_t offset, void *data, size_t nbytes,
	    struct nvs_error *error)
{
	char *to = data;

	while (nbytes) {
		ssize_t got = pread(fd, to, nbytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return error_set(error, -errno, "%s: reading at byte %llu: %s", path,
					 (unsigned long long)offset, nvs_strerror(-errno));
		if (!got)
			return error_set(
				error, -ENODATA,
				"%s: ends at byte %llu: it was truncated while it was read", path,
				(unsigned long long)offset);
		to += got;
		offset += (uint64_t)got;
		nbytes -= (size_t)got;
	}
	return 0;
}

int stamp_take(int fd, const char *path, struct stamp *stamp, struct nvs_error *error)
{
	struct stat status;

	if (fstat(fd, &status))
		return error_set(error, -errno, "can't look at %s: %s", path, nvs_strerror(-errno));
	*stamp = (struct stamp){.device = status.st_dev,
				.inode = status.st_ino,
				.nbytes = (uint64_t)status.st_size,
				.modified_s = status.st_mtim.tv_sec,
				.modified_ns = status.st_mtim.tv_nsec};
	return 0;
}

int stamp_check(const struct stamp *stamp, int fd, const char *path, struct nvs_error *error)
{
	struct stamp now = {0};
	int rc = stamp_take(fd, path, &now, error);

	if (rc)
		return rc;
	if (now.device == stamp->device && now.inode == stamp->inode &&
	    now.nbytes == stamp->nbytes && now.modified_s == stamp->modified_s &&
	    now.modified_ns == stamp->modified_ns)
		return 0;
	return error_set(error, -ESTALE,
			 "%s was replaced or written to since its header was read: open the "
			 "checkpoint again",
			 path);
}
