/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's thread: takes completed and overdue runs off the engine's completion queue and lands
 * or marks them, so that no I/O worker runs code of the engine.
 */
#include <assert.h>
#include <signal.h>

#include "base/error.h"
#include "swap/internal.h"

static bool ends(struct nvs_engine *engine)
{
	bool ends;

	pthread_mutex_lock(&engine->lock);
	ends = engine->events == EVENTS_ENDING;
	pthread_mutex_unlock(&engine->lock);
	return ends;
}

static void *events_main(void *arg)
{
	struct nvs_engine *engine = arg;

	while (!ends(engine)) {
		struct transfer *list;

		(void)completions_wait(engine->completions, COMPLETIONS_THREAD, UINT64_MAX);
		if (completions_take_overdue(engine->completions))
			runs_overdue(engine);
		list = completions_take(engine->completions);
		if (list)
			runs_completed(engine, list);
	}
	return NULL;
}

int events_start(struct nvs_engine *engine, struct nvs_error *error)
{
	sigset_t all, before;
	int rc = completions_open(&engine->completions);

	assert(engine->events == EVENTS_NONE);
	if (rc)
		return error_set(error, rc, "out of memory while opening the engine");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&engine->events_thread, NULL, events_main, engine);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		return error_set(error, rc, "can't start the engine's thread: %s",
				 nvs_strerror(rc));
	engine->events = EVENTS_SERVED;
	return 0;
}

void events_stop(struct nvs_engine *engine)
{
	if (engine->events == EVENTS_SERVED) {
		pthread_mutex_lock(&engine->lock);
		engine->events = EVENTS_ENDING;
		pthread_mutex_unlock(&engine->lock);
		completions_wake(engine->completions, COMPLETIONS_THREAD);
		pthread_join(engine->events_thread, NULL);
	}
	completions_close(engine->completions);
}
