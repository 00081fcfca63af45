/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects hanging drives: with io_timeout_ms set, a thread marks transfers that take longer as
 * overdue. They stay in flight, because the kernel may still access their memory; only their
 * waiters return, with an error.
 *
 * The thread looks four times within the limit. A transfer is overdue if one of its pieces is
 * older than the limit, or if itself is and no transfer at all has completed anything for as long;
 * the error then names the oldest I/O that it waits for. A gap between two looks of more than
 * twice their distance does not count: the process was stopped or frozen. An overdue transfer that
 * completes ends like any other. Without the limit there is neither the thread nor the reading of
 * clocks.
 */
#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/clock.h"
#include "base/threads/thread.h"

/* The thread looks four times per io_timeout_ms, but no more often than this. */
#define LOOK_NS_MIN 2000000u

bool aio_is_overdue(struct nvs_aio *aio, const struct transfer *transfer, uint64_t *offset)
{
	bool overdue;

	pthread_mutex_lock(&aio->lock);
	overdue = transfer->state.overdue;
	assert(!overdue || transfer_in_flight(transfer));
	*offset = transfer->state.hangs_at;
	pthread_mutex_unlock(&aio->lock);
	return overdue;
}

/* ---- Looking, under the lock ---- */

/* Transfers reported while the lock is held once; if there are more, the next look marks them. */
#define REPORTS_MAX 8

/* `nreports` of transfers without a queue are counted. */
static void mark_overdue(struct transfer *transfer, uint64_t offset, bool waits, unsigned *nreports)
{
	struct nvs_error report = {.size = sizeof(report)};

	assert(offset >= transfer->offset && offset - transfer->offset <= transfer->nbytes);
	/* An I/O of a transfer that had waited is overdue now; it is reported already. */
	if (transfer->state.overdue)
		transfer->state.waits &= waits;
	if (transfer->state.overdue || *nreports == REPORTS_MAX)
		return;
	transfer_check(transfer);
	transfer->state.overdue = true;
	transfer->state.waits = waits;
	transfer->state.hangs_at = offset;
	if (transfer->state.queue) {
		completions_overdue(transfer->state.queue);
		return;
	}
	if (transfer->requests) {
		transfer->requests->overdue = true;
		requests_set_eventfd(transfer->requests);
	}
	++*nreports;
	aio_overdue_error(transfer, NULL, &report);
	log_later(&transfer->file->aio->log, NVS_LOG_ERROR, "%s", report.text);
}

void aio_find_overdue(struct nvs_aio *aio, uint64_t now_ns)
{
	uint64_t limit_ns = aio->config.io_timeout_ms * UINT64_C(1000000);
	/* Overdue if started at this time or earlier. */
	uint64_t before_ns = now_ns > limit_ns ? now_ns - limit_ns : 0;
	struct transfer *transfer;
	unsigned nreports;

	do {
		nreports = 0;
		pthread_mutex_lock(&aio->lock);
		workers_check(aio);
		for (unsigned i = 0; i < aio->nworkers; i++)
			for (uint32_t j = 0; j < aio->config.queue_depth; j++) {
				struct piece *piece = &aio->workers[i].pieces[j];

				assert(!piece->claimed_ns || piece->transfer->state.pending);
				if (piece->claimed_ns && piece->claimed_ns <= before_ns)
					mark_overdue(piece->transfer, piece->position, false,
						     &nreports);
			}
		for (int i = 0; i < TRANSFER_PRIORITIES * 2 && aio->moved_ns <= before_ns; i++)
			TAILQ_FOREACH(transfer, &aio->todo[i / 2][i % 2], state.queued)
			{
				transfer_check(transfer);
				if (transfer->state.since_ns <= before_ns)
					mark_overdue(transfer,
						     transfer->offset + transfer->state.claimed,
						     !transfer->state.pending, &nreports);
			}
		if (nreports)
			pthread_cond_broadcast(&aio->done);
		pthread_mutex_unlock(&aio->lock);
	} while (nreports == REPORTS_MAX);
}

/* ---- Time in which the thread did not run ---- */

static uint64_t pause_ns(const struct nvs_aio *aio)
{
	uint64_t pause = aio->config.io_timeout_ms * UINT64_C(250000);

	return pause < LOOK_NS_MIN ? LOOK_NS_MIN : pause;
}

static void postpone(uint64_t *time_ns, uint64_t gap_ns, uint64_t now_ns)
{
	if (*time_ns)
		*time_ns = *time_ns + gap_ns < now_ns ? *time_ns + gap_ns : now_ns;
}

void aio_watch(struct nvs_aio *aio, uint64_t now_ns)
{
	uint64_t pause = pause_ns(aio), since_ns;
	struct transfer *transfer;

	pthread_mutex_lock(&aio->lock);
	since_ns = now_ns > aio->looked_ns ? now_ns - aio->looked_ns : 0;
	/* The process was stopped or its cgroup frozen, so completions could not be reaped. */
	if (since_ns > 2 * pause) {
		uint64_t gap_ns = since_ns - pause;

		/* The gap does not count for the age of anything in flight. */
		for (unsigned i = 0; i < aio->nworkers; i++)
			for (uint32_t j = 0; j < aio->config.queue_depth; j++)
				postpone(&aio->workers[i].pieces[j].claimed_ns, gap_ns, now_ns);
		for (int i = 0; i < TRANSFER_PRIORITIES * 2; i++)
			TAILQ_FOREACH(transfer, &aio->todo[i / 2][i % 2], state.queued)
			{
				postpone(&transfer->state.since_ns, gap_ns, now_ns);
			}
		postpone(&aio->moved_ns, gap_ns, now_ns);
	}
	aio->looked_ns = now_ns;
	pthread_mutex_unlock(&aio->lock);
	aio_find_overdue(aio, now_ns);
}

/* ---- The thread ---- */

static void *watch_main(void *arg)
{
	struct nvs_aio *aio = arg;

	pthread_mutex_lock(&aio->lock);
	while (aio->watched) {
		/* Waking early is harmless. */
		(void)cond_wait_until(&aio->unwatch, &aio->lock, clock_ns() + pause_ns(aio));
		pthread_mutex_unlock(&aio->lock);
		aio_watch(aio, clock_ns());
		pthread_mutex_lock(&aio->lock);
	}
	pthread_mutex_unlock(&aio->lock);
	return NULL;
}

int watch_start(struct nvs_aio *aio)
{
	int rc;

	if (!aio->config.io_timeout_ms)
		return 0;
	aio->watched = true;
	aio->looked_ns = clock_ns();
	rc = thread_start(&aio->watch, watch_main, aio);
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
