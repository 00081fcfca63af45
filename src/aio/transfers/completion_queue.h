/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structure of a completion queue, for those that append to it and those that wait.
 */
#ifndef AIO_TRANSFERS_COMPLETION_QUEUE_H
#define AIO_TRANSFERS_COMPLETION_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "aio/completions.h"

struct waiter {
	pthread_cond_t changed; /* the waiter sleeps here */
	bool waiting;
	bool signaled;	/* while waiting: no further signal is needed */
	bool woken;	/* its present or next wait ends */
	uint64_t least; /* transfers that it waits for; 1 while it does not wait */
};

struct completions {
	pthread_mutex_t lock;
	struct transfer *head, **tail;
	uint64_t n;   /* transfers in the list */
	bool overdue; /* a transfer became overdue since completions_take_overdue() */
	struct waiter waiters[COMPLETIONS_WAITERS];
	atomic_uint signaling;	       /* threads that signal a waiter; added to under the lock */
	_Atomic(struct nvs_aio *) aio; /* of the last transfers; NULL: there were none */
};

/* ---- Under the queue's lock ---- */

/* Asserts the links, and what the waiters wait for. */
void completions_check(const struct completions *queue);
/* Whether the wait of a waiter ends. */
bool completions_wait_ends(const struct completions *queue, const struct waiter *waiter);

#endif
