/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The aio layer's own structures: the set of workers with the transfers that they share, a worker,
 * and a piece, which is one I/O of a transfer.
 */
#ifndef AIO_INTERNAL_H
#define AIO_INTERNAL_H

#include <pthread.h>

#include "aio/aio.h"
#include "aio/engine.h"
#include "base/latency.h"

/* An I/O that comes back with EINTR, EAGAIN or nothing done is tried again so many times. */
#define RETRIES_MAX 100
/* A kernel that will not tell of completions is asked again so often. */
#define REAP_AGAIN_MS 10

#define BOUNCE_SLOT_BYTES (256u * 1024)
#define BOUNCE_SLOTS_MAX  8u  /* of a worker, */
#define BOUNCE_SLOTS_ALL  64u /* and of all of them, but each has one */

struct member {
	char *path;
	int fd, direct_fd;
	int slot, direct_slot; /* where they are registered; -1: the table was full */
	uint64_t base;
	struct dio_caps dio;
};

struct nvs_file {
	struct nvs_aio *aio;
	unsigned nmembers;
	uint64_t stripe;
	bool writable, padded, direct;
	/* The strictest of the members', for all of them; 1 where not direct. */
	uint32_t offset_align, mem_align;
	/* Writes that are not whole units of this go through the page cache. */
	uint32_t write_unit;
	struct member members[];
};

/* A member and where a byte of the file lies in it; the run goes on for `nbytes`. */
struct place {
	const struct member *member;
	uint64_t offset, nbytes;
};

struct place file_place(const struct nvs_file *file, uint64_t offset);

struct piece {
	struct io io;
	struct nvs_transfer *transfer;
	uint64_t position; /* in the file, of the first byte that it stands for */
	char *user;	   /* the caller's memory for these bytes, */
	uint32_t useful;   /* their number, */
	uint32_t skip;	   /* and those before them in the I/O (a read of whole units) */
	uint32_t done;	   /* bytes of the I/O that are behind us, after a short count */
	uint32_t align;	   /* in which a short count can be continued */
	int bounce;	   /* slot of the bounce buffer; -1: none */
	int status;
	unsigned retries;
	uint64_t begun_ns;   /* when it was first handed to the engine, */
	uint64_t handed_ns;  /* when it was last, */
	uint64_t taken_ns;   /* and when the engine had taken it then */
	uint64_t claimed_ns; /* under the aio's lock; 0: not claimed, or nobody watches */
};

struct bounce {
	char *data;
	uint32_t slots, nfree;
	uint32_t free[BOUNCE_SLOTS_MAX];
};

/* What only grows: its thread counts, and shows what it has counted at each reap. */
struct tally {
	struct engine_facts facts; /* written by the engine */
	uint64_t depth_ios[NVS_DEPTHS], submit_sizes[NVS_DEPTHS], reap_sizes[NVS_DEPTHS];
};

/* I/Os that nobody has taken yet. */
struct records {
	struct nvs_io_record *ring;
	size_t room, first, n; /* room 0: nothing is recorded */
	uint64_t lost;
};

struct worker {
	struct nvs_aio *aio;
	pthread_t thread;
	bool started;
	unsigned index;

	/* of the thread alone */
	void *queue;
	struct tally tally;
	struct piece *pieces;
	struct io **ios;       /* room for a batch of `queue_depth` */
	struct piece **batch;  /* to be submitted next: those to be continued, then new ones */
	struct piece **reaped; /* finished, to be settled under the lock */
	struct piece **free;   /* unused ones */
	uint32_t nbatch, nreaped, nfree;
	uint32_t submitted; /* I/Os that the engine has */
	int reap_status;    /* of the last reap: 0 or the negative errno that was logged */
	struct bounce bounce;
	int turn; /* the direction whose turn it is */
	int files[ENGINE_FILES];
	const void *buffers[ENGINE_BUFFERS];
	int bound_node;

	/* under the aio's lock */
	uint64_t epoch;
	bool waits_for_room; /* is in reap with room for more I/Os: wake() it when there is work */
	int open_status;
	char open_reason[192];

	pthread_mutex_t stats_lock;
	struct tally tally_seen, tally_at_reset;
	struct nvs_latency latency[2][NVS_LATENCY_KINDS];
	uint64_t bytes[2], ios_done[2], retries, bounced_bytes;
	struct records records;
	uint32_t inflight_max;
};

struct fifo {
	struct nvs_transfer *head, **tail;
};

struct region {
	char *data;
	size_t nbytes;
	const void *owner;	   /* the memory that was registered, which this is a part of */
	const struct worker *only; /* whose ring is to have it; NULL: every worker's */
	unsigned registered;	   /* workers whose ring has it */
	int status;		   /* why one hasn't */
};

struct nvs_aio {
	struct nvs_aio_config config;
	struct nvs_log log;
	const struct engine_ops *ops;
	struct engine_options options;
	char engine_reason[512];

	pthread_mutex_t lock;
	pthread_cond_t work;   /* workers without anything to do */
	pthread_cond_t done;   /* nvs_transfer_wait */
	pthread_cond_t synced; /* a worker has caught up with the epoch, or has opened */
	struct fifo todo[2];   /* transfers with unclaimed bytes, by direction */
	unsigned idle;
	bool closing;
	aio_completed_fn *on_completed;
	aio_overdue_fn *on_overdue;
	void *on_completed_arg;

	/* Where there is an io_timeout_ms: */
	pthread_t watch;
	bool watched;		/* the thread runs, until it is cleared */
	pthread_cond_t unwatch; /* it is to end */
	uint64_t moved_ns;	/* when an I/O was last settled */

	/* What the workers' rings are to have registered: raised by one at each change. */
	uint64_t epoch;
	int files[ENGINE_FILES];
	struct region regions[ENGINE_BUFFERS];
	unsigned nregions; /* slots in use lie below it */
	const struct topo *topo;
	int node;
	struct nvs_trace *trace;

	unsigned nworkers, running;
	struct worker *workers;
};

/* transfer->state.flags; of an awaited one a thread sleeps until it has completed */
enum { TRANSFER_QUEUED = 1, TRANSFER_QUIET = 2, TRANSFER_OVERDUE = 4, TRANSFER_AWAITED = 8 };

/* Cuts the next piece off a transfer with bytes unclaimed; false where the bounce buffer is full.
 */
bool piece_cut(struct worker *worker, struct nvs_transfer *transfer, struct piece *piece);
/* Fills the bounce buffer of a write. */
void piece_begin(struct piece *piece);
/* Looks at the result of the I/O: false where it has to be submitted again. */
bool piece_finish(struct worker *worker, struct piece *piece);
/* Ends an I/O that the engine would not take. */
void piece_fail(struct worker *worker, struct piece *piece, int status);

/* ---- watch.c ---- */
int watch_start(struct nvs_aio *aio);
void watch_stop(struct nvs_aio *aio);
/* Under the lock, of a transfer that completes: it is overdue no more. */
void watch_completed(struct nvs_aio *aio, struct nvs_transfer *transfer);

void records_add(struct records *records, const struct nvs_io_record *record);
int worker_start(struct worker *worker);
void worker_free(struct worker *worker);
int bounce_open(struct bounce *bounce, uint32_t queue_depth, unsigned nworkers);
void bounce_close(struct bounce *bounce);
uint64_t bounce_bytes(const struct bounce *bounce);

/* Has every worker catch up with files, regions and binding, and waits until they have. */
void aio_sync(struct nvs_aio *aio);

#endif
