/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update of a tile's elements by the configured rule or the caller's function, and where the
 * new weights go. Called by the compute threads of a pass.
 */
#include <assert.h>
#include <string.h>

#include "optim/internal.h"

bool wants_update(const struct nvs_optimizer *optimizer, size_t tile)
{
	uint64_t at = tile * optimizer->tile_numel, end = at + optimizer->tile_numel;
	struct segment segment;

	assert(tile < optimizer->ntiles);
	if (optimizer->tiles[tile].progress == TILE_UPDATED)
		return false;
	while (next_segment(optimizer, &at, end, &segment))
		if (has_gradients(&optimizer->groups[segment.group]))
			return true;
	return false;
}

/* Where a segment's new weights go in the group's type; NULL: to the master weights only. */
static void *new_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
			 unsigned thread)
{
	const struct group *group = &optimizer->groups[segment->group];

	if (group->weights)
		return group_weights(optimizer, segment);
	return optimizer->weights_final && group->dtype != NVS_F32 ? optimizer->lowered[thread]
								   : NULL;
}

/* The caller's function receives fp32 gradients; weights without an array are rounded
 * afterwards. */
static void update_by_caller(struct nvs_optimizer *optimizer, const struct update *update,
			     const struct state_run *packed, const struct segment *segment,
			     unsigned thread)
{
	const struct nvs_state_run state = state_open(optimizer, packed, segment, thread, true);
	float *scratch = optimizer->scratch[thread];
	uint64_t step = optimizer->step + 1;
	enum nvs_dtype dtype;
	const char *gradients = gradients_at(optimizer, segment, &dtype);
	const struct nvs_update run = {
		.size = sizeof(run),
		.group = segment->group,
		.offset = segment->offset,
		.numel = segment->numel,
		.step = step,
		.lr = update->lr,
		.gradients = scratch,
		.master = state.master,
		.exp_avg = state.exp_avg,
		.exp_avg_sq = state.exp_avg_sq,
		.momentum_buffer = state.momentum_buffer,
		.sum = state.sum,
	};

	optimizer->kernel->convert(scratch, NVS_F32, gradients, dtype, update->scalars.grad_factor,
				   segment->numel);
	optimizer->update(optimizer->update_arg, &run);
	state_close(optimizer, packed, segment, &state, step);
	if (!group_weights(optimizer, segment) && new_weights(optimizer, segment, thread))
		optimizer->kernel->convert(optimizer->lowered[thread],
					   optimizer->groups[segment->group].dtype, state.master,
					   NVS_F32, 1, segment->numel);
}

/* Weights that the caller has changed become master weights; the others leave these their further
 * bits. */
static void take_changed(const struct nvs_optimizer *optimizer, const struct segment *segment,
			 float *master, unsigned thread)
{
	enum nvs_dtype dtype = optimizer->groups[segment->group].dtype;
	const char *weights = group_weights(optimizer, segment);
	char *rounded = (char *)optimizer->lowered[thread];
	size_t size = nvs_dtype_size(dtype);

	if (dtype == NVS_F32) {
		memcpy(master, weights, segment->numel * size);
		return;
	}
	assert(size == sizeof(**optimizer->lowered));
	optimizer->kernel->convert(rounded, dtype, master, NVS_F32, 1, segment->numel);
	if (!memcmp(rounded, weights, segment->numel * size))
		return;
	for (uint64_t i = 0; i < segment->numel; i++)
		if (memcmp(rounded + i * size, weights + i * size, size) != 0)
			optimizer->kernel->convert(master + i, NVS_F32, weights + i * size, dtype,
						   1, 1);
}

static void update_segment(struct nvs_optimizer *optimizer, const struct update *update,
			   size_t tile, const struct segment *segment, unsigned thread)
{
	const struct state_run packed = state_packed(optimizer, tile, segment);
	enum nvs_dtype weights_dtype = optimizer->groups[segment->group].dtype, dtype;
	void *weights = new_weights(optimizer, segment, thread);
	const char *gradients = gradients_at(optimizer, segment, &dtype);

	assert(thread < threads_count(optimizer->threads) && segment->numel <= SLICE);
	/* A split master is made of the weights. */
	if (optimizer->take_weights && group_weights(optimizer, segment) && !packed.split)
		take_changed(optimizer, segment, packed.master, thread);
	if (optimizer->update) {
		update_by_caller(optimizer, update, &packed, segment, thread);
	} else if (is_packed(&packed)) {
		const struct noise noise = noise_at(optimizer, segment, optimizer->step + 1);

		optimizer->kernel->adam_packed(&update->scalars, &packed, &noise, gradients, dtype,
					       weights, weights_dtype, segment->numel);
	} else {
		optimizer->kernel->update[optimizer->rule->id](
			&update->scalars, packed.master, packed.exp_avg, packed.exp_avg_sq,
			gradients, dtype, weights, weights_dtype, segment->numel);
	}
	if (optimizer->weights_final)
		optimizer->weights_final(optimizer->weights_final_arg, segment->group,
					 segment->offset, segment->numel, weights_dtype,
					 weights ? weights : packed.master);
}

int update_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from, uint64_t n,
		 unsigned thread)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	struct segment segment;

	assert(is_unfinished(optimizer) && n <= SLICE && from + n <= optimizer->tile_numel);
	if (is_fresh(&optimizer->tiles[tile]))
		init_slice(optimizer, tile, from, n);
	while (next_segment(optimizer, &at, end, &segment)) {
		if (has_gradients(&optimizer->groups[segment.group]))
			update_segment(optimizer, arg, tile, &segment, thread);
	}
	return 0;
}
