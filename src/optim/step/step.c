/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the optimizer: first the sums that need all gradients, then the pass that updates the
 * state, by the configured rule or the caller's function. A failed step stays unfinished, with its
 * factors, until a later call finishes it.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"
#include "trace/trace.h"

/* ---- Elements: the compute threads of the pass call this ---- */

/* The factors of a step. */
struct update {
	struct scalars scalars;
	double lr;
};

static bool wants_update(const struct nvs_optimizer *optimizer, size_t tile)
{
	uint64_t at = tile * optimizer->tile_numel, end = at + optimizer->tile_numel;
	struct segment segment;

	if (optimizer->tiles[tile].progress == TILE_UPDATED)
		return false;
	while (next_segment(optimizer, &at, end, &segment))
		if (has_gradients(&optimizer->groups[segment.group]))
			return true;
	return false;
}

static uint16_t *lowered(const struct nvs_optimizer *optimizer, unsigned thread)
{
	return optimizer->lowered + (size_t)thread * SLICE;
}

/* Where a segment's new weights go in the group's type; NULL: to the master weights only. */
static void *new_weights(const struct nvs_optimizer *optimizer, const struct segment *segment,
			 unsigned thread)
{
	const struct group *group = &optimizer->groups[segment->group];

	if (group->weights)
		return group_weights(optimizer, segment);
	return optimizer->options.weights_final && group->dtype != NVS_F32
		       ? lowered(optimizer, thread)
		       : NULL;
}

/* The caller's function receives fp32 gradients; weights without an array are rounded
 * afterwards. */
static void update_by_caller(struct nvs_optimizer *optimizer, const struct update *update,
			     const struct state_run *packed, const struct segment *segment,
			     unsigned thread)
{
	const struct nvs_state_run state = state_open(optimizer, packed, segment, thread, true);
	float *scratch = optimizer->scratch + (size_t)thread * SLICE;
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
	optimizer->options.update(optimizer->options.update_arg, &run);
	state_close(optimizer, packed, segment, &state, step);
	if (!group_weights(optimizer, segment) && new_weights(optimizer, segment, thread))
		optimizer->kernel->convert(lowered(optimizer, thread),
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
	char *rounded = (char *)lowered(optimizer, thread);
	size_t size = nvs_dtype_size(dtype);

	if (dtype == NVS_F32) {
		memcpy(master, weights, segment->numel * size);
		return;
	}
	assert(size == sizeof(*optimizer->lowered));
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
	if (optimizer->options.take_weights && group_weights(optimizer, segment) && !packed.split)
		take_changed(optimizer, segment, packed.master, thread);
	if (optimizer->options.update) {
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
	if (optimizer->options.weights_final)
		optimizer->options.weights_final(optimizer->options.weights_final_arg,
						 segment->group, segment->offset, segment->numel,
						 weights_dtype, weights ? weights : packed.master);
}

static int update_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			uint64_t n, unsigned thread)
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

/* ---- Making room ---- */

static bool is_idle(struct nvs_optimizer *optimizer, struct nvs_tensor *tensor, bool *dirty)
{
	struct nvs_tensor_info info = {.size = sizeof(info)};

	nvs_tensor_get_info(optimizer->engine, tensor, &info);
	*dirty = info.dirty;
	return info.state == NVS_RESIDENT && !info.pins;
}

/*
 * Added gradients may fill the pool. Evict those that the walk needs last, to make room for its
 * first tiles; used gradients make room for the next. The engine alone would evict those added
 * first, which the walk may need first.
 */
static void make_room(struct nvs_optimizer *optimizer)
{
	bool reverse = goes_back(optimizer), dirty;
	size_t n = optimizer->ngradients;
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	uint64_t tensor = gradients_nbytes(optimizer), room;
	uint64_t wanted = POOL_TILES * state_nbytes(optimizer, optimizer->tile_numel);

	nvs_engine_get_stats(optimizer->engine, &stats);
	room = stats.pool.bytes - stats.pool.used;
	for (size_t i = 0; i < n && room < wanted; i++) {
		struct gradient_tile *last = &optimizer->gradients[reverse ? i : n - 1 - i];

		if (last->valid && is_idle(optimizer, last->tensor, &dirty) &&
		    !batch_swap_out(optimizer->engine, &last->tensor, 1, NULL))
			room += tensor;
	}
}

/* ---- Beginning and ending ---- */

static void await_update(struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < optimizer->ntiles; i++)
		optimizer->tiles[i].progress = TILE_PENDING;
}

static int skip_step(struct nvs_optimizer *optimizer, double sum, struct nvs_step_result *result,
		     struct nvs_error *error)
{
	double scale = optimizer->scaler.scale;
	int rc = scaler_update(&optimizer->scaler, &optimizer->config.fp16, true);

	assert(optimizer->config.fp16.enabled && !is_unfinished(optimizer));
	gradients_clear(optimizer);
	result->skipped = true;
	result->norm = sqrt(sum) / scale;
	if (rc)
		return error_about(error, rc, "min_loss_scale", 0, 0,
				   "gradients overflow at a loss scale of %g, the minimum by "
				   "fp16.min_loss_scale: the training diverges, or the minimum "
				   "must be lower",
				   scale);
	return 0;
}

