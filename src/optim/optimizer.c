/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes an optimizer: its engine on the offload_optimizer block, and its threads. And
 * what it says of itself: its progress, which gradients it has, and the caller's note in its
 * commits. Its engine keeps the note: the optimizer's own header is a tensor of the store.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

/* ---- The engine ---- */

static int too_small(const struct nvs_optimizer *optimizer, uint64_t tile_numel, int code,
		     struct nvs_error *error)
{
	const struct nvs_config *config = &optimizer->config;
	uint64_t need = (optimizer->ncached + 2) * state_nbytes(optimizer, tile_numel);
	uint64_t step = config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_count * sizeof(float);

	return error_about(error, code, "buffer_count", 0, 0,
			   "a pool of offload_optimizer.buffer_count %u x "
			   "zero_optimization.sub_group_size %" PRIu64
			   " x 4 bytes does not hold two tiles of %" PRIu64
			   " elements beside the cache: set sub_group_size to %" PRIu64
			   " elements or more",
			   config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_count,
			   config->sub_group_size, tile_numel, (need + step - 1) / step);
}

static int open_engine(struct nvs_optimizer *optimizer, const struct nvs_config *given,
		       const struct engine_ops *ops, void *ops_arg, struct nvs_error *error)
{
	struct nvs_config config = *given;
	int rc;

	if (!layout_tile_numel(optimizer) &&
	    config.offload[NVS_OFFLOAD_OPTIMIZER].device != NVS_DEVICE_NONE)
		return too_small(optimizer, TILE_UNIT, -EINVAL, error);

	uint64_t longest = align_up(layout_tile_numel_max(optimizer), TILE_UNIT);
	uint64_t tile = state_nbytes(optimizer, longest);
	uint64_t gradients = optimizer->flat * nvs_dtype_size(optimizer->gradient_dtype);
	uint64_t most = state_nbytes(optimizer, optimizer->flat) + gradients + 6 * tile;

	/* The configuration counts the cache's elements as three parts in float32. */
	if (state_nbytes(optimizer, TILE_UNIT) != PARTS * TILE_UNIT * sizeof(float))
		config.optimizer_max_in_cpu = (config.optimizer_max_in_cpu / TILE_UNIT + 1) *
					      state_nbytes(optimizer, TILE_UNIT) /
					      (PARTS * sizeof(float));
	/* The pool is no larger than all state and gradients. */
	if (nvs_config_pool_bytes(&config, NVS_OFFLOAD_OPTIMIZER) > most) {
		config.offload[NVS_OFFLOAD_OPTIMIZER].buffer_count = 1;
		config.offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = most / sizeof(float);
		config.optimizer_max_in_cpu = 0;
	}
	if (optimizer->options.aio)
		rc = nvs_engine_open_on(&optimizer->engine, optimizer->options.aio, &config,
					NVS_OFFLOAD_OPTIMIZER, error);
	else
		rc = engine_open_with(&optimizer->engine, &config, NVS_OFFLOAD_OPTIMIZER, ops,
				      ops_arg, error);
	if (!rc)
		engine_set_owned(optimizer->engine);
	return rc;
}

/* ---- Opening ---- */

static uint64_t tile_extent(const struct nvs_optimizer *optimizer, size_t tile)
{
	uint64_t unit = engine_unit(optimizer->engine), nbytes = 0;

	for (unsigned part = 0; part < optimizer->rule->nparts; part++)
		nbytes += align_up(part_nbytes(optimizer, tile, part), unit);
	return nbytes;
}

static int check_fits(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int code = optimizer->header ? -ESTALE : -EINVAL; /* a kept store fixes the tiles */
	uint64_t tile = tile_extent(optimizer, 0), offloaded = 0, room;
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	for (size_t i = 0; i < optimizer->ngroups; i++)
		if (optimizer->groups[i].at < optimizer->noffloaded * optimizer->tile_numel)
			offloaded += optimizer->groups[i].numel;
	for (size_t i = 1; i < optimizer->ntiles; i++)
		tile = max_u64(tile, tile_extent(optimizer, i));
	nvs_engine_get_stats(optimizer->engine, &stats);
	assert(tile);
	room = stats.pool.bytes / tile;
	/* A cache for all elements holds all tiles, padding included. */
	if (optimizer->config.optimizer_max_in_cpu >= offloaded &&
	    room >= optimizer->noffloaded + 2)
		optimizer->ncached = optimizer->noffloaded;
	/* The pool was made for packed tiles without what each part's last unit leaves unused. */
	if (optimizer->state != NVS_STATE_FP32 && room >= 2)
		optimizer->ncached = min_u64(optimizer->ncached, room - 2);
	if (room < optimizer->ncached + 2)
		return too_small(optimizer, optimizer->tile_numel, code, error);
	/* The walks through all parts find room beside each other. */
	room -= optimizer->ncached;
	optimizer->tiles_ahead = room > 3 ? min_u64(room - 3, TILES_AHEAD) : 0;
	return 0;
}

