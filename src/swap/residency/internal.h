/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The swap engine's structures. One lock guards all of them but those of struct events and the notes
 * of commits. It is not held while waiting for the drive or while checksums are computed.
 *
 * The order of the files, from the bottom. Each calls only those before it (test_layers):
 *	residency: tensor table errors plan places invariants
 *	room: policy queue room follow
 *	moves: sums runs ahead landing events scrub
 *	calls: checks info step wait release pin prefetch external
 *	engine: files register commit engine
 */
#ifndef RESIDENCY_INTERNAL_H
#define RESIDENCY_INTERNAL_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "aio/aio.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/state_checks.h"
#include "base/threads/log.h"
#include "config/config.h"
#include "nvswap.h"
#include "pool/pool.h"
#include "store/store.h"
#include "swap/residency/tensor.h"
#include "topo/topo.h"
#include "trace/trace.h"

TAILQ_HEAD(tensor_list, nvs_tensor);

_Static_assert(NVS_READ == 0 && NVS_WRITE == 1, "directions index pairs of counters");

/*
 * The plan: the order in which the last step accessed tensors, and the position of the present
 * step in it. It knows when each tensor is needed next, at what distance, and which unpinned
 * tensor in the pool is needed last.
 */
#define PLAN_NONE SIZE_MAX
/* Of plan->idle. */
#define WORD_BITS 64

struct access {
	struct nvs_tensor *tensor;
	bool contents; /* swapped in; false: pinned for new contents */
};

struct plan {
	struct access *order; /* the plan, a ring */
	size_t n, order_max;
	size_t *next;	    /* for each access: the position of the tensor's next access */
	uint64_t *before;   /* for each access: elements accessed before; [n]: in all */
	uint64_t *idle[2];  /* by class; bit i: the tensor of access i is unpinned in the pool */
	size_t cursor;	    /* the next access */
	size_t resume;	    /* the next access if the last departure was a jump */
	size_t ready;	    /* accesses from the cursor on whose tensors need no read */
	uint64_t extents;   /* bytes of all tensors in the plan */
	uint64_t resident;  /* of these, bytes in the pool */
	uint64_t lookahead; /* bytes that may be read ahead, plus one tensor */
	uint64_t reach;	    /* elements accessed before the last one that may be read ahead */

	struct access *recording; /* the present step so far */
	size_t nrecorded, recording_max;
	uint64_t step; /* the step's number */
	bool same;     /* so far the step follows the plan */
	bool lost;     /* the recording ran out of memory, or one of its tensors is gone */
};

/* The current step, and the statistics at its beginning. */
struct step {
	bool begun;
	uint64_t from_ns, busy_ns, swapped[2], drive_written;
	uint64_t hits, misses, stalls, stall_ns; /* in this step */
};

/*
 * The pool's contents, which room/ changes. Each unpinned tensor with contents in the pool is in
 * one of the lists, by its placement. While it is to leave the pool when its transfer lands, it
 * counts for `landing`: what a call that waits for room can expect without another call's doing.
 */
struct room_state {
	/* Unpinned tensors by placement, least recently used first. */
	struct tensor_list lists[PLACEMENTS];
	/* Elements, and bytes: */
	uint64_t counted_numel; /* that count for max_in_cpu */
	uint64_t live_numel;	/* with memory in the pool */
	uint64_t ahead_numel;	/* that the plan read ahead and that are not pinned yet */
	uint64_t landing_numel; /* that leave the pool as transfers land */
	uint64_t landing;	/* bytes of these */
	uint64_t evictions;
	unsigned waiting; /* calls waiting for room, or for tensors in flight to pin them */
	uint64_t shortage_after_ns; /* such a call says by then which tensors are pinned */
};

/*
 * Transfers, which moves/ builds, launches and lands. A run counts as in flight from its building
 * to its landing; a held write is no run yet, and counts too. `busy_ns` is the time with any in
 * flight, up to the last idle moment; busy_from_ns is when the present busy time began.
 */
