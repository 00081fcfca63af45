/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer: a direction, a range of memory, a range of a file. Its owner allocates it, submits it
 * and is notified of its completion exactly once.
 */
#ifndef AIO_TRANSFER_H
#define AIO_TRANSFER_H

#include <sys/queue.h>

#include "nvswap.h"

struct completions;
struct requests;

/*
 * The priority of a transfer. Awaited transfers precede all others; aio_promote() makes a transfer
 * awaited. Awaited reads and writes alternate. Of the others, reads precede writes, of which every
 * fourth I/O is one, which keeps both directions of the drive busy.
 */
enum transfer_priority { TRANSFER_USUAL, TRANSFER_AWAITED, TRANSFER_PRIORITIES };

/* The phase of a transfer. The owner may access it only in the first and the last phase. */
enum transfer_phase {
	TRANSFER_NEW,	  /* never submitted */
	TRANSFER_QUEUED,  /* some of its bytes are in no I/O yet */
	TRANSFER_CLAIMED, /* all of them are, or one failed; I/Os are in flight */
	TRANSFER_COMPLETED,
};

/*
 * Memory for some of the bytes that a read transfers, in the order of their places. The others
 * between these are read and dropped.
 */
struct segment {
	struct segment *next;
	char *data;
	uint64_t offset, nbytes; /* in bytes from the start of the file */
};

/*
 * The owner zeroes it and fills in the first block of fields. From submission until completion,
 * neither the structure nor the memory may be touched. Transfers in flight are not ordered:
 * transfers of overlapping bytes must not be in flight together, except a read whose bytes then
 * count for nothing.
 */
struct transfer {
	struct nvs_file *file;
	enum nvs_direction direction;
	void *data;	 /* any alignment; data aligned to dio_mem_align is not copied */
	uint64_t nbytes; /* any length; 0 completes at once */
	uint64_t offset; /* in bytes from the start of the file; any alignment */
	/* A read of many small things that lie together goes through bounce buffers to these; NULL:
	 * to `data`, which is the first one's otherwise. */
	const struct segment *segments;
	void *user; /* for the owner */
	enum transfer_priority priority;
	struct requests *requests; /* the requests that it belongs to; NULL: not a request */

	/* Valid after completion: */
	int status; /* 0 or a negative errno. -ENODATA: a read past the end of the file. -EIO also:
		       an I/O that returned EAGAIN or EINTR too often */
	uint64_t error_offset; /* file offset of the failed I/O */

	struct transfer_state {
		struct transfer *next; /* in a list that is submitted, or has completed */
		TAILQ_ENTRY(transfer) queued;
		struct completions *queue;
		uint64_t claimed, pending, since_ns, hangs_at;
		uint32_t phase; /* enum transfer_phase, written under the aio's lock */
		bool overdue, awaited;
		bool waits; /* while overdue: no I/O of its own is, it queues behind others */
	} state;	    /* the workers' */
};

/* -EINVAL: the aio could not submit it. */
int aio_check(const struct nvs_aio *aio, const struct transfer *transfer, struct nvs_error *error);
/* Describes a failed transfer: path and offset of the failed I/O, and its errno. */
int transfer_error(const struct transfer *transfer, const char *subject, struct nvs_error *error);

#endif
