/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's thread of events. It takes completed runs off the engine's queue, lands them, starts
 * what the plan calls for next, and computes long checksums. A caller that waits helps with what
 * takes microseconds, which saves it a thread switch.
 */
#include <xxhash.h>

#include "base/threads/thread.h"
#include "swap/moves/moves.h"

/* ---- Landing ---- */

static void land(struct nvs_engine *engine, struct transfer *list)
{
	runs_trace(engine, list);
	engine_lock(engine);
	list = runs_land(engine, list);
	list = join(list, move_ahead(engine));
	events_changed(engine);
	engine_unlock(engine);
	launch(engine, list);
	/* The thread writes the file in which the write budget is counted. */
	if (store_budget_due(engine->store)) {
		atomic_store(&engine->events.counting_due, true);
		completions_wake(engine->events.completions, COMPLETIONS_THREAD);
	}
}

/* Lands runs that have completed, those that need a long checksum later. False: there were none. */
static bool land_ready(struct nvs_engine *engine)
{
	struct completions *completions = engine->events.completions;
	struct transfer *list = completions_take(completions);
	bool any = list;

	runs_check(list);
	if (completions_take_overdue(completions)) {
		engine_lock(engine);
		runs_overdue(engine);
		events_changed(engine);
		engine_unlock(engine);
	}
	runs_check_files(engine, list);
	if (list)
		list = sums_filter(engine, list);
	if (list)
		land(engine, list);
	return any;
}

/* ---- Waiting callers ---- */

/*
 * How many runs a call may sleep for that needs `wanted` of those in flight. One if others wait,
 * if the plan or a checksum goes on with each run that lands, or if a run may be held up for long:
 * by a commit or a drive that hangs.
 */
static uint64_t worth_waiting_for(const struct nvs_engine *engine, uint64_t wanted)
{
	uint64_t inflight = runs_in_flight(&engine->moves);

	if (engine->events.followers || engine->step.begun || keeps_sums(engine) ||
	    engine->commit.writing || engine->aio_config.io_timeout_ms || engine->trace)
		return 1;
	if (wanted > inflight)
		wanted = inflight;
	return wanted ? wanted : 1;
}

void events_hurry(struct nvs_engine *engine)
{
	if (engine->events.helped && engine->events.patient)
		completions_wake(engine->events.completions, COMPLETIONS_CALLER);
}

int events_wait(struct nvs_engine *engine, uint64_t runs, uint64_t deadline)
{
	struct events *events = &engine->events;
	int rc;

	if (events->helped || !deadline) {
		events_hurry(engine);
		events->followers++;
		rc = engine_sleep(engine, &engine->changed, deadline);
		events->followers--;
		return rc;
	}
	runs = worth_waiting_for(engine, runs);
	events->helped = true;
	events->helper = pthread_self();
	events->patient = runs > 1;
	engine_unlock(engine);
	rc = completions_wait(events->completions, COMPLETIONS_CALLER, runs, deadline);
	if (!rc)
		land_ready(engine);
	engine_lock(engine);
	events->helped = events->patient = false;
	/* One of them may help next. */
	if (events->followers)
		pthread_cond_signal(&engine->changed);
	return rc;
}

void events_wake(struct nvs_engine *engine)
{
	struct events *events = &engine->events;

	if (events->followers)
		pthread_cond_broadcast(&engine->changed);
	if (events->helped && !pthread_equal(events->helper, pthread_self()))
		completions_wake(events->completions, COMPLETIONS_CALLER);
}

void events_changed(struct nvs_engine *engine)
{
	queue_changed(engine);
	events_wake(engine);
}

/* ---- The thread ---- */

static void *events_main(void *arg)
{
	struct nvs_engine *engine = arg;
	struct events *events = &engine->events;
	bool closing;

	take_short_slices();
	do {
		closing = atomic_load(&events->closing);
		for (bool busy = true; busy;) {
			struct transfer *run;

			/* Between the slices of a long checksum, completed runs land. */
			busy = land_ready(engine);
			busy |= sums_work(engine, &run);
			if (run)
				land(engine, run);
		}
		if (atomic_exchange(&events->counting_due, false))
			store_budget_count(engine->store);
		if (!closing)
			(void)completions_wait(events->completions, COMPLETIONS_THREAD, 1,
					       UINT64_MAX);
	} while (!closing);
	return NULL;
}

int events_open(struct nvs_engine *engine, struct nvs_error *error)
{
	struct events *events = &engine->events;
	int rc;

	pthread_mutex_init(&events->lock, NULL);
	TAILQ_INIT(&events->sums.writing);
	events->sums.end = &events->sums.completed;
	events->sums.state = XXH3_createState();
	if (completions_open(&events->completions) || !events->sums.state)
		return error_no_memory(error, "opening the engine");
	rc = events_start(engine) ?: log_start(&engine->log);
	return rc ? error_set(error, rc, "can't start the engine's threads: %s",
			      thread_strerror(rc))
		  : 0;
}

int events_start(struct nvs_engine *engine)
{
	struct events *events = &engine->events;
	int rc;

	atomic_store(&events->closing, false);
	rc = thread_start(&events->thread, events_main, engine);
	events->started = !rc;
	return rc;
}

void events_stop(struct nvs_engine *engine)
{
	struct events *events = &engine->events;

	if (!events->started)
		return;
	atomic_store(&events->closing, true);
	completions_wake(events->completions, COMPLETIONS_THREAD);
	pthread_join(events->thread, NULL);
	events->started = false;
}

void events_close(struct nvs_engine *engine)
{
	struct events *events = &engine->events;

	assert(!events->started && !events->helped && !events->followers);
	assert(!events->sums.completed && !events->sums.run);
	XXH3_freeState(events->sums.state);
	completions_close(events->completions);
	pthread_mutex_destroy(&events->lock);
}
