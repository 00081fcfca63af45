/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues. A queue has a lock of its own, held for a few instructions, so no owner delays
 * a worker; its waiters are signaled without it.
 */
#include "aio/completions.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "aio/transfer.h"
#include "base/clock.h"
#include "base/state_checks.h"

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
	atomic_uint signaling; /* threads that signal a waiter; added to under the lock */
};

/* Asserts the links, and what the waiters wait for. */
static void completions_check(const struct completions *queue)
{
	if (!STATE_CHECKS)
		return;
	assert(queue->head ? queue->tail != &queue->head : queue->tail == &queue->head);
	assert(!*queue->tail && !queue->head == !queue->n);
	for (int i = 0; i < COMPLETIONS_WAITERS; i++)
		assert(queue->waiters[i].waiting || queue->waiters[i].least == 1);
}

int completions_open(struct completions **out)
{
	struct completions *queue = calloc(1, sizeof(*queue));

	if (!queue)
		return -ENOMEM;
	pthread_mutex_init(&queue->lock, NULL);
	for (int i = 0; i < COMPLETIONS_WAITERS; i++) {
		struct waiter *waiter = &queue->waiters[i];

		pthread_cond_init(&waiter->changed, NULL);
		waiter->least = 1;
	}
	queue->tail = &queue->head;
	*out = queue;
	return 0;
}

void completions_close(struct completions *queue)
{
	if (!queue)
		return;
	/* The worker that appended last may still hold the lock, or signal. */
	pthread_mutex_lock(&queue->lock);
	pthread_mutex_unlock(&queue->lock);
	while (atomic_load_explicit(&queue->signaling, memory_order_acquire))
		sched_yield();
	pthread_mutex_destroy(&queue->lock);
	for (int i = 0; i < COMPLETIONS_WAITERS; i++)
		pthread_cond_destroy(&queue->waiters[i].changed);
	free(queue);
}

static bool wait_ends(const struct completions *queue, const struct waiter *waiter)
{
	return queue->n >= waiter->least || queue->overdue || waiter->woken;
}

/*
 * Drops the lock and, if the waiter sleeps, wakes it. A waiter that is signaled under the lock
 * wakes up only to sleep on the lock. completions_close() waits while `signaling` is not 0.
 */
static void unlock_and_signal(struct completions *queue, struct waiter *waiter, bool sleeps)
{
	completions_check(queue);
	if (sleeps)
		atomic_fetch_add_explicit(&queue->signaling, 1, memory_order_relaxed);
	pthread_mutex_unlock(&queue->lock);
	if (!sleeps)
		return;
	pthread_cond_signal(&waiter->changed);
	atomic_fetch_sub_explicit(&queue->signaling, 1, memory_order_release);
}

/* Tells the owner of a change, and drops the lock. */
static void notify_and_unlock(struct completions *queue)
{
	struct waiter *waiter = &queue->waiters[COMPLETIONS_CALLER];
	bool sleeps;

	if (!waiter->waiting)
		waiter = &queue->waiters[COMPLETIONS_THREAD];
	sleeps = waiter->waiting && !waiter->signaled && wait_ends(queue, waiter);
	waiter->signaled |= sleeps;
	unlock_and_signal(queue, waiter, sleeps);
}

void completions_append(struct completions *queue, struct transfer *first, struct transfer *last)
{
	uint64_t n = 0;

	last->state.next = NULL;
	for (const struct transfer *transfer = first; transfer; transfer = transfer->state.next)
		n++;
	pthread_mutex_lock(&queue->lock);
	*queue->tail = first;
	queue->tail = &last->state.next;
	queue->n += n;
	notify_and_unlock(queue);
}

void completions_overdue(struct completions *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->overdue = true;
	notify_and_unlock(queue);
}

struct transfer *completions_take(struct completions *queue)
{
	struct transfer *list;

	pthread_mutex_lock(&queue->lock);
	completions_check(queue);
	list = queue->head;
	assert(!list || list->state.phase == TRANSFER_COMPLETED);
	queue->head = NULL;
	queue->tail = &queue->head;
	queue->n = 0;
	pthread_mutex_unlock(&queue->lock);
	return list;
}

bool completions_take_overdue(struct completions *queue)
{
	bool overdue;

	pthread_mutex_lock(&queue->lock);
	overdue = queue->overdue;
	queue->overdue = false;
	pthread_mutex_unlock(&queue->lock);
	return overdue;
}

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
	while (!wait_ends(queue, waiter) && !rc) {
		waiter->signaled = false;
		rc = cond_wait_until(&waiter->changed, &queue->lock, deadline);
	}
	if (wait_ends(queue, waiter))
		rc = 0;
	waiter->waiting = waiter->woken = false;
	waiter->least = 1;
	completions_check(queue);
	pthread_mutex_unlock(&queue->lock);
	return rc;
}

void completions_wake(struct completions *queue, enum completions_waiter who)
{
	struct waiter *waiter = &queue->waiters[who];

	pthread_mutex_lock(&queue->lock);
	waiter->woken = true;
	unlock_and_signal(queue, waiter, waiter->waiting);
}
