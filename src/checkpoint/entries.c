/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entries of a checkpoint, one for each tensor, made, compared, sorted and found by name; and
 * the files that they lie in. Headers and records are read with pread, never mapped, so a file that
 * is truncated during a read is an error and not a signal. A checkpoint's data is read by the
 * places that its headers gave, after the files were closed and opened again: those places mean
 * nothing in another file, which its stamp tells.
 */
#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json/read.h"

void checkpoint_free(struct nvs_checkpoint *checkpoint)
{
	for (size_t i = 0; checkpoint->entries && i < checkpoint->n; i++) {
		free(checkpoint->entries[i].name);
		free(checkpoint->entries[i].shape);
	}
	for (size_t i = 0; i < checkpoint->nfiles; i++)
		free(checkpoint->paths[i]);
	for (size_t i = 0; i < checkpoint->nunread; i++)
		free(checkpoint->unread[i].name);
	free(checkpoint->entries);
	free(checkpoint->unread);
	free(checkpoint->paths);
	free(checkpoint->stamps);
	free(checkpoint->sorted);
	free(checkpoint->storages);
	*checkpoint = (struct nvs_checkpoint){0};
}

static int stamp_take(int fd, const char *path, struct stamp *stamp, struct nvs_error *error)
{
	struct stat status;

	if (fstat(fd, &status))
		return error_set(error, -errno, "can't look at %s: %s", path, nvs_strerror(-errno));
	*stamp = stamp_of(&status);
	return 0;
}

int checkpoint_of_file(struct nvs_checkpoint *checkpoint, const char *path, int fd,
		       struct nvs_error *error)
{
	*checkpoint = (struct nvs_checkpoint){.paths = calloc(1, sizeof(char *)),
					      .stamps = calloc(1, sizeof(struct stamp))};
	checkpoint->nfiles = checkpoint->paths ? 1 : 0;
	if (checkpoint->paths)
		checkpoint->paths[0] = strdup(path);
	if (!checkpoint->paths || !checkpoint->paths[0] || !checkpoint->stamps)
		return error_set(error, -ENOMEM, "no memory for the header of %s", path);
	return stamp_take(fd, path, checkpoint->stamps, error);
}

/* `count` more elements behind n; NULL: out of memory, and the array is as it was. */
static void *grown(void *items, size_t n, size_t count, size_t item_bytes)
{
	return reallocarray(items, n + count + 1, item_bytes);
}

int checkpoint_append(struct nvs_checkpoint *checkpoint, struct nvs_checkpoint *from,
		      const char *what, struct nvs_error *error)
{
	struct entry *entries;
	struct unread *unread;
	struct stamp *stamps;
	char **paths;

	assert(from->has_data && !from->nstorages && !checkpoint->nstorages);
	if (from->nbytes > DATA_MAX - checkpoint->nbytes)
		return error_set(error, -EINVAL, "%s: its files have more than %llu bytes", what,
				 DATA_MAX);
	entries = grown(checkpoint->entries, checkpoint->n, from->n, sizeof(*entries));
	checkpoint->entries = entries ? entries : checkpoint->entries;
	unread = grown(checkpoint->unread, checkpoint->nunread, from->nunread, sizeof(*unread));
	checkpoint->unread = unread ? unread : checkpoint->unread;
	stamps = grown(checkpoint->stamps, checkpoint->nfiles, from->nfiles, sizeof(*stamps));
	checkpoint->stamps = stamps ? stamps : checkpoint->stamps;
	paths = grown(checkpoint->paths, checkpoint->nfiles, from->nfiles, sizeof(*paths));
	checkpoint->paths = paths ? paths : checkpoint->paths;
	if (!entries || !unread || !stamps || !paths)
		return error_set(error, -ENOMEM, "no memory for the headers of %s", what);
	for (size_t i = 0; i < from->n; i++) {
		from->entries[i].file += checkpoint->nfiles;
		entries[checkpoint->n++] = from->entries[i];
	}
	for (size_t i = 0; i < from->nunread; i++)
		unread[checkpoint->nunread++] = from->unread[i];
	for (size_t i = 0; i < from->nfiles; i++) {
		stamps[checkpoint->nfiles] = from->stamps[i];
		paths[checkpoint->nfiles++] = from->paths[i];
	}
	checkpoint->nbytes += from->nbytes;
	from->n = from->nunread = from->nfiles = 0;
	return 0;
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct entry *entries = arg;

	return strcmp(entries[*(const size_t *)a].name, entries[*(const size_t *)b].name);
}

