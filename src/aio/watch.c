/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects hanging drives: with io_timeout_ms set, a thread marks transfers that take longer as
 * overdue. They stay in flight, because the kernel may still access their memory; only their
 * waiters return, with an error.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>

#include "aio/internal.h"
#include "base/clock.h"
#include "base/error.h"

/* The thread looks four times per io_timeout_ms, but no more often than this. */
#define LOOK_NS_MIN 2000000u

int aio_overdue_error(const struct transfer *transfer, uint64_t offset, const char *subject,
		      struct nvs_error *error)
{
	const struct nvs_file *file = transfer->file;
	struct place place = file_place(file, offset);

	return error_about(error, -ETIMEDOUT, subject, 0, place.offset,
			   "%s%s%s %s at offset %" PRIu64
			   " by %s has not completed within io_timeout_ms %u and is still in "
			   "flight: the drive hangs, see the kernel's log",
			   subject ? subject : "", subject ? ": " : "",
			   transfer->direction == NVS_WRITE ? "writing" : "reading",
			   place.member->path, place.offset, file->aio->ops->name,
			   file->aio->config.io_timeout_ms);
}

bool aio_is_overdue(struct nvs_aio *aio, const struct transfer *transfer, uint64_t *offset)
{
	bool overdue;

	pthread_mutex_lock(&aio->lock);
	overdue = transfer->state.flags & TRANSFER_OVERDUE;
	*offset = transfer->state.hangs_at;
	pthread_mutex_unlock(&aio->lock);
	return overdue;
}

/* The owner of a completion queue logs late completions itself. */
void watch_completed(struct nvs_aio *aio, struct transfer *transfer)
{
	struct place place;

	if (!(transfer->state.flags & TRANSFER_OVERDUE))
		return;
	transfer->state.flags &= ~(uint32_t)TRANSFER_OVERDUE;
	if (transfer->state.queue)
		return;
	place = file_place(transfer->file, transfer->state.hangs_at);
	log_say(&aio->log, NVS_LOG_WARNING, "%s %s at offset %" PRIu64 " completed late: %s",
		transfer->direction == NVS_WRITE ? "writing" : "reading", place.member->path,
		place.offset, nvs_strerror(transfer->status));
}

/* ---- Looking, under the lock ---- */

struct look {
	uint64_t before_ns; /* overdue if started at this time or earlier */
	bool awaited;	    /* one without a queue is newly overdue */
};

static void mark(struct nvs_aio *aio, struct look *look, struct transfer *transfer, uint64_t offset)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (transfer->state.flags & TRANSFER_OVERDUE)
		return;
	transfer->state.flags |= TRANSFER_OVERDUE;
	transfer->state.hangs_at = offset;
	if (transfer->state.queue) {
		completions_overdue(transfer->state.queue);
		return;
	}
	look->awaited = true;
	aio_overdue_error(transfer, offset, NULL, &error);
	log_say(&aio->log, NVS_LOG_ERROR, "%s", error.text);
}

static void look_at_claimed(struct nvs_aio *aio, const struct worker *worker, struct look *look)
{
	for (uint32_t i = 0; i < aio->config.queue_depth; i++) {
		struct piece *piece = &worker->pieces[i];

		if (piece->claimed_ns && piece->claimed_ns <= look->before_ns)
			mark(aio, look, piece->transfer, piece->position);
	}
}

static void look_at_queued(struct nvs_aio *aio, struct transfer *transfer, struct look *look)
{
	if (aio->moved_ns > look->before_ns)
		return;
	for (; transfer; transfer = transfer->state.next)
		if (transfer->state.since_ns <= look->before_ns)
			mark(aio, look, transfer, transfer->offset + transfer->state.claimed);
}

void aio_look_for_overdue(struct nvs_aio *aio, uint64_t now_ns)
{
	uint64_t limit_ns = aio->config.io_timeout_ms * UINT64_C(1000000);
	struct look look = {.before_ns = now_ns > limit_ns ? now_ns - limit_ns : 0};

	pthread_mutex_lock(&aio->lock);
	for (unsigned i = 0; i < aio->nworkers; i++)
		look_at_claimed(aio, &aio->workers[i], &look);
	for (int direction = 0; direction < 2; direction++)
		look_at_queued(aio, aio->todo[direction].head, &look);
	if (look.awaited)
		pthread_cond_broadcast(&aio->done);
	pthread_mutex_unlock(&aio->lock);
}

/* ---- The thread ---- */

static void *watch_main(void *arg)
{
	struct nvs_aio *aio = arg;
	uint64_t pause_ns = aio->config.io_timeout_ms * UINT64_C(250000);

	if (pause_ns < LOOK_NS_MIN)
		pause_ns = LOOK_NS_MIN;
	pthread_mutex_lock(&aio->lock);
	while (aio->watched) {
		/* Waking early is harmless. */
		(void)cond_wait_until(&aio->unwatch, &aio->lock, clock_ns() + pause_ns);
		pthread_mutex_unlock(&aio->lock);
		aio_look_for_overdue(aio, clock_ns());
		pthread_mutex_lock(&aio->lock);
	}
	pthread_mutex_unlock(&aio->lock);
	return NULL;
}

int watch_start(struct nvs_aio *aio)
{
	sigset_t all, before;
	int rc;

	if (!aio->config.io_timeout_ms)
		return 0;
	aio->watched = true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&aio->watch, NULL, watch_main, aio);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		aio->watched = false;
	return rc;
}

void watch_stop(struct nvs_aio *aio)
{
	if (!aio->watched)
		return;
	pthread_mutex_lock(&aio->lock);
	aio->watched = false;
	pthread_cond_signal(&aio->unwatch);
	pthread_mutex_unlock(&aio->lock);
	pthread_join(aio->watch, NULL);
}
