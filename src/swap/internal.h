/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The swap engine's own structures. One lock guards all of them; it is never held while the drive
 * is waited for, but for a commit's, and never while tensors' bytes are summed.
 */
#ifndef SWAP_INTERNAL_H
#define SWAP_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "aio/aio.h"
#include "nvswap.h"
#include "pool/pool.h"
#include "store/store.h"
#include "swap/plan.h"
#include "swap/swap.h"
#include "topo/topo.h"

TAILQ_HEAD(tensor_list, nvs_tensor);

#define NOWHERE UINT64_MAX

struct nvs_tensor {
	char *name;
	enum nvs_dtype dtype;
	bool registered; /* false: known from the kept store's manifest alone */
	bool is_new;	 /* being registered, without an extent yet */
	size_t index;	 /* in engine->tensors */
	uint64_t numel, nbytes;
	uint64_t extent;    /* its length in the store and in the pool: nbytes in whole units */
	uint64_t offset;    /* in the store, of its contents, */
	uint64_t spare;	    /* and, in a kept store, of the extent that they may move to */
	uint64_t committed; /* whichever of the two the manifest names contents in; or NOWHERE */
	uint64_t place;	    /* that its transfer reads or writes */

	enum nvs_state state;
	char *data;    /* in the pool, or the caller's memory that is read or written; else NULL */
	uint32_t uses; /* between swap_in or lease and release */
	bool dirty;    /* the pool has what the drive hasn't */
	bool has_contents; /* the drive has them */
	bool leased;	   /* in use with contents that are still being made */
	bool foreign;	   /* in flight to or from the caller's memory */
	int untold; /* why its write from there failed, where nobody has been told; 0: none did, */
	uint64_t untold_at; /* and where in the store */
	bool copying;	    /* kept in use while it is copied to the caller's memory */
	bool drop;	    /* out of the pool as soon as nothing is in flight; by set_drop() */
	bool held;	    /* out of use, and counted for max_in_cpu */
	bool prefetched;    /* read ahead, and not used yet; by set_prefetched() */
	bool fetched;	    /* read ahead by a plan, and not used yet */
	bool by_engine;	    /* in flight by the plan, and nobody has asked for that */
	bool bad_sum;	    /* what was read differs from what was written */
	bool has_checksum;
	bool unproven; /* a run before this one wrote it, and this has not compared it yet */
	uint64_t checksum, new_checksum; /* of its contents; of what is being written */
	int status;			 /* of the last transfer */
	enum nvs_direction status_direction;
	uint64_t error_offset;
	uint64_t batch; /* the last call that named it */

	bool planned;	   /* in the plan, */
	bool small;	   /* where it always stays, */
	size_t next_use;   /* and is needed next at this access */
	uint64_t recorded; /* the last step that asked for it */

	struct tensor_list *list; /* that it is in: in the pool, out of use; NULL: none */
	TAILQ_ENTRY(nvs_tensor) idle;
	/* A run of neighbours moves as the transfer of its first. */
	struct nvs_transfer transfer;
	struct nvs_tensor *run_first, *run_next;
	bool overdue;	      /* in flight, and the drive hangs (io_timeout_ms), */
	uint64_t hangs_at;    /* at this offset in the store */
	uint64_t launched_ns; /* of a run's first, where it is traced */
};

/* A step that has begun, and the figures as they were then. */
struct step {
	bool begun;
	uint64_t from_ns, busy_ns, swapped[2];
	uint64_t hits, misses, stalls, stall_ns; /* in it */
};

struct nvs_engine {
	struct nvs_log log;
	struct nvs_aio_config aio_config;
	bool verify, keep;
	bool abandoned;	  /* is closed without a commit */
	char remedy[256]; /* which settings make the pool, for messages */
	/* In elements: */
	uint64_t max_in_cpu;	       /* that may stay in the pool out of use */
	uint64_t prefetch_bucket_size; /* to fetch ahead by the plan */
	uint64_t max_live;	       /* in the pool */
	uint64_t max_reuse_distance;   /* up to it what is needed again is not counted */
	uint64_t persistence_threshold;

