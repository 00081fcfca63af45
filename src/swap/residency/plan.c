/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Positions in the plan. They wrap around at the end: the next step is expected to repeat the last
 * one. It knows nothing of where tensors are but the bits that it is told.
 *
 * An access is a nvs_tensor_swap_in or nvs_tensor_pin of the last step. The plan has the tensor of
 * each, the position of the same tensor's next one, and a running sum of elements, so a distance
 * is a subtraction. A bitmap has a bit for each unpinned tensor in the pool at its next access, so
 * the tensor needed last is the last bit before the cursor.
 */
#include <stdlib.h>

#include "swap/residency/internal.h"

void plan_clear(struct plan *plan)
{
	free(plan->next);
	free(plan->before);
	free(plan->idle[PLAN_LARGE]);
	free(plan->idle[PLAN_SMALL]);
	plan->next = NULL;
	plan->before = plan->idle[PLAN_LARGE] = plan->idle[PLAN_SMALL] = NULL;
	plan->n = plan->cursor = plan->ready = 0;
	plan->extents = plan->resident = plan->lookahead = 0;
	plan->resume = PLAN_NONE;
}

void plan_check(const struct plan *plan)
{
	if (!STATE_CHECKS)
		return;
	assert(plan->n <= plan->order_max && plan->nrecorded <= plan->recording_max);
	assert((plan->n == 0) == (plan->next == NULL));
	assert((plan->n == 0) == (plan->before == NULL));
	assert(plan->step || (!plan->n && !plan->nrecorded));
	assert(plan->resident <= plan->extents);
	assert(plan->n ? plan->cursor < plan->n : !plan->cursor && !plan->extents);
	assert(plan->ready <= plan->n);
	assert(!plan->n || plan->resume == PLAN_NONE || plan->resume < plan->n);
}

/* ---- Asking ---- */

size_t plan_rank(const struct plan *plan, size_t at)
{
	assert(at < plan->n && plan->cursor < plan->n);
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

size_t plan_last(const struct plan *plan, enum plan_class class, size_t before)
{
	const uint64_t *bits = plan->idle[class];
	bool all = before == PLAN_NONE, wraps = all || before < plan->cursor;
	size_t found = highest(bits, wraps ? 0 : plan->cursor, all ? plan->cursor : before);

	if (wraps && found == PLAN_NONE)
		found = highest(bits, plan->cursor, plan->n);
	assert(found == PLAN_NONE || all || plan_rank(plan, found) < plan_rank(plan, before));
	assert(found == PLAN_NONE || plan->order[found].tensor->class == class);
	return found;
}

/* ---- Telling ---- */

bool plan_is_idle(const struct plan *plan, const struct nvs_tensor *tensor)
{
	const uint64_t *bits = plan->idle[tensor->class];

	assert(in_plan(tensor) && tensor->rest->next_use < plan->n);
	return bits[tensor->rest->next_use / WORD_BITS] >> (tensor->rest->next_use % WORD_BITS) & 1;
}

void plan_mark_idle(struct plan *plan, const struct nvs_tensor *tensor, bool idle)
{
	uint64_t *word = &plan->idle[tensor->class][tensor->rest->next_use / WORD_BITS];
	uint64_t bit = UINT64_C(1) << (tensor->rest->next_use % WORD_BITS);

	assert(plan->order[tensor->rest->next_use].tensor == tensor);
	assert(plan_is_idle(plan, tensor) != idle);
	if (idle)
		*word |= bit;
	else
		*word &= ~bit;
}

void plan_needs_read(struct plan *plan, const struct nvs_tensor *tensor)
{
	size_t rank = plan_rank(plan, tensor->rest->next_use);

	assert(in_plan(tensor) && !plan_is_idle(plan, tensor));
	if (rank < plan->ready)
		plan->ready = rank;
}
