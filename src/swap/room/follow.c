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
#include <assert.h>

#include "base/error.h"
#include "swap/room/room.h"

/* ---- Following ---- */

static void set_next(struct nvs_engine *engine, struct nvs_tensor *tensor, size_t at)
{
	assert(at < engine->plan.n && engine->plan.order[at].tensor == tensor);
	assert(in_plan(tensor));
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

	assert(tensor->rest->next_use == at && engine->plan.next[at] < engine->plan.n);
	assert(in_plan(tensor));
	if (listed)
		leave_idle(engine, tensor);
	set_ahead(engine, tensor, AHEAD_NOT);
	tensor->rest->next_use = engine->plan.next[at];
	if (listed)
		make_idle(engine, tensor);
}

static void move_to(struct nvs_engine *engine, size_t to)
{
	struct plan *plan = &engine->plan;

	assert(to < plan->n && to != plan->cursor);
	while (plan->cursor < to)
		skip(engine, plan->cursor++);
	while (plan->cursor > to) {
		plan->cursor--;
		set_next(engine, plan->order[plan->cursor].tensor, plan->cursor);
	}
	plan->ready = 0;
	assert(plan->cursor == to);
}

static size_t after(const struct plan *plan, size_t at)
{
	assert(at < plan->n);
	return at + 1 < plan->n ? at + 1 : 0;
}

/*
 * One access out of order does not move the cursor; a second one in the order of the first does.
 */
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
		move_to(engine, at);
	}
	assert(plan->order[at].tensor == tensor);
	plan->cursor = after(plan, at);
	plan->resume = PLAN_NONE;
	if (plan->ready)
		plan->ready--;
	set_next(engine, tensor, plan->next[at]);
	assert(plan->order[plan->cursor].tensor->rest->next_use == plan->cursor);
}

/* ---- Recording ---- */

static void record(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents)
{
	struct plan *plan = &engine->plan;
	size_t at = plan->nrecorded;

	assert(plan->step && tensor->rest->recorded <= plan->step);
	if (plan->lost)
		return;
	if (!plan_make_room(&plan->recording, &plan->recording_max, at + 1)) {
		plan->lost = true;
		plan->same = false;
		say_later(engine, NVS_LOG_WARNING,
			  "out of memory while recording the order of a step: the next one has no "
			  "plan");
		return;
	}
	plan->same = plan->same && at < plan->n && plan->order[at].tensor == tensor &&
		     plan->order[at].contents == contents;
	assert(plan->nrecorded < plan->recording_max);
	plan->recording[plan->nrecorded++] = (struct access){tensor, contents};
	tensor->rest->recorded = plan->step;
}

void plan_access(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents)
{
	lock_check(engine);
	assert(tensor->engine == engine);
	record(engine, tensor, contents);
	if (engine->plan.n)
		follow(engine, tensor);
	plan_check(&engine->plan);
}

bool plan_has(struct plan *plan, const struct nvs_tensor *tensor)
{
	assert(!in_plan(tensor) || plan->order[tensor->rest->next_use].tensor == tensor);
	assert(tensor->rest->recorded <= plan->step);
	if (tensor->rest->recorded == plan->step && plan->step)
		plan->lost = true;
	return in_plan(tensor);
}

/* ---- The plan of the next step ---- */

/* From the end, so that each tensor ends up with its first use, which follows its last. */
static void find_next_uses(struct plan *plan)
{
	for (size_t i = 0; i < plan->n; i++)
		plan->order[i].tensor->rest->next_use = PLAN_NONE;
	for (size_t i = plan->n; i--;) {
		struct nvs_tensor *tensor = plan->order[i].tensor;

		assert(tensor->rest->next_use == PLAN_NONE || tensor->rest->next_use > i);
		plan->next[i] = tensor->rest->next_use;
		tensor->rest->next_use = i;
	}
	for (size_t i = 0; i < plan->n; i++)
		if (plan->next[i] == PLAN_NONE)
			plan->next[i] = plan->order[i].tensor->rest->next_use;
	assert(!plan->n || plan->next[plan->n - 1] < plan->n);
}

static void sum_up(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;
	uint64_t numel = 0, longest = 0;

	assert(plan->n && !plan->extents && !plan->resident);
	for (size_t i = 0; i < plan->n; i++) {
		struct nvs_tensor *tensor = plan->order[i].tensor;

		plan->before[i + 1] = plan->before[i] + tensor->numel;
		if (tensor->rest->next_use != i)
			continue;
		numel += tensor->numel;
		plan->extents += tensor->extent;
		plan->resident += tensor->memory == MEMORY_POOL ? tensor->extent : 0;
		longest = tensor->extent > longest ? tensor->extent : longest;
	}
	assert(plan->resident <= plan->extents && longest <= plan->extents);
	plan->lookahead = plan->extents;
	if (numel > engine->prefetch_bucket_size)
		plan->lookahead = (uint64_t)((double)plan->extents / (double)numel *
					     (double)engine->prefetch_bucket_size) +
				  longest;
	assert(plan->lookahead <= plan->extents + longest);
}

static bool adopt(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;
	struct access *recording = plan->recording;
	size_t max = plan->recording_max;

	assert(!plan->n && !plan->lost);
	if (!plan->nrecorded)
		return true;
	if (!plan_allocate(plan, plan->nrecorded))
		return false;
	plan->recording = plan->order;
	plan->recording_max = plan->order_max;
	plan->order = recording;
	plan->order_max = max;
	plan->n = plan->nrecorded;
	find_next_uses(plan);
	sum_up(engine);
	plan_made_check(plan);
	return true;
}

/*
 * Moves an unpinned tensor to the list that matches its new eviction order. Outside the plan, a
 * tensor that the plan read ahead is an ordinary idle one; one that the caller read ahead stays so.
 */
static void set_class(struct nvs_engine *engine, struct nvs_tensor *tensor, enum plan_class class)
{
	bool listed = is_listed(tensor);
	enum read_ahead ahead = tensor->ahead;

	assert(class != tensor->class);
	if (listed)
		leave_idle(engine, tensor);
	set_ahead(engine, tensor, AHEAD_NOT);
	tensor->class = class;
	set_ahead(engine, tensor, ahead);
	if (listed)
		make_idle(engine, tensor);
	assert(is_listed(tensor) == listed && tensor->ahead == ahead);
}

static enum plan_class class_of(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	assert(tensor->engine == engine && !in_plan(tensor));
	assert(tensor->rest->next_use < engine->plan.n);
	return tensor->numel < engine->persistence_threshold ? PLAN_SMALL : PLAN_LARGE;
}

void plan_drop(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;

	lock_check(engine);
	for (size_t i = 0; i < plan->n; i++)
		if (in_plan(plan->order[i].tensor))
			set_class(engine, plan->order[i].tensor, PLAN_OUTSIDE);
	assert(!engine->ahead_numel && TAILQ_EMPTY(&engine->planned));
	plan_clear(plan);
	plan_check(plan);
}

/* Makes this step's order the plan of the next. */
void plan_mend(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;

	lock_check(engine);
	assert(plan->nrecorded <= plan->recording_max);
	if (plan->same && plan->nrecorded == plan->n)
		return;
	plan_drop(engine);
	if (plan->lost)
		return;
	if (!adopt(engine))
		say_later(engine, NVS_LOG_WARNING,
			  "out of memory for a plan of %zu accesses: the next step has none",
			  plan->nrecorded);
	for (size_t i = 0; i < plan->n; i++)
		if (!in_plan(plan->order[i].tensor))
			set_class(engine, plan->order[i].tensor,
				  class_of(engine, plan->order[i].tensor));
	plan_check(plan);
}
