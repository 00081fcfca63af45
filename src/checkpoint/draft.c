/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a checkpoint that are written, through the aio. A draft is a file that appears when it
 * is complete: written under a temporary name, which a lock protects from a second writer, made
 * durable and renamed.
 *
 * Several files take effect together when their index is renamed, so they never replace files of
 * the index before: they take the first names that it does not have. Some readers look for
 * model.safetensors first and some for its index, so the older form is removed once the new one is
 * durable: each reader finds the old checkpoint or the new one, whole.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/memory/huge_map.h"
#include "checkpoint/checkpoint.h"

int sink_open(struct sink *sink, struct nvs_aio *aio, int fd, struct nvs_error *error)
{
	int rc = nvs_file_from_fd(aio, fd, NVS_FILE_WRITE, &sink->direct, error);

	return rc ? rc
		  : nvs_file_from_fd(aio, fd, NVS_FILE_WRITE | NVS_FILE_BUFFERED, &sink->buffered,
				     error);
}

void sink_close(struct sink *sink)
{
	nvs_file_close(sink->direct);
	nvs_file_close(sink->buffered);
	*sink = (struct sink){0};
}

static int submit_write(struct nvs_aio *aio, struct nvs_file *file, const char *data,
			uint64_t nbytes, uint64_t offset, struct nvs_request **requests, size_t *n,
			struct nvs_error *error)
{
	int rc = nbytes ? nvs_aio_pwrite(aio, file, data, nbytes, offset, &requests[*n], error) : 0;

	*n += nbytes && !rc;
	assert(*n <= WRITES_MAX);
	return rc;
}

int sink_write(const struct sink *sink, struct nvs_aio *aio, const void *data, uint64_t nbytes,
	       uint64_t offset, struct nvs_request **requests, size_t *n, struct nvs_error *error)
{
	uint64_t page = page_bytes(), end = offset + nbytes;
	uint64_t from = (offset + page - 1) / page * page, to = end / page * page;
	const char *bytes = data;
	int rc;

	*n = 0;
	if (from >= to || !sink->direct || !nvs_file_direct(sink->direct))
		return submit_write(aio, sink->buffered, bytes, nbytes, offset, requests, n, error);
	rc = submit_write(aio, sink->direct, bytes + (from - offset), to - from, from, requests, n,
			  error);
	if (!rc)
		rc = submit_write(aio, sink->buffered, bytes, from - offset, offset, requests, n,
				  error);
	if (!rc)
		rc = submit_write(aio, sink->buffered, bytes + (to - offset), end - to, to,
				  requests, n, error);
	return rc;
}

int requests_finish(struct nvs_aio *aio, struct nvs_request **requests, size_t n,
		    struct nvs_error *error)
{
	int rc = n ? nvs_aio_wait(aio, requests, n, -1, error) : 0;

	/* An overdue request stays open: the owner of its memory waits in nvs_file_close. */
	for (size_t i = 0; i < n; i++)
		nvs_request_close(requests[i]);
	return rc;
}

int sink_write_now(const struct sink *sink, struct nvs_aio *aio, const void *data, uint64_t nbytes,
		   uint64_t offset, struct nvs_error *error)
{
	struct nvs_request *requests[WRITES_MAX];
	size_t n;
	int rc = sink_write(sink, aio, data, nbytes, offset, requests, &n, error);
	int waited = requests_finish(aio, requests, n, rc ? NULL : error);

	return rc ? rc : waited;
}

static int draft_failed(struct nvs_error *error, const char *what, const char *path)
{
	int rc = ended_with(-errno);

	return error_set(error, rc, "can't %s %s: %s", what, path, nvs_strerror(rc));
}

