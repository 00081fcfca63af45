/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/threads/thread.h"

struct message {
	STAILQ_ENTRY(message) link;
	enum nvs_log_level level;
	char text[];
};

void log_init(struct log *log, const struct nvs_log *to)
{
	*log = (struct log){.to = to ? *to : (struct nvs_log){0}};
	pthread_mutex_init(&log->lock, NULL);
	pthread_cond_init(&log->changed, NULL);
	STAILQ_INIT(&log->messages);
}

/* Passes the messages of the list to `to`, if it has a function, and frees them. */
static void log_and_free(struct message_list *messages, const struct nvs_log *to)
{
	struct message *message;

	while ((message = STAILQ_FIRST(messages))) {
		STAILQ_REMOVE_HEAD(messages, link);
		log_say(to, message->level, "%s", message->text);
		free(message);
	}
}

void log_destroy(struct log *log)
{
	assert(!log->started);
	log_and_free(&log->messages, NULL);
	pthread_mutex_destroy(&log->lock);
	pthread_cond_destroy(&log->changed);
}

void log_later(struct log *log, enum nvs_log_level level, const char *format, ...)
{
	struct message *message;
	char text[1024];
	va_list args;

	assert(level >= NVS_LOG_ERROR && level <= NVS_LOG_DEBUG);
	if (!log->to.fn)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	message = malloc(sizeof(*message) + strlen(text) + 1);
	if (message) {
		message->level = level;
		strcpy(message->text, text);
	}
	pthread_mutex_lock(&log->lock);
	/* The thread may have ended once it is told to: it would not tell this message, unless that
	 * is of a call by the log function. */
	assert(!log->closing || pthread_equal(pthread_self(), log->thread));
	assert(log->n <= MESSAGES_MAX);
	if (message && log->n < MESSAGES_MAX) {
		STAILQ_INSERT_TAIL(&log->messages, message, link);
		log->n++;
	} else {
		free(message);
		log->lost++;
	}
	pthread_cond_broadcast(&log->changed);
	pthread_mutex_unlock(&log->lock);
}

static void *log_main(void *arg)
{
	struct log *log = arg;
	struct message_list messages = STAILQ_HEAD_INITIALIZER(messages);

	pthread_mutex_lock(&log->lock);
	while (!log->closing || log->n || log->lost) {
		uint64_t lost = log->lost;

		log->telling = log->n || lost;
		if (!log->telling) {
			pthread_cond_broadcast(&log->changed);
			pthread_cond_wait(&log->changed, &log->lock);
			continue;
		}
		STAILQ_CONCAT(&messages, &log->messages);
		log->n = log->lost = 0;
		pthread_mutex_unlock(&log->lock);
		log_and_free(&messages, &log->to);
		if (lost)
			log_say(&log->to, NVS_LOG_WARNING,
				"%" PRIu64 " later messages were lost: the log function had not "
				"returned from those before them, or memory had run out",
				lost);
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
}

void log_await_told(struct log *log)
{
	pthread_mutex_lock(&log->lock);
	while (log->started && (log->telling || log->n || log->lost))
		pthread_cond_wait(&log->changed, &log->lock);
	pthread_mutex_unlock(&log->lock);
}
