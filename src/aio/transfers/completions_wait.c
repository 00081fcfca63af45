/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits on completion queues. They look for killed workers, whose transfers they complete, so they
 * are above all that appends to a queue.
 */
#include <assert.h>
#include <errno.h>

#include "aio/internal.h"
#include "aio/transfers/completion_queue.h"
#include "base/clock.h"

int completions_wait(struct completions *queue, enum completions_waiter who, uint64_t least,
		     uint64_t deadline)
{
	struct waiter *waiter = &queue->waiters[who];
	int rc = 0;

	assert(least && (unsigned)who < COMPLETIONS_WAITERS);
	pthread_mutex_lock(&queue->lock);
	assert(!waiter->waiting);
	waiter->waiting = true;
	waiter->least = least;
	while (!completions_wait_ends(queue, waiter) && !rc) {
		waiter->signaled = false;

		struct nvs_aio *aio = atomic_load_explicit(&queue->aio, memory_order_relaxed);
		uint64_t until = aio ? look_deadline(aio, deadline) : deadline;

		/* Drops the queue's lock to look for killed workers. */
		rc = cond_wait_until(&waiter->changed, &queue->lock, until);
		if (rc && rc != -EAGAIN && aio) {
			pthread_mutex_unlock(&queue->lock);
			pthread_mutex_lock(&aio->lock);
			workers_look(aio);
			pthread_mutex_unlock(&aio->lock);
			pthread_mutex_lock(&queue->lock);
			completions_check(queue);
			rc = until == deadline ? rc : 0;
		}
	}
	if (completions_wait_ends(queue, waiter))
		rc = 0;
	assert(!rc || rc == deadline_error(deadline));
	waiter->waiting = waiter->woken = false;
	waiter->least = 1;
	completions_check(queue);
	pthread_mutex_unlock(&queue->lock);
	return rc;
}
