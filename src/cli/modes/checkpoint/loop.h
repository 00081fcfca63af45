/* SPDX-License-Identifier: Apache-2.0 */
/* A bare io_uring loop that reads one file and writes another, half of its I/Os each. */
#ifndef CLI_MODES_CHECKPOINT_LOOP_H
#define CLI_MODES_CHECKPOINT_LOOP_H

#include <stdint.h>

#include "nvswap.h"

struct copy_loop;

/* Opens the ring, with memory registered if the memlock limit permits it. -ENOMEM, or why io_uring
 * does not work here. */
int copy_loop_open(struct copy_loop **loop, uint64_t block, unsigned depth,
		   struct nvs_error *error);
/*
 * Reads `blocks` blocks from the beginning of `from`, and writes as many to `to`, each direct and
 * independent of the others. -EIO for a short count, and errno of the first I/O that failed.
 */
int copy_loop_run(struct copy_loop *loop, int from, int to, uint64_t blocks);
void copy_loop_close(struct copy_loop *loop); /* may be NULL */

#endif
