/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of runs. Those of writes are computed while the run is in flight, because they are only
 * needed when it lands; those of reads when it has completed. Short ones are computed at once by
 * whichever thread is there, long ones in slices, between which other runs can land.
 */
#include <xxhash.h>

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

bool sum_learned(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	return engine->of_files && engine->verify && !is_part(tensor) &&
	       tensor->checksum_state == CHECKSUM_NONE;
}

/* Whether the tensor needs a checksum of its bytes in the run. */
static bool is_summed(const struct nvs_engine *engine, const struct transfer *run,
		      const struct nvs_tensor *tensor)
{
	assert(tensor->run_first == run->user);
	return run->direction == NVS_WRITE || sums_compared(engine, tensor) ||
	       sum_learned(engine, tensor);
}

/* Under events->lock. How far a run is may be read by the thread alone that computes it. */
static void sums_check(const struct sums *sums)
{
	if (!STATE_CHECKS)
		return;

	const struct nvs_tensor *first = sums->run ? sums->run->user : NULL;

	assert((sums->completed == NULL) == (sums->end == &sums->completed) && !*sums->end);
	assert(sums->run || (!sums->tensor && !sums->at));
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
		if (is_summed(engine, run, t))
			t->rest->new_checksum = XXH3_64bits(first_byte(t), t->nbytes);
}

/* Goes on with the tensors of the run, by SLICE_BYTES at most. */
static void sum_slice(struct nvs_engine *engine, struct sums *sums)
{
	uint64_t left = SLICE_BYTES;

	while (sums->tensor && left) {
		struct nvs_tensor *tensor = sums->tensor;
		uint64_t nbytes = min_u64(tensor->nbytes - sums->at, left);

		if (is_summed(engine, sums->run, tensor)) {
			if (!sums->at)
				XXH3_64bits_reset(sums->state);
			XXH3_64bits_update(sums->state, first_byte(tensor) + sums->at, nbytes);
			sums->at += nbytes;
			left -= nbytes;
			if (sums->at < tensor->nbytes)
				return;
			tensor->rest->new_checksum = XXH3_64bits_digest(sums->state);
			sums->at = 0;
		}
		sums->tensor = tensor->run_next;
	}
}

/* ---- Writes that begin ---- */

void sums_begin(struct nvs_engine *engine, struct transfer *list)
{
	struct events *events = &engine->events;
	uint64_t nbytes = 0;

	unlocked_check(engine);
	if (!keeps_sums(engine))
		return;
	for (struct transfer *run = list; run; run = run->state.next)
		nbytes += run->direction == NVS_WRITE ? run->nbytes : 0;
	if (!nbytes)
		return;
	if (nbytes <= AT_ONCE_BYTES) {
		for (struct transfer *run = list; run; run = run->state.next)
			if (run->direction == NVS_WRITE)
				sum_run(engine, run);
		return;
	}
	pthread_mutex_lock(&events->lock);
	for (struct transfer *run = list; run; run = run->state.next) {
		struct nvs_tensor *first = run->user;

		if (run->direction != NVS_WRITE)
			continue;
		assert(first->rest->sum == SUM_NONE);
		first->rest->sum = SUM_QUEUED;
		TAILQ_INSERT_TAIL(&events->sums.writing, first, rest->to_sum);
	}
	sums_check(&events->sums);
	pthread_mutex_unlock(&events->lock);
	completions_wake(events->completions, COMPLETIONS_THREAD);
}

/* ---- Runs that completed, under events->lock ---- */

static bool needs_sum(const struct nvs_engine *engine, const struct transfer *run)
{
	const struct nvs_tensor *first = run->user;

	assert(run->state.phase == TRANSFER_COMPLETED && run->status <= 0);
	if (run->direction == NVS_WRITE)
		return first->rest->sum == SUM_QUEUED || first->rest->sum == SUM_BEGUN;
	for (const struct nvs_tensor *t = first; t && !run->status; t = t->run_next)
		if (is_summed(engine, run, t))
			return true;
	return false;
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
		struct nvs_tensor *first = run->user;

		list = run->state.next;
		run->state.next = NULL;
		if (!needs_sum(engine, run)) {
			*tail = run;
			tail = &run->state.next;
			continue;
		}
		/* A write that completed before its turn. */
		if (run->direction == NVS_WRITE && first->rest->sum == SUM_QUEUED)
			TAILQ_REMOVE(&events->sums.writing, first, rest->to_sum);
		if (run->nbytes <= budget && first->rest->sum != SUM_BEGUN) {
			budget -= run->nbytes;
			*short_tail = run;
			short_tail = &run->state.next;
		} else {
			*events->sums.end = run;
			events->sums.end = &run->state.next;
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

bool sums_work(struct nvs_engine *engine, struct transfer **landed)
{
	struct events *events = &engine->events;
	struct sums *sums = &events->sums;
	struct nvs_tensor *first = NULL;

	*landed = NULL;
	pthread_mutex_lock(&events->lock);
	/* Begins the next run: a completed one, or one in flight. */
	if (!sums->run && sums->completed) {
		first = sums->completed->user;
		sums->run = sums->completed;
		sums->has_completed = true;
		sums->completed = sums->run->state.next;
		if (!sums->completed)
			sums->end = &sums->completed;
		sums->run->state.next = NULL;
	} else if (!sums->run && !TAILQ_EMPTY(&sums->writing)) {
		first = TAILQ_FIRST(&sums->writing);
		sums->run = &first->rest->transfer;
		sums->has_completed = false;
		TAILQ_REMOVE(&sums->writing, first, rest->to_sum);
	}
	if (first) {
		assert(first->rest->sum != SUM_BEGUN);
		sums->tensor = first->rest->sum == SUM_DONE ? NULL : first;
		if (sums->run->direction == NVS_WRITE && first->rest->sum != SUM_DONE)
			first->rest->sum = SUM_BEGUN;
	}
	sums_check(sums);
	pthread_mutex_unlock(&events->lock);
	if (!sums->run)
		return false;
	sum_slice(engine, sums);
	if (!sums->tensor) {
		pthread_mutex_lock(&events->lock);
		first = sums->run->user;
		/* From now on another thread may land a run in flight. */
		if (sums->run->direction == NVS_WRITE)
			first->rest->sum = SUM_DONE;
		*landed = sums->has_completed ? sums->run : NULL;
		sums->run = NULL;
		sums_check(sums);
		pthread_mutex_unlock(&events->lock);
	}
	return true;
}