struct move_state {
	uint64_t inflight[2]; /* by direction */
	uint64_t overdue[2];  /* of these */
	/* Runs in flight by priority, the oldest first: each one's first tensor. */
	struct tensor_list runs[2][TRANSFER_PRIORITIES];
	/* Writes that begin when the present commit ends, by run_next. */
	struct nvs_tensor *held_writes;
	uint64_t busy_ns, busy_from_ns;
	uint64_t transfers, swapped[2], verify_errors;
	uint64_t write_failures;  /* of write-backs */
	struct nvs_error failure; /* of the last of them */
};

static inline uint64_t runs_in_flight(const struct move_state *moves)
{
	return moves->inflight[NVS_READ] + moves->inflight[NVS_WRITE];
}

/*
 * Commits, one at a time. `writing` is true without the engine's lock while
 * a manifest is made durable: writes to extents that it or the one before names are held. If it
 * fails and the drive may name its snapshot, the commit is `unsettled` until a later one has
 * settled it, and such writes are refused.
 */
struct commit_state {
	pthread_mutex_t lock; /* for the whole of a commit; taken before the engine's */
	bool writing;
	bool unsettled;
	pthread_mutex_t notes;	       /* of these two; taken last */
	struct note *note, *last_note; /* of the next commits; of the last one */
	/* Forgotten, but the manifest names them, so their extents stay reserved; by run_next. */
	struct nvs_tensor *forgotten;
};

/* ---- Calls that wait for room in the pool, by the rule at the head of room/queue.c ---- */

/* A call that pins tensors; its place in the queue from queue_join() to queue_leave(). */
struct ticket {
	TAILQ_ENTRY(ticket) link;
	bool queued;
	bool away;	 /* the call has ended, and its thread keeps the place for the next one */
	uint64_t passed; /* bytes that passed it since the last refill */
	uint64_t log_ns; /* when the log names the pinned tensors, once; 0: not decided */
};

/* The ticket of a thread that keeps its place from call to call. */
struct kept_place {
	LIST_ENTRY(kept_place) link;
	pthread_t thread;
	struct ticket ticket;
};

struct queue {
	TAILQ_HEAD(ticket_list, ticket) tickets;
	LIST_HEAD(place_list, kept_place) places;
	bool first_stuck;	 /* it has tried since the last change, and waits for another */
	uint64_t refills;	 /* how often as many bytes again were let pass the first */
	uint64_t patience_ns;	 /* how long nothing must change before the first refill */
	uint64_t quiet_until_ns; /* when the next refill is due, unless something changes */
};

/* Calls that wait for others on their tensors, by calls/wait.c. */
struct turns {
	TAILQ_HEAD(line, turn) line;
	uint64_t walk;	/* walks along it, for tensor->line_walk */
	size_t ncopied; /* tensors whose `copying` is not COPIED_NOT */
	/* Copies of this kind, and of later ones in the enumeration, wait for a commit; COPIED_NOT:
	 * none do. */
	enum copying held;
};

/* ---- What the thread of events works on: completed runs and checksums, by moves/ ---- */

/* Checksums to be computed. */
struct sums {
	struct tensor_list writing;	   /* first tensors of runs being written */
	struct transfer *completed, **end; /* runs that land after their checksum */
	/* A long checksum in progress, which only the thread of events continues. */
	struct transfer *run;	   /* or NULL */
	bool has_completed;	   /* the run */
	struct nvs_tensor *tensor; /* the present one of the run */
	uint64_t at;		   /* bytes of the tensor that are done */
	struct XXH3_state_s *state;
};

struct events {
	struct completions *completions;
	pthread_t thread;
	bool started;

	/* Under the engine's lock: */
	bool helped;	    /* a waiting caller takes completions */
	pthread_t helper;   /* that caller */
	bool patient;	    /* it sleeps until several runs have completed */
	unsigned followers; /* other waiting callers, on engine->changed */

	pthread_mutex_t lock; /* of `sums`, taken last */
	struct sums sums;
	atomic_bool counting_due; /* store_budget_count() is to be called */
	atomic_bool closing;
};

/* The scrub, whose thread is in moves/scrub.c. */
struct scrub {
	bool wanted; /* by the configuration; constant */
	bool started;
	pthread_t thread;

