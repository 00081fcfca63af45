/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers whose thread was killed: a seccomp filter can kill a thread for a system call, and the
 * process goes on without it. Waits look for such workers four times a second, and fail the
 * transfers that they had claimed. It relies on threads being killed only at the entry of a system
 * call, so not under a lock.
 *
 * What a dead worker had claimed fails with -EOWNERDEAD, and once no worker is left, everything
 * does. The end of a thread ends its I/Os in io_uring; with libaio an I/O counts as in flight
 * until its event is in the ring that the kernel shares with the process. The queue of a killed
 * worker stays open until the process ends: closing it could kill the caller's thread too. A
 * thread that is killed while it opens its queue is found by joining it.
 */
#include <assert.h>
#include <errno.h>
#include <time.h>

#include "aio/internal.h"
#include "base/clock.h"

/* How long a wait sleeps before it looks. */
#define LOOK_MS 250

/* Between looks at the I/Os that the kernel still moves for a killed worker. */
#define LAST_IOS_MS 10

static void account(struct piece *piece, struct transfer_list *completed)
{
	struct transfer *transfer = piece->transfer;

	assert(piece->io.owner == piece);
	transfer_check(transfer);
	assert(transfer->state.pending && piece->status <= 0);
	piece_tell_transfer(piece);
	if (!--transfer->state.pending && transfer->state.phase == TRANSFER_CLAIMED)
		list_add_completed(completed, transfer);
	piece->transfer = NULL;
	piece->claimed_ns = 0;
}

/* Accounts the reaped pieces. After that only pieces in flight name a transfer. */
static void note_killed(struct worker *worker, struct transfer_list *completed)
{
	assert(worker->life == WORKER_STARTED);
	worker->life = WORKER_KILLED;
	worker->waits_for_room = false;
	assert(worker->aio->alive && worker->nfree <= worker->aio->config.queue_depth);
	assert(worker->nreaped <= worker->aio->config.queue_depth - worker->nfree);
	worker->aio->alive--;
	/* The others may have to claim what it has left. */
	pthread_cond_broadcast(&worker->aio->work);
	for (uint32_t i = 0; i < worker->nfree; i++)
		worker->free[i]->transfer = NULL;
	for (uint32_t i = 0; i < worker->nreaped; i++)
		account(worker->reaped[i], completed);
}

/* Fails the I/Os of a killed worker that the kernel does not move. Returns how many it moves. */
static unsigned fail_ios(struct worker *worker, struct transfer_list *completed)
{
	const struct engine_ops *ops = worker->aio->ops;
	unsigned left = 0;

	assert(worker->life == WORKER_KILLED);
	for (uint32_t i = 0; i < worker->aio->config.queue_depth; i++) {
		struct piece *piece = &worker->pieces[i];

		if (!piece->transfer)
			continue;
		if (ops->ended && !ops->ended(worker->queue, &piece->io)) {
			left++;
			continue;
		}
		piece_fail(worker, piece, -EOWNERDEAD);
		account(piece, completed);
	}
	assert(left <= worker->aio->config.queue_depth);
	return left;
}

/* No worker is left to claim them. */
static void fail_queued(struct nvs_aio *aio, struct transfer_list *completed)
{
	workers_check(aio);
	assert(!aio->alive);
	for (int i = 0; i < TRANSFER_PRIORITIES * 2; i++) {
		struct transfer_list *todo = &aio->todo[i / 2][i % 2];

		for (struct transfer *transfer = todo->head; transfer;
		     transfer = transfer->state.next)
			if (!transfer->status) {
				transfer->status = -EOWNERDEAD;
				transfer->error_offset = transfer->offset + transfer->state.claimed;
			}
		list_pop_claimed(aio, todo, completed);
		assert(!todo->head);
	}
}

static unsigned fail_all(struct nvs_aio *aio)
{
	struct transfer_list completed = {.tail = &completed.head};
	unsigned left = 0;

	workers_check(aio);
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];

		if (worker->life == WORKER_STARTED && !pthread_tryjoin_np(worker->thread, NULL))
			note_killed(worker, &completed);
		if (worker->life == WORKER_KILLED)
			left += fail_ios(worker, &completed);
	}
	if (!aio->alive)
		fail_queued(aio, &completed);
	list_publish(aio, &completed);
	list_deliver(completed.head);
	assert(aio->alive || !transfers_queued(aio));
	return left;
}

void workers_look(struct nvs_aio *aio)
{
	workers_check(aio);
	/* The threads of workers that are told to end are joined as they end. */
	if (aio->ops->killable && !aio->closing)
		(void)fail_all(aio);
}

uint64_t look_deadline(const struct nvs_aio *aio, uint64_t deadline)
{
	uint64_t look = aio->ops->killable ? deadline_ns(LOOK_MS) : UINT64_MAX;

	assert(look);
	return deadline < look ? deadline : look;
}

int aio_cond_wait(struct nvs_aio *aio, pthread_cond_t *cond, uint64_t deadline)
{
	uint64_t until = look_deadline(aio, deadline);
	int rc = cond_wait_until(cond, &aio->lock, until);

	workers_check(aio);
	assert(!rc || rc == -EAGAIN || rc == -ETIMEDOUT);
	if (rc)
		workers_look(aio);
	return until == deadline ? rc : 0;
}

void workers_join(struct nvs_aio *aio)
{
	struct transfer_list completed = {.tail = &completed.head};

	assert(aio->closing && aio->nworkers <= aio->config.thread_count);
	for (unsigned i = 0; i < aio->nworkers; i++) {
		struct worker *worker = &aio->workers[i];
		enum worker_life life;

		pthread_mutex_lock(&worker->aio->lock);
		assert(worker->life <= WORKER_KILLED);
		life = worker->life;
		pthread_mutex_unlock(&worker->aio->lock);
		if (life == WORKER_STARTED || life == WORKER_ENDED)
			pthread_join(worker->thread, NULL);
	}
	pthread_mutex_lock(&aio->lock);
	for (unsigned i = 0; i < aio->nworkers; i++)
		if (aio->workers[i].life == WORKER_STARTED)
			note_killed(&aio->workers[i], &completed);
	list_publish(aio, &completed);
	list_deliver(completed.head);
	while (fail_all(aio)) {
		pthread_mutex_unlock(&aio->lock);
		nanosleep(&(struct timespec){.tv_nsec = LAST_IOS_MS * 1000000L}, NULL);
		pthread_mutex_lock(&aio->lock);
	}
	assert(!transfers_queued(aio));
	pthread_mutex_unlock(&aio->lock);
}
