/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits runs, without the lock: their checksums are computed while the drive writes.
 */
#include <assert.h>

#include "base/clock.h"
#include "swap/moves/moves.h"

static void note_launch(struct transfer *list)
{
	uint64_t now = clock_ns();

	for (struct transfer *run = list; run; run = run->state.next) {
		struct nvs_tensor *first = run->user;

		assert(first->run_first == first && now >= first->rest->launched_ns);
		first->rest->launched_ns = now;
	}
}

void launch(struct nvs_engine *engine, struct transfer *list)
{
	unlocked_check(engine);
	if (!list)
		return;
	if (engine->trace)
		note_launch(list);
	runs_check(list);
	for (const struct transfer *run = list; run; run = run->state.next)
		assert(run->direction == NVS_READ || !engine->read_only);
	sums_begin(engine, list);
	aio_submit_list(engine->aio, engine->events.completions, list);
}