	/* Under the engine's lock: */
	pthread_cond_t wake; /* `closing` or `next_ns` has changed */
	bool closing, ended;
	bool overdue;			 /* its I/O */
	uint64_t next_ns;		 /* when the next round begins */
	uint64_t rounds, nbytes, errors; /* since the engine was opened */
	uint64_t transfers;		 /* engine->moves.transfers when it was last looked at */
	size_t left;			 /* tensors that the round has not come to */
	/* The one that is being read; NULL: its bytes on the drive are no longer its contents. */
	const struct nvs_tensor *tensor;

	/* The thread's own: */
	struct completions *completions;
	struct XXH3_state_s *state;
	void *block;
	uint64_t block_nbytes;
};

/* Under the lock: the tensor's bytes on the drive are about to change. */
static inline void scrub_forgets(struct scrub *scrub, const struct nvs_tensor *tensor)
{
	if (scrub->tensor == tensor)
		scrub->tensor = NULL;
}

struct nvs_engine {
	/* Constant once the engine is open, but for `abandoned` and `owned`: */
	/* Its thread tells messages: a log function may wait for a lock of the caller's whose owner
	 * is in a call of this engine. */
	struct log log;
	struct nvs_log store_log; /* of the store: queues messages */
	bool opened;
	struct aio_config aio_config;
	bool verify, keep;
	bool read_only;	      /* of a kept store or of files; nothing becomes dirty */
	bool of_files;	      /* the store is files of others (store/files.c) */
	bool abandoned;	      /* to be closed without a commit */
	bool owned;	      /* by an optimizer, which alone changes it */
	char remedy[256];     /* the settings that determine the pool's size, for messages */
	const char *pool_key; /* the setting that gives the pool's size in elements */
	uint64_t pool_step;   /* bytes that the pool grows by for each of these elements */
	/* In elements: */
	uint64_t max_in_cpu;	       /* unpinned in the pool */
	uint64_t prefetch_bucket_size; /* read ahead by the plan */
	uint64_t max_live;	       /* in the pool */
	uint64_t max_reuse_distance;   /* tensors needed again within it don't count */
	uint64_t persistence_threshold;
	struct nvs_trace *trace;
	struct topo *topo;
	int node; /* the pool is bound to it; -1: none */
	struct nvs_aio *aio;
	bool shares_aio; /* the aio is the caller's */
	struct store *store;
	struct pool *pool;

	/* Of calls that add names to the table; taken before `lock`, and held while files grow. */
	pthread_mutex_t naming;
	pthread_mutex_t lock;	 /* by engine_lock() */
	atomic_uintptr_t holder; /* with STATE_CHECKS: the thread that has it; or 0 */
	pthread_cond_t changed;	 /* waiting calls sleep here, in events_wait() */

	/* The table of all tensors: */
	void *names;		   /* tsearch tree, by name */
	struct tensor_slab *slabs; /* memory of tensors */
	struct nvs_tensor *vacant; /* slots without a tensor, by run_next */
	struct nvs_tensor **tensors;
	size_t ntensors, ntensors_max;
	uint64_t nregistered, tensor_bytes;
	size_t nlisted;		     /* of files: the first ones, which the headers list */
	struct nvs_tensor **scratch; /* room for all tensors: a batch in store order */

	uint64_t batch;			/* counts the calls that named tensors */
	uint64_t last_pin, last_pin_ns; /* its number, and when it was made */
	struct room_state room;
	struct queue queue; /* of calls that wait for room */
	struct plan plan;
	struct step step;
	struct turns turns;
	struct move_state moves;
	struct events events;
	struct scrub scrub;
	struct commit_state commit;
};

/* ---- invariants.c ---- */
void engine_lock(struct nvs_engine *engine);
void engine_unlock(struct nvs_engine *engine);
/* cond_wait_until() with the lock, which it releases meanwhile. */
int engine_sleep(struct nvs_engine *engine, pthread_cond_t *cond, uint64_t deadline);
/* Assert that the calling thread has the lock; and that it has not. */
static inline void lock_check(const struct nvs_engine *engine)
{
	assert(!STATE_CHECKS || atomic_load_explicit(&engine->holder, memory_order_relaxed) ==
					(uintptr_t)pthread_self());
}
static inline void unlocked_check(const struct nvs_engine *engine)
{
	assert(!STATE_CHECKS || atomic_load_explicit(&engine->holder, memory_order_relaxed) !=
					(uintptr_t)pthread_self());
}

