/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The aio's messages, told by a thread of their own. A log function may block for as long as it
 * likes: no I/O, no completion and no look for overdue transfers waits for it. Without a log
 * function there is no thread.
 */
#include <assert.h>
#include <stdarg.h>

#include "aio/internal.h"
#include "base/threads/thread.h"

void log_init(struct log *log, const struct nvs_log *to)
{
	*log = (struct log){.to = to ? *to : (struct nvs_log){0}};
	pthread_mutex_init(&log->lock, NULL);
	pthread_cond_init(&log->changed, NULL);
	messages_init(&log->messages);
}

void log_destroy(struct log *log)
{
	assert(!log->started);
	/* Those of an aio that could not be opened. */
	messages_tell(&log->messages, NULL);
	pthread_mutex_destroy(&log->lock);
	pthread_cond_destroy(&log->changed);
}

void aio_say(struct nvs_aio *aio, enum nvs_log_level level, const char *format, ...)
{
	struct log *log = &aio->log;
	struct message *message;
	va_list args;

	if (!log->to.fn)
		return;
	va_start(args, format);
	message = message_new(level, format, args);
	va_end(args);
	pthread_mutex_lock(&log->lock);
	/* The thread may have ended once it is told to: it would not tell this message. */
	assert(!log->closing);
	messages_add(&log->messages, message);
	pthread_cond_broadcast(&log->changed);
	pthread_mutex_unlock(&log->lock);
}

static void *log_main(void *arg)
{
	struct log *log = arg;
	struct messages messages;

	messages_init(&messages);
	pthread_mutex_lock(&log->lock);
	while (!log->closing || !messages_empty(&log->messages)) {
		log->telling = messages_take(&log->messages, &messages);
		if (!log->telling) {
			pthread_cond_broadcast(&log->changed);
			pthread_cond_wait(&log->changed, &log->lock);
			continue;
		}
		pthread_mutex_unlock(&log->lock);
		messages_tell(&messages, &log->to);
		pthread_mutex_lock(&log->lock);
	}
	log->telling = false;
	pthread_mutex_unlock(&log->lock);
	return NULL;
}

int log_start(struct log *log)
{
	int rc;

	assert(!log->started && !log->closing);
	if (!log->to.fn)
		return 0;
	rc = thread_start(&log->thread, log_main, log);
	log->started = !rc;
	return rc;
}

void log_stop(struct log *log)
{
	if (!log->started)
		return;
	pthread_mutex_lock(&log->lock);
	log->closing = true;
	pthread_cond_broadcast(&log->changed);
	pthread_mutex_unlock(&log->lock);
	pthread_join(log->thread, NULL);
	log->started = log->closing = false;
	assert(messages_empty(&log->messages));
}

void aio_await_told(struct nvs_aio *aio)
{
	struct log *log = &aio->log;

	pthread_mutex_lock(&log->lock);
	while (log->started && (log->telling || !messages_empty(&log->messages)))
		pthread_cond_wait(&log->changed, &log->lock);
	pthread_mutex_unlock(&log->lock);
}
