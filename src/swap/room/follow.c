/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records the order of a step and follows the plan through it: moves the cursor, keeps the next use
 * of each tensor, and makes the recording the plan of the next step.
 *
 * The cursor stands at the access expected next. An unexpected access is served and does not move
 * it; when the access after it is again in the plan's order, the step has continued elsewhere and
 * the cursor moves there, forwards or back. Memory for the recording is allocated in the first
 * step, in longer ones and for a new plan; without it the next step has no plan, and no call
 * fails. Forgetting a tensor of the plan drops the plan.
 */
#include <stdlib.h>

#include "base/memory/array.h"
#include "swap/room/room.h"

/* ---- Following ---- */

static void set_next(struct nvs_engine *engine, struct nvs_tensor *tensor, size_t at)
{
	if (is_listed(tensor))
		plan_mark_idle(&engine->plan, tensor, false);
	tensor->rest->next_use = at;
	if (is_listed(tensor))
		plan_mark_idle(&engine->plan, tensor, true);
}

/* The step skipped the access: a tensor read for it is no longer ahead of a use. */
static void skip(struct nvs_engine *engine, size_t at)
{
	struct nvs_tensor *tensor = engine->plan.order[at].tensor;
	bool listed = is_listed(tensor);

	if (listed)
		leave_idle(engine, tensor);
	set_ahead(engine, tensor, AHEAD_NOT);
	tensor->rest->next_use = engine->plan.next[at];
	if (listed)
		make_idle(engine, tensor);
}

static size_t after(const struct plan *plan, size_t at)
{
	return at + 1 < plan->n ? at + 1 : 0;
}

/* One access out of order does not move the cursor; a second one in the order of the first does. */
static void follow(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	struct plan *plan = &engine->plan;
	bool jumped = plan->resume != PLAN_NONE && plan->order[plan->resume].tensor == tensor;
	size_t at = plan->cursor;

	if (plan->order[at].tensor != tensor) {
		if (!jumped) {
			plan->resume = in_plan(tensor) ? after(plan, tensor->rest->next_use)
						       : PLAN_NONE;
			return;
		}
		at = plan->resume;
		while (plan->cursor < at)
			skip(engine, plan->cursor++);
		while (plan->cursor > at) {
			plan->cursor--;
			set_next(engine, plan->order[plan->cursor].tensor, plan->cursor);
		}
		plan->ready = 0;
	}
	plan->cursor = after(plan, at);
	plan->resume = PLAN_NONE;
	if (plan->ready)
		plan->ready--;
	set_next(engine, tensor, plan->next[at]);
}

/* ---- Recording ---- */

void plan_access(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents)
{
	struct plan *plan = &engine->plan;
	size_t at = plan->nrecorded;
	struct access *recording = plan->lost
					   ? NULL
					   : array_room(plan->recording, at, &plan->recording_max,
							sizeof(*recording));

	if (recording) {
		plan->recording = recording;
		plan->same = plan->same && at < plan->n && plan->order[at].tensor == tensor &&
			     plan->order[at].contents == contents;
		recording[plan->nrecorded++] = (struct access){tensor, contents};
		tensor->rest->recorded = plan->step;
	} else if (!plan->lost) {
		plan->lost = true;
		plan->same = false;
		log_later(&engine->log, NVS_LOG_WARNING,
			  "out of memory while recording the order of a step: the next one has no "
			  "plan");
	}
	if (plan->n)
		follow(engine, tensor);
}

/* ---- The plan of the next step ---- */

/* Room for a plan of n accesses; false: no memory. */
static bool plan_allocate(struct plan *plan, size_t n)
{
	struct access *order = reallocarray(plan->order, plan->recording_max, sizeof(*order));

	/* The present order's memory takes the next recording. */
	if (order) {
		plan->order = order;
		plan->order_max = plan->recording_max;
	}
	plan->next = calloc(n, sizeof(*plan->next));
	plan->before = calloc(n + 1, sizeof(*plan->before));
	plan->idle[PLAN_LARGE] = calloc((n + WORD_BITS - 1) / WORD_BITS, sizeof(uint64_t));
	plan->idle[PLAN_SMALL] = calloc((n + WORD_BITS - 1) / WORD_BITS, sizeof(uint64_t));
	if (order && plan->next && plan->before && plan->idle[PLAN_LARGE] && plan->idle[PLAN_SMALL])
		return true;
	plan_clear(plan);
	return false;
}

