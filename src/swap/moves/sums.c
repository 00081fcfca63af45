/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of runs. Those of writes are computed while the run is in flight, because they are only
 * needed when it lands; those of reads when it has completed. Short ones are computed at once by
 * whichever thread is there, long ones in slices, between which other runs can land.
 */
#include <assert.h>
#include <errno.h>
#include <xxhash.h>

#include "aio/completions.h"
#include "base/error.h"
#include "base/state_checks.h"
#include "swap/moves/moves.h"

/* A call that starts writes, or that helps, computes checksums of so many bytes in all. */
#define AT_ONCE_BYTES (UINT64_C(128) << 10)
/* The bytes of a slice. */
#define SLICE_BYTES (UINT64_C(2) << 20)

/* A kept store always has checksums: only they detect committed data that the drive lost. */
bool keeps_sums(const struct nvs_engine *engine)
{
	return engine->verify || engine->keep;
}

/* Contents of an earlier run are compared even if `verify` is off. */
bool sums_compared(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	/* A checksum is that of all bytes. */
	if (is_part(tensor))
		return false;
	return tensor->checksum_state == CHECKSUM_UNVERIFIED ||
	       (engine->verify && tensor->checksum_state == CHECKSUM_KNOWN);
}

static bool needs_its_own(const struct nvs_engine *engine, const struct transfer *run,
			  const struct nvs_tensor *tensor)
{
	assert(tensor->run_first == run->user);
	return run->direction == NVS_WRITE || sums_compared(engine, tensor);
}

/* How far a run is may be read by the thread alone that computes it. */
void sums_check(const struct sums *sums)
{
	const struct nvs_tensor *first = sums->run ? sums->run->user : NULL;

	if (!STATE_CHECKS)
		return;
	assert((sums->completed == NULL) == (sums->end == &sums->completed) && !*sums->end);
	assert(sums->run || (!sums->computing && !sums->tensor && !sums->at));
	assert(!sums->run || !sums->has_completed || sums->run->state.phase == TRANSFER_COMPLETED);
	if (!first || sums->run->direction == NVS_READ)
		return;
	assert(first->rest->sum == SUM_BEGUN ||
	       (first->rest->sum == SUM_DONE && sums->has_completed));
}

/* ---- Computing, without a lock ---- */

static void sum_run(struct nvs_engine *engine, const struct transfer *run)
{
	assert(run->nbytes <= AT_ONCE_BYTES);
	for (struct nvs_tensor *t = run->user; t; t = t->run_next)
		if (needs_its_own(engine, run, t)) {
			assert(t->run_first == run->user && !is_part(t));
			t->rest->new_checksum = XXH3_64bits(t->data, t->nbytes);
		}
}

/* Goes on with the present tensor, by `max` bytes at most; returns by how many. */
static uint64_t sum_some(struct nvs_engine *engine, struct sums *sums, uint64_t max)
{
	struct nvs_tensor *tensor = sums->tensor;
	uint64_t left = tensor->nbytes - sums->at, nbytes = left < max ? left : max;

	assert(sums->computing && sums->at < tensor->nbytes && max);
	if (!needs_its_own(engine, sums->run, tensor)) {
		sums->tensor = tensor->run_next;
		return 0;
	}
	if (!sums->at)
		XXH3_64bits_reset(sums->state);
	XXH3_64bits_update(sums->state, tensor->data + sums->at, nbytes);
	sums->at += nbytes;
	assert(sums->at <= tensor->nbytes && sums->run->user == tensor->run_first);
	if (nbytes == left) {
		tensor->rest->new_checksum = XXH3_64bits_digest(sums->state);
		sums->tensor = tensor->run_next;
		sums->at = 0;
	}
	return nbytes;
}

/* True: the run's checksums are all computed. */
static bool sum_slice(struct nvs_engine *engine, struct sums *sums)
{
	uint64_t left = SLICE_BYTES;

	while (sums->tensor && left)
		left -= sum_some(engine, sums, left);
	assert(sums->computing && sums->run && left <= SLICE_BYTES);
	return !sums->tensor;
}

/* ---- Opening and closing ---- */

int sums_open(struct nvs_engine *engine)
{
	struct sums *sums = &engine->events.sums;

	assert(!sums->state && !sums->run && !sums->completed);
	assert(!sums->computing && !sums->tensor && !sums->at);
	TAILQ_INIT(&sums->writing);
	sums->end = &sums->completed;
	sums->state = XXH3_createState();
	return sums->state ? 0 : -ENOMEM;
}

void sums_close(struct nvs_engine *engine)
{
	struct sums *sums = &engine->events.sums;

	assert(!sums->completed && TAILQ_EMPTY(&sums->writing));
	assert(!sums->run && !sums->computing);
	sums_check(sums);
	XXH3_freeState(sums->state);
	sums->state = NULL;
}

/* ---- Writes that begin ---- */

/* Queues the writes; returns whether there are any. */
static bool queue_writes(struct events *events, struct transfer *list)
{
	bool any = false;

	pthread_mutex_lock(&events->lock);
	sums_check(&events->sums);
	for (struct transfer *run = list; run; run = run->state.next) {
		struct nvs_tensor *first = run->user;

		if (run->direction != NVS_WRITE)
			continue;
		assert(first->rest->sum == SUM_NONE && first->run_first == first);
		assert(run->state.phase == TRANSFER_NEW);
		first->rest->sum = SUM_QUEUED;
		TAILQ_INSERT_TAIL(&events->sums.writing, first, rest->to_sum);
		any = true;
	}
	sums_check(&events->sums);
	pthread_mutex_unlock(&events->lock);
	return any;
}

