/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of a file's blocks: a pattern of seed, offset and number of writes, which
 * distinguishes a misplaced, stale or torn block from the right one.
 */
#ifndef CLI_MODES_IO_CONTENTS_H
#define CLI_MODES_IO_CONTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "nvswap.h"

struct io_contents {
	uint64_t seed;
	uint64_t grain;	  /* unit of all offsets and lengths, in bytes */
	uint32_t *grains; /* per grain: number of writes and whether it is held; or NULL */
	char *expected;	  /* a block of the pattern */
	bool writes_over; /* overlapping transfers must be kept apart */
};

/*
 * -ENOMEM. Contents that are not tracked can be generated, as if written once, but not compared.
 * Always call io_contents_close afterwards.
 */
int io_contents_open(struct io_contents *contents, uint64_t nbytes, bool tracked);
void io_contents_close(struct io_contents *contents);

/* Call before a transfer of these bytes: false if one in flight conflicts with it. */
bool io_contents_hold(struct io_contents *contents, uint64_t offset, uint64_t nbytes);
void io_contents_release(struct io_contents *contents, uint64_t offset, uint64_t nbytes);

/* Generates the next contents of the range into `data`. */
void io_contents_make(struct io_contents *contents, uint64_t offset, uint64_t nbytes, void *data);
/*
 * Compares data read with what was last written; skips ranges never written. Adds the bytes
 * compared to *compared. -EBADMSG with the first difference in *error.
 */
int io_contents_compare(const struct io_contents *contents, const char *path, uint64_t offset,
			uint64_t nbytes, const void *data, uint64_t *compared,
			struct nvs_error *error);

#endif
