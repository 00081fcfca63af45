/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: which calls get it, which tensors leave for it and which are read ahead. The
 * policy decides; these functions pin, lease and evict.
 */
#ifndef ROOM_ROOM_H
#define ROOM_ROOM_H

#include "swap/residency/internal.h"
#include "swap/room/policy.h"

/* ---- room.c: all under the lock ---- */
/*
 * These change a tensor in part; the caller checks it (tensor_check) when the whole change is made.
 */
/* Releases the tensor's memory in the pool, if it has any; nothing may be in flight. */
void drop(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Puts an unpinned tensor that is in the pool on the list to evict from; and takes it off.
 * leave_list(), change_on_landing() and change_ahead() are for the inline functions alone. */
void make_idle(struct nvs_engine *engine, struct nvs_tensor *tensor);
void leave_list(struct nvs_engine *engine, struct nvs_tensor *tensor);
static inline void leave_idle(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (is_listed(tensor))
		leave_list(engine, tensor);
}
/* Its memory counts as coming free while it is to be evicted. */
void change_on_landing(struct nvs_engine *engine, struct nvs_tensor *tensor, enum on_landing value);
static inline void set_on_landing(struct nvs_engine *engine, struct nvs_tensor *tensor,
				  enum on_landing value)
{
	if (tensor->on_landing != value)
		change_on_landing(engine, tensor, value);
}
void change_ahead(struct nvs_engine *engine, struct nvs_tensor *tensor, enum read_ahead value);
static inline void set_ahead(struct nvs_engine *engine, struct nvs_tensor *tensor,
			     enum read_ahead value)
{
	if (tensor->ahead != value)
		change_ahead(engine, tensor, value);
}
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

/* ---- follow.c: under the lock ---- */
/* A step begins, which is recorded. */
void plan_begin(struct plan *plan);
/* Records an access to the tensor and moves the cursor. */
void plan_access(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents);
/* Makes the recorded order of this step the plan of the next. */
void plan_mend(struct nvs_engine *engine);
/* Drops the plan. */
void plan_drop(struct nvs_engine *engine);
/* Whether the plan has the tensor, which is to be removed. A recording that has it is lost. */
bool plan_has(struct plan *plan, const struct nvs_tensor *tensor);

/* ---- shortage.c: which tensors are pinned while a call waits for room; under the lock ---- */
#define SHORTAGE_AFTER_NS   UINT64_C(5000000000)
#define SHORTAGE_TEXT_BYTES 800

/* Names the largest pinned tensors, their pins and since when. */
void shortage_text(const struct nvs_engine *engine, char text[SHORTAGE_TEXT_BYTES]);
/* Logs it, for a batch of n tensors; false: not yet, since transfers in flight will make room. */
bool shortage_log(struct nvs_engine *engine, size_t n);

#endif
