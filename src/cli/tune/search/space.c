/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space to search: steps along its axes, its valid combinations, and the order of preference
 * among equally fast points.
 */
#include <assert.h>

#include "base/numbers.h"
#include "cli/tune/search/state.h"

static const uint32_t *values_of(const struct tune_space *space, enum tune_axis axis)
{
	if (axis == AXIS_BLOCK)
		return space->block_sizes;
	return axis == AXIS_DEPTH ? space->queue_depths : space->thread_counts;
}

static uint32_t *value_in(struct tune_point *point, enum tune_axis axis)
{
	if (axis == AXIS_BLOCK)
		return &point->block_size;
	return axis == AXIS_DEPTH ? &point->queue_depth : &point->thread_count;
}

unsigned space_count(const struct tune_space *space, enum tune_axis axis)
{
	if (axis == AXIS_BLOCK)
		return space->nblock_sizes;
	return axis == AXIS_DEPTH ? space->nqueue_depths : space->nthread_counts;
}

unsigned space_index(const struct tune_space *space, const struct tune_point *point,
		     enum tune_axis axis)
{
	struct tune_point copy = *point;
	uint32_t value = *value_in(&copy, axis);
	unsigned index = 0;

	while (values_of(space, axis)[index] != value)
		index++;
	assert(index < space_count(space, axis));
	return index;
}

struct tune_point space_at(const struct tune_space *space, struct tune_point point,
			   enum tune_axis axis, unsigned index)
{
	*value_in(&point, axis) = values_of(space, axis)[index];
	return point;
}

bool space_has(const struct tune_space *space, const struct tune_point *point)
{
	return (uint64_t)point->block_size * point->queue_depth * point->thread_count <=
	       space->in_flight_max;
}

bool space_same(const struct tune_point *a, const struct tune_point *b)
{
	return a->ioengine == b->ioengine && a->block_size == b->block_size &&
	       a->queue_depth == b->queue_depth && a->thread_count == b->thread_count &&
	       a->single_submit == b->single_submit && a->overlap_events == b->overlap_events;
}

struct tune_point space_first(const struct tune_space *space)
{
	return (struct tune_point){
		.ioengine = space->ioengines[0],
		.block_size = space->block_sizes[0],
		.queue_depth = space->queue_depths[0],
		.thread_count = space->thread_counts[0],
		.overlap_events = true,
	};
}

static unsigned engine_index(const struct tune_space *space, const struct tune_point *point)
{
	unsigned index = 0;

	while (index + 1 < space->nioengines && space->ioengines[index] != point->ioengine)
		index++;
	return index;
}

bool space_prefers(const struct tune_space *space, const struct tune_point *a,
		   const struct tune_point *b)
{
	const uint64_t keys[][2] = {
		{(uint64_t)a->queue_depth * a->thread_count,
		 (uint64_t)b->queue_depth * b->thread_count},
		{a->block_size, b->block_size},
		{a->thread_count, b->thread_count},
		{engine_index(space, a), engine_index(space, b)},
		{a->single_submit, b->single_submit},
		{!a->overlap_events, !b->overlap_events},
	};

	for (size_t i = 0; i < COUNT_OF(keys); i++)
		if (keys[i][0] != keys[i][1])
			return keys[i][0] < keys[i][1];
	return false;
}
