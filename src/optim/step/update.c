/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update of a tile's elements by the configured Adam or the caller's function, and where the
 * new weights go. Called by the compute threads of a pass.
 */
#include <assert.h>

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

static void update_segment(struct nvs_optimizer *optimizer, const struct update *update,
			   size_t tile, const struct segment *segment, unsigned thread)
{
	const struct nvs_state_run state = state_open(optimizer, tile, segment);
	const struct group *group = &optimizer->groups[segment->group];
	char *weights;

	/* Where a segment's new weights go in the group's type; NULL: to the master weights
	 * only. */
	assert(thread < threads_count(optimizer->threads) && segment->numel <= SLICE);
	if (group->weights)
		weights = group->weights + segment->offset * nvs_dtype_size(group->dtype);
	else
		weights = optimizer->weights_final && group->dtype != NVS_F32
				  ? (char *)optimizer->lowered[thread]
				  : NULL;

	const struct nvs_update run = {
		.size = sizeof(run),
		.group = segment->group,
		.offset = segment->offset,
		.numel = segment->numel,
		.step = optimizer->step + 1,
		.lr = update->lr,
		.gradients = optimizer->scratch[thread],
		.master = state.master,
		.exp_avg = state.exp_avg,
		.exp_avg_sq = state.exp_avg_sq,
	};

	if (optimizer->update) {
		float *scratch = optimizer->scratch[thread];
		enum nvs_dtype dtype;
		const char *gradients = gradients_at(optimizer, segment, &dtype);

		/* The caller's function receives fp32 gradients; the weights are rounded
		 * afterwards. */
		optimizer->kernel->convert(scratch, NVS_F32, gradients, dtype,
					   update->adam.grad_factor, segment->numel);
		optimizer->update(optimizer->update_arg, &run);
		if (weights)
			optimizer->kernel->convert(weights, optimizer->groups[segment->group].dtype,
						   run.master, NVS_F32, 1, segment->numel);
	} else {
		enum nvs_dtype dtype;
		const char *gradients = gradients_at(optimizer, segment, &dtype);

		optimizer->kernel->adam(&update->adam, run.master, run.exp_avg, run.exp_avg_sq,
					gradients, dtype, weights,
					optimizer->groups[segment->group].dtype, segment->numel);
	}
	if (optimizer->weights_final)
		optimizer->weights_final(optimizer->weights_final_arg, segment->group,
					 segment->offset, segment->numel,
					 optimizer->groups[segment->group].dtype,
					 weights ? (const void *)weights : run.master);
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