#define READ_AHEAD 96u

static int begin_step(struct nvs_optimizer *optimizer, const struct nvs_step_options *options,
		      struct nvs_step_result *result, struct nvs_error *error)
{
	const struct nvs_config *config = &optimizer->config;
	double scale = optimizer->scaler.scale, sum = 0;
	bool needed = config->fp16.enabled || config->gradient_clipping > 0 || options->norm;
	int rc = optimizer->step < STEPS_MAX
			 ? 0
			 : error_about(error, -EOVERFLOW, "step", 0, 0,
				       "%" PRIu64
				       " steps have been taken, as many as are counted: set the "
				       "count with nvs_optimizer_set_step",
				       optimizer->step);

	assert(!is_unfinished(optimizer));
	if (rc)
		return rc;
	await_update(optimizer);
	if (needed) {
		struct nvs_tensor *tensors[READ_AHEAD];
		size_t n = 0, last = optimizer->noffloaded - 1;

		/* The drive reads the step's first tiles while the gradients are summed. */
		if (optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read) {
			for (size_t i = 0;
			     i < optimizer->noffloaded && n + optimizer->rule->nparts <= READ_AHEAD;
			     i++) {
				size_t at = goes_back(optimizer) ? last - i : i;
				struct tile *tile = &optimizer->tiles[at];

				if (tile->place != TILE_LOOSE || !wants_update(optimizer, at))
					continue;
				tile->progress = TILE_AHEAD;
				for (unsigned part = 0; part < optimizer->rule->nparts; part++)
					tensors[n++] = tile->parts[part];
			}
			/* A failure to read ahead does not matter: the tile is read when its turn
			 * comes. */
			batch_prefetch(optimizer->engine, tensors, n, NULL);
		}
	}
	if (options->sums)
		sum = options->sums->sum_squares;
	else if (needed)
		rc = gradients_sum(optimizer, &sum, NULL, error);
	if (rc)
		return rc;
	if (config->fp16.enabled && !isfinite(sum))
		return skip_step(optimizer, sum, result, error);
	optimizer->step_norm = needed || options->sums ? sqrt(sum) / scale : -1;

	double over = (optimizer->step_norm + 1e-6) / config->gradient_clipping;

	/* As in DeepSpeed (runtime/zero/stage3.py, unscale_and_clip_grads). */
	optimizer->step_clip = config->gradient_clipping > 0 && over > 1 ? 1 / over : 1;
	optimizer->step_factor = optimizer->step_clip / scale;
	optimizer->step_lr = options->lr < 0 ? config->adam.lr : options->lr;
	/* The bounds of a header, for a commit before the step is finished. */
	assert(optimizer->step_clip >= 0 && optimizer->step_clip <= 1);
	assert(optimizer->step_factor >= 0 && optimizer->step_factor <= 1 / SCALE_MIN);
	optimizer->step_state = STEP_UNFINISHED;
	return 0;
}

/* A step without gradients. The loss scale follows the other ranks', whose loss it scales too. */
static int pass_over(struct nvs_optimizer *optimizer, const struct nvs_step_options *options,
		     struct nvs_step_result *result, struct nvs_error *error)
{
	const struct fp16_config *fp16 = &optimizer->config.fp16;
	double sum = options->sums ? options->sums->sum_squares : 0;

	assert(!is_unfinished(optimizer));
	if (fp16->enabled && !isfinite(sum))
		return skip_step(optimizer, sum, result, error);
	if (options->sums || options->norm)
		result->norm = sqrt(sum) / optimizer->scaler.scale;
	if (!options->sums)
		return 0;
	return scaler_update(&optimizer->scaler, fp16, false);
}

static int update_all(struct nvs_optimizer *optimizer, struct pass_figures *figures,
		      struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.writes = true, .gradients = true, .wants = wants_update, .slice = update_slice};
	struct update update = {.lr = optimizer->step_lr,
				.scalars = optimizer->rule->scalars(
					&optimizer->config.adam, optimizer->step_lr,
					optimizer->step + 1,
					optimizer->config.adam.maximize ? -optimizer->step_factor
									: optimizer->step_factor)};
	struct nvs_error last = {.size = sizeof(last)};
	uint64_t failures = engine_write_failures(optimizer->engine, &last);
	bool dirty;
	int rc = 0;

	assert(is_unfinished(optimizer) && optimizer->step < STEPS_MAX);
	for (size_t i = 0; i < optimizer->ngroups; i++)
		if (optimizer->groups[i].gradients == NVS_GRADIENTS_OWED)
			return error_about(
				error, -EINVAL, optimizer->groups[i].name, 0, 0,
				"step %" PRIu64
				" was begun by an earlier run with gradients lent for group "
				"%s: lend them again to finish it",
				optimizer->step + 1, optimizer->groups[i].name);
	/* Writes updated tiles again whose write failed. */
	for (size_t i = 0; i < optimizer->rule->nparts * optimizer->noffloaded && !rc; i++)
		if (is_idle(optimizer, optimizer->offloaded[i], &dirty) && dirty)
			rc = batch_swap_out(optimizer->engine, &optimizer->offloaded[i], 1, error);
	if (rc)
		return rc;
	make_room(optimizer);
	rc = pass_run(optimizer, &kind, &update, figures, error);
	/* A repeated write may have failed before the pass started to check. */
	return rc ?: wait_landed(optimizer, failures, error);
}

