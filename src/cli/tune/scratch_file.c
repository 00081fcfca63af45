/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each round opens the file by name, so it keeps its name until a guard removes it. The name is
 * constant and the file is locked: a file left by a crash of the machine is found and removed, and
 * two processes never tune in one directory.
 */
#include "cli/tune/scratch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_limit.h"

#define NAME  ".nvswap-tune"
#define TRIES 100

static int fail(struct nvs_error *error, int rc, const char *path, const char *why)
{
	return error_set(error, rc, "%.800s %s", path, why);
}

/* Whether the path still names the opened file. */
static bool is_there(const char *path, int fd)
{
	struct stat by_name, opened;

	return !lstat(path, &by_name) && !fstat(fd, &opened) && by_name.st_ino == opened.st_ino &&
	       by_name.st_dev == opened.st_dev;
}

/* Makes a new, locked file; returns its descriptor or a negative errno. Removes the file of a
 * process that ended without removing it. */
static int open_new(const char *path, struct nvs_error *error)
{
	const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

	for (unsigned i = 0; i < TRIES; i++) {
		int fd = open(path, flags | O_CREAT | O_EXCL, 0600), rc = 0;
		struct stat st;

		if (fd >= 0) {
			if (!flock(fd, LOCK_EX | LOCK_NB) && is_there(path, fd))
				return fd;
			close(fd);
			continue;
		}
		if (errno != EEXIST)
			return fail(error, -errno, path, nvs_strerror(-errno));
		fd = open(path, flags);
		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
			rc = fail(error, -EEXIST, path,
				  "is where tuning puts its file, but is not a file of yours: "
				  "remove it");
		else if (flock(fd, LOCK_EX | LOCK_NB))
			rc = fail(error, -EBUSY, path,
				  "is in use by another nvswap tune: wait for its end");
		/* Otherwise another process removed it, and the name can be its new file. */
		else if (is_there(path, fd) && unlink(path) && errno != ENOENT)
			rc = fail(error, -errno, path, nvs_strerror(-errno));
		if (fd >= 0)
			close(fd);
		if (rc)
			return rc;
	}
	return fail(error, -EBUSY, path, "is created and removed by others all the time");
}

static void remove_file(const void *path)
{
	unlink(path);
}

int scratch_file_make(struct scratch_file *file, const char *directory, uint64_t nbytes,
		      struct nvs_error *error)
{
	int rc, n = snprintf(file->path, sizeof(file->path), "%s/" NAME, directory);

	if (n < 0 || (size_t)n >= sizeof(file->path))
		return fail(error, -ENAMETOOLONG, directory, "is too long a path");
	rc = file_may_grow(file->path, nbytes, error);
	if (rc)
		return rc;
	file->fd = open_new(file->path, error);
	if (file->fd < 0)
		return file->fd;
	rc = guard_post(&file->guard, remove_file, file->path, error);
	if (rc) {
		unlink(file->path);
		close(file->fd);
		return rc;
	}
	if (!file_reserve(file->fd, 0, nbytes) || errno == EOPNOTSUPP)
		return 0;
	rc = fail(error, -errno, file->path, nvs_strerror(-errno));
	scratch_file_remove(file);
	return rc;
}

void scratch_file_remove(struct scratch_file *file)
{
	if (!guard_dismiss(&file->guard))
		unlink(file->path);
	close(file->fd);
}
