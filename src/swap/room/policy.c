/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides what is evicted, read ahead and written behind. As in DeepSpeed, small tensors, those
 * that are needed again soon and those read ahead stay. The engine never evicts on its own what is
 * needed sooner than the tensor that takes its place.
 *
 * Read ahead: the next tensors of the plan that are on the drive, in order, while those not yet
 * pinned have fewer elements than stage3_prefetch_bucket_size (the last one whole) and the pool at
 * most stage3_max_live_parameters. Their room is free memory, or clean tensors that are needed
 * later. If the pool does not hold all of the plan, those read ahead are needed within half of it
 * or that bucket: what was used last would go for one that is needed long after, and a cycle that
 * exceeds the pool by a little would be read whole. The first without room stops the reading. One
 * whose last transfer failed is left to the next call that asks for it.
 *
 * Stays: fewer elements than stage3_param_persistence_threshold, unless all of these take more than
 * half of the pool, where they would leave no room to read ahead; needed again within
 * stage3_max_reuse_distance; or read ahead. All others, and tensors that the plan does not have,
 * count towards max_in_cpu; those without a plan go first, least recently used first, and small
 * ones last.
 *
 * Written behind: if the pool does not hold all of the plan, dirty unpinned tensors that will go
 * first, while nothing is in flight and no call waits for room, eight blocks or one tensor at a
 * time, until free and clean memory holds what is to be read ahead. If it holds all, they stay
 * dirty until a commit.
 */
#include "swap/room/room.h"

/* Write behind at most this much at a time, so that a caller's read waits no longer. */
#define WRITE_BLOCKS 8

bool policy_counts(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	if (is_ahead(tensor))
		return false;
	return !in_plan(tensor) ||
	       (tensor->class != PLAN_SMALL &&
		plan_distance(&engine->plan, tensor->rest->next_use) > engine->max_reuse_distance);
}

/* ---- How much is evicted ---- */

static bool reached_goal(const struct nvs_engine *engine, const struct eviction *eviction)
{
	assert(eviction->reached <= pool_bytes(engine->pool));
	return eviction->reached >= eviction->goal;
}

static bool within_budget(const struct nvs_engine *engine, const struct eviction *eviction)
{
	const struct room_state *room = &engine->room;

	return eviction->counted ? room->counted_numel <= engine->max_in_cpu
				 : room->live_numel - room->landing_numel <= engine->max_live;
}

bool policy_may_read(const struct nvs_engine *engine, const struct eviction *eviction)
{
	return pool_free_bytes(engine->pool) >= eviction->goal &&
	       engine->room.live_numel + eviction->numel <= engine->max_live;
}

struct eviction eviction_for_batch(const struct nvs_engine *engine, uint64_t need)
{
	return (struct eviction){.enough = reached_goal,
				 .goal = need,
				 .reached = pool_free_bytes(engine->pool) + engine->room.landing,
				 .writes = true,
				 .ahead = true,
				 .small = true,
				 .needed_by = PLAN_NONE};
}

struct eviction eviction_for_prefetch(const struct nvs_engine *engine, uint64_t need)
{
	return (struct eviction){.enough = reached_goal,
				 .goal = need,
				 .reached = pool_free_bytes(engine->pool),
				 .needed_by = PLAN_NONE};
}

struct eviction eviction_for_plan(uint64_t goal, size_t needed_by)
{
	return (struct eviction){
		.enough = policy_may_read, .own = true, .goal = goal, .needed_by = needed_by};
}

struct eviction eviction_to_budget(bool counted)
{
	return (struct eviction){.enough = within_budget,
				 .writes = true,
				 .own = true,
				 .ahead = !counted,
				 .counted = counted,
				 .needed_by = PLAN_NONE};
}

/* ---- Which tensor is evicted next ---- */

static void begin_turn(const struct nvs_engine *engine, struct eviction *eviction)
{
	switch (eviction->turn) {
	case TURN_IDLE:
		eviction->tensor = TAILQ_FIRST(&engine->room.lists[PLACED_IDLE]);
		break;
	case TURN_AHEAD:
		eviction->tensor = eviction->ahead ? TAILQ_LAST(&engine->room.lists[PLACED_AHEAD],
								tensor_list)
						   : NULL;
		break;
	case TURN_LARGE:
		eviction->at = plan_last(&engine->plan, PLAN_LARGE, PLAN_NONE);
		break;
	case TURN_SMALL:
		eviction->at = eviction->small ? plan_last(&engine->plan, PLAN_SMALL, PLAN_NONE)
					       : PLAN_NONE;
		break;
	case TURN_NONE:
		break;
	}
}

