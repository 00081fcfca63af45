/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The aio layer's private structures: the aio with its shared transfer queues, a worker, and a
 * piece, which is one I/O of a transfer.
 *
 * The order of the files, from the bottom. Each calls only those before it (test_layers):
 *	engines: io_uring libaio posix engines
 *	aio: place
 *	transfers: piece completions
 *	requests: requests
 *	transfers: transfer
 *	workers: watch claim worker
 *	aio: registration file
 *	requests: calls
 *	aio: aio
 */
#ifndef AIO_INTERNAL_H
#define AIO_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "aio/aio.h"
#include "aio/engines/engine.h"
#include "base/error.h"
#include "base/numbers.h"
#include "base/state_checks.h"
#include "base/statistics/latency.h"
#include "base/threads/log.h"
#include "config/config.h"

/* Retries of an I/O that returns EINTR, EAGAIN or no progress. */
#define RETRIES_MAX 100
/* Delay before reaping again after a failed reap. */
#define REAP_AGAIN_MS 10

/* Maximum size of a registered buffer in the kernel. */
#define REGION_BYTES (1ull << 30)

#define BOUNCE_SLOT_BYTES (256u * 1024)
#define BOUNCE_SLOTS_MAX  8u  /* per worker */
#define BOUNCE_SLOTS_ALL  64u /* of all workers, each of which has at least one */

struct nvs_file {
	struct nvs_aio *aio; /* NULL: it is closed */
	LIST_ENTRY(nvs_file) open;
	uint64_t in_flight; /* transfers, under the aio's lock */
	bool closing;
	unsigned nmembers;
	uint64_t stripe; /* 0: none, the members lie behind one another */
	bool writable, padded, direct;
	bool units;			 /* NVS_FILE_UNITS: writes are multiples of offset_align */
	uint64_t written[NVS_PATHS_MAX]; /* bytes of completed writes, by member; atomic */
	/* The strictest alignment of all members; 1 for buffered I/O. */
	uint32_t offset_align, mem_align;
	/* Writes of partial units go through the page cache. */
	uint32_t write_unit;
	struct file_member members[];
};

/* Where a byte of the file lies: its member, and `nbytes` contiguous bytes from `offset`. */
struct location {
	const struct file_member *member;
	uint64_t offset, nbytes;
};

struct piece {
	struct io io;
	struct transfer *transfer;
	uint64_t position;		 /* file offset of the first useful byte */
	char *user;			 /* the caller's memory for the useful bytes */
	uint32_t useful;		 /* bytes of the transfer in this I/O */
	uint32_t skip;			 /* bytes of a whole-unit read before the useful ones */
	uint32_t done;			 /* bytes completed before the last resubmission */
	uint32_t align;			 /* granularity at which a short I/O can resume */
	unsigned member;		 /* of the file, with the I/O's bytes */
	int bounce;			 /* bounce buffer slot; -1: none */
	enum transfer_priority priority; /* of the transfer, when the piece was claimed */
	int status;
	unsigned retries;
	uint64_t begun_ns;   /* first submission */
	uint64_t handed_ns;  /* start of the last submission */
	uint64_t taken_ns;   /* end of the last submission */
	uint64_t claimed_ns; /* under the aio's lock; 0: unclaimed, or no io_timeout_ms */
};

struct bounce {
	char *data;
	uint32_t slots, nfree;
	uint32_t free[BOUNCE_SLOTS_MAX];
};

/* Monotonic counters; the worker publishes a copy at each reap. */
struct tally {
	struct engine_facts facts; /* written by the engine */
	uint64_t retries;
	uint64_t depth_ios[NVS_DEPTHS], submit_sizes[NVS_DEPTHS], reap_sizes[NVS_DEPTHS];
};

/* What a buffer slot of a worker's ring holds; data is NULL for nothing, or unknown. */
struct ring_buffer {
	char *data;
	size_t nbytes;
	uint64_t generation; /* of the region */
};

/* Transfers that are about to complete, linked by state.next. */
struct transfer_list {
	struct transfer *head, **tail;
};

