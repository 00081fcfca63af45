/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for the caller's log. They are queued where they arise, which may be under a lock, and
 * said by the thread of events with none held: a log function may wait for a lock of the caller's
 * whose owner is in a call of this engine.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aio/completions.h"
#include "base/error.h"
#include "swap/residency/internal.h"

struct message {
	STAILQ_ENTRY(message) link;
	enum nvs_log_level level;
	char text[];
};

static struct message *message_new(enum nvs_log_level level, const char *format, va_list args)
{
	struct message *message;
	char text[1024];
	size_t nbytes;

	assert(level >= NVS_LOG_ERROR && level <= NVS_LOG_DEBUG);
	vsnprintf(text, sizeof(text), format, args);
	nbytes = strlen(text) + 1;
	assert(nbytes <= sizeof(text));
	message = malloc(sizeof(*message) + nbytes);
	if (!message)
		return NULL;
	message->level = level;
	memcpy(message->text, text, nbytes);
	return message;
}

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
	if (message)
		STAILQ_INSERT_TAIL(&events->messages.list, message, link);
	else
		events->messages.lost++;
	pthread_mutex_unlock(&events->lock);
	completions_wake(events->completions, COMPLETIONS_THREAD);
}

/* Takes all messages; returns how many were lost. */
static uint64_t take(struct events *events, struct message_list *list)
{
	struct messages *messages = &events->messages;
	uint64_t lost;

	pthread_mutex_lock(&events->lock);
	assert(!messages->saying && STAILQ_EMPTY(list));
	STAILQ_CONCAT(list, &messages->list);
	lost = messages->lost;
	messages->lost = 0;
	messages->saying = lost || !STAILQ_EMPTY(list);
	pthread_mutex_unlock(&events->lock);
	return lost;
}

bool messages_say(struct nvs_engine *engine)
{
	struct events *events = &engine->events;
	struct message_list list = STAILQ_HEAD_INITIALIZER(list);
	struct message *message;
	uint64_t lost;

	unlocked_check(engine);
	lost = take(events, &list);
	if (STAILQ_EMPTY(&list) && !lost)
		return false;
	assert(engine->log.fn);
	/* While the log function blocks, a waiting caller does the thread's work. */
	completions_wake(events->completions, COMPLETIONS_CALLER);
	while ((message = STAILQ_FIRST(&list))) {
		STAILQ_REMOVE_HEAD(&list, link);
		log_say(&engine->log, message->level, "%s", message->text);
		free(message);
	}
	assert(STAILQ_EMPTY(&list));
	if (lost)
		log_say(&engine->log, NVS_LOG_WARNING,
			"%" PRIu64 " messages were lost: out of memory", lost);
	pthread_mutex_lock(&events->lock);
	assert(events->messages.saying);
	events->messages.saying = false;
	pthread_mutex_unlock(&events->lock);
	return true;
}
