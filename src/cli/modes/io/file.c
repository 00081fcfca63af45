/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file is created exclusively and unlinked at once. Jobs that share a name may find each
 * other's file, still empty, and retry.
 */
#include "cli/modes/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file_limit.h"

#define SIZE_DEFAULT ((uint64_t)1 << 30)
#define TRIES	     100
#define TRY_AGAIN_NS 10000000

int io_refuse(struct nvs_error *error, int rc, const char *format, ...)
{
	va_list args;

	error->code = rc;
	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return rc;
}

static bool reads_alone(const struct bench_options *options)
{
	return options->rw == RW_READ || options->rw == RW_RANDREAD;
}

static int find_path(struct io_file *file, const struct bench_options *options, const char *place,
		     const char *name, struct nvs_error *error)
{
	bool whole = *name == '/';
	struct stat st;
	int n;

	if (!whole && stat(place, &st))
		return io_refuse(error, -errno, "cannot use %s: %s", place, nvs_strerror(-errno));
	if (!whole && S_ISBLK(st.st_mode)) {
		if (options->filename)
			return io_refuse(error, -ENOTDIR,
					 "%s is a block device, not a directory for %s", place,
					 name);
		whole = true;
		name = place;
	}
	n = whole ? snprintf(file->path, sizeof(file->path), "%s", name)
		  : snprintf(file->path, sizeof(file->path), "%s/%s", place, name);
	return (size_t)n < sizeof(file->path) ? 0
					      : io_refuse(error, -ENAMETOOLONG, "%s: %s", name,
							  nvs_strerror(-ENAMETOOLONG));
}

/* Bytes of a file or device, or a negative errno. */
static int64_t length_of(const struct io_file *file, struct nvs_error *error)
{
	struct stat st;
	off_t end;

	if (fstat(file->fd, &st))
		return io_refuse(error, -errno, "%s: %s", file->path, nvs_strerror(-errno));
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return io_refuse(error, -EINVAL, "%s is neither a file nor a block device",
				 file->path);
	end = lseek(file->fd, 0, SEEK_END);
	if (end < 0)
		return io_refuse(error, -errno, "cannot tell the size of %s: %s", file->path,
				 nvs_strerror(-errno));
	return end;
}

static int refuse_to_write(const char *path, bool device, struct nvs_error *error)
{
	return io_refuse(error, -EEXIST,
			 "%s exists, and this mode would overwrite it: give %s, or read it with "
			 "read or randread",
			 path, device ? "a directory" : "another --filename, or delete it");
}

int io_file_foresee(const struct bench_options *options, const char *place, const char *name,
		    struct nvs_error *error)
{
	static struct io_file file;
	struct nvs_error unknown = {.size = sizeof(unknown)};
	struct stat st;

	/* An empty file may be another job's, which is about to unlink it. */
	if (reads_alone(options) || find_path(&file, options, place, name, &unknown) ||
	    lstat(file.path, &st) || !S_ISREG(st.st_mode) || !st.st_size)
		return 0;
	return refuse_to_write(file.path, false, error);
}

void io_file_name(const char *job_name, unsigned clone, char name[NAME_MAX + 1])
{
	snprintf(name, NAME_MAX + 1, "%s.%u.0", job_name, clone);
	for (char *slash = name; (slash = strchr(slash, '/'));)
		*slash = '_';
}

static int take_existing(struct io_file *file, const struct bench_options *options, int64_t nbytes,
			 struct nvs_error *error)
{
	struct stat st;
	bool device = !fstat(file->fd, &st) && S_ISBLK(st.st_mode);

	if (!reads_alone(options))
		return refuse_to_write(file->path, device, error);
	if (options->verify)
		return io_refuse(
			error, -EINVAL,
			"%s exists, so its expected contents are unknown: leave out --verify, "
			"or give another --filename",
			file->path);
	if ((uint64_t)nbytes < options->size)
		return io_refuse(error, -EINVAL, "%s has %" PRId64 " bytes, fewer than --size",
				 file->path, nbytes);
	file->nbytes = options->size ? options->size : (uint64_t)nbytes;
	return 0;
}

