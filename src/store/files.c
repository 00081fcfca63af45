/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that is files of others, read where they lie: nothing of them is changed, locked or
 * copied. The files are ranges of one nvs_file, one behind the other, each from a whole unit on,
 * with a unit between two, so no window covers bytes of two files.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aio/aio.h"
#include "base/files.h"
#include "store/internal.h"
#include "store/member/internal.h"

/* The least unit of direct I/O: the block of most drives and file systems, also of those that can
 * move 512 bytes. */
#define UNIT_READ 4096u

/* Opens the members for direct I/O, if all files can do it, and places them. */
static int open_members(struct store *store, const struct weights *weights,
			struct file_member *members, struct nvs_error *error)
{
	struct sources *sources = store->sources;
	uint64_t first = 0;
	int rc;

	for (size_t i = 0; i < weights->nfiles; i++) {
		struct file_member *member = &members[i];
		uint64_t needed;

		*member = (struct file_member){.path = sources->source[i].path, .direct_fd = -1};
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
		members[i].first = sources->source[i].first = first;
		sources->source[i].fd = members[i].fd;
		if (nbytes > INT64_MAX - first - 3 * (uint64_t)store->unit)
			return error_set(error, -EFBIG, "the files have more than 2^63 bytes");
		first = round_to_unit(first + nbytes, store->unit) + store->unit;
	}
	return 0;
}

static int copy_names(struct store *store, const struct weights *weights, struct nvs_error *error)
{
	struct sources *sources =
		calloc(1, sizeof(*sources) + weights->nfiles * sizeof(sources->source[0]));

	store->sources = sources;
	if (!sources)
		return error_no_memory(error, "opening files");
	sources->n = weights->nfiles;
	for (size_t i = 0; i < sources->n; i++) {
		struct source *source = &sources->source[i];

		*source = (struct source){.path = strdup(weights->files[i].path),
					  .full = absolute_path(weights->files[i].path),
					  .stamp = weights->files[i].stamp,
					  .fd = -1};
		if (!source->path || !source->full)
			return error_no_memory(error, "opening files");
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
	if (!store || !members) {
		store_close(store);
		free(members);
		return error_no_memory(error, "opening files");
	}
	for (size_t i = 0; i < n; i++)
		members[i].fd = members[i].direct_fd = -1;
	store->read_only = store->direct = true;
	store->unit = UNIT_READ;
	rc = copy_names(store, weights, error);
	rc = rc ?: open_members(store, weights, members, error);
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
