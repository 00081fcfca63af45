/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which call may pin tensors while others wait for room:
 *
 *	Calls get room in the order in which they came. While the first one can't be served before
 *	another call acts, batches that fit may pass it: as many bytes as the pool has, and as many
 *	again each time that nothing was pinned, released or landed for 10 ms, 20 ms, 30 ms and so on.
 *
 * What passes the first call passes all that wait before it, so none is passed by more. Tensors of
 * a batch that are in the pool already count too: pinning them again keeps them there. Prefetches
 * and the plan take nothing while the queue is not empty. A place that a thread keeps between two
 * calls is that of a call that can't be served.
 *
 * No rule without time can do. A thread whose pins are in the first call's way either works and
 * will release them, or waits, at a barrier say, for a call in the queue; the engine sees the same
 * events in both cases, none. If it always let that call pass, two threads whose pins overlap would
 * pass for ever; if it ever stopped, the second case would never end. The time grows, since the
 * first case passes for ever as well while its work takes longer than the time; by equal steps,
 * since the second case has to wait for each of them.
 *
 * Tells as well which tensors hold the pool while a call waits.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "swap/room/room.h"

bool queue_empty(const struct nvs_engine *engine)
{
	return TAILQ_EMPTY(&engine->queue.tickets);
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
		assert(ticket->queued && ticket->passed <= pool_bytes(engine->pool));
		assert(!next || ticket->passed >= next->passed);
		n += !ticket->away;
	}
	assert(n <= engine->room.waiting);
}

/* ---- Passing ---- */

static void begin_quiet(struct queue *queue)
{
	queue->quiet_until_ns = clock_ns() + (queue->refills + 1) * queue->patience_ns;
}

void queue_changed(struct nvs_engine *engine)
{
	engine->queue.first_stuck = false;
	if (!queue_empty(engine))
		begin_quiet(&engine->queue);
}

/* The first call can't be served before another call acts. */
static bool is_stuck(const struct queue *queue)
{
	return queue->first_stuck || TAILQ_FIRST(&queue->tickets)->away;
}

static bool is_within_pool(const struct nvs_engine *engine, const struct ticket *first,
			   uint64_t nbytes)
{
	return first->passed + nbytes <= pool_bytes(engine->pool);
}

bool queue_lets_pass(const struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes)
{
	const struct queue *queue = &engine->queue;
	const struct ticket *first = TAILQ_FIRST(&queue->tickets);

	if (!first || first == ticket || !nbytes)
		return true;
	return is_stuck(queue) &&
	       (is_within_pool(engine, first, nbytes) || clock_ns() >= queue->quiet_until_ns);
}

void queue_passed(struct nvs_engine *engine, const struct ticket *ticket, uint64_t nbytes)
{
	struct queue *queue = &engine->queue;
	struct ticket *first = TAILQ_FIRST(&queue->tickets), *passed;

	if (!first || first == ticket || !nbytes)
		return;
	if (!is_within_pool(engine, first, nbytes)) {
		queue->refills++;
		TAILQ_FOREACH(passed, &queue->tickets, link)
		{
			passed->passed = 0;
		}
	}
	begin_quiet(queue);
	for (passed = first; passed && passed != ticket; passed = TAILQ_NEXT(passed, link))
		passed->passed += nbytes;
	queue_check(engine);
}

uint64_t queue_quiet_until(const struct nvs_engine *engine)
{
	return is_stuck(&engine->queue) ? engine->queue.quiet_until_ns : UINT64_MAX;
}

void queue_was_quiet(struct nvs_engine *engine, uint64_t until_ns)
{
	/* A batch that passed meanwhile has put it off. */
	if (engine->queue.quiet_until_ns == until_ns)
		engine->queue.quiet_until_ns = 0;
}

/* ---- Places in the queue ---- */

bool queue_join(struct nvs_engine *engine, struct ticket *ticket, bool stuck)
{
	struct queue *queue = &engine->queue;
	bool joins = !ticket->queued, wakes;

	if (joins) {
		ticket->queued = true;
		TAILQ_INSERT_TAIL(&queue->tickets, ticket, link);
	}
	ticket->away = false;
	queue_check(engine);
	if (ticket != TAILQ_FIRST(&queue->tickets))
		return false;
	if (joins)
		queue_changed(engine);
	wakes = stuck && !queue->first_stuck && TAILQ_NEXT(ticket, link);
	queue->first_stuck = stuck;
	return wakes;
}

