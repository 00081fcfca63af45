/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which call may pin tensors while others wait for room. Each waiting call is passed by
 * batches of as many bytes as the pool has, and beyond that only when it can't be served before
 * another one goes on: because that one's thread has pinned what is in its way, or, as the
 * engine can't know which thread waits for which, because nothing has changed for a while. It
 * decides only, and wakes nobody.
 *
 * Tensors of a batch that are in the pool already count too: pinning them again keeps them there.
 * No batch passes the first call after a release before that call has tried whether it fits now,
 * nor while write-backs make room for it. Prefetches and the plan take nothing while the queue is
 * not empty. A call that can't be served is passed if the threads that wait for room hold too much
 * together, or all that is pinned with nothing in flight; and, since a thread with pins may wait
 * at a barrier for one in the queue, by one batch when nothing was released or landed for 10 ms,
 * then after 20 ms, and so on with twice the time.
 */
#include "swap/residency/queue.h"

#include <assert.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "base/state_checks.h"
#include "swap/room/room.h"

void queue_init(struct queue *queue)
{
	TAILQ_INIT(&queue->tickets);
	queue->patience_ns = PATIENCE_NS;
}

bool queue_empty(const struct nvs_engine *engine)
{
	return TAILQ_EMPTY(&engine->queue.tickets);
}

void queue_changed(struct nvs_engine *engine)
{
	engine->queue.changes++;
}

void queue_check(const struct nvs_engine *engine)
{
	if (!STATE_CHECKS)
		return;

	const struct ticket *ticket, *next;
	unsigned n = 0;

	lock_check(engine);
	TAILQ_FOREACH(ticket, &engine->queue.tickets, link)
	{
		next = TAILQ_NEXT(ticket, link);
		assert(ticket->queued && engine->queue.waiting[ticket->pinner]);
		assert(ticket->need <= pool_bytes(engine->pool));
		assert(ticket->tried <= engine->queue.changes);
		assert(ticket->pinner < PINNERS && ticket->patience_ns);
		/* What passes a ticket passes all before it. */
		assert(!next || ticket->passed >= next->passed);
		n++;
	}
	assert(n <= engine->room.waiting);
}

/* ---- Who may pass ---- */

/* Bytes pinned by threads that wait for room, this ticket's included. */
static uint64_t held_by_waiting(const struct nvs_engine *engine, const struct ticket *ticket)
{
	const struct queue *queue = &engine->queue;
	uint64_t sum = 0;

	for (unsigned i = 0; i < PINNERS; i++)
		if (queue->waiting[i] || i == ticket->pinner)
			sum += engine->pinners.held[i];
	return sum;
}

/*
 * The first call in the queue may be served although no other call acts: it has yet to look at what
 * has changed, or write-backs in flight make its room.
 */
static bool first_goes_on(struct nvs_engine *engine, const struct ticket *first)
{
	uint64_t free = free_bytes(engine);

	if (first->tried != engine->queue.changes) {
		engine->queue.awaits_first = true;
		return true;
	}
	return !engine->moves.overdue[NVS_READ] && !engine->moves.overdue[NVS_WRITE] &&
	       first->need > free && first->need <= free + engine->room.landing;
}

/*
 * No thread but those that wait can release what the call lacks: either they hold too much, or, by
 * its last attempt, what they hold lies in its way.
 */
static bool needs_the_waiting(const struct nvs_engine *engine, const struct ticket *waiting,
			      uint64_t held)
{
	if (held && waiting->need > pool_bytes(engine->pool) - held)
		return true;
	return held && held == engine->pinners.all && waiting->tried == engine->queue.changes &&
	       !engine->moves.inflight[NVS_READ] && !engine->moves.inflight[NVS_WRITE];
}

static uint64_t later(uint64_t since_ns, uint64_t patience_ns)
{
	return patience_ns < UINT64_MAX - since_ns ? since_ns + patience_ns : UINT64_MAX;
}

/* Whether nothing has changed for the call's patience, which begins at the latest when the first
 * call asks: it may then be passed. */
static bool patience_ends(struct queue *queue, const struct ticket *waiting, uint64_t *until_ns)
{
	uint64_t now = clock_ns(), at = queue->changes + queue->passes, until;

	if (queue->quiet_at != at || !queue->quiet_ns) {
		queue->quiet_at = at;
		queue->quiet_ns = now;
	}
	until = later(queue->quiet_ns, waiting->patience_ns);
	*until_ns = max_u64(*until_ns, until);
	return until <= now;
}

bool queue_lets_pass(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes,
		     uint64_t *until_ns)
{
	struct queue *queue = &engine->queue;
	struct ticket *waiting = TAILQ_FIRST(&queue->tickets);
	uint64_t all = pool_bytes(engine->pool), held;
	bool passes = true;

	*until_ns = 0;
	if (!waiting || waiting == ticket || !nbytes)
		return true;
	held = held_by_waiting(engine, ticket);
	if (first_goes_on(engine, waiting)) {
		*until_ns = UINT64_MAX;
		return false;
	}
	for (; waiting && waiting != ticket; waiting = TAILQ_NEXT(waiting, link)) {
		waiting->impatient = false;
		if (waiting->passed <= all - nbytes || needs_the_waiting(engine, waiting, held))
			continue;
		waiting->impatient = patience_ends(queue, waiting, until_ns);
		passes = passes && waiting->impatient;
	}
	return passes;
}

void queue_passed(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes)
{
	struct queue *queue = &engine->queue;
	struct ticket *waiting = TAILQ_FIRST(&queue->tickets);

	if (!waiting || waiting == ticket || !nbytes)
		return;
	queue->passes++;
	for (; waiting && waiting != ticket; waiting = TAILQ_NEXT(waiting, link)) {
		waiting->passed += nbytes;
		if (waiting->impatient)
			waiting->patience_ns = later(waiting->patience_ns, waiting->patience_ns);
		waiting->impatient = false;
	}
	queue_check(engine);
}

/* ---- Places in the queue ---- */

bool queue_join(struct nvs_engine *engine, struct ticket *ticket, uint64_t need)
{
	struct queue *queue = &engine->queue;
	bool joins = !ticket->queued, tried = joins || ticket->tried != queue->changes;
	bool awaited = queue->awaits_first;

	if (joins) {
		ticket->queued = true;
		ticket->patience_ns = queue->patience_ns;
		queue->waiting[ticket->pinner]++;
		TAILQ_INSERT_TAIL(&queue->tickets, ticket, link);
	}
	ticket->need = need;
	ticket->tried = queue->changes;
	queue_check(engine);
	if (ticket == TAILQ_FIRST(&queue->tickets))
		queue->awaits_first = false;
	if (TAILQ_FIRST(&queue->tickets) == TAILQ_LAST(&queue->tickets, ticket_list))
		return false;
	return awaited != queue->awaits_first || (joins && engine->pinners.held[ticket->pinner]) ||
	       (tried && engine->pinners.all == held_by_waiting(engine, ticket));
}

void queue_leave(struct nvs_engine *engine, struct ticket *ticket)
{
	struct queue *queue = &engine->queue;

	queue->waiting[ticket->pinner]--;
	TAILQ_REMOVE(&queue->tickets, ticket, link);
	ticket->queued = false;
	queue_check(engine);
}
