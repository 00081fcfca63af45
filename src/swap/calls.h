/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the calls on an engine and its tensors share. A call takes the engine's lock, checks all of
 * its arguments, changes states, releases the lock and launches what it has started.
 */
#ifndef SWAP_CALLS_H
#define SWAP_CALLS_H

#include "swap/moves/moves.h"
#include "swap/swap.h"

/* The first loop of a call over its tensors: starts to load one that comes soon after the i-th. */
static inline void load_ahead(struct nvs_tensor *const *tensors, size_t i, size_t n)
{
	const size_t distance = 4;

	if (i + distance < n)
		load_lines(tensors[i + distance]);
}

/* ---- checks.c ---- */
/* -EINVAL: the i-th tensor of a call is NULL or another engine's. */
int check_tensor(const struct nvs_engine *engine, const struct nvs_tensor *tensor, size_t i,
		 struct nvs_error *error);
/* -EINVAL: the engine or the array is NULL. */
int check_array(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		struct nvs_error *error);
/* -EINVAL: as check_array(), or one of the tensors is NULL or another engine's. */
int check_arguments(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error);
/* 0, or -EROFS if the store is read-only. */
int check_writable(const struct nvs_engine *engine, struct nvs_error *error);
/*
 * Under the lock: begins a batch, to which check_in_batch() adds the i-th tensor of the call.
 * -EINVAL: it is NULL, another engine's, or in the batch already.
 */
void begin_batch(struct nvs_engine *engine);
int check_in_batch(const struct nvs_engine *engine, struct nvs_tensor *tensor, size_t i,
		   struct nvs_error *error);
/* Under the lock: -EBUSY: it is in flight from or to external memory; or that, or pinned. */
int check_not_external(const struct nvs_tensor *tensor, struct nvs_error *error);
int check_unpinned_one(const struct nvs_tensor *tensor, struct nvs_error *error);
/* Under the lock: makes the tensors a batch. -EINVAL and -EBUSY as above. */
int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error);

/* -EINVAL: the engine or the array is NULL, or a range is not one of its tensor; -E2BIG: it has
 * fields of a later version. */
int check_ranges(const struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		 struct nvs_error *error);
/* One of the ranges that check_ranges() has checked. */
struct nvs_tensor_range range_at(const struct nvs_tensor_range *ranges, size_t i);

/* ---- pin.c and release.c: pins of calls that copy bytes; other calls wait for their end ---- */
/* As batch_swap_in(). */
int pin_to_copy(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		int timeout_ms, uint64_t *pin, struct nvs_error *error);
/* Ends them. NVS_DIRTY: all reads that they waited for succeeded, and contents were changed. */
void end_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		uint64_t pin, enum nvs_how how);

/* ---- step.c: under the lock ---- */
/* Records an access to the tensors, before the call changes their states. */
void step_access(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 bool contents);
/* Counts a call's wait since from_ns. */
void step_stalled(struct nvs_engine *engine, uint64_t from_ns);
/* Traces that wait: for the tensor, or for room if it is NULL. */
void trace_wait(const struct nvs_engine *engine, const struct nvs_tensor *tensor, uint64_t from_ns);
/* Traces a successful call on these tensors. */
void trace_calls(const struct nvs_engine *engine, enum trace_kind call,
		 struct nvs_tensor *const *tensors, size_t n);

/* ---- wait.c: under the lock ---- */
/* Waits until no transfer of the tensors that the engine started on its own is in flight, and no
 * call copies bytes of them: 0, -ETIMEDOUT. */
int wait_for_engine(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error);
/* Waits until no call copies bytes of the tensors. */
void wait_for_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n);
/* Between these two, calls that would write bytes of the tensors wait before they pin them. */
void hold_copies(struct nvs_tensor *const *tensors, size_t n);
void resume_copies(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n);
/* Wait until no write, or nothing at all, is in flight: 0, or -ETIMEDOUT if one is overdue. */
int drain_writes(struct nvs_engine *engine, struct nvs_error *error);
int drain_all(struct nvs_engine *engine, struct nvs_error *error);

/* ---- note.c ---- */
struct note;
/* Takes the note of the last commit over from the store; and frees it. */
int note_open(struct nvs_engine *engine, struct nvs_error *error);
void note_close(struct nvs_engine *engine);
/* Under the lock: add a reference, and drop one; `note` of the latter may be NULL. */
struct note *note_hold(struct note *note);
void note_release(struct note *note);
/* Under the lock: a commit with that note has succeeded. */
void note_committed(struct nvs_engine *engine, struct note *note);
/* Valid as long as the caller's reference. */
struct store_note note_contents(const struct note *note);

/* ---- register.c ---- */
int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error);

#endif