bool queue_leave(struct nvs_engine *engine, struct ticket *ticket)
{
	bool first = ticket == TAILQ_FIRST(&engine->queue.tickets);

	if (first)
		engine->queue.refills = 0;
	TAILQ_REMOVE(&engine->queue.tickets, ticket, link);
	*ticket = (struct ticket){.queued = false};
	queue_check(engine);
	return first;
}

struct kept_place *queue_kept_place(const struct nvs_engine *engine)
{
	struct kept_place *place = LIST_FIRST(&engine->queue.places);

	while (place && !pthread_equal(place->thread, pthread_self()))
		place = LIST_NEXT(place, link);
	return place;
}

/* ---- Which tensors are pinned: no call waits for a forgotten release in silence ---- */

#define LARGEST_NAMED 3

/* Writes up to the byte `last`, which is the terminating NUL at most, and returns the new end. */
static __attribute__((format(printf, 3, 4))) char *put(char *at, const char *last,
						       const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(at, (size_t)(last - at) + 1, format, args);
	va_end(args);
	return at + strlen(at);
}

void shortage_text(const struct nvs_engine *engine, char text[SHORTAGE_TEXT_BYTES])
{
	const struct nvs_tensor *largest[LARGEST_NAMED];
	const char *last = &text[SHORTAGE_TEXT_BYTES - 1];
	uint64_t now = clock_ns(), ntensors = 0, nbytes = 0;
	char pinned[32], all[32], free_text[32], longest[32], extent[32];
	unsigned nlargest = 0;

	for (size_t i = 0; i < engine->ntensors; i++) {
		const struct nvs_tensor *tensor = engine->tensors[i];
		unsigned at = nlargest;

		if (!tensor->pins.count || tensor->memory != MEMORY_POOL)
			continue;
		ntensors++;
		nbytes += tensor->extent;
		while (at && largest[at - 1]->extent < tensor->extent)
			at--;
		if (at == LARGEST_NAMED)
			continue;
		nlargest += nlargest < LARGEST_NAMED;
		for (unsigned k = nlargest - 1; k > at; k--)
			largest[k] = largest[k - 1];
		largest[at] = tensor;
	}
	text = put(text, last, "%s of the pool's %s are pinned by %" PRIu64 " tensor%s",
		   size_text(nbytes, pinned), size_text(pool_bytes(engine->pool), all), ntensors,
		   plural(ntensors));
	for (unsigned i = 0; i < nlargest; i++) {
		const struct nvs_tensor *tensor = largest[i];
		uint64_t ms = (now - tensor->pins.since_ns) / 1000000;
		uint64_t pins[LARGEST_NAMED];
		size_t n = pins_list(tensor, pins, LARGEST_NAMED);

		text = put(text, last, "%s%.120s (%s, for %" PRIu64 ".%03u s by pin%s ",
			   i ? ", " : ": ", tensor->rest->name, size_text(tensor->extent, extent),
			   ms / 1000, (unsigned)(ms % 1000), plural(n));
		for (size_t k = 0; k < n; k++)
			text = put(text, last, "%s%" PRIu64, k ? ", " : "", pins[k]);
		if (tensor->pins.count > n)
			text = put(text, last, " and %" PRIu64 " more",
				   (uint64_t)tensor->pins.count - n);
		text = put(text, last, ")");
	}
	if (ntensors > nlargest)
		text = put(text, last, " and %" PRIu64 " more", ntensors - nlargest);
	put(text, last, "; %s are free, at most %s of it in one piece",
	    size_text(pool_free_bytes(engine->pool), free_text),
	    size_text(pool_largest_free(engine->pool), longest));
}

bool shortage_log(struct nvs_engine *engine, size_t n)
{
	char text[SHORTAGE_TEXT_BYTES];

	/* Memory comes free without another call's doing: an unpinned tensor has yet to land. */
	for (size_t i = 0; i < engine->ntensors; i++)
		if (in_flight(engine->tensors[i]) && !engine->tensors[i]->pins.count)
			return false;
	shortage_text(engine, text);
	log_later(&engine->log, NVS_LOG_WARNING,
		  "a call waits for room in the pool for %zu tensor%s, until others are released: "
		  "%s",
		  n, plural(n), text);
	return true;
}
