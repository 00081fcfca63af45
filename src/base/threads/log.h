/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for the caller's log, queued where they arise, which may be under a lock or on an I/O
 * thread, and told by a thread of their own with no lock held. A log function may block for as long
 * as it likes: nothing but later messages waits for it. Without a log function there is no thread.
 */
#ifndef THREADS_LOG_H
#define THREADS_LOG_H

#include <pthread.h>
#include <sys/queue.h>

#include "base/error.h"

/* How many wait at most: a log function may block for ever. */
#define MESSAGES_MAX 1000

struct log {
	struct nvs_log to; /* the caller's */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* of the following; taken last */
	pthread_cond_t changed;
	STAILQ_HEAD(message_list, message) messages;
	uint64_t n;    /* messages in the list */
	uint64_t lost; /* for which there was no room or no memory */
	bool telling;  /* the thread is in the caller's log function, perhaps for long */
	bool closing;
};

/* `to` may be NULL. */
void log_init(struct log *log, const struct nvs_log *to);
/* The thread was not started, or is stopped. */
void log_destroy(struct log *log);
/* 0 or a negative errno. */
int log_start(struct log *log);
/* Returns when all messages are told. */
void log_stop(struct log *log);
/* Queues a message, on any thread, with or without locks. */
void log_later(struct log *log, enum nvs_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Waits until all messages are told, those too that arise meanwhile. */
void log_await_told(struct log *log);

#endif
