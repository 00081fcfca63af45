/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's thread of events. It takes completed runs off the engine's queue, lands them, starts
 * what the plan calls for next, computes long checksums and calls the log function. A caller that
 * waits helps with what takes microseconds, which saves it a thread switch, and with all but the
 * log while the log function blocks the thread.
 */
#include "base/threads/slice.h"
#include "base/threads/thread.h"
#include "swap/moves/moves.h"

/* ---- Landing ---- */

/* The thread writes the file in which the write budget is counted. */
static void ask_to_count(struct nvs_engine *engine)
{
	struct events *events = &engine->events;

	pthread_mutex_lock(&events->lock);
	events->counting_due = true;
	pthread_mutex_unlock(&events->lock);
	completions_wake(events->completions, COMPLETIONS_THREAD);
}

static void land(struct nvs_engine *engine, struct transfer *list)
{
	runs_trace(engine, list);
	engine_lock(engine);
	list = runs_land(engine, list);
	list = join(list, move_ahead(engine));
	events_changed(engine);
	engine_unlock(engine);
	launch(engine, list);
	if (store_budget_due(engine->store))
		ask_to_count(engine);
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

/* Between the slices of a long checksum, completed runs land. */
static bool compute_slice(struct nvs_engine *engine)
{
	struct transfer *run;
	bool any = sums_work(engine, &run);

	if (run)
		land(engine, run);
	return any;
}

/* ---- Waiting callers ---- */

/* The thread is in the caller's log function. */
static bool log_blocks(struct events *events)
{
	bool blocks;

	pthread_mutex_lock(&events->lock);
	blocks = events->saying;
	pthread_mutex_unlock(&events->lock);
	return blocks;
}

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

int events_wait_for(struct nvs_engine *engine, uint64_t runs, uint64_t deadline)
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
	if (!rc) {
		land_ready(engine);
		while (keeps_sums(engine) && log_blocks(events) && compute_slice(engine))
			completions_wake(events->completions, COMPLETIONS_THREAD);
	}
	engine_lock(engine);
	events->helped = events->patient = false;
	/* One of them may help next. */
	if (events->followers)
		pthread_cond_signal(&engine->changed);
	return rc;
}

int events_wait(struct nvs_engine *engine, uint64_t deadline)
{
	return events_wait_for(engine, 1, deadline);
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

/* Returns false if there were none. */
static bool log_messages(struct nvs_engine *engine)
{
	struct events *events = &engine->events;
	struct messages messages;

	messages_init(&messages);
	pthread_mutex_lock(&events->lock);
	events->saying = messages_take(&events->messages, &messages);
	pthread_mutex_unlock(&events->lock);
	if (messages_empty(&messages))
		return false;
	/* While the log function blocks, a waiting caller does the thread's work. */
	completions_wake(events->completions, COMPLETIONS_CALLER);
	messages_tell(&messages, &engine->log);
	pthread_mutex_lock(&events->lock);
	events->saying = false;
	pthread_mutex_unlock(&events->lock);
	return true;
}

static void *events_main(void *arg)
{
	struct nvs_engine *engine = arg;
	struct events *events = &engine->events;
	bool closing;

	take_short_slices();
	do {
		uint64_t asked;
		bool busy = true, counting;

		pthread_mutex_lock(&events->lock);
		asked = events->asked;
		counting = events->counting_due;
		events->counting_due = false;
		pthread_mutex_unlock(&events->lock);
		while (busy) {
			busy = land_ready(engine);
			busy |= compute_slice(engine);
			busy |= log_messages(engine);
		}
		if (counting)
			store_budget_count(engine->store);
		/* This round has done all that was asked for before it began. */
		pthread_mutex_lock(&events->lock);
		closing = events->closing;
		events->idle = true;
		events->answered = asked;
		pthread_cond_broadcast(&events->quiet);
		pthread_mutex_unlock(&events->lock);
		if (!closing)
			(void)completions_wait(events->completions, COMPLETIONS_THREAD, 1,
					       UINT64_MAX);
		pthread_mutex_lock(&events->lock);
		events->idle = false;
		pthread_mutex_unlock(&events->lock);
	} while (!closing);
	return NULL;
}

int events_open(struct nvs_engine *engine, struct nvs_error *error)
{
	struct events *events = &engine->events;
	int rc;

	rc = completions_open(&events->completions);
	if (rc)
		return error_set(error, rc, "out of memory while opening the engine");
	pthread_mutex_init(&events->lock, NULL);
	pthread_cond_init(&events->quiet, NULL);
	messages_init(&events->messages);
	rc = sums_open(engine);
	if (rc)
		return error_set(error, rc, "out of memory while opening the engine");
	rc = thread_start(&events->thread, events_main, engine);
	events->started = !rc;
	if (rc)
		error_set(error, rc, "can't start the engine's thread: %s", thread_strerror(rc));
	return rc;
}

void events_stop(struct nvs_engine *engine)
{
	struct events *events = &engine->events;

	if (!events->started)
		return;
	pthread_mutex_lock(&events->lock);
	events->closing = true;
	pthread_mutex_unlock(&events->lock);
	completions_wake(events->completions, COMPLETIONS_THREAD);
	pthread_join(events->thread, NULL);
	events->started = false;
	(void)log_messages(engine);
}

void events_close(struct nvs_engine *engine)
{
	struct events *events = &engine->events;

	if (!events->completions)
		return;
	assert(!events->started && !events->helped && !events->followers);
	(void)log_messages(engine);
	sums_close(engine);
	completions_close(events->completions);
	events->completions = NULL;
	pthread_mutex_destroy(&events->lock);
	pthread_cond_destroy(&events->quiet);
}

void events_await_idle(struct nvs_engine *engine)
{
	struct events *events = &engine->events;
	uint64_t asked;

	/* What has happened until now is done in a round that begins later. */
	pthread_mutex_lock(&events->lock);
	asked = ++events->asked;
	pthread_mutex_unlock(&events->lock);
	completions_wake(events->completions, COMPLETIONS_THREAD);
	pthread_mutex_lock(&events->lock);
	while (!events->idle || events->answered < asked ||
	       completions_pending(events->completions, COMPLETIONS_THREAD))
		pthread_cond_wait(&events->quiet, &events->lock);
	pthread_mutex_unlock(&events->lock);
}
