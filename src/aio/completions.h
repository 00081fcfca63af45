/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A completion queue: the completed transfers of one owner, in the order of completion. The workers
 * of an aio only append; the owner takes them on a thread of its own.
 * Several queues can share one aio.
 */
#ifndef AIO_COMPLETIONS_H
#define AIO_COMPLETIONS_H

#include <stdbool.h>
#include <stdint.h>

struct completions;
struct transfer;
struct nvs_aio;

/* -ENOMEM */
int completions_open(struct completions **queue);
/* No transfer that names the queue may be in flight or on it. `queue` may be NULL. */
void completions_close(struct completions *queue);

/*
 * Takes all completed transfers, linked by state.next, the earliest first; NULL if there are none.
 * Any thread.
 */
struct transfer *completions_take(struct completions *queue);
/* Whether a transfer became overdue (io_timeout_ms) since the last call: aio_is_overdue()
 * identifies it, unless it has completed since. Any thread. */
bool completions_take_overdue(struct completions *queue);

/* The waiters of a queue, one of each kind at a time. New completions wake the caller if it waits,
 * else the thread: a caller that waits for a transfer anyway needs no other thread to take it. */
enum completions_waiter { COMPLETIONS_THREAD, COMPLETIONS_CALLER, COMPLETIONS_WAITERS };

/*
 * Waits until there are `least` transfers to take, at least 1, or one in flight is overdue, or
 * completions_wake() was called for this waiter. Returns as cond_wait_until().
 */
int completions_wait(struct completions *queue, enum completions_waiter who, uint64_t least,
		     uint64_t deadline);
/* Ends the waiter's current wait or, without one, its next. Any thread. */
void completions_wake(struct completions *queue, enum completions_waiter who);

/* ---- For the aio's threads ---- */

/* Appends the list from `first` to `last`, and wakes the owner, who may close the queue as soon as
 * it has taken them. */
void completions_append(struct completions *queue, struct transfer *first, struct transfer *last);
/* A transfer in flight is overdue. */
void completions_overdue(struct completions *queue);

#endif
