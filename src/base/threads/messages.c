/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of messages. It has no lock: its owner has one. */
#include "base/threads/messages.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void messages_init(struct messages *messages)
{
	STAILQ_INIT(&messages->list);
	messages->n = messages->lost = 0;
}

bool messages_empty(const struct messages *messages)
{
	return !messages->lost && STAILQ_EMPTY(&messages->list);
}

struct message *message_new(enum nvs_log_level level, const char *format, va_list args)
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

void messages_add(struct messages *messages, struct message *message)
{
	assert(messages->n <= MESSAGES_MAX);
	if (message && messages->n < MESSAGES_MAX) {
		STAILQ_INSERT_TAIL(&messages->list, message, link);
		messages->n++;
	} else {
		free(message);
		messages->lost++;
	}
}

bool messages_take(struct messages *from, struct messages *to)
{
	assert(messages_empty(to));
	STAILQ_CONCAT(&to->list, &from->list);
	to->n = from->n;
	to->lost = from->lost;
	from->n = from->lost = 0;
	assert(messages_empty(from));
	return !messages_empty(to);
}

void messages_tell(struct messages *messages, const struct nvs_log *log)
{
	struct message *message;

	while ((message = STAILQ_FIRST(&messages->list))) {
		STAILQ_REMOVE_HEAD(&messages->list, link);
		log_say(log, message->level, "%s", message->text);
		free(message);
	}
	if (messages->lost)
		log_say(log, NVS_LOG_WARNING,
			"%" PRIu64 " later messages were lost: the log function had not returned "
			"from those before them, or memory had run out",
			messages->lost);
	messages->n = messages->lost = 0;
	assert(messages_empty(messages));
}
