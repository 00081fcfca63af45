/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the blocks of a file hold: bytes that follow from seed, offset and how often the place was
 * written, so that a block that is misplaced, stale or torn is told from the right one.
 */
#ifndef CLI_IO_CONTENTS_H
#define CLI_IO_CONTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "nvswap.h"

struct io_contents {
	uint64_t seed;
	uint64_t grain;	  /* bytes that are written whole or not at all */
	uint32_t *grains; /* for each: how often it was written, and whether it is held; or NULL */
	char *expected;	  /* a block of the pattern, to compare with */
	bool writes_over; /* while others are in flight, which have to be kept apart then */
};

/*
 * -ENOMEM. What is not tracked can be made, as if it were written once, but not compared.
 * io_contents_close comes after it, whatever is returned.
 */
int io_contents_open(struct io_contents *contents, uint64_t nbytes, bool tracked);
void io_contents_close(struct io_contents *contents);

/* Before a transfer of these bytes: false if one is in flight that it has to stay away from. */
bool io_contents_hold(struct io_contents *contents, uint64_t offset, uint64_t nbytes);
void io_contents_let_go(struct io_contents *contents, uint64_t offset, uint64_t nbytes);

/* What is to be written next there, into `data`. */
void io_contents_make(struct io_contents *contents, uint64_t offset, uint64_t nbytes, void *data);
/*
 * Compares what was read with what was written last; places that never were are passed over. Adds
 * what it looked at to *compared. -EBADMSG, with the first byte that differs in *error.
 */
int io_contents_compare(const struct io_contents *contents, const char *path, uint64_t offset,
			uint64_t nbytes, const void *data, uint64_t *compared,
			struct nvs_error *error);

#endif