static int open_threads(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	bool packs = optimizer->state != NVS_STATE_FP32;
	bool lowers = optimizer->options.weights_final || optimizer->options.take_weights;
	size_t slices;
	int node, rc;
	const struct topo *topo = engine_topo(optimizer->engine, &node);

	rc = threads_open(&optimizer->threads, optimizer->config.optimizer_threads, topo, node,
			  error);
	if (!rc)
		rc = threads_open(&optimizer->landing, 1, NULL, -1, error);
	if (rc)
		return rc;
	slices = (size_t)threads_count(optimizer->threads) * SLICE;
	optimizer->zeros = calloc(SLICE, sizeof(float));
	optimizer->sums = calloc(SUM_BLOCKS, sizeof(*optimizer->sums));
	if (packs)
		optimizer->floats = calloc(slices * optimizer->rule->nparts, sizeof(float));
	if (optimizer->options.update)
		optimizer->scratch = calloc(slices, sizeof(float));
	if (lowers)
		optimizer->lowered = calloc(slices, sizeof(*optimizer->lowered));
	if (!optimizer->zeros || !optimizer->sums || (packs && !optimizer->floats) ||
	    (optimizer->options.update && !optimizer->scratch) || (lowers && !optimizer->lowered))
		return error_set(error, -ENOMEM, "out of memory for %u compute threads",
				 threads_count(optimizer->threads));
	return 0;
}

static int free_all(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc;

	/* The state was committed already; don't commit a part of a later step. */
	if (optimizer->engine)
		engine_abandon(optimizer->engine);
	rc = engine_close(optimizer->engine, error);
	/* The drive hangs and may still access our memory. */
	if (rc == -ETIMEDOUT)
		return rc;
	threads_close(optimizer->threads);
	threads_close(optimizer->landing);
	free(optimizer->floats);
	free(optimizer->scratch);
	free(optimizer->lowered);
	free(optimizer->zeros);
	free(optimizer->sums);
	free(optimizer->header);
	free(optimizer->stored_sums);
	free(optimizer->table);
	layout_free(optimizer);
	pthread_mutex_destroy(&optimizer->lock);
	free(optimizer);
	return rc;
}

static int open_with(struct nvs_optimizer **out, const struct nvs_config *config,
		     const struct nvs_group_spec *groups, size_t n, bool takes_state,
		     const struct nvs_optimizer_options *options, const struct engine_ops *ops,
		     void *ops_arg, struct nvs_error *error)
{
	const struct rule *rule = rule_of_type(config->adam.type);
	struct nvs_optimizer *optimizer;
	pthread_mutexattr_t attributes;
	int rc;

	optimizer = calloc(1, sizeof(*optimizer));
	if (!optimizer)
		return error_set(error, -ENOMEM, "out of memory while opening the optimizer");
	optimizer->config = *config;
	optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].npaths =
		optimizer->config.offload[NVS_OFFLOAD_PARAM].npaths = 0;
	optimizer->config.adam.adam_w_mode |= !strcasecmp(config->adam.type, "AdamW");
	optimizer->read_only = config->read_only;
	optimizer->keep = (config->keep || config->read_only) &&
			  config->offload[NVS_OFFLOAD_OPTIMIZER].device == NVS_DEVICE_NVME;
	format_choose(optimizer, config->optimizer_state);
	optimizer->takes_state = takes_state;
	optimizer->gradient_dtype = config->grad_accum_dtype;
	optimizer->kernel = kernel_best();
	optimizer->scaler = scaler_init(&config->fp16);
	optimizer->options = *options;
	if (options->update)
		rule = rule_at(options->rule);

	/* The rule of an unknown type is refused below, unless nothing is updated. */
	optimizer->rule = rule ? rule : rule_at(NVS_RULE_ADAM);
	optimizer->takes_rule = optimizer->read_only ||
				(takes_state && !optimizer->options.update && !*config->adam.type);
	pthread_mutexattr_init(&attributes);
	/* A second call of the thread that has the lock fails, instead of waiting for itself. */
	pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&optimizer->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);

	uint64_t tile_numel = 0;

	rc = check_type(optimizer, error);
	rc = rc ?: check_format(optimizer, error);
	rc = rc ?: check_values(config, optimizer->rule->id, error);
	rc = rc ?: layout_groups(optimizer, groups, n, error);
	if (!rc)
		format_settle(optimizer);
	rc = rc ?: open_engine(optimizer, config, ops, ops_arg, error);
	rc = rc ?: header_find(optimizer, &tile_numel, error);
	if (!rc)
		rc = layout_tiles(optimizer, tile_numel ? tile_numel : layout_tile_numel(optimizer),
				  error);
	rc = rc ?: header_check(optimizer, error);
	rc = rc ?: check_fits(optimizer, error);
	rc = rc ?: register_tiles(optimizer, error);
	rc = rc ?: header_adopt(optimizer, error);
	rc = rc ?: open_threads(optimizer, error);
	if (!rc && !config->offload[NVS_OFFLOAD_OPTIMIZER].fast_init)
		rc = init_tiles(optimizer, error);
	if (rc) {
		free_all(optimizer, NULL);
		return rc;
	}
	optimizer_check(optimizer);
	*out = optimizer;
	return 0;
}

