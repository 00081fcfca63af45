/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine starts on its own in a planned step: reading ahead the next tensors, writing back
 * dirty ones that will be evicted while no call waits, and keeping to the budgets. It never evicts
 * a tensor that is needed sooner, and never waits.
 */
#include "config/config.h"
#include "swap/residency/internal.h"

/* Write back at most this much at a time, so that a caller's read waits no longer. */
#define WRITE_BLOCKS 8

/* ---- Budgets ---- */

static bool within_max_in_cpu(const struct nvs_engine *engine, const struct eviction *eviction)
{
	(void)eviction;
	return engine->held_numel <= engine->max_in_cpu;
}

static bool within_max_live(const struct nvs_engine *engine, const struct eviction *eviction)
{
	(void)eviction;
	return engine->live_numel - engine->landing_numel <= engine->max_live;
}

static struct transfer *keep_to(struct nvs_engine *engine, struct eviction *eviction)
{
	eviction->writes = eviction->own = true;
	eviction->needed_by = PLAN_NONE;
	evict_until_enough(engine, eviction);
	return runs_build(engine, engine->scratch, eviction->ndirty, NVS_WRITE);
}

struct transfer *keep_to_max_in_cpu(struct nvs_engine *engine)
{
	struct eviction eviction = {.enough = within_max_in_cpu, .held = true};

	return keep_to(engine, &eviction);
}

struct transfer *keep_to_max_live(struct nvs_engine *engine)
{
	struct eviction eviction = {.enough = within_max_live, .ahead = true};

	return engine->plan.n ? keep_to(engine, &eviction) : NULL;
}

/* ---- Reading ahead ---- */

static bool can_be_fetched(const struct nvs_engine *engine, const struct eviction *eviction)
{
	return free_bytes(engine) >= eviction->goal &&
	       engine->live_numel + eviction->numel <= engine->max_live;
}

/* A tensor whose last transfer failed is read again only when a call asks for it. */
static bool wanted(const struct plan *plan, size_t at)
{
	const struct nvs_tensor *tensor = plan->order[at].tensor;

	return plan->order[at].contents && tensor->next_use == at &&
	       tensor->state == NVS_ON_DRIVE && !tensor->status && tensor->extent;
}

/* It is evicted as soon as its write lands. */
static bool on_its_way_out(const struct nvs_tensor *tensor)
{
	return in_flight(tensor) && (tensor->drop || tensor->external);
}

/* Puts the plan's next tensors to read that have room, `max` at most, into engine->scratch. */
static size_t choose(struct nvs_engine *engine, size_t max)
{
	struct plan *plan = &engine->plan;
	struct eviction eviction = {.enough = can_be_fetched, .own = true};
	size_t count = 0;

	for (size_t i = plan->settled; i < plan->n && count < max; i++) {
		size_t at = (plan->cursor + i) % plan->n;
		struct nvs_tensor *tensor = plan->order[at].tensor;

		if (on_its_way_out(tensor))
			break;
		if (!wanted(plan, at)) {
			plan->settled += !count;
			continue;
		}
		/* As in DeepSpeed, the last one may exceed the rest of the bucket. */
		if (engine->ahead_numel + eviction.numel >= engine->prefetch_bucket_size)
			break;
		eviction.goal += tensor->extent;
		eviction.numel += tensor->numel;
		eviction.needed_by = at;
		evict_until_enough(engine, &eviction);
		if (!can_be_fetched(engine, &eviction))
			break;
		engine->scratch[count++] = tensor;
	}
	return count;
}

/* Enough is free, but fragmented: evicts one more tensor that is needed later, if there is any. */
static bool join_pieces(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	struct eviction eviction = {.enough = can_be_fetched,
				    .own = true,
				    .goal = free_bytes(engine) + 1,
				    .needed_by = tensor->next_use};

	evict_until_enough(engine, &eviction);
	return eviction.ntaken;
}

static struct transfer *read_ahead(struct nvs_engine *engine)
{
	size_t count = choose(engine, SIZE_MAX);

	while (count && !lease_all(engine, count)) {
		if (count > 1)
			count = choose(engine, count / 2);
		else if (!join_pieces(engine, engine->scratch[0]))
			count = 0;
	}
	for (size_t i = 0; i < count; i++) {
		set_prefetched(engine, engine->scratch[i], true);
		engine->scratch[i]->fetched = engine->scratch[i]->by_engine = true;
	}
	return runs_build(engine, engine->scratch, count, NVS_READ);
}

/* ---- Writing behind ---- */

/* Bytes to keep free or clean, so that the next reads find room at once. */
static uint64_t reserve(const struct plan *plan)
{
	uint64_t missing = plan->extents - plan->resident;

	return missing < plan->lookahead ? missing : plan->lookahead;
}

struct behind {
	uint64_t have;	/* bytes free or clean once this is written */
	uint64_t want;	/* the goal of `have` */
	uint64_t bytes; /* to be written */
	size_t count;
	bool dirty; /* consider dirty tensors; false: clean ones */
};

/* False: no more fits this time. */
static bool consider(struct nvs_engine *engine, struct nvs_tensor *tensor, struct behind *behind)
{
	uint64_t limit = (uint64_t)engine->aio_config.block_size * WRITE_BLOCKS;

	if (tensor->dirty != behind->dirty || (tensor->dirty && tensor->status))
		return true;
	if (tensor->dirty) {
		if (behind->count && behind->bytes + tensor->extent > limit)
			return false;
		engine->scratch[behind->count++] = tensor;
		behind->bytes += tensor->extent;
	}
	behind->have += tensor->extent;
	return true;
}

/* In eviction order, down to the tensors that are needed before the next one to read. */
static void consider_all(struct nvs_engine *engine, struct behind *behind)
{
	const struct plan *plan = &engine->plan;
	struct nvs_tensor *tensor = TAILQ_FIRST(&engine->idle);
	size_t at = plan_last(plan, PLAN_LARGE);

	for (; tensor && behind->have < behind->want; tensor = TAILQ_NEXT(tensor, idle))
		if (!consider(engine, tensor, behind))
			return;
	while (at != PLAN_NONE && behind->have < behind->want &&
	       plan_rank(plan, at) >= plan->settled) {
		if (!consider(engine, plan->order[at].tensor, behind))
			return;
		at = plan_last_before(plan, PLAN_LARGE, at);
	}
}

static struct behind choose_behind(struct nvs_engine *engine)
{
	struct behind behind = {.have = free_bytes(engine) + engine->landing,
				.want = reserve(&engine->plan)};

	consider_all(engine, &behind);
	behind.dirty = true;
	consider_all(engine, &behind);
	return behind;
}

static struct transfer *write_behind(struct nvs_engine *engine)
{
	struct behind behind;
	struct transfer *list;

	if (engine->inflight[NVS_READ] || engine->inflight[NVS_WRITE])
		return NULL;
	behind = choose_behind(engine);
	if (!behind.count)
		return NULL;
	for (size_t i = 0; i < behind.count; i++) {
		leave_idle(engine, engine->scratch[i]);
		engine->scratch[i]->by_engine = true;
	}
	list = runs_build(engine, engine->scratch, behind.count, NVS_WRITE);
	/* Empty tensors have landed already and keep their place. */
	for (size_t i = 0; i < behind.count; i++)
		if (!engine->scratch[i]->extent)
			make_idle(engine, engine->scratch[i]);
	return list;
}

struct transfer *move_ahead(struct nvs_engine *engine)
{
	struct transfer *list;

	if (!engine->step.begun || !engine->plan.n || engine->waiting)
		return NULL;
	list = read_ahead(engine);
	return list ? list : write_behind(engine);
}