void eviction_restart(const struct nvs_engine *engine, struct eviction *eviction)
{
	eviction->turn = TURN_IDLE;
	begin_turn(engine, eviction);
}

struct nvs_tensor *eviction_next(const struct nvs_engine *engine, struct eviction *eviction)
{
	const struct plan *plan = &engine->plan;
	size_t until = eviction->needed_by;

	while (eviction->turn != TURN_NONE &&
	       !(eviction->enough && eviction->enough(engine, eviction))) {
		bool listed = eviction->turn == TURN_IDLE || eviction->turn == TURN_AHEAD;
		struct nvs_tensor *tensor = listed ? eviction->tensor : NULL;
		size_t at = eviction->at;

		if (tensor) {
			eviction->tensor = eviction->turn == TURN_AHEAD
						   ? TAILQ_PREV(tensor, tensor_list, idle)
						   : TAILQ_NEXT(tensor, idle);
		} else if (!listed && at != PLAN_NONE &&
			   (until == PLAN_NONE || plan_rank(plan, at) > plan_rank(plan, until))) {
			tensor = plan->order[at].tensor;
			eviction->at = plan_last(
				plan, eviction->turn == TURN_SMALL ? PLAN_SMALL : PLAN_LARGE, at);
		}
		if (!tensor) {
			eviction->turn++;
			begin_turn(engine, eviction);
			continue;
		}
		assert(is_listed(tensor) && !tensor->pins.count && !in_flight(tensor));
		if ((eviction->own || tensor->batch != engine->batch) &&
		    (!eviction->counted || tensor->counted) &&
		    (eviction->ahead || !is_ahead(tensor)) &&
		    (eviction->writes || !is_dirty(tensor)))
			return tensor;
	}
	return NULL;
}

/* ---- Reading ahead ---- */

struct nvs_tensor *policy_next_read(struct nvs_engine *engine, size_t *rank, uint64_t numel)
{
	struct plan *plan = &engine->plan;

	for (; *rank < plan->n; (*rank)++) {
		size_t at = (plan->cursor + *rank) % plan->n;
		struct nvs_tensor *tensor = plan->order[at].tensor;

		/* It is evicted as soon as its write lands. */
		if (in_flight(tensor) &&
		    (tensor->on_landing == LANDING_EVICTS || is_external(tensor)))
			return NULL;
		/* One whose last transfer failed is read again only when a call asks for it. */
		if (!plan->order[at].contents || tensor->rest->next_use != at ||
		    tensor_state(tensor) != NVS_ON_DRIVE || tensor->status || tensor->unread ||
		    !tensor->extent) {
			plan->ready += *rank == plan->ready;
			continue;
		}
		/* As in DeepSpeed, the last one may exceed the rest of the bucket. */
		return engine->room.ahead_numel + numel < engine->prefetch_bucket_size &&
				       plan_distance(plan, at) <= plan->reach
			       ? tensor
			       : NULL;
	}
	return NULL;
}

/* ---- Writing behind ---- */

size_t policy_choose_writes(struct nvs_engine *engine)
{
	const struct plan *plan = &engine->plan;
	uint64_t limit = (uint64_t)engine->aio_config.block_size * WRITE_BLOCKS, nbytes = 0;
	/* What is free or clean, so that the next reads find room at once. */
	uint64_t have = pool_free_bytes(engine->pool) + engine->room.landing;
	uint64_t want = min_u64(plan->extents - plan->resident, plan->lookahead);
	struct nvs_tensor *tensor;
	size_t count = 0;

	/* Clean tensors count first; dirty ones are written for the rest. */
	for (int dirty = 0; dirty < 2; dirty++) {
		/* Down to the tensors that are needed before the next one to read. */
		struct eviction order = {.own = true, .writes = true, .needed_by = PLAN_NONE};

		if (plan->ready)
			order.needed_by = (plan->cursor + plan->ready - 1) % plan->n;
		eviction_restart(engine, &order);
		while (have < want && (tensor = eviction_next(engine, &order))) {
			if (is_dirty(tensor) != dirty || (dirty && tensor->status))
				continue;
			if (dirty && count && nbytes + tensor->extent > limit)
				return count;
			if (dirty)
				engine->scratch[count++] = tensor;
			nbytes += dirty ? tensor->extent : 0;
			have += tensor->extent;
		}
	}
	return count;
}