/* ---- table.c: under the lock ---- */
struct nvs_tensor *table_find(const struct nvs_engine *engine, const char *name);
/* Makes room for n more tensors: 0, -ENOMEM. */
int table_grow(struct nvs_engine *engine, size_t n);
/* NULL: out of memory. The copy of a shape is to be freed. */
uint64_t *shape_copy(const struct nvs_tensor_spec *spec);
struct nvs_tensor *table_add(struct nvs_engine *engine, const struct nvs_tensor_spec *spec);
/* Asserts that its extents are whole units, and of a kept store two that do not overlap. */
void extents_check(const struct nvs_engine *engine, const struct nvs_tensor *tensor);
void table_remove(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Gives the tensor another name, which the next commit has. -EEXIST, -ENOMEM: it keeps its own. */
int table_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *text,
		 struct nvs_error *error);
void tensor_free(struct nvs_tensor *tensor);
void tensors_free(struct nvs_engine *engine);
void extents_release(struct nvs_engine *engine, const struct nvs_tensor *tensor);

/* ---- plan.c: under the lock ---- */
/* Asserts what must hold of the positions and sums. */
void plan_check(const struct plan *plan);
void plan_clear(struct plan *plan);

/* ---- Asking ---- */
/* How many accesses, and how many elements accessed, come before the position. */
size_t plan_rank(const struct plan *plan, size_t at);
uint64_t plan_distance(const struct plan *plan, size_t at);
/* The access of the class's unpinned tensor that is needed last, before one or PLAN_NONE. */
size_t plan_last(const struct plan *plan, enum plan_class class, size_t before);

/* ---- Telling: of tensors in the plan ---- */
bool plan_is_idle(const struct plan *plan, const struct nvs_tensor *tensor);
void plan_mark_idle(struct plan *plan, const struct nvs_tensor *tensor, bool idle);
/* The tensor has left the pool. */
void plan_needs_read(struct plan *plan, const struct nvs_tensor *tensor);

/* An error about that tensor, whose text begins with its name. */
#define error_named(error, code, name, text, ...)                                                  \
	error_about(error, code, name, 0, 0, "%s" text, name, ##__VA_ARGS__)

/* ---- errors.c: under the lock ---- */
/* Describe a transfer of the tensor that failed, or the last one, and return its status. */
int moving_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 enum nvs_direction direction, int status, uint64_t offset,
		 struct nvs_error *error);
int tensor_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 struct nvs_error *error);
/* Returns the error of a failed write from external memory that no call has returned yet, once. */
int report_failed_write(const struct nvs_engine *engine, struct nvs_tensor *tensor,
			struct nvs_error *error);
int check_readable(const struct nvs_tensor *tensor, struct nvs_error *error); /* 0, -ENODATA */

/* ---- places.c: under the lock ---- */
/* Sorts by the offset of a transfer in that direction, and notes it in each tensor's `place`. */
void sort_by_place(struct nvs_tensor **tensors, size_t n, enum nvs_direction direction);
/* How many of the tensors, from the first, form one run. */
size_t run_length(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  uint64_t nbytes_max, uint64_t *nbytes);
/* How many of the tensors of files, from the first, are read in one transfer to segments. */
size_t gather_length(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n);
/* Whether a manifest, on the drive or being written, names that extent of the tensor. */
bool is_frozen(const struct nvs_tensor *tensor, uint64_t offset);
/* The last commit and the present one name an extent each: a write waits for the present one. */
bool must_wait(const struct nvs_tensor *tensor);

/* ---- tensor.c: external memory ---- */
/* Under the lock: lends a tensor without memory so many of its bytes from `offset` on. */
void lend(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes);
/* The same before what it has been lent, for which it takes a part of the list `spare`. */
void lend_before(struct nvs_tensor *tensor, const void *data, uint64_t offset, uint64_t nbytes,
		 struct part **spare);
/* Makes a list of n parts; false: out of memory. */
bool parts_alloc(struct part **list, size_t n);
void parts_free(struct part *part);

#endif
