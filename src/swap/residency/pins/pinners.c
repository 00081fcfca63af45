/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what each thread has pinned. A thread has a number of its own, so the entries of up to
 * PINNERS threads that were started one after another differ.
 */
#include "swap/residency/pins/pinners.h"

#include <assert.h>
#include <stdatomic.h>

#include "base/state_checks.h"
#include "swap/residency/internal.h"

uint32_t pinner_self(void)
{
	static atomic_uint threads;
	static _Thread_local unsigned number; /* 0: none yet */

	if (!number)
		number = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % PINNERS;
	return number - 1;
}

static void count_for(struct nvs_engine *engine, struct nvs_tensor *tensor, uint32_t pinner)
{
	struct pinners *pinners = &engine->pinners;

	tensor->pins.pinner = pinner;
	pinners->held[pinner] += tensor->extent;
	pinners->all += tensor->extent;
}

void pinner_takes(struct nvs_engine *engine, struct nvs_tensor *tensor, bool first)
{
	assert(first == (tensor->placement != PLACED_PINNED));
	if (!first)
		pinner_ends(engine, tensor);
	count_for(engine, tensor, pinner_self());
}

void pinner_stays(struct nvs_engine *engine, struct nvs_tensor *tensor, uint32_t pinner)
{
	assert(tensor->pins.count && tensor->placement == PLACED_PINNED);
	if (pinner == tensor->pins.pinner)
		return;
	pinner_ends(engine, tensor);
	count_for(engine, tensor, pinner);
}

void pinner_ends(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	struct pinners *pinners = &engine->pinners;

	assert(pinners->held[tensor->pins.pinner] >= tensor->extent);
	pinners->held[tensor->pins.pinner] -= tensor->extent;
	pinners->all -= tensor->extent;
}

void pinners_check(const struct pinners *pinners)
{
	uint64_t sum = 0;

	if (!STATE_CHECKS)
		return;
	for (unsigned i = 0; i < PINNERS; i++) {
		assert(pinners->held[i] <= pinners->all);
		sum += pinners->held[i];
	}
	assert(sum == pinners->all);
}
