/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of runs. Those of writes are computed while the run is in flight, because they are only
 * needed when it lands; those of reads when it has completed. Short ones are computed at once by
 * whichever thread is there, long ones by the thread of events, which lands other runs in between.
 */
#include <assert.h>
#include <errno.h>
#include <xxhash.h>

#include "aio/completions.h"
#include "base/error.h"
#include "swap/residency/internal.h"

/* A call that starts writes, or that helps, computes checksums of so many bytes in all. */
#define AT_ONCE_BYTES (UINT64_C(128) << 10)
/* Completed runs are landed after so many bytes of a long checksum. */
#define SLICE_BYTES (UINT64_C(2) << 20)

/* A kept store always has checksums: only they detect committed data that the drive lost. */
bool keeps_sums(const struct nvs_engine *engine)
{
	return engine->verify || engine->keep;
}

/* Contents of an earlier run are compared even if `verify` is off. */
static bool is_compared(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	return tensor->has_checksum && (engine->verify || tensor->unverified);
}

/* ---- Computing, without a lock ---- */

/* Only the thread that has set `computing` uses the state. */
static uint64_t sum_in_slices(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	XXH3_state_t *state = engine->events.sums.state;

	assert(engine->events.sums.computing);
	XXH3_64bits_reset(state);
	for (uint64_t at = 0; at < tensor->nbytes; at += SLICE_BYTES) {
		uint64_t left = tensor->nbytes - at;

		XXH3_64bits_update(state, tensor->data + at,
				   left < SLICE_BYTES ? left : SLICE_BYTES);
		events_land_ready(engine);
	}
	return XXH3_64bits_digest(state);
}

static uint64_t sum_of(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	if (tensor->nbytes > SLICE_BYTES)
		return sum_in_slices(engine, tensor);
	return XXH3_64bits(tensor->data, tensor->nbytes);
}

static void sum_run(struct nvs_engine *engine, const struct transfer *run)
{
	for (struct nvs_tensor *t = run->user; t; t = t->run_next) {
		if (run->direction == NVS_WRITE)
			t->new_checksum = sum_of(engine, t);
		else if (is_compared(engine, t))
			t->bad_sum = sum_of(engine, t) != t->checksum;
	}
}

int sums_open(struct nvs_engine *engine)
{
	struct sums *sums = &engine->events.sums;

	TAILQ_INIT(&sums->in_flight);
	sums->end = &sums->completed;
	sums->state = XXH3_createState();
	return sums->state ? 0 : -ENOMEM;
}

void sums_close(struct nvs_engine *engine)
{
	struct sums *sums = &engine->events.sums;

	assert(!sums->completed && TAILQ_EMPTY(&sums->in_flight) && !sums->computing);
	XXH3_freeState(sums->state);
	sums->state = NULL;
}

/* ---- Writes that begin ---- */

/* Queues the writes; returns whether there are any. */
static bool queue_writes(struct events *events, struct transfer *list)
{
	bool any = false;

	pthread_mutex_lock(&events->lock);
	for (struct transfer *run = list; run; run = run->state.next) {
		struct nvs_tensor *first = run->user;

		if (run->direction != NVS_WRITE)
			continue;
		assert(first->sum == SUM_NONE);
		first->sum = SUM_QUEUED;
		TAILQ_INSERT_TAIL(&events->sums.in_flight, first, to_sum);
		any = true;
	}
	pthread_mutex_unlock(&events->lock);
	return any;
}

void sums_begin(struct nvs_engine *engine, struct transfer *list)
{
	uint64_t nbytes = 0;

	if (!keeps_sums(engine))
		return;
	for (struct transfer *run = list; run; run = run->state.next)
		nbytes += run->direction == NVS_WRITE ? run->nbytes : 0;
	if (nbytes > AT_ONCE_BYTES) {
		if (queue_writes(&engine->events, list))
			completions_wake(engine->events.completions, COMPLETIONS_THREAD);
		return;
	}
	for (struct transfer *run = list; run; run = run->state.next)
		if (run->direction == NVS_WRITE)
			sum_run(engine, run);
}

