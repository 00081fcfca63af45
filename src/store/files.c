/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that is files of others, read where they lie: nothing of them is changed, locked or
 * copied. The files are ranges of one nvs_file, one behind the other, each from a whole unit on,
 * with a unit between two, so no window covers bytes of two files.
 *
 * A file may change at any time. It has the stamp of its header's reading for as long as nobody
 * writes to it; so bytes are those of one version if the stamp, taken after they were read, is the
 * same. The path must lead to the file too: a program would find another one there.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aio/aio.h"
#include "base/files.h"
#include "store/internal.h"
#include "store/member/internal.h"

/* The least unit of direct I/O: the block of most drives and file systems, also of those that can
 * move 512 bytes. */
#define UNIT_READ 4096u

/* Shorter tensors lie together: they are read in one transfer, through bounce buffers. */
#define SMALL_BYTES (UINT64_C(32) << 10)

/* Opens the members for direct I/O, if all files can do it, and places them. */
static int open_members(struct store *store, const struct weights *weights,
			struct file_member *members, struct nvs_error *error)
{
	uint64_t first = 0;
	int rc;

	for (size_t i = 0; i < weights->nfiles; i++) {
		struct source *source = &store->sources[i];
		struct file_member *member = &members[i];
		uint64_t needed;

		*source = (struct source){.path = strdup(weights->files[i].path),
					  .full = absolute_path(weights->files[i].path),
					  .stamp = weights->files[i].stamp};
		if (!source->path || !source->full)
			return error_no_memory(error, "opening files");
		*member = (struct file_member){.path = source->path, .direct_fd = -1};
		member->fd = fcntl(weights->files[i].fd, F_DUPFD_CLOEXEC, 0);
		/* I/Os of a descriptor with O_NONBLOCK may return EAGAIN. */
		if (member->fd < 0 || fcntl(member->fd, F_SETFL, O_RDONLY))
			rc = -errno;
		else
			rc = file_member_probe(member, false, false);
		if (rc)
			return error_set(error, rc, "can't open %s again: %s%s", member->path,
					 nvs_strerror(rc),
					 rc == -EMFILE ? ": raise the limit, ulimit -n" : "");
		needed = max_u64(member->dio.offset_align, member->dio.mem_align);
		store->direct &= member->direct_fd >= 0 && needed <= UNIT_MAX;
		if (store->direct) {
			store->unit = (uint32_t)max_u64(store->unit, needed);
			unit_cover_blocks(&store->unit, member->fd);
		}
	}
	if (!store->direct)
		store->unit = UNIT_MIN;
	for (size_t i = 0; i < weights->nfiles; i++) {
		uint64_t nbytes = weights->files[i].stamp.nbytes;

		/* One that can't makes all of them buffered. */
		if (!store->direct && members[i].direct_fd >= 0) {
			member_close_fd(&members[i].direct_fd);
			members[i].dio.direct = false;
		}
		members[i].first = store->sources[i].first = first;
		store->sources[i].fd = members[i].fd;
		if (nbytes > INT64_MAX - first - 3 * (uint64_t)store->unit)
			return error_set(error, -EFBIG, "the files have more than 2^63 bytes");
		first = align_up(first + nbytes, store->unit) + store->unit;
	}
	return 0;
}

int store_open_files(struct store **out, struct nvs_aio *aio, const struct weights *weights,
		     struct nvs_error *error)
{
	struct store *store = store_new();
	struct file_member *members = calloc(weights->nfiles, sizeof(*members));
	size_t n = weights->nfiles;
	int rc;

	assert(n);
	if (store)
		store->sources = calloc(n, sizeof(*store->sources));
	if (!store || !members || !store->sources) {
		store_close(store);
		free(members);
		return error_no_memory(error, "opening files");
	}
	store->nsources = n;
	for (size_t i = 0; i < n; i++)
		members[i].fd = members[i].direct_fd = -1;
	store->read_only = store->direct = true;
	store->unit = UNIT_READ;
	rc = open_members(store, weights, members, error);
	rc = rc ?: file_create(aio, members, (unsigned)n, 0, false, true, &store->file, error);
	for (size_t i = 0; i < n && rc; i++) {
		member_close_fd(&members[i].fd);
		member_close_fd(&members[i].direct_fd);
	}
	free(members);
	if (rc)
		store_close(store);
	else
		*out = store;
	return rc;
}

/* ---- Their places, and whether they are as they were ---- */

static const struct source *source_at(const struct store *store, uint64_t offset)
{
	return &store->sources[file_member_at(store->file, offset)];
}

const char *store_file_path(const struct store *store, uint64_t offset)
{
	return source_at(store, offset)->path;
}

uint64_t store_file_offset(const struct store *store, size_t file, uint64_t offset)
{
	assert(file < store->nsources);
	return store->sources[file].first + offset;
}

struct store_window store_window(const struct store *store, uint64_t offset, uint64_t nbytes)
{
	const struct source *source = source_at(store, offset);
	uint64_t end = source->first + source->stamp.nbytes;
	struct store_window window = {.offset = offset,
				      .extent = align_up(nbytes, store->unit),
				      .nbytes = nbytes,
				      .small = true};

	assert(offset >= source->first && nbytes <= end - offset);
	if (nbytes < SMALL_BYTES)
		return window;
	window = (struct store_window){.offset = align_down(offset, store->unit)};
	window.skip = (uint32_t)(offset - window.offset);
	window.extent = align_up(window.skip + nbytes, store->unit);
	/* The last one of a file may end in the middle of a unit. */
	window.nbytes = min_u64(window.extent, end - window.offset);
	return window;
}

int store_check_file(const struct store *store, uint64_t offset)
{
	const struct source *source = source_at(store, offset);
	struct stat open, named;
	struct stamp stamp;

	if (fstat(source->fd, &open) || stat(source->full, &named))
		return -ESTALE;
	stamp = stamp_of(&open);
	if (!stamps_equal(&stamp, &source->stamp))
		return -ESTALE;
	return named.st_dev == open.st_dev && named.st_ino == open.st_ino ? 0 : -ESTALE;
}

bool store_report_file(struct store *store, uint64_t offset)
{
	struct source *source = &store->sources[file_member_at(store->file, offset)];
	bool first = !source->reported;

	source->reported = true;
	return first;
}

bool store_same_file(const struct store *store, uint64_t a, uint64_t b)
{
	return source_at(store, a) == source_at(store, b);
}
