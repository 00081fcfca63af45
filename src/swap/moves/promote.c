/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promotes runs in flight that a call waits for, because they move its tensors or make its room.
 * What the kernel has of a run already can't be promoted; the aio layer serves the rest first.
 */
#include <assert.h>

#include "swap/moves/moves.h"

/* A write that waits for a commit is no run yet: its run will have the priority. */
static void promote(struct nvs_engine *engine, struct nvs_tensor *first)
{
	struct transfer *run = &first->rest->transfer;

	assert(run->user == first && first->run_first == first && in_flight(first));
	if (run->priority == TRANSFER_AWAITED)
		return;
	if (run->file)
		run_moves_to(engine, first, TRANSFER_AWAITED);
	aio_promote(engine->aio, run);
	assert(run->priority == TRANSFER_AWAITED);
}

void runs_promote_new(struct nvs_engine *engine, struct transfer *list)
{
	lock_check(engine);
	for (struct transfer *run = list; run; run = run->state.next) {
		assert(run->state.phase == TRANSFER_NEW);
		if (run->priority == TRANSFER_AWAITED)
			continue;
		run_check(run);
		run_moves_to(engine, run->user, TRANSFER_AWAITED);
		run->priority = TRANSFER_AWAITED;
	}
}

void tensor_promote(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	assert(tensor->engine == engine);
	if (in_flight(tensor))
		promote(engine, tensor->run_first);
}

/* ---- Room ---- */

/* What a call that waits for room lacks, and what is promoted for it. */
struct promotion {
	uint64_t missing; /* bytes of the pool */
	uint64_t covered; /* bytes of the promoted runs, each of which makes room */
	bool evicted;	  /* evictions in flight suffice; false: what may be evicted later counts */
};

static bool makes_room(const struct promotion *promotion, const struct nvs_tensor *tensor)
{
	assert(in_flight(tensor) && promotion->missing);
	if (tensor->memory != MEMORY_POOL || tensor->pins.count)
		return false;
	return !promotion->evicted || tensor->on_landing == LANDING_EVICTS;
}

/*
 * Promotes runs of one list that make room, the oldest first, until they have the bytes that are
 * missing. A run counts with all of its bytes from the first tensor on that makes room, since
 * visiting the others would load their cold lines.
 */
static void promote_listed(struct nvs_engine *engine, struct promotion *promotion,
			   const struct tensor_list *list)
{
	struct nvs_tensor *first = TAILQ_FIRST(list), *next;

	assert(promotion->missing);
	for (; first && promotion->covered < promotion->missing; first = next) {
		const struct nvs_tensor *tensor = first;

		next = TAILQ_NEXT(first, rest->launched);
		assert(first->run_first == first && first->rest->transfer.file);
		while (tensor && !makes_room(promotion, tensor))
			tensor = tensor->run_next;
		if (!tensor)
			continue;
		promote(engine, first);
		promotion->covered += first->rest->transfer.nbytes;
	}
}

static void promote_held(struct nvs_engine *engine, struct promotion *promotion)
{
	struct nvs_tensor *tensor = engine->held_writes;

	for (; tensor && promotion->covered < promotion->missing; tensor = tensor->run_next) {
		assert(tensor->run_first == tensor && !tensor->rest->transfer.file);
		assert(tensor->io == IO_WRITING);
		if (!makes_room(promotion, tensor))
			continue;
		promote(engine, tensor);
		promotion->covered += tensor->extent;
	}
}

void room_promote(struct nvs_engine *engine, uint64_t need)
{
	uint64_t free = free_bytes(engine);
	struct promotion promotion = {
		/* If enough is free, but fragmented, any `need` bytes that land may join free
		 * runs. */
		.missing = need > free ? need - free : need,
		.evicted = need <= free + engine->landing,
	};

	lock_check(engine);
	assert(need && need <= pool_bytes(engine->pool));
	for (int direction = NVS_WRITE; direction >= NVS_READ; direction--) {
		struct tensor_list *runs = engine->runs[direction];

		promote_listed(engine, &promotion, &runs[TRANSFER_AWAITED]);
		promote_listed(engine, &promotion, &runs[TRANSFER_USUAL]);
	}
	promote_held(engine, &promotion);
}
