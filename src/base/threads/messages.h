/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for the caller's log, queued where they arise, which may be under a lock or on an I/O
 * thread, until a thread that nothing waits for tells them with no lock held.
 */
#ifndef THREADS_MESSAGES_H
#define THREADS_MESSAGES_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/error.h"

struct message {
	STAILQ_ENTRY(message) link;
	enum nvs_log_level level;
	char text[];
};

/* How many wait in a queue at most: a log function may block for ever. */
#define MESSAGES_MAX 1000

/* A queue, which its owner locks. */
struct messages {
	STAILQ_HEAD(message_list, message) list;
	uint64_t n;    /* messages in the list */
	uint64_t lost; /* for which there was no room or no memory */
};

void messages_init(struct messages *messages);
bool messages_empty(const struct messages *messages);
/* NULL: out of memory. */
struct message *message_new(enum nvs_log_level level, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));
/* Queues a message. NULL counts as lost, as does one for which there is no room, which is freed. */
void messages_add(struct messages *messages, struct message *message);
/* Moves all messages to an empty queue; false if there are none. */
bool messages_take(struct messages *from, struct messages *to);
/* Tells the log all messages in their order, and frees them. No lock may be held. */
void messages_tell(struct messages *messages, const struct nvs_log *log);

#endif