struct worker {
	struct nvs_aio *aio;
	pthread_t thread;
	bool started; /* the thread is to be joined */
	unsigned index;

	/* private to the thread */
	void *queue;
	struct tally tally;
	struct piece *pieces;
	struct io **ios;       /* room for `queue_depth` to submit, or reaped */
	struct piece **batch;  /* to be submitted next: retries, then new ones */
	struct piece **reaped; /* finished, to be accounted under the lock */
	struct piece **free;   /* unused pieces */
	uint32_t nbatch, nreaped, nfree;
	uint32_t writes;    /* claimed I/Os that write */
	uint32_t submitted; /* I/Os in flight in the engine */
	int reap_status;    /* of the last reap: 0 or the logged negative errno */
	struct bounce bounce;
	struct transfer_list completed; /* in this round */
	uint64_t now_ns;		/* when it began; 0 without io_timeout_ms */
	int turn;			/* direction to claim the next awaited I/O from */
	unsigned reads_ahead;		/* I/Os of reads ahead claimed since the last write-back */
	bool write_next;		/* an awaited I/O was claimed: a write-back's turn */
	int files[ENGINE_FILES];
	struct ring_buffer buffers[ENGINE_BUFFERS];
	unsigned nbuffers; /* upper bound of the slots in use */
	int bound_node;

	/* under the aio's lock */
	uint64_t epoch;
	bool waits_for_room; /* in reap with free queue slots: wake() it for new work */
	bool opened;	     /* open_status and open_reason are set */
	int open_status;
	char open_reason[192];

	pthread_mutex_t stats_lock;
	struct tally tally_seen, tally_at_reset;
	struct nvs_latency latency[2][NVS_LATENCY_KINDS];
	uint64_t bytes[2], ios_done[2], bounced_bytes;
	uint32_t inflight_max;
};

/* Transfers with unclaimed bytes, first in, first out. */
TAILQ_HEAD(transfer_queue, transfer);

struct region {
	char *data;
	size_t nbytes;
	uint64_t generation;	   /* differs from that of every earlier region */
	const void *owner;	   /* start of the registered memory that this is part of */
	uint64_t registration;	   /* generation of the first region of the same call */
	const struct worker *only; /* the only worker to register it; NULL: all of them */
	unsigned registered;	   /* workers that have registered it */
	int status;		   /* error of a worker that failed to register it */
};

struct nvs_aio {
	struct aio_config config;
	struct log log;
	const struct engine_ops *ops;
	struct engine_options options;
	char engine_reason[512];

	pthread_mutex_t lock;
	pthread_cond_t work;   /* idle workers wait here */
	pthread_cond_t done;   /* waits for requests and nvs_file_close() sleep here */
	pthread_cond_t synced; /* a worker has reached the epoch or opened its queue */
	/* Transfers with unclaimed bytes, by direction. */
	struct transfer_queue todo[TRANSFER_PRIORITIES][2];
	uint64_t awaited_reads; /* in flight */
	uint32_t restrained;	/* write-backs yet to be restrained after the last of them */
	struct requests *requests;
	unsigned idle;
	unsigned holders; /* engines that use the aio, of aio_change_holders() */
	bool closing;

	/* With io_timeout_ms: */
	pthread_t watch;
	bool watched;		/* cleared to end the thread */
	pthread_cond_t unwatch; /* signaled when `watched` is cleared */
	uint64_t moved_ns;	/* time of the last completion */
	uint64_t looked_ns;	/* time of the last look of aio_watch() */

	uint64_t epoch; /* incremented when the files, regions or binding below change */
	LIST_HEAD(open_files, nvs_file) open_files;
	LIST_HEAD(aio_memories, aio_memory) memories; /* of aio_memory_add() */
	int files[ENGINE_FILES];
	struct region regions[ENGINE_BUFFERS];
	uint64_t generation; /* of the last region */
	unsigned nregions;   /* upper bound of the slots in use */
	int buffers_status;  /* of the last failed registration */
	const struct topo *topo;
	int node;
	struct nvs_trace *trace;

	unsigned nworkers, running;
	struct worker *workers;
};