static int create_file(struct draft *draft, uint64_t nbytes, struct nvs_error *error)
{
	int rc;

	draft->fd = open(draft->partial,
			 O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
	if (draft->fd < 0)
		return draft_failed(error, "create", draft->partial);
	if (flock(draft->fd, LOCK_EX | LOCK_NB)) {
		rc = errno == EWOULDBLOCK
			     ? error_set(error, -EBUSY, "another process writes %s", draft->path)
			     : draft_failed(error, "lock", draft->partial);
		close(draft->fd);
		draft->fd = -1;
		return rc;
	}

	struct stat named, opened;

	/* The locked file must still have its name: the owner of the lock before may have renamed
	 * it. */
	if (fstat(draft->fd, &opened))
		rc = draft_failed(error, "look at", draft->partial);
	else if (!S_ISREG(opened.st_mode) || opened.st_uid != geteuid() || opened.st_nlink > 1)
		rc = error_set(error, -EEXIST, "%s is not a file that this call made",
			       draft->partial);
	else if (lstat(draft->partial, &named) || named.st_ino != opened.st_ino ||
		 named.st_dev != opened.st_dev)
		rc = error_set(error, -EBUSY, "another process writes %s", draft->path);
	else
		rc = 0;
	if (rc) {
		close(draft->fd);
		draft->fd = -1;
		return rc;
	}
	if (ftruncate(draft->fd, 0) || fchmod(draft->fd, 0600))
		return draft_failed(error, "empty", draft->partial);
	rc = file_may_grow(draft->path, nbytes, error);
	if (rc)
		return rc;
	if (file_reserve(draft->fd, 0, nbytes) && errno != EOPNOTSUPP)
		return draft_failed(error, "reserve space for", draft->path);
	return ftruncate(draft->fd, (off_t)nbytes) ? draft_failed(error, "extend", draft->path) : 0;
}

int draft_open(struct draft *draft, struct nvs_aio *aio, const char *path, uint64_t nbytes,
	       struct nvs_error *error)
{
	int rc;

	assert(nbytes);
	*draft = (struct draft){.fd = -1, .path = strdup(path)};
	if (asprintf(&draft->partial, "%s" PARTIAL_SUFFIX, path) < 0)
		draft->partial = NULL;
	if (!draft->path || !draft->partial)
		return error_set(error, -ENOMEM, "no memory for the name of %s", path);
	rc = create_file(draft, nbytes, error);
	if (!rc)
		rc = sink_open(&draft->sink, aio, draft->fd, error);
	return rc;
}

int draft_sync(struct draft *draft, struct nvs_error *error)
{
	return fsync(draft->fd) ? draft_failed(error, "make durable", draft->partial) : 0;
}

int draft_rename(struct draft *draft, struct nvs_error *error)
{
	if (rename(draft->partial, draft->path))
		return draft_failed(error, "rename to its name", draft->partial);
	draft->renamed = true;
	return 0;
}

static int open_directory(const char *path, struct nvs_error *error)
{
	const char *slash = strrchr(path, '/');
	char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int fd;

	if (!directory)
		return error_set(error, -ENOMEM, "no memory for the directory of %s", path);
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		fd = draft_failed(error, "open", directory);
	free(directory);
	return fd;
}

int sync_directory(const char *path, struct nvs_error *error)
{
	int rc = 0, fd = open_directory(path, error);

	if (fd < 0)
		return fd;
	if (fsync(fd))
		rc = draft_failed(error, "make the new names durable in the directory of", path);
	close(fd);
	return rc;
}

int lock_directory(const char *path, struct nvs_error *error)
{
	int rc, fd = open_directory(path, error);

	if (fd < 0)
		return fd;
	do
		rc = flock(fd, LOCK_EX);
	while (rc && errno == EINTR);
	/* Of a directory, NFS has no such lock. */
	if (!rc || errno == EBADF || errno == EOPNOTSUPP)
		return fd;
	rc = draft_failed(error, "lock the directory of", path);
	close(fd);
	return rc;
}

int remove_durably(const char *path, struct nvs_error *error)
{
	if (!unlinkat(AT_FDCWD, path, 0))
		return sync_directory(path, error);
	return errno == ENOENT || errno == EISDIR ? 0 : draft_failed(error, "remove", path);
}

void draft_close(struct draft *draft)
{
	sink_close(&draft->sink);
	if (draft->fd >= 0 && draft->partial && !draft->renamed)
		unlink(draft->partial);
	if (draft->fd >= 0)
		close(draft->fd);
	free(draft->path);
	free(draft->partial);
	*draft = (struct draft){.fd = -1};
}

int draft_write(struct nvs_aio *aio, const char *path, const void *data, size_t nbytes,
		struct nvs_error *error)
{
	struct draft draft;
	int rc = draft_open(&draft, aio, path, nbytes, error);

	if (!rc)
		rc = sink_write_now(&draft.sink, aio, data, nbytes, 0, error);
	if (!rc)
		rc = draft_sync(&draft, error);
	if (!rc)
		rc = draft_rename(&draft, error);
	draft_close(&draft);
	return rc;
}
