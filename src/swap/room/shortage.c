/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which tensors hold the pool while a call waits for room: a forgotten release would
 * otherwise let the call wait for ever in silence. It only reads, under the engine's lock, and
 * never waits.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "swap/room/room.h"

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
	    size_text(free_bytes(engine), free_text),
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
