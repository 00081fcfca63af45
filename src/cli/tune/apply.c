/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a choice into a configuration file: a new file beside it, with the same mode and owner,
 * replaces it once it is complete and durable. For a symbolic link, replaces the target.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "cli/tune/tune.h"

#define TEXT_MAX ((size_t)64 << 20) /* limit of nvs_config_load */

static int read_text(const char *path, struct tune_text *text, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, st))
		rc = -errno;
	else if (!S_ISREG(st->st_mode))
		rc = -EINVAL;
	else
		rc = file_read_all(fd, TEXT_MAX, &text->bytes, &text->nbytes);
	close(fd);
	return !rc && text->nbytes > TEXT_MAX ? -EFBIG : rc;
}

/* Makes the new file complete and durable. The owner first, because changing it clears bits of the
 * mode. */
static int fill_new(int fd, const struct stat *old, const struct tune_text *text)
{
	struct stat st;

	if (fstat(fd, &st) ||
	    ((st.st_uid != old->st_uid || st.st_gid != old->st_gid) &&
	     fchown(fd, old->st_uid, old->st_gid)) ||
	    fchmod(fd, old->st_mode & 07777))
		return -errno;
	for (size_t at = 0; at < text->nbytes;) {
		ssize_t n = write(fd, text->bytes + at, text->nbytes - at);

		if (n < 0 && errno != EINTR)
			return -errno;
		at += n < 0 ? 0 : (size_t)n;
	}
	return fsync(fd) ? -errno : 0;
}

/* Replaces the file `to`, or, without a text, only checks that a new one can be made beside it. */
static int replace(const char *to, const struct stat *old, const struct tune_text *text,
		   struct nvs_error *error)
{
	char path[PATH_MAX + 8];
	int fd, rc;

	snprintf(path, sizeof(path), "%s.XXXXXX", to);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return error_set(error, -errno,
				 "%s can't be replaced, because its directory can't be written: "
				 "%s; give a copy in a directory that you may write to",
				 to, nvs_strerror(-errno));
	rc = text ? fill_new(fd, old, text) : 0;
	if (close(fd) && !rc)
		rc = -errno;
	if (!rc && text && rename(path, to))
		rc = -errno;
	if (rc || !text)
		unlink(path);
	if (rc)
		return error_set(error, rc, "%s is unchanged, because it can't be replaced: %s", to,
				 nvs_strerror(rc));
	if (!text)
		return 0;
	strrchr(path, '/')[1] = '\0';
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd))
		rc = error_set(error, -errno, "%s has the choice, but a crash may undo that: %s",
			       to, nvs_strerror(-errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

int tune_apply(const char *name, const struct tune_point *point, bool name_ioengine,
	       enum nvs_ioengine *named, struct nvs_error *error)
{
	static const struct tune_point any = {NVS_IOENGINE_POSIX, 1048576, 1, 1, false, true};
	struct tune_text old = {0}, text = {0};
	char path[PATH_MAX];
	struct stat st;
	int rc = realpath(name, path) ? read_text(path, &old, &st) : -errno;

	if (!rc && (!old.bytes || !(text.bytes = malloc(old.nbytes + 1))))
		rc = -ENOMEM;
	if (rc == -EINVAL) {
		error_set(error, rc, "%s is not a regular file", name);
	} else if (rc) {
		error_set(error, rc, "%s: can't be read: %s", name,
			  rc == -EFBIG ? "it is larger than a configuration may be, 64 MiB"
				       : nvs_strerror(rc));
	} else {
		memcpy(text.bytes, old.bytes, old.nbytes);
		text.nbytes = old.nbytes;
		rc = tune_edit(&text, name, point ? point : &any, name_ioengine, named, error);
	}
	if (!rc &&
	    (!point || text.nbytes != old.nbytes || memcmp(text.bytes, old.bytes, old.nbytes) != 0))
		rc = replace(path, &st, point ? &text : NULL, error);
	free(text.bytes);
	free(old.bytes);
	return rc;
}