/* Opens with the groups, ratio, grad_accum_dtype and format of the kept store. */
static int open_stored(struct nvs_optimizer **out, const struct nvs_config *given,
		       const struct nvs_optimizer_options *options, const struct engine_ops *ops,
		       void *ops_arg, struct nvs_error *error)
{
	struct nvs_config config = *given;
	struct group_table table;
	int rc = stored_groups(given, options->aio, ops, ops_arg, &table, error);

	if (rc)
		return rc;
	config.offload[NVS_OFFLOAD_OPTIMIZER].ratio = table.ratio;
	config.grad_accum_dtype = table.gradient_dtype;
	/* They were within the bound of the program that made the store. */
	config.sub_group_size = HEADER_NUMEL_MAX;
	rc = open_with(out, &config, table.specs, table.n, true, options, ops, ops_arg, error);
	groups_free(&table);
	return rc;
}

int optimizer_open_with(struct nvs_optimizer **out, const struct nvs_config *config,
			const struct nvs_group_spec *groups, size_t n,
			const struct nvs_optimizer_options *options, const struct engine_ops *ops,
			void *ops_arg, struct nvs_error *error)
{
	struct nvs_optimizer_options given = {0};
	struct nvs_config with_state;
	int rc = check_given(out, "optimizer", error);

	if (!rc) {
		*out = NULL;
		rc = check_given(config, "config", error);
	}
	if (!rc && options) {
		rc = struct_in(&given, sizeof(given), options);
		if (rc)
			struct_refused(error, rc, "nvs_optimizer_options", "the options");
		else if ((unsigned)given.rule >= RULES)
			rc = error_set(error, -EINVAL, "there is no rule %d", (int)given.rule);
	}
	if (!rc && options && given.state) {
		if ((unsigned)*given.state > NVS_STATE_8BIT)
			rc = error_about(error, -EINVAL, "state", 0, 0,
					 "the options' state is %d: allowed are the values of enum "
					 "nvs_optimizer_state",
					 (int)*given.state);
		with_state = *config;
		with_state.optimizer_state = *given.state;
		config = &with_state;
	}
	if (rc)
		return rc;
	if (!n && !groups)
		return open_stored(out, config, &given, ops, ops_arg, error);

	/* Opens with the caller's groups. */
	rc = check_given(groups, "groups", error);
	if (rc)
		return rc;

	struct nvs_group_spec *specs = calloc(n ? n : 1, sizeof(*specs));

	if (!specs)
		return error_set(error, -ENOMEM, "out of memory while opening the optimizer");
	for (size_t i = 0; i < n && !rc; i++) {
		rc = struct_in_at(&specs[i], sizeof(*specs), groups, i);
		if (rc)
			struct_refused(error, rc, "nvs_group_spec", "groups[%zu]", i);
	}
	if (!rc)
		rc = open_with(out, config, specs, n, false, &given, ops, ops_arg, error);
	free(specs);
	return rc;
}