/* ---- The call ---- */

static int take_step(struct nvs_optimizer *optimizer, const struct nvs_step_options *options,
		     struct nvs_step_result *result, struct nvs_error *error)
{
	struct nvs_engine_stats from = {.size = sizeof(from)}, to = {.size = sizeof(to)};
	struct pass_figures figures = {0};
	uint64_t started = clock_ns(), ended;
	bool any = false;
	int rc = 0;

	optimizer->sum_ns = optimizer->sum_cpu_ns = 0;
	nvs_engine_get_stats(optimizer->engine, &from);
	result->loss_scale = optimizer->scaler.scale;
	for (size_t i = 0; i < optimizer->ngroups; i++)
		any |= has_gradients(&optimizer->groups[i]);
	if (!is_unfinished(optimizer))
		rc = any ? begin_step(optimizer, options, result, error)
			 : pass_over(optimizer, options, result, error);
	if (!rc && is_unfinished(optimizer)) {
		result->norm = optimizer->step_norm;
		result->clip = optimizer->step_clip;
		rc = update_all(optimizer, &figures, error);
		if (!rc) {
			for (size_t i = 0; i < optimizer->ntiles; i++)
				assert(!wants_update(optimizer, i));
			optimizer->step++;
			optimizer->passes++;
			optimizer->step_state = STEP_NONE;
			await_update(optimizer);
			gradients_clear(optimizer);
			rc = scaler_update(&optimizer->scaler, &optimizer->config.fp16, false);
		}
	}
	nvs_engine_get_stats(optimizer->engine, &to);
	result->step = optimizer->step;
	result->tiles = figures.tiles;
	figures.compute_ns += optimizer->sum_ns;
	result->cpu_ns = figures.cpu_ns + optimizer->sum_cpu_ns;
	result->host_bytes = optimizer->host_bytes;
	result->threads = threads_count(optimizer->threads);
	result->kernel = optimizer->options.update ? "caller" : optimizer->kernel->name;
	ended = clock_ns();
	result->io.wall_ns = ended - started;
	result->io.io_ns = to.busy_ns - from.busy_ns;
	result->io.read_bytes = to.swapped_in - from.swapped_in;
	result->io.written_bytes = to.swapped_out - from.swapped_out;
	result->io.drive_written_bytes = to.drive_written_bytes - from.drive_written_bytes;
	trace_optimizer_step(optimizer->config.trace, started, ended,
			     result->io.drive_written_bytes);
	result->io.compute_ns = figures.compute_ns / result->threads;
	result->io.hits = figures.hits;
	result->io.misses = figures.misses;
	result->io.stalls = figures.stalls;
	result->io.stall_ns = figures.stall_ns / result->threads;
	if (result->io.io_ns + result->io.compute_ns > result->io.wall_ns)
		result->io.hidden_ns =
			min_u64(result->io.io_ns + result->io.compute_ns - result->io.wall_ns,
				min_u64(result->io.io_ns, result->io.compute_ns));
	return rc;
}

int nvs_optimizer_step(struct nvs_optimizer *optimizer, const struct nvs_step_options *options,
		       struct nvs_step_result *result, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_step_result full = {
		.size = sizeof(full), .norm = -1, .clip = 1, .io = {.size = sizeof(full.io)}};
	struct nvs_step_options given = {.size = sizeof(given), .lr = -1};
	struct nvs_gradient_sums sums;
	int rc = options ? struct_in(&given, sizeof(given), options) : 0;

	if (rc)
		return struct_refused(error, rc, "nvs_step_options", "the options");
	rc = given.sums ? struct_in(&sums, sizeof(sums), given.sums) : 0;
	if (rc)
		return struct_refused(error, rc, "nvs_gradient_sums", "the sums");
	given.sums = given.sums ? &sums : NULL;
	if (result && struct_out(result, &full, sizeof(full)))
		return struct_refused(error, -EINVAL, "nvs_step_result", "the result");
	rc = call_begin(optimizer, CALL_CHANGES, error);
	if (rc)
		return rc;
	rc = check_step(optimizer, &given, error);
	rc = rc ?: take_step(optimizer, &given, &full, error);
	call_end(optimizer);
	if (result)
		struct_out(result, &full, sizeof(full));
	return rc;
}

double nvs_optimizer_loss_scale(struct nvs_optimizer *optimizer)
{
	double scale;

	/* Within a call the scale does not change. */
	if (call_begin(optimizer, 0, NULL))
		return optimizer ? optimizer->scaler.scale : 0;
	scale = optimizer->scaler.scale;
	call_end(optimizer);
	return scale;
}
