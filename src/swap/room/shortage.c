/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which tensors hold the pool while a call waits for room: a forgotten release would
 * otherwise let the call wait for ever in silence. It only reads, under the engine's lock, and
 * never waits.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "swap/room/room.h"

#define LARGEST_NAMED 3

struct holders {
	uint64_t tensors, nbytes; /* pinned, in the pool */
	const struct nvs_tensor *largest[LARGEST_NAMED];
	unsigned nlargest;
};

static struct holders find_holders(const struct nvs_engine *engine)
{
	struct holders holders = {0};

	for (size_t i = 0; i < engine->ntensors; i++) {
		const struct nvs_tensor *tensor = engine->tensors[i];
		unsigned at;

		if (!tensor->pins.count || tensor->memory != MEMORY_POOL)
			continue;
		holders.tensors++;
		holders.nbytes += tensor->extent;
		at = holders.nlargest;
		while (at && holders.largest[at - 1]->extent < tensor->extent)
			at--;
		if (at == LARGEST_NAMED)
			continue;
		if (holders.nlargest < LARGEST_NAMED)
			holders.nlargest++;
		for (unsigned k = holders.nlargest - 1; k > at; k--)
			holders.largest[k] = holders.largest[k - 1];
		holders.largest[at] = tensor;
	}
	assert(holders.nbytes == engine->pinners.all);
	return holders;
}

/* ---- As text ---- */

/* Writes up to the byte `last`, which is the terminating NUL at most. Returns the end of the
 * text. */
static __attribute__((format(printf, 3, 4))) char *put(char *at, const char *last,
						       const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(at, (size_t)(last - at) + 1, format, args);
	va_end(args);
	assert(n >= 0);
	return n <= last - at ? at + n : at + strlen(at);
}

static char *put_holder(char *at, const char *last, const struct nvs_tensor *tensor, uint64_t now)
{
	uint64_t ms = (now - tensor->pins.since_ns) / 1000000;
	uint64_t pins[LARGEST_NAMED];
	size_t n = pins_list(tensor, pins, LARGEST_NAMED);
	char nbytes[32];

	at = put(at, last, "%.120s (%s, for %" PRIu64 ".%03u s by pin%s ", tensor->rest->name,
		 size_text(tensor->extent, nbytes), ms / 1000, (unsigned)(ms % 1000), plural(n));
	for (size_t i = 0; i < n; i++)
		at = put(at, last, "%s%" PRIu64, i ? ", " : "", pins[i]);
	if (tensor->pins.count > n)
		at = put(at, last, " and %" PRIu64 " more", (uint64_t)tensor->pins.count - n);
	return put(at, last, ")");
}

void shortage_text(const struct nvs_engine *engine, char text[SHORTAGE_TEXT_BYTES])
{
	struct holders holders = find_holders(engine);
	const char *last = &text[SHORTAGE_TEXT_BYTES - 1];
	uint64_t now = clock_ns(), unnamed = holders.tensors - holders.nlargest;
	char pinned[32], all[32], free_text[32], longest[32];

	text = put(text, last, "%s of the pool's %s are pinned by %" PRIu64 " tensor%s",
		   size_text(holders.nbytes, pinned), size_text(pool_bytes(engine->pool), all),
		   holders.tensors, plural(holders.tensors));
	for (unsigned i = 0; i < holders.nlargest; i++) {
		text = put(text, last, "%s", i ? ", " : ": ");
		text = put_holder(text, last, holders.largest[i], now);
	}
	if (unnamed)
		text = put(text, last, " and %" PRIu64 " more", unnamed);
	put(text, last, "; %s are free, at most %s of it in one piece",
	    size_text(free_bytes(engine), free_text),
	    size_text(pool_largest_free(engine->pool), longest));
}

/* ---- In time ---- */

uint64_t shortage_deadline(const struct nvs_engine *engine, struct shortage *shortage,
			   uint64_t deadline)
{
	if (shortage->told)
		return deadline;
	if (!shortage->tell_at_ns)
		shortage->tell_at_ns = clock_ns() + engine->room.shortage_after_ns;
	return shortage->tell_at_ns < deadline ? shortage->tell_at_ns : deadline;
}

void shortage_tell(struct nvs_engine *engine, struct shortage *shortage, size_t n)
{
	char text[SHORTAGE_TEXT_BYTES];

	assert(!shortage->told && shortage->tell_at_ns);
	shortage->tell_at_ns = 0;
	/* Memory comes free without another call's doing: an unpinned tensor has yet to land. */
	if (engine->room.landing)
		return;
	for (size_t i = 0; i < engine->ntensors; i++)
		if (in_flight(engine->tensors[i]) && !engine->tensors[i]->pins.count)
			return;
	shortage->told = true;
	shortage_text(engine, text);
	say_later(engine, NVS_LOG_WARNING,
		  "a call waits for room in the pool for %zu tensor%s, until others are released: "
		  "%s",
		  n, plural(n), text);
}