int nvs_optimizer_open(struct nvs_optimizer **optimizer, const struct nvs_config *config,
		       const struct nvs_group_spec *groups, size_t n,
		       const struct nvs_optimizer_options *options, struct nvs_error *error)
{
	HOLD_CANCEL;
	return optimizer_open_with(optimizer, config, groups, n, options, NULL, NULL, error);
}

/* call_begin() of a call that closes the optimizer, or the error for which it can't be closed. */
static int close_begins(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	rc = engine_check_unshared(optimizer->engine, error);
	if (rc)
		call_end(optimizer);
	return rc;
}

int nvs_optimizer_close(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_error why = {.size = sizeof(why)};
	int rc, closed;

	if (!optimizer)
		return 0;
	rc = close_begins(optimizer, error);
	if (rc)
		return rc;
	rc = keep_commit(optimizer, error);
	call_end(optimizer);
	if (rc == -ETIMEDOUT)
		return rc;
	closed = free_all(optimizer, &why);
	if (!closed || (rc && closed != -ETIMEDOUT))
		return rc;
	error_copy(error, &why);
	return closed;
}

int nvs_optimizer_abandon(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc;

	if (!optimizer)
		return 0;
	rc = close_begins(optimizer, error);
	if (rc)
		return rc;
	call_end(optimizer);
	return free_all(optimizer, error);
}

struct nvs_engine *nvs_optimizer_engine(struct nvs_optimizer *optimizer)
{
	return optimizer ? optimizer->engine : NULL;
}

/* ---- Its figures ---- */

static int copy_out(void *info, const void *full, size_t nbytes, struct nvs_error *error)
{
	int rc = struct_out(info, full, nbytes);

	return rc ? error_set(error, rc, "info is NULL, or its size is not set") : 0;
}

int nvs_optimizer_get_info(struct nvs_optimizer *optimizer, struct nvs_optimizer_info *info,
			   struct nvs_error *error)
{
	struct nvs_optimizer_info full;
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	full = (struct nvs_optimizer_info){
		.step = optimizer->step,
		.loss_scale = optimizer->scaler.scale,
		.ngroups = optimizer->ngroups,
		.kept = optimizer->keep,
		.unfinished = is_unfinished(optimizer),
		.generation = nvs_engine_generation(optimizer->engine),
		.state = optimizer->state,
		.numel = optimizer->numel,
		.split_numel = optimizer->split_numel,
		.step_bytes = 2 * (double)optimizer->state_bytes /
			      ((double)optimizer->ntiles * (double)optimizer->tile_numel),
		.rule = optimizer->rule->id,
	};
	call_end(optimizer);
	return copy_out(info, &full, sizeof(full), error);
}

int nvs_optimizer_get_group_info(struct nvs_optimizer *optimizer, size_t group,
				 struct nvs_group_info *info, struct nvs_error *error)
{
	struct nvs_group_info full;
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	rc = check_range(optimizer, group, 0, 0, error);
	if (!rc) {
		const struct group *which = &optimizer->groups[group];

		group_check(optimizer, which);
		full = (struct nvs_group_info){
			.name = which->name,
			.numel = which->numel,
			.dtype = which->dtype,
			.gradients = which->gradients,
			.gradients_numel = which->gradients == NVS_GRADIENTS_LENT ? which->numel
										  : which->added,
		};
	}
	call_end(optimizer);
	return rc ?: copy_out(info, &full, sizeof(full), error);
}

int nvs_optimizer_set_step(struct nvs_optimizer *optimizer, uint64_t step, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc;

	if (step > STEPS_MAX)
		return error_about(error, -EINVAL, "step", 0, 0,
				   "step is %" PRIu64 ": allowed are 0 to 2^53 - 1", step);
	rc = call_begin(optimizer, CALL_CHANGES | CALL_BETWEEN_STEPS, error);
	if (rc)
		return rc;
	optimizer->step = step;
	call_end(optimizer);
	return 0;
}

int nvs_optimizer_set_note(struct nvs_optimizer *optimizer, const void *note, size_t nbytes,
			   struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_given(optimizer, "optimizer", error);

	return rc ?: engine_set_note(optimizer->engine, note, nbytes, error);
}

int nvs_optimizer_get_note(struct nvs_optimizer *optimizer, void *note, size_t *nbytes)
{
	return optimizer ? nvs_engine_get_note(optimizer->engine, note, nbytes) : -EINVAL;
}