/* ---- place.c: under the lock ---- */
/* Once the workers run: asserts their counts, and the bounds of the tables. */
void workers_check(const struct nvs_aio *aio);
/* Asserts what holds of a slot of the table of regions, used or not. */
void region_check(const struct nvs_aio *aio, const struct region *region);

/* ---- place.c ---- */
struct location file_place(const struct nvs_file *file, uint64_t offset);
/* Asserts what holds of a file from opening until closing: its members, alignments and units. */
void file_check(const struct nvs_file *file);

/* ---- transfer.c: under the lock ---- */
static inline bool transfer_in_flight(const struct transfer *transfer)
{
	return transfer->state.phase == TRANSFER_QUEUED ||
	       transfer->state.phase == TRANSFER_CLAIMED;
}

static inline bool transfer_is_awaited_read(const struct transfer *transfer)
{
	return transfer->priority == TRANSFER_AWAITED && transfer->direction == NVS_READ;
}

/* Asserts the invariants of a transfer between submission and completion. */
void transfer_check(const struct transfer *transfer);
/* Whether a transfer is queued. */
bool transfers_queued(const struct nvs_aio *aio);
/* Removes fully claimed and failed transfers from the head of a queue. */
void queue_pop_claimed(struct transfer_queue *todo, struct transfer_list *completed);
void list_add_completed(struct transfer_list *completed, struct transfer *transfer);
/* Completes transfers. Those with a queue stay in the list. */
void list_publish(struct nvs_aio *aio, struct transfer_list *completed);
/* Appends published transfers to their queues, with or without the lock. */
void list_deliver(struct transfer *list);
/* aio_promote() under the lock. */
void transfer_promote(struct nvs_aio *aio, struct transfer *transfer);

/* ---- piece.c ---- */
/* Cuts the next piece off a transfer with unclaimed bytes; false if the bounce buffer is full. */
bool piece_cut(struct worker *worker, struct transfer *transfer, struct piece *piece);
/* Before each submission: names only slots that the worker's ring has registered now. */
void piece_choose_slots(const struct worker *worker, struct piece *piece);
/* Asserts what holds of a piece before each submission and after each completion. */
void piece_check(const struct worker *worker, const struct piece *piece);
/* Fills the bounce buffer of a bounced write. */
void piece_begin(struct piece *piece);
/* Evaluates the result of the I/O; false if it must be submitted again. */
bool piece_finish(struct worker *worker, struct piece *piece);
/* Under the lock: the failure at the lowest offset so far is the transfer's status. */
void piece_report(const struct piece *piece);
int bounce_open(struct bounce *bounce, uint32_t queue_depth, unsigned nworkers);
void bounce_close(struct bounce *bounce);
/* Asserts that the free slots are slots. */
void bounce_check(const struct bounce *bounce);
uint64_t bounce_bytes(const struct bounce *bounce);

/* ---- watch.c ---- */
int watch_start(struct nvs_aio *aio);
void watch_stop(struct nvs_aio *aio);

/* ---- The steps of a worker's round, on its thread ---- */
static inline uint32_t pieces_in_flight(const struct worker *worker)
{
	return worker->aio->config.queue_depth - worker->nfree;
}

/* ---- claim.c ---- */
/*
 * Asserts after each step, with or without the lock, that every piece is free, to be submitted,
 * with the engine, or finished.
 */
void worker_check(const struct worker *worker);
/* Under the lock: fills the queue with I/Os. */
void worker_claim(struct worker *worker);
/* Under the lock: frees the pieces that have ended. */
void worker_account(struct worker *worker);

/* ---- worker.c ---- */
/* The number of completions that a worker waits for with so many I/Os in flight, at least one;
 * `full`: its queue has no room, and there is more to submit. */
uint32_t worker_wait_for(const struct aio_config *config, uint32_t submitted, bool full);
int worker_start(struct worker *worker);
void worker_free(struct worker *worker);

/* ---- registration.c ---- */
/* Registers each bounce buffer with its own worker. */
void register_bounce(struct nvs_aio *aio);
/* Under the lock, which it drops: waits until every worker has applied the present files, regions
 * and binding. */
void aio_sync(struct nvs_aio *aio);

#endif
