/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a choice into a configuration file: a new file beside it, with the same mode and owner,
 * replaces it once it is complete and durable. For a symbolic link, replaces the target.
 */
#include "cli/tune/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"

#define TEXT_MAX ((off_t)64 << 20) /* limit of nvs_config_load */

struct target {
	char path[PATH_MAX];	  /* resolved */
	char directory[PATH_MAX]; /* directory of `path` */
	struct stat st;
	char *text;
	size_t nbytes;
};

static int __attribute__((format(printf, 3, 4)))
fail(struct nvs_error *error, int rc, const char *format, ...)
{
	va_list args;

	*error = (struct nvs_error){.size = sizeof(*error), .code = rc};
	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return rc;
}

static int read_text(struct target *target, int fd)
{
	target->text = malloc((size_t)target->st.st_size + 1);
	if (!target->text)
		return -ENOMEM;
	while (target->nbytes < (size_t)target->st.st_size) {
		ssize_t n = read(fd, target->text + target->nbytes,
				 (size_t)target->st.st_size - target->nbytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		target->nbytes += (size_t)n;
	}
	return 0;
}

static int target_open(struct target *target, const char *path, struct nvs_error *error)
{
	char *slash;
	int fd, rc = 0;

	*target = (struct target){0};
	fd = realpath(path, target->path) ? open(target->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
					  : -1;
	if (fd < 0)
		return fail(error, -errno, "%s: can't be opened: %s", path, nvs_strerror(-errno));
	if (fstat(fd, &target->st))
		rc = fail(error, -errno, "%s: %s", path, nvs_strerror(-errno));
	else if (!S_ISREG(target->st.st_mode))
		rc = fail(error, -EINVAL, "%s is not a regular file", path);
	else if (target->st.st_size > TEXT_MAX)
		rc = fail(error, -EFBIG, "%s is larger than a configuration may be, 64 MiB", path);
	else if ((rc = read_text(target, fd)))
		fail(error, rc, "%s: can't be read: %s", path, nvs_strerror(rc));
	close(fd);
	memcpy(target->directory, target->path, sizeof(target->path));
	slash = strrchr(target->directory, '/');
	slash[slash == target->directory] = '\0';
	return rc;
}

static void target_close(struct target *target)
{
	free(target->text);
}

static int write_all(int fd, const char *text, size_t nbytes)
{
	while (nbytes) {
		ssize_t n = write(fd, text, nbytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		nbytes -= (size_t)n;
	}
	return 0;
}

static int sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = fsync(fd) ? -errno : 0;
	close(fd);
	return rc;
}

/* The owner first, because changing it clears bits of the mode. */
static int fill_new(int fd, const struct target *target, const char *text, size_t nbytes)
{
	struct stat st;
	int rc;

	if (fstat(fd, &st))
		return -errno;
	if ((st.st_uid != target->st.st_uid || st.st_gid != target->st.st_gid) &&
	    fchown(fd, target->st.st_uid, target->st.st_gid))
		return -errno;
	if (fchmod(fd, target->st.st_mode & 07777))
		return -errno;
	rc = write_all(fd, text, nbytes);
	return !rc && fsync(fd) ? -errno : rc;
}

static int open_new(const struct target *target, char *path, size_t size, struct nvs_error *error)
{
	int fd, n = snprintf(path, size, "%s.XXXXXX", target->path);

	if (n < 0 || (size_t)n >= size)
		return fail(error, -ENAMETOOLONG, "%s: its path is too long", target->path);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return fail(error, -errno,
			    "%s can't be replaced, because its directory can't be written: %s; "
			    "give a copy in a directory that you may write to",
			    target->path, nvs_strerror(-errno));
	return fd;
}

static int replace(const struct target *target, const char *text, size_t nbytes,
		   struct nvs_error *error)
{
	char path[PATH_MAX + 8];
	int fd = open_new(target, path, sizeof(path), error), rc;

	if (fd < 0)
		return fd;
	rc = fill_new(fd, target, text, nbytes);
	if (close(fd) && !rc)
		rc = -errno;
	if (!rc && rename(path, target->path))
		rc = -errno;
	if (rc) {
		unlink(path);
		return fail(error, rc, "%s is unchanged, because it can't be replaced: %s",
			    target->path, nvs_strerror(rc));
	}
	rc = sync_directory(target->directory);
	if (rc)
		fail(error, rc, "%s has the choice, but a crash may undo that: %s", target->path,
		     nvs_strerror(rc));
	return rc;
}

int tune_apply_check(const char *path, struct nvs_error *error)
{
	const struct tune_point any = {NVS_IOENGINE_POSIX, 1048576, 1, 1, false, true};
	char *text, scratch[PATH_MAX + 8];
	struct target target;
	size_t nbytes;
	int rc = target_open(&target, path, error), fd;

	if (!rc)
		rc = tune_edit(target.text, target.nbytes, path, &any, false, &text, &nbytes,
			       error);
	if (!rc) {
		free(text);
		fd = open_new(&target, scratch, sizeof(scratch), error);
		rc = fd < 0 ? fd : 0;
	}
	if (!rc) {
		close(fd);
		unlink(scratch);
	}
	target_close(&target);
	return rc;
}

int tune_apply(const char *path, const struct tune_point *point, bool name_ioengine,
	       struct nvs_error *error)
{
	struct target target;
	char *text;
	size_t nbytes;
	int rc = target_open(&target, path, error);

	if (!rc)
		rc = tune_edit(target.text, target.nbytes, path, point, name_ioengine, &text,
			       &nbytes, error);
	if (!rc) {
		if (nbytes != target.nbytes || memcmp(text, target.text, nbytes) != 0)
			rc = replace(&target, text, nbytes, error);
		free(text);
	}
	target_close(&target);
	return rc;
}
