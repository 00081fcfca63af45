/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promotes runs in flight that a call waits for, because they move its tensors or make its room.
 * What the kernel has of a run already can't be promoted; the aio layer serves the rest first.
 */
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

/*
 * Promotes a run if its room is needed. Runs are long, and the lines of their tensors cold, so only
 * what is not known of the run is looked for in each of them. False: enough are promoted.
 */
static bool promote_for_room(struct nvs_engine *engine, struct promotion *promotion,
			     struct nvs_tensor *first)
{
	const struct nvs_tensor *tensor = promotion->evicted ? NULL : first;
	uint64_t nbytes = promotion->evicted ? first->rest->room : 0;

	if (promotion->covered >= promotion->missing)
		return false;
	for (; tensor; tensor = is_held(first) ? NULL : tensor->run_next)
		if (tensor->memory == MEMORY_POOL && !tensor->pins.count)
			nbytes += tensor->extent;
	if (nbytes)
		promote(engine, first);
	promotion->covered += nbytes;
	return true;
}

void room_promote(struct nvs_engine *engine, uint64_t need)
{
	uint64_t free = free_bytes(engine);
	struct nvs_tensor *first, *next;
	struct promotion promotion = {
		/* If enough is free, but fragmented, any `need` bytes that land may join free
		 * runs. */
		.missing = need > free ? need - free : need,
		.evicted = need <= free + engine->room.landing,
	};

	/* From the oldest on, as many as are needed: writes, then reads, awaited ones first. */
	for (int i = 0; i < 2 * TRANSFER_PRIORITIES; i++) {
		struct tensor_list *runs = engine->moves.runs[i / 2 ? NVS_READ : NVS_WRITE];

		first = TAILQ_FIRST(&runs[i % 2 ? TRANSFER_USUAL : TRANSFER_AWAITED]);
		for (; first; first = next) {
			next = TAILQ_NEXT(first, rest->launched);
			if (!promote_for_room(engine, &promotion, first))
				return;
		}
	}
	for (first = engine->moves.held_writes; first; first = first->run_next)
		if (!promote_for_room(engine, &promotion, first))
			return;
}
