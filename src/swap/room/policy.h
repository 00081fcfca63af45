/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of eviction and of reading ahead: which unpinned tensor is evicted next, which one is
 * read ahead next, which ones are written behind, and which ones count towards max_in_cpu. Decides
 * only, and changes no tensor. Under the engine's lock.
 */
#ifndef ROOM_POLICY_H
#define ROOM_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eviction;
struct nvs_engine;
struct nvs_tensor;
struct plan;

/* Bytes of the pool without a lease. */
uint64_t free_bytes(const struct nvs_engine *engine);

/* Whether an unpinned tensor in the pool counts for max_in_cpu. */
bool policy_counts(const struct nvs_engine *engine, const struct nvs_tensor *tensor);

/* ---- Evictions ---- */

/*
 * The order: tensors outside the plan, least recently used first; those that the caller read ahead,
 * the last one first; the plan's, needed last first; and the plan's small ones, likewise.
 */
enum eviction_turn {
	TURN_IDLE,
	TURN_AHEAD,
	TURN_LARGE,
	TURN_SMALL,
	TURN_NONE,
};

_Static_assert(TURN_IDLE < TURN_AHEAD && TURN_AHEAD < TURN_LARGE, "lists precede the plan");

/* Evicts unpinned tensors until there is enough room. */
struct eviction {
	bool (*enough)(const struct nvs_engine *engine, const struct eviction *eviction);
	uint64_t goal;	  /* bytes to be free or being freed */
	uint64_t reached; /* bytes that are */
	uint64_t numel;	  /* elements that need the room */
	/* What may be evicted besides clean tensors: */
	bool writes;	  /* dirty ones */
	bool own;	  /* those of the present batch */
	bool ahead;	  /* those read ahead and not pinned yet */
	bool small;	  /* the plan's small ones that otherwise stay */
	bool counted;	  /* evict only tensors that count towards max_in_cpu */
	size_t needed_by; /* evict only tensors needed after this access; or PLAN_NONE */
	size_t ntaken;	  /* tensors evicted */
	size_t ndirty;	  /* of these, in engine->scratch: to be written back first */
	size_t nfailed;	  /* of the dirty ones: the last write-back failed */
	/* The next candidate; kept by eviction_next(): */
	enum eviction_turn turn;
	struct nvs_tensor *tensor; /* of a list */
	size_t at;		   /* of the plan */
};

/* Room for a batch that a call pins: anything may go. */
struct eviction eviction_for_batch(const struct nvs_engine *engine, uint64_t need);
/* Room for the caller's prefetches: evicts clean tensors only. */
struct eviction eviction_for_prefetch(const struct nvs_engine *engine, uint64_t need);
/*
 * Room for reading ahead by the plan: evicts clean tensors that are needed later than the access.
 */
struct eviction eviction_for_plan(uint64_t goal, size_t needed_by);
/* What exceeds max_in_cpu, of tensors that count for it; or else max_live. */
struct eviction eviction_to_budget(bool counted);
/* Begins with the first candidate again. */
void eviction_restart(const struct nvs_engine *engine, struct eviction *eviction);
/* The next tensor to evict; NULL: there is enough room, or nothing more may be evicted. */
struct nvs_tensor *eviction_next(const struct nvs_engine *engine, struct eviction *eviction);

/* ---- Reading ahead and writing behind ---- */

/* The plan's next tensor to read, the rank-th access from the cursor on; NULL: none is to be read
 * now. `numel` elements have been chosen before it. */
struct nvs_tensor *policy_next_read(struct nvs_engine *engine, size_t *rank, uint64_t numel);
/* Whether it may be read into room that is free. */
bool policy_may_read(const struct nvs_engine *engine, const struct eviction *eviction);
/* Puts the dirty tensors to be written behind into engine->scratch; returns how many. */
size_t policy_choose_writes(struct nvs_engine *engine);

#endif
