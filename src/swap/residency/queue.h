/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of calls that wait for room in the pool, by the rule at the head of room/queue.c. Under
 * the engine's lock.
 */
#ifndef RESIDENCY_QUEUE_H
#define RESIDENCY_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct nvs_engine;

/* A call that pins tensors; its place in the queue from queue_join() to queue_leave(). */
struct ticket {
	TAILQ_ENTRY(ticket) link;
	bool queued;
	bool away;	 /* the call has ended, and its thread keeps the place for the next one */
	uint64_t passed; /* bytes that passed it since the last refill */
	uint64_t log_ns; /* when the log names the pinned tensors, once; 0: not decided */
};

/* The ticket of a thread that keeps its place from call to call. */
struct kept_place {
	LIST_ENTRY(kept_place) link;
	pthread_t thread;
	struct ticket ticket;
};

struct queue {
	TAILQ_HEAD(ticket_list, ticket) tickets;
	LIST_HEAD(place_list, kept_place) places;
	bool first_stuck;	 /* it has tried since the last change, and waits for another */
	uint64_t refills;	 /* how often as many bytes again were let pass the first */
	uint64_t patience_ns;	 /* how long nothing must change before the first refill */
	uint64_t quiet_until_ns; /* when the next refill is due, unless something changes */
};

void queue_init(struct queue *queue);
/* Frees the places that threads still keep. */
void queue_free_places(struct queue *queue);
/* Whether no call waits for room. */
bool queue_empty(const struct nvs_engine *engine);
/* Something was released or has landed, so the first call tries again before others pass it. */
void queue_changed(struct nvs_engine *engine);
/* Whether a batch of so many bytes may be pinned before the calls that came earlier. */
bool queue_lets_pass(const struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes);
/* The batch has been pinned. */
void queue_passed(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes);
/* When a call that may not pass asks again, if nothing changes; and that it has slept until then. */
uint64_t queue_quiet_until(const struct nvs_engine *engine);
void queue_was_quiet(struct nvs_engine *engine, uint64_t until_ns);
/*
 * The call waits; `stuck` if it can't go on before another call acts. True: others may pass now, so
 * the waiting ones must look.
 */
bool queue_join(struct nvs_engine *engine, struct ticket *ticket, bool stuck);
/* True: it was the first; the caller then says that something has changed. */
bool queue_leave(struct nvs_engine *engine, struct ticket *ticket);
/* The place that the calling thread keeps; NULL: none. */
struct kept_place *queue_kept_place(const struct nvs_engine *engine);
/* Asserts what must hold of the queue. */
void queue_check(const struct nvs_engine *engine);

#endif
