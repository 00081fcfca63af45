/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of others that a store reads where they lie: their places in its nvs_file, what is read
 * to have bytes of theirs in memory, and whether they are as they were.
 *
 * A file may change at any time. It has the stamp of its header's reading for as long as nobody
 * writes to it; so bytes are those of one version if the stamp, taken after they were read, is the
 * same. The path must lead to the file too: a program would find another one there.
 */
#include <stdlib.h>
#include <sys/stat.h>

#include "aio/aio.h"
#include "store/internal.h"

/* Shorter tensors lie together: they are read in one transfer, through bounce buffers. */
#define SMALL_BYTES (UINT64_C(32) << 10)

void sources_free(struct sources *sources)
{
	for (size_t i = 0; sources && i < sources->n; i++) {
		free(sources->source[i].path);
		free(sources->source[i].full);
	}
	free(sources);
}

const char *sources_path(const struct sources *sources)
{
	return sources->source[0].path;
}

static const struct source *source_at(const struct store *store, uint64_t offset)
{
	return &store->sources->source[file_member_at(store->file, offset)];
}

const char *store_file_path(const struct store *store, uint64_t offset)
{
	return source_at(store, offset)->path;
}

uint64_t store_file_offset(const struct store *store, size_t file, uint64_t offset)
{
	assert(store->sources && file < store->sources->n);
	return store->sources->source[file].first + offset;
}

struct store_window store_window(const struct store *store, uint64_t offset, uint64_t nbytes)
{
	const struct source *source = source_at(store, offset);
	uint64_t end = source->first + source->stamp.nbytes;
	struct store_window window = {.offset = offset,
				      .extent = round_to_unit(nbytes, store->unit),
				      .nbytes = nbytes,
				      .small = true};

	assert(offset >= source->first && nbytes <= end - offset);
	if (nbytes < SMALL_BYTES)
		return window;
	window = (struct store_window){.offset = align_down(offset, store->unit)};
	window.skip = (uint32_t)(offset - window.offset);
	window.extent = round_to_unit(window.skip + nbytes, store->unit);
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
	struct source *source = &store->sources->source[file_member_at(store->file, offset)];
	bool first = !source->reported;

	source->reported = true;
	return first;
}

bool store_same_file(const struct store *store, uint64_t a, uint64_t b)
{
	return source_at(store, a) == source_at(store, b);
}
