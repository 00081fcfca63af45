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
#include "topo/topo.h"

struct nvs_tensor {
	char *name;
	enum nvs_dtype dtype;
	bool registered; /* false: known from the kept store's manifest alone */
	bool is_new;	 /* being registered, without an extent yet */
	size_t index;	 /* in engine->tensors */
	uint64_t numel, nbytes;
	uint64_t extent; /* its length in the store and in the pool: nbytes in whole units */
	uint64_t offset; /* in the store */

	enum nvs_state state;
	char *data;    /* in the pool, or the caller's memory that is read or written; else NULL */
	uint32_t uses; /* between swap_in or lease and release */
	bool dirty;    /* the pool has what the drive hasn't */
	bool has_contents; /* the drive has them */
	bool leased;	   /* in use with contents that are still being made */
	bool foreign;	   /* in flight to or from the caller's memory */
	bool copying;	   /* kept in use while it is copied to the caller's memory */
	bool drop;	   /* out of the pool as soon as nothing is in flight; by set_drop() */
	bool listed;	   /* in engine->idle or, if prefetched, engine->ahead */
	bool prefetched;   /* read ahead, and not used yet */
	bool bad_sum;	   /* what was read differs from what was written */
	bool has_checksum;
	bool unproven; /* a run before this one wrote it, and this has not compared it yet */
	uint64_t checksum;
	int status; /* of the last transfer */
	enum nvs_direction status_direction;
	uint64_t error_offset;
	uint64_t batch; /* the last call that named it */

	TAILQ_ENTRY(nvs_tensor)
	idle; /* in engine->idle or engine->ahead: in the pool, out of use */
	/* A run of neighbours moves as the transfer of its first. */
	struct nvs_transfer transfer;
	struct nvs_tensor *run_next;
};

TAILQ_HEAD(tensor_list, nvs_tensor);

struct nvs_engine {
	struct nvs_log log;
	struct nvs_aio_config aio_config;
	bool verify, keep;
	uint64_t max_in_cpu; /* elements that may stay in the pool out of use */
	char remedy[256];    /* which settings make the pool, for messages */

	struct topo *topo;
	struct nvs_aio *aio;
	struct store *store;
	struct pool *pool;

	pthread_mutex_t lock;
	pthread_cond_t changed; /* a tensor has landed, memory has come free, a use has ended */
	void *names;		/* tsearch tree of all tensors, by name */
	struct nvs_tensor **tensors;
	size_t ntensors, ntensors_max;
	uint64_t nregistered, tensor_bytes;
	struct nvs_tensor **scratch; /* room for all tensors: a batch in the order of the store */
	struct tensor_list idle;     /* in the pool out of use, least recently used first */
	struct tensor_list ahead;    /* the same, read ahead and not used yet */
	uint64_t idle_numel;
	uint64_t batch;	      /* counts the calls that named tensors */
	uint64_t inflight[2]; /* runs, by direction */
	uint64_t landing;     /* bytes of the pool that come free as writes complete */
	uint64_t write_failures;
	struct nvs_error failure; /* of the last tensor that could not be written back */

	uint64_t swapped[2], transfers, evictions, verify_errors;
};

/* ---- engine.c ---- */
struct engine_ops;
/* nvs_open with this table in place of the I/O engine that the configuration names: for tests. */
int engine_open_with(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, const struct engine_ops *ops, void *ops_arg,
		     struct nvs_error *error);

/* ---- tensor.c ---- */
int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error);
void tensors_free(struct nvs_engine *engine);
/* The text for the tensor's last transfer, which failed. */
int tensor_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 struct nvs_error *error);

/* ---- residency.c: all under the lock ---- */
/* Gives up the tensor's memory in the pool, if it has any; nothing may be in flight. */
void drop(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Puts a tensor that is in the pool and out of use where room may be made; and takes it away. */
void make_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
void leave_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
void set_drop(struct nvs_engine *engine, struct nvs_tensor *tensor, bool value);
bool in_flight(const struct nvs_tensor *tensor);
/* Names are different, and none is in use or in flight to the caller's memory: 0, -EINVAL, -EBUSY.
 */
int check_unused(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 struct nvs_error *error);
int no_contents(const struct nvs_tensor *tensor, struct nvs_error *error); /* -ENODATA */

/* ---- commit.c ---- */
/* As nvs_commit; when closing, what is in use is left as the drive has it, and told. */
int commit(struct nvs_engine *engine, bool closing, struct nvs_error *error);

/* ---- runs.c ---- */
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
void sort_by_offset(struct nvs_tensor **tensors, size_t n);
/* How many of the tensors, from the first, lie side by side in the store within a run's length. */
size_t run_length(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  uint64_t nbytes_max, uint64_t *nbytes);

#endif