/* What follows from the order: next uses, and sums over the tensors. */
static void sum_up(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;
	uint64_t numel = 0, longest = 0;

	for (size_t i = 0; i < plan->n; i++)
		plan->order[i].tensor->rest->next_use = PLAN_NONE;
	/* From the end, so that each tensor ends up with its first use, which follows its last. */
	for (size_t i = plan->n; i--;) {
		plan->next[i] = plan->order[i].tensor->rest->next_use;
		plan->order[i].tensor->rest->next_use = i;
	}
	for (size_t i = 0; i < plan->n; i++) {
		struct nvs_tensor *tensor = plan->order[i].tensor;

		if (plan->next[i] == PLAN_NONE)
			plan->next[i] = tensor->rest->next_use;
		plan->before[i + 1] = plan->before[i] + tensor->numel;
		if (tensor->rest->next_use != i)
			continue;
		numel += tensor->numel;
		plan->extents += tensor->extent;
		plan->resident += tensor->memory == MEMORY_POOL ? tensor->extent : 0;
		longest = max_u64(longest, tensor->extent);
	}
	/* Within half of the pool, in elements, and the bucket. */
	plan->reach = UINT64_MAX;
	if (plan->extents > pool_bytes(engine->pool))
		plan->reach = min_u64((uint64_t)((double)numel / (double)plan->extents *
						 (double)pool_bytes(engine->pool) / 2),
				      engine->prefetch_bucket_size);
	plan->lookahead = plan->extents;
	if (numel > engine->prefetch_bucket_size)
		plan->lookahead = (uint64_t)((double)plan->extents / (double)numel *
					     (double)engine->prefetch_bucket_size) +
				  longest;
}

/* What the plan's tensors take of the pool that are to stay in it. */
static uint64_t small_bytes(const struct nvs_engine *engine)
{
	const struct plan *plan = &engine->plan;
	uint64_t nbytes = 0;

	for (size_t i = 0; i < plan->n; i++) {
		const struct nvs_tensor *tensor = plan->order[i].tensor;

		if (tensor->rest->next_use == i && tensor->numel < engine->persistence_threshold)
			nbytes += tensor->extent;
	}
	return nbytes;
}

/*
 * Moves an unpinned tensor to the list that matches its new eviction order. Outside the plan, a
 * tensor that the plan read ahead is an ordinary idle one; one that the caller read ahead stays so.
 */
static void set_class(struct nvs_engine *engine, struct nvs_tensor *tensor, enum plan_class class)
{
	bool listed = is_listed(tensor);
	enum read_ahead ahead = tensor->ahead;

	if (listed)
		leave_idle(engine, tensor);
	set_ahead(engine, tensor, AHEAD_NOT);
	tensor->class = class;
	set_ahead(engine, tensor, ahead);
	if (listed)
		make_idle(engine, tensor);
}

void plan_drop(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;

	lock_check(engine);
	for (size_t i = 0; i < plan->n; i++)
		if (in_plan(plan->order[i].tensor))
			set_class(engine, plan->order[i].tensor, PLAN_OUTSIDE);
	plan_clear(plan);
}

void plan_mend(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;
	struct access *recording = plan->recording;
	size_t max = plan->recording_max;
	uint64_t small;

	if (plan->same && plan->nrecorded == plan->n)
		return;
	plan_drop(engine);
	if (plan->lost || !plan->nrecorded)
		return;
	if (!plan_allocate(plan, plan->nrecorded)) {
		log_later(&engine->log, NVS_LOG_WARNING,
			  "out of memory for a plan of %zu accesses: the next step has none",
			  plan->nrecorded);
		return;
	}
	plan->recording = plan->order;
	plan->recording_max = plan->order_max;
	plan->order = recording;
	plan->order_max = max;
	plan->n = plan->nrecorded;
	sum_up(engine);
	small = small_bytes(engine) > pool_bytes(engine->pool) / 2 ? 0
								   : engine->persistence_threshold;
	for (size_t i = 0; i < plan->n; i++) {
		struct nvs_tensor *tensor = plan->order[i].tensor;

		if (!in_plan(tensor))
			set_class(engine, tensor, tensor->numel < small ? PLAN_SMALL : PLAN_LARGE);
	}
}