	struct nvs_trace *trace;
	struct topo *topo;
	int node; /* that the pool is bound to; -1: none */
	struct nvs_aio *aio;
	struct store *store;
	struct pool *pool;

	pthread_mutex_t lock;
	pthread_cond_t changed; /* a tensor has landed, memory has come free, a use has ended */
	void *names;		/* tsearch tree of all tensors, by name */
	struct nvs_tensor **tensors;
	size_t ntensors, ntensors_max;
	uint64_t nregistered, tensor_bytes;
	/* Forgotten, but named by the manifest, so that their extents stay taken; by run_next. */
	struct nvs_tensor *forgotten;
	struct nvs_tensor **scratch; /* room for all tensors: a batch in the order of the store */
	/* In the pool out of use, least recently used first: */
	struct tensor_list idle;
	struct tensor_list ahead;   /* those that were read ahead and not used yet */
	struct tensor_list planned; /* those that the plan has, read ahead or not */
	uint64_t held_numel;	    /* of those that count for max_in_cpu */
	uint64_t live_numel;	    /* of all that have memory in the pool */
	uint64_t ahead_numel;	    /* of the plan's that were read ahead and not used yet */
	uint64_t batch;		    /* counts the calls that named tensors */
	uint64_t inflight[2];	    /* runs, by direction, */
	uint64_t overdue[2];	    /* and those of them that are overdue */
	uint64_t busy_ns;	    /* with a run in flight, until the last was landed; */
	uint64_t busy_from_ns;	    /* since when there is one again */
	uint64_t landing;	    /* bytes of the pool that come free as writes complete */
	uint64_t landing_numel;
	unsigned waiting; /* calls that wait for room */
	uint64_t write_failures;
	struct nvs_error failure; /* of the last tensor that could not be written back */

	uint64_t swapped[2], transfers, evictions, verify_errors;

	struct plan plan;
	struct step step;
};

/* ---- tensor.c ---- */
int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error);
void tensors_free(struct nvs_engine *engine);
/* The manifest now names the tensors that are there where they are, and no others. */
void tensors_committed(struct nvs_engine *engine);
/* The text for the tensor's last transfer, which failed. */
int tensor_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 struct nvs_error *error);
/* A write from the caller's memory that failed, which nobody has been told of: its error, once. */
int tell_failed_write(const struct nvs_engine *engine, struct nvs_tensor *tensor,
		      struct nvs_error *error);