void sums_begin(struct nvs_engine *engine, struct transfer *list)
{
	uint64_t nbytes = 0;

	unlocked_check(engine);
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

	assert(run->state.phase == TRANSFER_COMPLETED && run->status <= 0);
	if (run->direction == NVS_WRITE)
		return first->rest->sum == SUM_QUEUED || first->rest->sum == SUM_BEGUN;
	for (const struct nvs_tensor *t = first; t && !run->status; t = t->run_next)
		if (sums_compared(engine, t))
			return true;
	return false;
}

/* A write that completed before its turn. */
static void leave_writing(struct sums *sums, const struct transfer *run)
{
	struct nvs_tensor *first = run->user;

	assert(first->rest->sum != SUM_DONE && first->run_first == first);
	if (run->direction == NVS_WRITE && first->rest->sum == SUM_QUEUED)
		TAILQ_REMOVE(&sums->writing, first, rest->to_sum);
}

static void keep_for_later(struct sums *sums, struct transfer *run)
{
	assert(!*sums->end && run->state.phase == TRANSFER_COMPLETED);
	run->state.next = NULL;
	*sums->end = run;
	sums->end = &run->state.next;
	sums_check(sums);
}

struct transfer *sums_filter(struct nvs_engine *engine, struct transfer *list)
{
	struct events *events = &engine->events;
	struct transfer *ready = NULL, **tail = &ready, *shorts = NULL, **short_tail = &shorts;
	uint64_t budget = AT_ONCE_BYTES;
	bool kept = false;

	unlocked_check(engine);
	if (!keeps_sums(engine))
		return list;
	pthread_mutex_lock(&events->lock);
	sums_check(&events->sums);
	while (list) {
		struct transfer *run = list;
		const struct nvs_tensor *first = run->user;

		list = run->state.next;
		run->state.next = NULL;
		assert(first->run_first == first);
		if (!needs_sum(engine, run)) {
			*tail = run;
			tail = &run->state.next;
			continue;
		}
		leave_writing(&events->sums, run);
		if (run->nbytes <= budget && first->rest->sum != SUM_BEGUN) {
			budget -= run->nbytes;
			*short_tail = run;
			short_tail = &run->state.next;
		} else {
			keep_for_later(&events->sums, run);
			kept = true;
		}
	}
	sums_check(&events->sums);
	pthread_mutex_unlock(&events->lock);
	for (struct transfer *run = shorts; run; run = run->state.next)
		sum_run(engine, run);
	*tail = shorts;
	if (kept)
		completions_wake(events->completions, COMPLETIONS_THREAD);
	return ready;
}

/* ---- Long checksums, slice by slice ---- */

/* Begins the next run: a completed one, or one in flight. */
static void begin(struct sums *sums)
{
	struct nvs_tensor *first = TAILQ_FIRST(&sums->writing);

	assert(!sums->run && !sums->at && !sums->computing);
	sums->run = sums->completed;
	sums->has_completed = sums->run != NULL;
	if (sums->run) {
		sums->completed = sums->run->state.next;
		if (!sums->completed)
			sums->end = &sums->completed;
		sums->run->state.next = NULL;
	} else if (first) {
		TAILQ_REMOVE(&sums->writing, first, rest->to_sum);
		sums->run = &first->rest->transfer;
	}
	if (!sums->run)
		return;
	first = sums->run->user;
	assert(sums->has_completed || sums->run->direction == NVS_WRITE);
	assert(first->rest->sum != SUM_BEGUN && first->run_first == first);
	sums->tensor = first->rest->sum == SUM_DONE ? NULL : first;
	if (sums->run->direction == NVS_WRITE && first->rest->sum != SUM_DONE)
		first->rest->sum = SUM_BEGUN;
}

/* Takes the next slice; false: there is none, or another thread computes one. */
static bool begin_slice(struct events *events)
{
	struct sums *sums = &events->sums;
	bool any = false;

	pthread_mutex_lock(&events->lock);
	if (!sums->computing && !sums->run)
		begin(sums);
	if (!sums->computing && sums->run)
		any = sums->computing = true;
	sums_check(sums);
	pthread_mutex_unlock(&events->lock);
	return any;
}

/* Once a run in flight is SUM_DONE, another thread may land it. Returns the run if it can land. */
static struct transfer *end_slice(struct events *events, bool last)
{
	struct sums *sums = &events->sums;
	struct transfer *run = NULL;

	pthread_mutex_lock(&events->lock);
	assert(sums->computing);
	sums_check(sums);
	if (last) {
		struct nvs_tensor *first = sums->run->user;

		assert(first->run_first == first && !sums->tensor && !sums->at);
		assert(sums->run->direction == NVS_WRITE || sums->has_completed);
		if (sums->run->direction == NVS_WRITE)
			first->rest->sum = SUM_DONE;
		run = sums->has_completed ? sums->run : NULL;
		sums->run = NULL;
	}
	sums->computing = false;
	sums_check(sums);
	pthread_mutex_unlock(&events->lock);
	return run;
}

bool sums_work(struct nvs_engine *engine, struct transfer **landed)
{
	struct events *events = &engine->events;

	unlocked_check(engine);
	*landed = NULL;
	if (!begin_slice(events))
		return false;
	assert(keeps_sums(engine));
	*landed = end_slice(events, sum_slice(engine, &events->sums));
	return true;
}
