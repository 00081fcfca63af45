/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One ring with one issuer; blocks of memory on huge pages, each with its own I/O in flight. The
 * floor that a checkpoint is measured against, so it calls nothing of the library.
 */
#include "cli/modes/checkpoint/loop.h"

#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory/huge_map.h"
#include "base/memory/room.h"

#define REAPED_MOST 64

struct copy_loop {
	struct io_uring ring;
	uint64_t block;
	unsigned depth;
	char *memory;
	bool registered; /* false: the memlock limit is too low */
	int from, to;
	uint64_t ios, begun; /* to be submitted, and submitted */
	int rc;		     /* the first error; nothing is begun after it */
};

static int open_ring(struct copy_loop *loop)
{
	struct iovec memory = {.iov_base = loop->memory, .iov_len = loop->block * loop->depth};
	int rc = io_uring_queue_init(loop->depth, &loop->ring,
				     IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (rc == -EINVAL) /* a kernel before 6.1 */
		rc = io_uring_queue_init(loop->depth, &loop->ring, 0);
	if (rc)
		return rc;
	rc = io_uring_register_buffers(&loop->ring, &memory, 1);
	loop->registered = !rc;
	if (rc == -ENOMEM)
		return 0;
	if (rc)
		io_uring_queue_exit(&loop->ring);
	return rc;
}

int copy_loop_open(struct copy_loop **loop, uint64_t block, unsigned depth, struct nvs_error *error)
{
	struct copy_loop *opened = calloc(1, sizeof(*opened));
	int rc = -ENOMEM;

	if (!opened)
		return rc;
	if (memory_room_check(block * depth, "iodepth", "copying by io_uring",
			      "give a smaller --iodepth or --bs", error)) {
		free(opened);
		return rc;
	}
	opened->block = block;
	opened->depth = depth;
	opened->memory = huge_map(block * depth, NULL);
	if (opened->memory) {
		/* Not zeros, which drives may treat specially. */
		memset(opened->memory, 0xa5, block * depth);
		rc = open_ring(opened);
	}
	if (!rc) {
		*loop = opened;
		return 0;
	}
	if (opened->memory)
		munmap(opened->memory, block * depth);
	free(opened);
	return rc;
}

/* Every second I/O is a write. */
static void begin(struct copy_loop *loop, char *memory)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);
	uint64_t offset = loop->begun / 2 * loop->block;
	unsigned nbytes = (unsigned)loop->block;

	if (loop->begun++ % 2)
		io_uring_prep_write(sqe, loop->to, memory, nbytes, offset);
	else
		io_uring_prep_read(sqe, loop->from, memory, nbytes, offset);
	/* The forms with registered memory have the same fields, and buffer 0. */
	if (loop->registered)
		sqe->opcode = sqe->opcode == IORING_OP_READ ? IORING_OP_READ_FIXED
							    : IORING_OP_WRITE_FIXED;
	io_uring_sqe_set_data(sqe, memory);
}

/* Submits, waits for `least` completions, and begins as many I/Os again. Returns their number. */
static unsigned turn(struct copy_loop *loop, unsigned least)
{
	struct io_uring_cqe *cqes[REAPED_MOST];
	int rc = io_uring_submit_and_wait(&loop->ring, least);
	unsigned n = io_uring_peek_batch_cqe(&loop->ring, cqes, REAPED_MOST);

	if (rc < 0 && rc != -EINTR && !loop->rc)
		loop->rc = rc;
	for (unsigned i = 0; i < n; i++) {
		char *memory = io_uring_cqe_get_data(cqes[i]);
		int res = cqes[i]->res;

		if (res != (int)loop->block && !loop->rc)
			loop->rc = res < 0 ? res : -EIO;
		if (!loop->rc && loop->begun < loop->ios)
			begin(loop, memory);
	}
	io_uring_cq_advance(&loop->ring, n);
	return n;
}

int copy_loop_run(struct copy_loop *loop, int from, int to, uint64_t blocks)
{
	uint64_t done = 0;
	/* Waking up for every completion would cost processor time without benefit. */
	unsigned least = (loop->depth + 7) / 8;

	loop->from = from;
	loop->to = to;
	loop->ios = 2 * blocks;
	loop->begun = 0;
	loop->rc = 0;
	for (unsigned i = 0; i < loop->depth && loop->begun < loop->ios; i++)
		begin(loop, loop->memory + i * loop->block);
	while (done < loop->begun) {
		uint64_t in_flight = loop->begun - done;

		done += turn(loop, in_flight < least ? (unsigned)in_flight : least);
	}
	return loop->rc;
}

void copy_loop_close(struct copy_loop *loop)
{
	if (!loop)
		return;
	io_uring_queue_exit(&loop->ring);
	munmap(loop->memory, loop->block * loop->depth);
	free(loop);
}
