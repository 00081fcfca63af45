/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's messages. The thread of events tells them: a log function may wait for a lock of the
 * caller's whose owner is in a call of this engine.
 */
#include <assert.h>

#include "aio/completions.h"
#include "base/threads/messages.h"
#include "swap/residency/internal.h"

void say_later(struct nvs_engine *engine, enum nvs_log_level level, const char *format, ...)
{
	struct events *events = &engine->events;
	struct message *message;
	va_list args;

	if (!engine->log.fn)
		return;
	assert(events->completions);
	va_start(args, format);
	message = message_new(level, format, args);
	va_end(args);
	pthread_mutex_lock(&events->lock);
	messages_add(&events->messages, message);
	pthread_mutex_unlock(&events->lock);
	completions_wake(events->completions, COMPLETIONS_THREAD);
}

bool messages_say(struct nvs_engine *engine)
{
	struct events *events = &engine->events;
	struct messages messages;

	unlocked_check(engine);
	messages_init(&messages);
	pthread_mutex_lock(&events->lock);
	assert(!events->saying);
	events->saying = messages_take(&events->messages, &messages);
	pthread_mutex_unlock(&events->lock);
	if (messages_empty(&messages))
		return false;
	assert(engine->log.fn);
	/* While the log function blocks, a waiting caller does the thread's work. */
	completions_wake(events->completions, COMPLETIONS_CALLER);
	messages_tell(&messages, &engine->log);
	pthread_mutex_lock(&events->lock);
	assert(events->saying);
	events->saying = false;
	pthread_mutex_unlock(&events->lock);
	return true;
}
