/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on their way: runs between the pool or external memory and the drive, what the engine
 * starts on its own, and the thread of events. It asks policy.c what to move.
 */
#ifndef MOVES_MOVES_H
#define MOVES_MOVES_H

#include "swap/room/room.h"

/* ---- runs.c ---- */
/* Time with at least one run in flight, until `now`. */
uint64_t busy_ns(const struct nvs_engine *engine, uint64_t now);
/* Concatenates two lists. */
struct transfer *join(struct transfer *first, struct transfer *second);
/*
 * Under the lock: turns tensors whose `data` is set into runs, in store order, and into transfers
 * in flight, for launch() to submit. Tensors to write are dirty. Sorts `tensors`. Empty tensors
 * land at once.
 */
struct transfer *runs_build(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
			    enum nvs_direction direction);
/* The same for what no call has asked for. */
struct transfer *runs_build_own(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
				enum nvs_direction direction);
/* Under the lock: builds the writes that waited for the commit to end. */
struct transfer *runs_build_held(struct nvs_engine *engine);
/* Without the lock: submits them, and computes the checksums of writes while they are in flight. */
void launch(struct nvs_engine *engine, struct transfer *list);
/* Under the lock: the run has landed. */
void run_ends(struct nvs_engine *engine, struct nvs_tensor *first);

/* Under the lock: a call waits for the tensor, so its run goes before others. */
void tensor_promote(struct nvs_engine *engine, const struct nvs_tensor *tensor);
/* The same for runs that are built and not launched yet. */
void runs_promote_new(struct nvs_engine *engine, struct transfer *list);
/* The same for runs in flight that make room for a call that waits for `need` bytes of the pool. */
void room_promote(struct nvs_engine *engine, uint64_t need);

/*
 * With STATE_CHECKS, on both sides of the drive: asserts of each run of a list that its transfer
 * moves what its first tensor says, which nothing changes while the run is in flight; and, under
 * the lock, of all tensors of a run that they follow one another in the store and in memory.
 */
void runs_check(const struct transfer *list);
void run_members_check(const struct transfer *run);

/* ---- ahead.c: under the lock ---- */
/* Transfers that the plan calls for now, to be launched. */
struct transfer *move_ahead(struct nvs_engine *engine);
/* Evicts what exceeds max_in_cpu, of tensors that count for it; or else max_live, with a plan. */
struct transfer *keep_to_budget(struct nvs_engine *engine, bool counted);

/* ---- sums.c, without the lock ---- */
/* Whether tensors have checksums. */
bool keeps_sums(const struct nvs_engine *engine);
/* Whether data read into the tensor must match its checksum. */
bool sums_compared(const struct nvs_engine *engine, const struct nvs_tensor *tensor);
/* Whether data read into the tensor, of files, gives it its checksum, with which later reads are
 * compared. */
bool sum_learned(const struct nvs_engine *engine, const struct nvs_tensor *tensor);
/* Before writes of these runs are submitted: computes short checksums, and queues long ones, which
 * are computed while the runs are in flight. */
void sums_begin(struct nvs_engine *engine, struct transfer *list);
/* Completed runs that can land now; keeps those that need a long checksum first. */
struct transfer *sums_filter(struct nvs_engine *engine, struct transfer *list);
/* Computes a slice of a long checksum. Stores in *landed the run that can land now, or NULL. False:
 * there was none to compute. */
bool sums_work(struct nvs_engine *engine, struct transfer **landed);

/* ---- landing.c ---- */
/* Without the lock: fails completed reads of files that are not as they were when their headers
 * were read, -ESTALE. */
void runs_check_files(const struct nvs_engine *engine, struct transfer *list);
/* Without the lock: traces completed runs. */
void runs_trace(const struct nvs_engine *engine, const struct transfer *list);
/* Under the lock: lands completed runs. Returns those that read the next parts of their tensors, to
 * be launched. */
struct transfer *runs_land(struct nvs_engine *engine, struct transfer *list);

/* Under the lock, of runs that io_timeout_ms limits: */
/* Marks runs that have become overdue. */
void runs_overdue(struct nvs_engine *engine);
/* -ETIMEDOUT if the tensor is overdue, else 0. */
int check_overdue(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		  struct nvs_error *error);
/* -ETIMEDOUT if a write, or any run, is overdue, else 0. */
int first_overdue(const struct nvs_engine *engine, bool writes_alone, struct nvs_error *error);
/* -ETIMEDOUT if runs are in flight and all of them are overdue, else 0. */
int check_hung(const struct nvs_engine *engine, struct nvs_error *error);

/* ---- events.c ---- */
/* Starts the thread, and that of the log; the aio is open. -ENOMEM, -EAGAIN */
int events_open(struct nvs_engine *engine, struct nvs_error *error);
int events_start(struct nvs_engine *engine);
/* Ends the thread when it has done what there is to do, if it was started; for tests, it may start
 * again. */
void events_stop(struct nvs_engine *engine);
/* After events_stop(); every transfer that names the queue has been taken. */
void events_close(struct nvs_engine *engine);

/* ---- Under the engine's lock ---- */
/*
 * Waits for a change: a tensor landed or is overdue, memory came free, or a tensor was unpinned. A
 * call that cannot go on before `runs` of the runs in flight have landed wakes up once for all of
 * them, unless somebody else may need one of them earlier. Releases the lock meanwhile. May return
 * early. 0, -ETIMEDOUT, or -EAGAIN if the deadline is 0.
 */
int events_wait(struct nvs_engine *engine, uint64_t runs, uint64_t deadline);
/* Another call asks what has landed: ends the sleep of one in events_wait(). */
void events_hurry(struct nvs_engine *engine);
/* Wakes the calls that wait, so that they look again; the latter because of a change that may have
 * made room. */
void events_wake(struct nvs_engine *engine);
void events_changed(struct nvs_engine *engine);

/* ---- scrub.c, without the lock ---- */
/* Starts the thread if a scrub is wanted; the engine is open. -ENOMEM, -EAGAIN */
int scrub_start(struct nvs_engine *engine, struct nvs_error *error);
/* Ends it, if it was started. -ETIMEDOUT: its read is overdue, and it ends when that completes. */
int scrub_stop(struct nvs_engine *engine, struct nvs_error *error);
/* After scrub_stop(), or without a start. */
void scrub_close(struct nvs_engine *engine);

#endif