/* ---- Runs that completed, under events->lock ---- */

static bool needs_sum(const struct nvs_engine *engine, const struct transfer *run)
{
	const struct nvs_tensor *first = run->user;

	if (run->direction == NVS_WRITE)
		return first->sum == SUM_QUEUED || first->sum == SUM_BEGUN;
	for (const struct nvs_tensor *t = first; t && !run->status; t = t->run_next)
		if (is_compared(engine, t))
			return true;
	return false;
}

/* A write that completed before its turn. */
static void leave_in_flight(struct sums *sums, const struct transfer *run)
{
	struct nvs_tensor *first = run->user;

	if (run->direction == NVS_WRITE && first->sum == SUM_QUEUED)
		TAILQ_REMOVE(&sums->in_flight, first, to_sum);
}

static void keep_for_later(struct sums *sums, struct transfer *run)
{
	run->state.next = NULL;
	*sums->end = run;
	sums->end = &run->state.next;
}

struct transfer *sums_filter(struct nvs_engine *engine, struct transfer *list)
{
	struct events *events = &engine->events;
	struct transfer *ready = NULL, **tail = &ready, *shorts = NULL, **short_tail = &shorts;
	uint64_t budget = AT_ONCE_BYTES;
	bool kept = false;

	if (!keeps_sums(engine))
		return list;
	pthread_mutex_lock(&events->lock);
	while (list) {
		struct transfer *run = list;
		const struct nvs_tensor *first = run->user;

		list = run->state.next;
		run->state.next = NULL;
		if (!needs_sum(engine, run)) {
			*tail = run;
			tail = &run->state.next;
			continue;
		}
		leave_in_flight(&events->sums, run);
		if (run->nbytes <= budget && first->sum != SUM_BEGUN) {
			budget -= run->nbytes;
			*short_tail = run;
			short_tail = &run->state.next;
		} else {
			keep_for_later(&events->sums, run);
			kept = true;
		}
	}
	pthread_mutex_unlock(&events->lock);
	for (struct transfer *run = shorts; run; run = run->state.next)
		sum_run(engine, run);
	*tail = shorts;
	if (kept)
		completions_wake(events->completions, COMPLETIONS_THREAD);
	return ready;
}

/* ---- Long checksums ---- */

/* The next run: a completed one (*landed), or one in flight. */
static struct transfer *take(struct sums *sums, bool *landed)
{
	struct transfer *run = sums->completed;
	struct nvs_tensor *first = TAILQ_FIRST(&sums->in_flight);

	*landed = run != NULL;
	if (run) {
		sums->completed = run->state.next;
		if (!sums->completed)
			sums->end = &sums->completed;
		run->state.next = NULL;
		return run;
	}
	if (!first)
		return NULL;
	TAILQ_REMOVE(&sums->in_flight, first, to_sum);
	return &first->transfer;
}

static struct transfer *begin(struct events *events, bool *landed, bool *computed)
{
	struct transfer *run = NULL;
	struct nvs_tensor *first;

	pthread_mutex_lock(&events->lock);
	if (!events->sums.computing)
		run = take(&events->sums, landed);
	if (run) {
		first = run->user;
		*computed = first->sum == SUM_DONE;
		if (run->direction == NVS_WRITE && !*computed)
			first->sum = SUM_BEGUN;
		events->sums.computing = true;
	}
	pthread_mutex_unlock(&events->lock);
	return run;
}

/* Once a run in flight is SUM_DONE, another thread may land it. */
static void end(struct events *events, const struct transfer *run)
{
	struct nvs_tensor *first = run->user;

	pthread_mutex_lock(&events->lock);
	if (run->direction == NVS_WRITE)
		first->sum = SUM_DONE;
	events->sums.computing = false;
	pthread_mutex_unlock(&events->lock);
}

bool sums_work(struct nvs_engine *engine)
{
	struct events *events = &engine->events;
	bool landed, computed;
	struct transfer *run = begin(events, &landed, &computed);

	if (!run)
		return false;
	if (!computed)
		sum_run(engine, run);
	end(events, run);
	if (landed)
		runs_land(engine, run);
	return true;
}
