/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of calls that wait for room in the pool: first come, first served. Batches of fewer
 * bytes may pass, as far as that delays nobody for long. Under the engine's lock.
 */
#ifndef RESIDENCY_QUEUE_H
#define RESIDENCY_QUEUE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "swap/residency/pins.h"

struct nvs_engine;

/* How long nothing must have changed before a call may be passed once more; doubles each time. */
#define PATIENCE_NS UINT64_C(10000000)

/* A call that pins tensors; its place in the queue from queue_join() to queue_leave(). */
struct ticket {
	TAILQ_ENTRY(ticket) link;
	bool queued;
	bool impatient;	      /* a batch may pass it because nothing has changed for long */
	uint32_t pinner;      /* the calling thread's */
	uint64_t need;	      /* bytes that the call lacked at its last attempt */
	uint64_t passed;      /* bytes of the batches that passed it */
	uint64_t tried;	      /* queue->changes at its last attempt */
	uint64_t patience_ns; /* 0: queue->patience_ns */
};

TAILQ_HEAD(ticket_list, ticket);

struct queue {
	struct ticket_list tickets;
	unsigned waiting[PINNERS]; /* tickets of these threads */
	uint64_t patience_ns;	   /* at first */
	uint64_t changes;	   /* landings, releases and the like, which may have made room */
	uint64_t passes;	   /* batches that passed a ticket */
	bool awaits_first;	   /* a call waits until the first one has looked at a change */
	/* Since when there was neither; known if quiet_at is changes + passes: */
	uint64_t quiet_at, quiet_ns;
};

void queue_init(struct queue *queue);
/* Whether no call waits for room. */
bool queue_empty(const struct nvs_engine *engine);
/* Something has changed that the waiting calls may wait for. */
void queue_changed(struct nvs_engine *engine);
/*
 * Whether a batch of so many bytes may be pinned before the calls that came earlier. If not,
 * *until_ns is when it may if nothing changes; or UINT64_MAX.
 */
bool queue_lets_pass(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes,
		     uint64_t *until_ns);
/* The batch has been pinned. */
void queue_passed(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes);
/*
 * The call waits, and lacked so many bytes at its last attempt. True: what this says of its pins
 * may let another call pass, so the waiting ones must look.
 */
bool queue_join(struct nvs_engine *engine, struct ticket *ticket, uint64_t need);
void queue_leave(struct nvs_engine *engine, struct ticket *ticket);
/* Asserts what must hold of the queue. */
void queue_check(const struct nvs_engine *engine);

#endif
