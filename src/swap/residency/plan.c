/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records and follows the order of a step. Positions wrap around at the end: the next step is
 * expected to repeat this one. What to do about it is decided in room.c and ahead.c.
 */
#include "swap/residency/plan.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "swap/residency/internal.h"

#define WORD_BITS 64

static size_t words(size_t n)
{
	return (n + WORD_BITS - 1) / WORD_BITS;
}

void plan_clear(struct plan *plan)
{
	free(plan->next);
	free(plan->before);
	free(plan->idle[PLAN_LARGE]);
	free(plan->idle[PLAN_SMALL]);
	plan->next = NULL;
	plan->before = plan->idle[PLAN_LARGE] = plan->idle[PLAN_SMALL] = NULL;
	plan->n = plan->cursor = plan->settled = 0;
	plan->extents = plan->resident = plan->lookahead = 0;
	plan->resume = PLAN_NONE;
}

void plan_free(struct plan *plan)
{
	plan_clear(plan);
	free(plan->order);
	free(plan->recording);
}

/* ---- Asking ---- */

size_t plan_rank(const struct plan *plan, size_t at)
{
	assert(at < plan->n);
	return at >= plan->cursor ? at - plan->cursor : at + plan->n - plan->cursor;
}

uint64_t plan_distance(const struct plan *plan, size_t at)
{
	uint64_t here = plan->before[plan->cursor], there = plan->before[at];

	return at >= plan->cursor ? there - here : plan->before[plan->n] - here + there;
}

/* The highest bit set in [low, high). */
static size_t highest(const uint64_t *bits, size_t low, size_t high)
{
	while (low < high) {
		size_t word = (high - 1) / WORD_BITS, first = word * WORD_BITS;
		uint64_t value = bits[word];

		if (high - first < WORD_BITS)
			value &= (UINT64_C(1) << (high - first)) - 1;
		if (first < low)
			value &= ~UINT64_C(0) << (low - first);
		if (value)
			return first + WORD_BITS - 1 - (size_t)__builtin_clzll(value);
		high = first;
	}
	return PLAN_NONE;
}

size_t plan_last_before(const struct plan *plan, enum plan_class class, size_t at)
{
	const uint64_t *bits = plan->idle[class];
	size_t found;

	if (at >= plan->cursor)
		return highest(bits, plan->cursor, at);
	found = highest(bits, 0, at);
	return found != PLAN_NONE ? found : highest(bits, plan->cursor, plan->n);
}

size_t plan_last(const struct plan *plan, enum plan_class class)
{
	const uint64_t *bits = plan->idle[class];
	size_t found = plan->n ? highest(bits, 0, plan->cursor) : PLAN_NONE;

	return found != PLAN_NONE || !plan->n ? found : highest(bits, plan->cursor, plan->n);
}

/* ---- Telling ---- */

void plan_mark_idle(struct plan *plan, const struct nvs_tensor *tensor, bool idle)
{
	uint64_t *word = &plan->idle[tensor->small][tensor->next_use / WORD_BITS];
	uint64_t bit = UINT64_C(1) << (tensor->next_use % WORD_BITS);

	assert(tensor->planned && tensor->next_use < plan->n);
	if (idle)
		*word |= bit;
	else
		*word &= ~bit;
}

void plan_unsettle(struct plan *plan, const struct nvs_tensor *tensor)
{
	size_t rank = plan_rank(plan, tensor->next_use);

	if (rank < plan->settled)
		plan->settled = rank;
}

/* ---- Following ---- */

static void set_next(struct nvs_engine *engine, struct nvs_tensor *tensor, size_t at)
{
	if (tensor->list)
		plan_mark_idle(&engine->plan, tensor, false);
	tensor->next_use = at;
	if (tensor->list)
		plan_mark_idle(&engine->plan, tensor, true);
}

/* The step skipped the access: a tensor read for it is no longer ahead of a use. */
static void skip(struct nvs_engine *engine, size_t at)
{
	struct nvs_tensor *tensor = engine->plan.order[at].tensor;
	bool listed = tensor->list;

	if (listed)
		leave_idle(engine, tensor);
	set_prefetched(engine, tensor, false);
	tensor->next_use = engine->plan.next[at];
	if (listed)
		make_idle(engine, tensor);
}

static void move_to(struct nvs_engine *engine, size_t to)
{
	struct plan *plan = &engine->plan;

	while (plan->cursor < to)
		skip(engine, plan->cursor++);
	while (plan->cursor > to) {
		plan->cursor--;
		set_next(engine, plan->order[plan->cursor].tensor, plan->cursor);
	}
	plan->settled = 0;
}

