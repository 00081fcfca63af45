/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts writes per grain, so I/Os of different lengths may overlap.
 */
#include "cli/modes/io/contents.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/modes/model/pattern.h"

#define HELD	   ((uint32_t)1 << 31)
#define GENERATION (HELD - 1)

int io_contents_open(struct io_contents *contents, uint64_t nbytes, bool tracked)
{
	if (!tracked)
		return 0;
	contents->grains = calloc(nbytes / contents->grain, sizeof(uint32_t));
	contents->expected = malloc(PATTERN_BLOCK_BYTES);
	return contents->grains && contents->expected ? 0 : -ENOMEM;
}

void io_contents_close(struct io_contents *contents)
{
	free(contents->grains);
	free(contents->expected);
	contents->grains = NULL;
	contents->expected = NULL;
}

bool io_contents_hold(struct io_contents *contents, uint64_t offset, uint64_t nbytes)
{
	uint64_t first = offset / contents->grain, end = first + nbytes / contents->grain;

	if (!contents->grains || !contents->writes_over)
		return true;
	for (uint64_t i = first; i < end; i++)
		if (contents->grains[i] & HELD)
			return false;
	for (uint64_t i = first; i < end; i++)
		contents->grains[i] |= HELD;
	return true;
}

void io_contents_release(struct io_contents *contents, uint64_t offset, uint64_t nbytes)
{
	uint64_t first = offset / contents->grain, end = first + nbytes / contents->grain;

	if (!contents->grains || !contents->writes_over)
		return;
	for (uint64_t i = first; i < end; i++) {
		assert(contents->grains[i] & HELD);
		contents->grains[i] &= GENERATION;
	}
}

/* Counts a write; 0 means never written. */
static uint32_t next_generation(uint32_t *grain)
{
	uint32_t next = (*grain + 1) & GENERATION;

	*grain = (*grain & HELD) | (next ? next : 1);
	return *grain & GENERATION;
}

/* Bytes of the grain from `at` on within one block of the pattern. */
static uint64_t part_of_grain(const struct io_contents *contents, uint64_t at)
{
	return contents->grain - at < PATTERN_BLOCK_BYTES ? contents->grain - at
							  : PATTERN_BLOCK_BYTES;
}

static void make_grain(const struct io_contents *contents, uint32_t generation, uint64_t offset,
		       char *data)
{
	for (uint64_t i = 0; i < contents->grain; i += PATTERN_BLOCK_BYTES)
		pattern_block(contents->seed, 0, generation, offset + i, data + i,
			      part_of_grain(contents, i));
}

void io_contents_make(struct io_contents *contents, uint64_t offset, uint64_t nbytes, void *data)
{
	uint32_t *grain = contents->grains ? contents->grains + offset / contents->grain : NULL;

	for (uint64_t at = 0; at < nbytes; at += contents->grain)
		make_grain(contents, grain ? next_generation(grain++) : 1, offset + at,
			   (char *)data + at);
}

static int say_difference(const char *path, uint64_t offset, const char *found,
			  const char *expected, struct nvs_error *error)
{
	size_t i = 0;

	while (found[i] == expected[i])
		i++;
	*error = (struct nvs_error){.size = sizeof(*error), .code = -EBADMSG, .offset = offset + i};
	snprintf(error->subject, sizeof(error->subject), "%s", path);
	snprintf(error->text, sizeof(error->text),
		 "%s: the byte at offset %" PRIu64 " is 0x%02x and should be 0x%02x", path,
		 offset + i, (unsigned char)found[i], (unsigned char)expected[i]);
	return -EBADMSG;
}

static int compare_grain(const struct io_contents *contents, const char *path, uint32_t generation,
			 uint64_t offset, const char *data, struct nvs_error *error)
{
	char *expected = contents->expected;

	for (uint64_t i = 0; i < contents->grain; i += PATTERN_BLOCK_BYTES) {
		uint64_t n = part_of_grain(contents, i);

		pattern_block(contents->seed, 0, generation, offset + i, expected, n);
		if (memcmp(data + i, expected, n) != 0)
			return say_difference(path, offset + i, data + i, expected, error);
	}
	return 0;
}

int io_contents_compare(const struct io_contents *contents, const char *path, uint64_t offset,
			uint64_t nbytes, const void *data, uint64_t *compared,
			struct nvs_error *error)
{
	int rc = 0;

	assert(contents->grains);
	for (uint64_t at = 0; at < nbytes && !rc; at += contents->grain) {
		uint32_t generation = contents->grains[(offset + at) / contents->grain] &
				      GENERATION;

		if (!generation)
			continue;
		rc = compare_grain(contents, path, generation, offset + at, (const char *)data + at,
				   error);
		*compared += contents->grain;
	}
	return rc;
}