int checkpoint_sort(struct nvs_checkpoint *checkpoint, const char *what, struct nvs_error *error)
{
	size_t n = checkpoint->n, *sorted = calloc(n + 1, sizeof(*sorted));

	if (!sorted)
		return error_set(error, -ENOMEM, "no memory for the names of %s", what);
	for (size_t i = 0; i < n; i++)
		sorted[i] = i;
	qsort_r(sorted, n, sizeof(*sorted), by_name, checkpoint->entries);
	free(checkpoint->sorted);
	checkpoint->sorted = sorted;
	for (size_t i = 1; i < n; i++) {
		const char *name = checkpoint->entries[sorted[i]].name;

		if (!strcmp(checkpoint->entries[sorted[i - 1]].name, name))
			return error_about(error, -EINVAL, name, 0, 0,
					   "%s: two tensors have the name %s", what, name);
	}
	return 0;
}

const struct entry *checkpoint_find(const struct nvs_checkpoint *checkpoint, const char *name)
{
	size_t low = 0, high = checkpoint->n;

	assert(checkpoint->sorted);
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct entry *entry = &checkpoint->entries[checkpoint->sorted[middle]];
		int order = strcmp(name, entry->name);

		if (!order)
			return entry;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

int checkpoint_lacks(const struct nvs_checkpoint *checkpoint, const char *name,
		     struct nvs_error *error)
{
	for (size_t i = 0; i < checkpoint->nunread; i++)
		if (!strcmp(checkpoint->unread[i].name, name))
			return error_about(error, -ENOENT, name, 0, 0,
					   "%s: tensor %s can't be read: %s", checkpoint->paths[0],
					   name, checkpoint->unread[i].why);
	return error_about(error, -ENOENT, name, 0, 0, "%s%s: no tensor %s",
			   checkpoint->nfiles ? checkpoint->paths[0] : "the checkpoint",
			   checkpoint->nfiles > 1 ? " and the files beside it" : "", name);
}

int entry_make(struct entry *entry, const char *name, enum nvs_dtype dtype, uint64_t numel,
	       const uint64_t *shape, size_t ndim)
{
	unsigned bits = nvs_dtype_bits(dtype);

	*entry = (struct entry){.name = strdup(name),
				.dtype = dtype,
				.numel = numel,
				.nbytes = numel / 8 * bits + numel % 8 * bits / 8,
				.shape = calloc(ndim + 1, sizeof(uint64_t)),
				.ndim = shape ? ndim : 1};
	if (!entry->name || !entry->shape) {
		free(entry->name);
		free(entry->shape);
		return -ENOMEM;
	}
	if (shape)
		memcpy(entry->shape, shape, ndim * sizeof(*shape));
	else
		entry->shape[0] = numel;
	return 0;
}

int entry_damaged(const struct nvs_checkpoint *checkpoint, const struct entry *entry,
		  struct nvs_error *error)
{
	return error_about(error, -EBADMSG, entry->name, 0, entry->offset,
			   "%s: tensor %s: its bytes do not have the checksum that the file states",
			   checkpoint->paths[entry->file], entry->name);
}

bool entry_is_view(const struct nvs_checkpoint *checkpoint, const struct entry *entry)
{
	return checkpoint->storages && entry->nbytes && !entry->has_crc;
}

int open_to_read(const char *path, const char *what, uint64_t *nbytes, struct nvs_error *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc = 0;
	struct stat status;

	if (fd < 0 || fstat(fd, &status))
		rc = error_set(error, -errno, "can't open the %s %s: %s", what, path,
			       nvs_strerror(-errno));
	else if (!S_ISREG(status.st_mode))
		rc = error_set(error, -EINVAL, "the %s %s is not a regular file", what, path);
	else
		*nbytes = (uint64_t)status.st_size;
	if (rc && fd >= 0)
		close(fd);
	return rc ? rc : fd;
}

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

int stamp_check(const struct stamp *stamp, int fd, const char *path, struct nvs_error *error)
{
	struct stamp now = {0};
	int rc = stamp_take(fd, path, &now, error);

	if (rc)
		return rc;
	if (stamps_equal(&now, stamp))
		return 0;
	return error_set(error, -ESTALE,
			 "%s was replaced or written to since its header was read: open the "
			 "checkpoint again",
			 path);
}

int read_json(int fd, const char *path, uint64_t offset, uint64_t nbytes, char **text,
	      struct json_document **document, struct nvs_error *error)
{
	int rc;

	assert(nbytes <= HEADER_MAX);
	*document = NULL;
	*text = malloc(nbytes + 1);
	if (!*text)
		return error_set(error, -ENOMEM, "no memory for the header of %s", path);
	rc = read_at(fd, path, offset, *text, nbytes, error);
	return rc ? rc : json_parse(document, *text, nbytes, path, JSON_MEMORY_MAX, error);
}