static size_t after(const struct plan *plan, size_t at)
{
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
			plan->resume = tensor->planned ? after(plan, tensor->next_use) : PLAN_NONE;
			return;
		}
		at = plan->resume;
		move_to(engine, at);
	}
	plan->cursor = after(plan, at);
	plan->resume = PLAN_NONE;
	if (plan->settled)
		plan->settled--;
	set_next(engine, tensor, plan->next[at]);
}

/* ---- Recording ---- */

void plan_begin(struct plan *plan)
{
	plan->nrecorded = 0;
	plan->step++;
	plan->same = true;
	plan->lost = false;
	assert(!plan->cursor);
}

static bool make_room(struct access **accesses, size_t *max, size_t n)
{
	size_t wanted = *max ? *max : 256;
	struct access *grown;

	if (n <= *max)
		return true;
	while (wanted < n)
		wanted *= 2;
	grown = realloc(*accesses, wanted * sizeof(*grown));
	if (!grown)
		return false;
	*accesses = grown;
	*max = wanted;
	return true;
}

static void record(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents)
{
	struct plan *plan = &engine->plan;
	size_t at = plan->nrecorded;

	if (plan->lost)
		return;
	if (!make_room(&plan->recording, &plan->recording_max, at + 1)) {
		plan->lost = true;
		plan->same = false;
		say_later(engine, NVS_LOG_WARNING,
			  "out of memory while recording the order of a step: the next one has no "
			  "plan");
		return;
	}
	plan->same = plan->same && at < plan->n && plan->order[at].tensor == tensor &&
		     plan->order[at].contents == contents;
	plan->recording[plan->nrecorded++] = (struct access){tensor, contents};
	tensor->recorded = plan->step;
}

void plan_access(struct nvs_engine *engine, struct nvs_tensor *tensor, bool contents)
{
	record(engine, tensor, contents);
	if (engine->plan.n)
		follow(engine, tensor);
}

bool plan_has(struct plan *plan, const struct nvs_tensor *tensor)
{
	if (tensor->recorded == plan->step && plan->step)
		plan->lost = true;
	return tensor->planned;
}

static bool allocate(struct plan *plan, size_t n)
{
	plan->next = calloc(n, sizeof(*plan->next));
	plan->before = calloc(n + 1, sizeof(*plan->before));
	plan->idle[PLAN_LARGE] = calloc(words(n), sizeof(uint64_t));
	plan->idle[PLAN_SMALL] = calloc(words(n), sizeof(uint64_t));
	if (plan->next && plan->before && plan->idle[PLAN_LARGE] && plan->idle[PLAN_SMALL] &&
	    make_room(&plan->order, &plan->order_max, plan->recording_max))
		return true;
	plan_clear(plan);
	return false;
}

/* From the end, so that each tensor ends up with its first use, which follows its last. */
static void find_next_uses(struct plan *plan)
{
	for (size_t i = 0; i < plan->n; i++)
		plan->order[i].tensor->next_use = PLAN_NONE;
	for (size_t i = plan->n; i--;) {
		struct nvs_tensor *tensor = plan->order[i].tensor;

		plan->next[i] = tensor->next_use;
		tensor->next_use = i;
	}
	for (size_t i = 0; i < plan->n; i++)
		if (plan->next[i] == PLAN_NONE)
			plan->next[i] = plan->order[i].tensor->next_use;
}

static void sum_up(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;
	uint64_t numel = 0, longest = 0;

	for (size_t i = 0; i < plan->n; i++) {
		struct nvs_tensor *tensor = plan->order[i].tensor;

		plan->before[i + 1] = plan->before[i] + tensor->numel;
		if (tensor->next_use != i)
			continue;
		tensor->small = tensor->numel < engine->persistence_threshold;
		numel += tensor->numel;
		plan->extents += tensor->extent;
		plan->resident += tensor->data && !tensor->external ? tensor->extent : 0;
		longest = tensor->extent > longest ? tensor->extent : longest;
	}
	plan->lookahead = plan->extents;
	if (numel > engine->prefetch_bucket_size)
		plan->lookahead = (uint64_t)((double)plan->extents / (double)numel *
					     (double)engine->prefetch_bucket_size) +
				  longest;
}

bool plan_adopt(struct nvs_engine *engine)
{
	struct plan *plan = &engine->plan;
	struct access *recording = plan->recording;
	size_t max = plan->recording_max;

	assert(!plan->n);
	if (!plan->nrecorded)
		return true;
	if (!allocate(plan, plan->nrecorded))
		return false;
	plan->recording = plan->order;
	plan->recording_max = plan->order_max;
	plan->order = recording;
	plan->order_max = max;
	plan->n = plan->nrecorded;
	find_next_uses(plan);
	sum_up(engine);
	return true;
}
