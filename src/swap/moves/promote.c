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

	if (run->priority == TRANSFER_AWAITED)
		return;
	if (run->file)
		run_moves_to(engine, first, TRANSFER_AWAITED);
	aio_promote(engine->aio, run);
	assert(run->priority == TRANSFER_AWAITED);
}

void runs_promote_new(struct nvs_engine *engine, struct transfer *list)
{
	for (struct transfer *run = list; run; run = run->state.next) {
		if (run->priority == TRANSFER_AWAITED)
			continue;
		run_moves_to(engine, run->user, TRANSFER_AWAITED);
		run->priority = TRANSFER_AWAITED;
	}
}

void tensor_promote(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	if (in_flight(tensor))
		promote(engine, tensor->run_first);
}

/* ---- Room ---- */

/* What a call that waits for room lacks, and what is promoted for it. */
struct promotion {
	uint64_t missing; /* bytes of the pool */
	uint64_t covered; /* bytes that come free as promoted runs land */
	bool evicted;	  /* evictions in flight suffice; false: what may be evicted later counts */
};

/* The room that a run makes. Runs are long, and the lines of their tensors cold, so only what is
 * not known of the run is looked for in each of them. */
static uint64_t room_in(const struct promotion *promotion, const struct nvs_tensor *first)
{
	const struct nvs_tensor *tensor = first;
	uint64_t nbytes = 0;

	if (promotion->evicted)
		return first->rest->room;
	for (; tensor; tensor = is_held(first) ? NULL : tensor->run_next)
		if (tensor->memory == MEMORY_POOL && !tensor->pins.count)
			nbytes += tensor->extent;
	return nbytes;
}

/* Promotes the runs of one list that make room, from the oldest on, as many as are needed. */
static void promote_listed(struct nvs_engine *engine, struct promotion *promotion,
			   const struct tensor_list *list)
{
	struct nvs_tensor *first = TAILQ_FIRST(list), *next;

	for (; first && promotion->covered < promotion->missing; first = next) {
		uint64_t nbytes = room_in(promotion, first);

		next = TAILQ_NEXT(first, rest->launched);
		if (nbytes)
			promote(engine, first);
		promotion->covered += nbytes;
	}
}

static void promote_held(struct nvs_engine *engine, struct promotion *promotion)
{
	struct nvs_tensor *tensor = engine->moves.held_writes;

	for (; tensor && promotion->covered < promotion->missing; tensor = tensor->run_next) {
		uint64_t nbytes = room_in(promotion, tensor);

		if (nbytes)
			promote(engine, tensor);
		promotion->covered += nbytes;
	}
}

void room_promote(struct nvs_engine *engine, uint64_t need)
{
	uint64_t free = free_bytes(engine);
	struct promotion promotion = {
		/* If enough is free, but fragmented, any `need` bytes that land may join free
		 * runs. */
		.missing = need > free ? need - free : need,
		.evicted = need <= free + engine->room.landing,
	};

	for (int direction = NVS_WRITE; direction >= NVS_READ; direction--) {
		struct tensor_list *runs = engine->moves.runs[direction];

		promote_listed(engine, &promotion, &runs[TRANSFER_AWAITED]);
		promote_listed(engine, &promotion, &runs[TRANSFER_USUAL]);
	}
	promote_held(engine, &promotion);
}
