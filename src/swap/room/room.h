/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: which calls get it, which tensors leave for it and which are read ahead. The
 * policy decides; these functions pin, lease and evict.
 */
#ifndef ROOM_ROOM_H
#define ROOM_ROOM_H

#include "swap/residency/internal.h"

/* ---- policy.c: decides only, and changes no tensor; under the lock ---- */
/* Whether an unpinned tensor in the pool counts for max_in_cpu. */
bool policy_counts(const struct nvs_engine *engine, const struct nvs_tensor *tensor);

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
	/* NULL: the caller decides. */
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

/* The plan's next tensor to read, the rank-th access from the cursor on; NULL: none is to be read
 * now. `numel` elements have been chosen before it. */
struct nvs_tensor *policy_next_read(struct nvs_engine *engine, size_t *rank, uint64_t numel);
/* Whether it may be read into room that is free. */
bool policy_may_read(const struct nvs_engine *engine, const struct eviction *eviction);
/* Puts the dirty tensors to be written behind into engine->scratch; returns how many. */
size_t policy_choose_writes(struct nvs_engine *engine);

/* ---- room.c: all under the lock ---- */
/*
 * These change a tensor in part; the caller checks it (tensor_check) when the whole change is made.
 */
/* Releases the tensor's memory in the pool, if it has any; nothing may be in flight. */
void drop(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Puts an unpinned tensor that is in the pool on the list to evict from; and takes it off, if it
 * is in one. */
void make_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
void leave_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Its memory counts as coming free while it is to be evicted. */
void set_on_landing(struct nvs_engine *engine, struct nvs_tensor *tensor, enum on_landing value);
void set_ahead(struct nvs_engine *engine, struct nvs_tensor *tensor, enum read_ahead value);
/* A transfer has landed: an unpinned tensor in the pool leaves it or goes to its list; external
 * memory is the caller's alone again. */
void stay_or_leave(struct nvs_engine *engine, struct nvs_tensor *tensor);
void return_external(struct nvs_tensor *tensor);
/* Numbers a new pin, which the tensors get that are pinned next. */
void number_pin(struct nvs_engine *engine);
/* Pins a tensor that is in the pool or will be; and ends a pin, after which the tensor goes to its
 * list if nothing else keeps it, or out of the pool if it is unwritten. */
void tensor_pin(struct nvs_engine *engine, struct nvs_tensor *tensor);
void tensor_unpin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin);
/* Leases memory for all of engine->scratch[0..n-1] or for none; runs in the store side by side. */
bool lease_all(struct nvs_engine *engine, size_t n);
/* Evicts unpinned tensors until there is enough room; dirty ones are put into engine->scratch, and
 * the caller must write them. */
void evict_until_enough(struct nvs_engine *engine, struct eviction *eviction);

/* ---- queue.c: under the lock ---- */
#define PATIENCE_NS UINT64_C(10000000)
/* Whether no call waits for room. */
bool queue_empty(const struct nvs_engine *engine);
/* Something was released or has landed, so the first call tries again before others pass it. */
void queue_changed(struct nvs_engine *engine);
/* Whether a batch of so many bytes may be pinned before the calls that came earlier. */
bool queue_lets_pass(const struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes);
/* The batch has been pinned. */
void queue_passed(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes);
/*
 * When a call that may not pass asks again, if nothing changes; and that it has slept until then.
 */
uint64_t queue_quiet_until(const struct nvs_engine *engine);
void queue_was_quiet(struct nvs_engine *engine, uint64_t until_ns);
/*
 * The call waits; `stuck` if it can't go on before another call acts. True: others may pass now, so
 * the waiting ones must look.
 */
bool queue_join(struct nvs_engine *engine, struct ticket *ticket, bool stuck);
/* True: it was the first; the caller then says that something has changed. */
bool queue_leave(struct nvs_engine *engine, struct ticket *ticket);
/* The place that the calling thread keeps; NULL: none. */
struct kept_place *queue_kept_place(const struct nvs_engine *engine);
/* Asserts what must hold of the queue. */
void queue_check(const struct nvs_engine *engine);

/* ---- follow.c: under the lock ---- */
/* Records an access to the tensor and moves the cursor. */
void plan_access(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents);
/* Makes the recorded order of this step the plan of the next. */
void plan_mend(struct nvs_engine *engine);
/* Drops the plan. */
void plan_drop(struct nvs_engine *engine);

/* ---- queue.c: which tensors are pinned while a call waits for room; under the lock ---- */
#define SHORTAGE_AFTER_NS   UINT64_C(5000000000)
#define SHORTAGE_TEXT_BYTES 800

/* Names the largest pinned tensors, their pins and since when. */
void shortage_text(const struct nvs_engine *engine, char text[SHORTAGE_TEXT_BYTES]);
/* Logs it, for a batch of n tensors; false: not yet, since transfers in flight will make room. */
bool shortage_log(struct nvs_engine *engine, size_t n);

#endif
