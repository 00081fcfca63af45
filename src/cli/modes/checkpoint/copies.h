/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other ways to move as many bytes as a checkpoint has, on the same drive, which rw=checkpoint and
 * rw=restore are measured beside. They use nothing of the library.
 */
#ifndef CLI_MODES_CHECKPOINT_COPIES_H
#define CLI_MODES_CHECKPOINT_COPIES_H

#include "cli/jobs/bench.h"

struct copies {
	const char *from; /* the checkpoint */
	const char *to;	  /* a file of the benchmark's own */
	uint64_t nbytes;
	uint64_t block; /* of the loop, and its I/Os in flight */
	unsigned depth;
	bool over; /* write over the file, as a restore does, instead of to a new one */
	struct copy_loop *loop; /* NULL: it does not work here */
	char *memory;		/* of cp and write */
	char *why_no_loop;	/* text for the report, of `reason_bytes` bytes */
	size_t reason_bytes;
};

/*
 * The fields above `loop`, `why_no_loop` and `reason_bytes` are set. With `over` it makes the file.
 * Call copies_close afterwards, whatever is returned.
 */
int copies_open(struct copies *copies, struct nvs_error *error);
/*
 * Moves the bytes in one way, which is not WAY_NVSWAP. *moved: 0 without the loop. *ns is from
 * opening the files until what a new file has is durable.
 */
int copies_run(struct copies *copies, enum checkpoint_way way, uint64_t *moved, uint64_t *ns,
	       struct nvs_error *error);
/* Removes the file. */
void copies_close(struct copies *copies);

#endif