/* ---- room.c: all under the lock ---- */
/* Gives up the tensor's memory in the pool, if it has any; nothing may be in flight. */
void drop(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Puts a tensor that is in the pool and out of use where room may be made; and takes it away. */
void make_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
void leave_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
void set_drop(struct nvs_engine *engine, struct nvs_tensor *tensor, bool value);
void set_prefetched(struct nvs_engine *engine, struct nvs_tensor *tensor, bool value);
bool needs_memory(const struct nvs_tensor *tensor);
uint64_t free_bytes(const struct nvs_engine *engine);
/* Memory for all of engine->scratch[0..n-1] or for none; neighbours in the store side by side. */
bool lease_all(struct nvs_engine *engine, size_t n);

/* Taking tensors that are out of use off the pool, until there is enough. */
struct eviction {
	bool (*enough)(const struct nvs_engine *engine, const struct eviction *eviction);
	uint64_t goal;	  /* bytes to be free or on their way to it */
	uint64_t reached; /* of these */
	uint64_t numel;	  /* elements that are to come in */
	bool writes;	  /* dirty ones may be taken */
	bool own;	  /* those of the present batch may be taken, */
	bool ahead;	  /* those read ahead and not used yet, */
	bool small;	  /* and the plan's that always stay */
	bool held;	  /* only what counts for max_in_cpu */
	size_t needed_by; /* only the plan's that are needed later than this access; PLAN_NONE */
	size_t ntaken;	  /* tensors taken */
	size_t ndirty;	  /* of them, in engine->scratch: to be written back, */
	size_t nfailed;	  /* and of these, whose last write-back failed */
};
/* Those outside the plan go first, least recently used first, then what is needed last. */
void evict_until_enough(struct nvs_engine *engine, struct eviction *eviction);

/* ---- residency.c: under the lock ---- */
bool in_flight(const struct nvs_tensor *tensor);
/* Names are different, and none is in use or in flight to the caller's memory: 0, -EINVAL, -EBUSY.
 */
int check_unused(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 struct nvs_error *error);
int no_contents(const struct nvs_tensor *tensor, struct nvs_error *error); /* -ENODATA */

/* ---- ahead.c: under the lock ---- */
/* What the plan has to be moved now, to be launched. */
struct nvs_transfer *move_ahead(struct nvs_engine *engine);
/* Take off the pool what is more than the budget allows; the latter if there is a plan. */
struct nvs_transfer *keep_to_max_in_cpu(struct nvs_engine *engine);
struct nvs_transfer *keep_to_max_live(struct nvs_engine *engine);
/* Waits until nothing of the tensors is in flight that the caller has not asked for: 0, -ETIMEDOUT.
 */
int wait_for_engine(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error);

/* ---- step.c: under the lock ---- */
/* From here on there is no plan. */
void plan_drop(struct nvs_engine *engine);
/* A call asks for the tensors, whose states are still as it found them. */
void step_access(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 bool contents);
/* A call has waited since then. */
void step_stalled(struct nvs_engine *engine, uint64_t from_ns);
/* The same on the timeline: for the tensor, or for room where that is NULL. */
void trace_wait(const struct nvs_engine *engine, const struct nvs_tensor *tensor, uint64_t from_ns);

/* ---- overdue.c: under the lock, but for the first ---- */
/* The aio's callback. */
void runs_overdue(void *engine);
/* A run lands that may have been overdue. */
void landed_after_all(struct nvs_engine *engine, const struct nvs_transfer *run);
/* -ETIMEDOUT where the tensor is overdue, else 0. */
int check_overdue(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		  struct nvs_error *error);
/* -ETIMEDOUT where nothing is in flight that is not overdue, but something is, else 0. */
int check_hung(const struct nvs_engine *engine, struct nvs_error *error);
/* Wait until no write, or nothing at all, is in flight: 0, or -ETIMEDOUT where one is overdue. */
int drain_writes(struct nvs_engine *engine, struct nvs_error *error);
int drain_all(struct nvs_engine *engine, struct nvs_error *error);

/* ---- runs.c ---- */
/* Time in which a run was in flight, until `now`. */
uint64_t busy_ns(const struct nvs_engine *engine, uint64_t now);
/* Both, one after the other. */
struct nvs_transfer *join(struct nvs_transfer *first, struct nvs_transfer *second);
/*
 * Under the lock: turns tensors whose `data` is set into runs of neighbours, in the store's order,
 * and into transfers in flight, which launch() then starts. Writes are of tensors that are dirty.
 * Sorts `tensors`. Tensors without bytes land at once.
 */
struct nvs_transfer *runs_build(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
				enum nvs_direction direction);
/* Without the lock: computes the checksums of what is written and submits. */
void launch(struct nvs_engine *engine, struct nvs_transfer *list);
/* The aio's callback. */
void runs_completed(void *engine, struct nvs_transfer *list);
/* By the places that transfers in that direction go to, which are noted in the tensors. */
void sort_by_place(struct nvs_tensor **tensors, size_t n, enum nvs_direction direction);
/* How many of the tensors, from the first, have places side by side within a run's length. */
size_t run_length(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  uint64_t nbytes_max, uint64_t *nbytes);

#endif