/*
 * One try; returns 1 if the name is another job's, which is about to unlink it or just did. On the
 * last try an empty file is reported.
 */
static int open_or_make(struct io_file *file, const struct bench_options *options, bool last,
			struct nvs_error *error)
{
	const int flags = O_CLOEXEC | O_NOFOLLOW;
	int64_t nbytes;

	file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
	if (file->fd >= 0) {
		file->own = true;
		file->nbytes = options->size ? options->size : SIZE_DEFAULT;
		return 0;
	}
	if (errno != EEXIST)
		return io_refuse(error, -errno, "cannot create %s: %s", file->path,
				 nvs_strerror(-errno));
	file->fd = open(file->path, O_RDONLY | O_NONBLOCK | flags);
	if (file->fd < 0 && errno == ENOENT && !last)
		return 1;
	if (file->fd < 0)
		return io_refuse(error, -errno, "cannot open %s: %s", file->path,
				 errno == ELOOP ? "it is a symbolic link, which is not followed"
						: nvs_strerror(-errno));
	nbytes = length_of(file, error);
	if (nbytes > 0 || (!nbytes && last))
		return take_existing(file, options, nbytes, error);
	close(file->fd);
	file->fd = -1;
	return nbytes ? (int)nbytes : 1;
}

/* The library opens the file by name, so unlink it only afterwards. */
static int open_for_transfers(struct io_file *file, struct nvs_aio *aio, struct nvs_error *error)
{
	int rc = nvs_file_open(aio, file->path, file->own ? NVS_FILE_WRITE | NVS_FILE_UNITS : 0,
			       &file->file, error);

	if (rc)
		file->file = NULL;
	if (file->own && unlink(file->path) && !rc)
		rc = io_refuse(error, -errno, "cannot unlink %s: %s", file->path,
			       nvs_strerror(-errno));
	if (!rc && !nvs_file_direct(file->file))
		rc = io_refuse(error, -EINVAL,
			       "%s: this file system has no direct I/O: use another"
			       " directory",
			       file->path);
	return rc;
}

static int reserve(const struct io_file *file, struct nvs_error *error)
{
	int rc = EFBIG;

	if (file->nbytes <= INT64_MAX) {
		rc = file_may_grow(file->path, file->nbytes, error);
		if (rc)
			return rc;
		rc = posix_fallocate(file->fd, 0, (off_t)file->nbytes);
	}
	return rc ? io_refuse(error, -rc, "cannot reserve %" PRIu64 " bytes for %s: %s%s",
			      file->nbytes, file->path, nvs_strerror(-rc),
			      rc == ENOSPC ? "; give a smaller --size" : "")
		  : 0;
}

int io_file_open(struct io_file *file, struct nvs_aio *aio, const struct bench_options *options,
		 const char *place, const char *name, struct nvs_error *error)
{
	int rc;

	*file = (struct io_file){.fd = -1};
	rc = find_path(file, options, place, name, error);
	if (rc)
		return rc;
	for (unsigned tries = 0; tries < TRIES; tries++) {
		rc = open_or_make(file, options, tries == TRIES - 1, error);
		if (rc <= 0)
			break;
		nanosleep(&(struct timespec){.tv_nsec = TRY_AGAIN_NS}, NULL);
	}
	if (!rc)
		rc = open_for_transfers(file, aio, error);
	if (!rc && file->own)
		rc = reserve(file, error);
	return rc;
}

void io_file_close(struct io_file *file)
{
	nvs_file_close(file->file);
	if (file->fd >= 0)
		close(file->fd);
	*file = (struct io_file){.fd = -1};
}

int io_file_sync(const struct io_file *file, struct nvs_error *error)
{
	return file->own ? nvs_file_sync(file->file, error) : 0;
}
