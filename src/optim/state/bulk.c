/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes over all state. It is created from the caller's weights, and copied back to them. All of
 * it goes out or in, in one pass: each tile is read or written once, all parts together, while the
 * threads call the caller's function with the runs of the tiles before it. Or by whole tiles, for a
 * caller that transfers them itself: its transfers of several tiles are in flight while others are
 * read from the store or written to it.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

void init_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	struct segment segment;

	assert(is_fresh(&optimizer->tiles[tile]) && from + n <= optimizer->tile_numel);
	state_clear(optimizer, tile, from, n);
	/* The master weights of a split tile are the weights already. */
	while (!optimizer->tiles[tile].split && next_segment(optimizer, &at, end, &segment)) {
		void *weights = group_weights(optimizer, &segment);

		if (weights)
			optimizer->kernel->convert(
				state_packed(optimizer, tile, &segment).master, NVS_F32, weights,
				optimizer->groups[segment.group].dtype, 1, segment.numel);
	}
}

static bool has_none(const struct nvs_optimizer *optimizer, size_t tile)
{
	return is_fresh(&optimizer->tiles[tile]);
}

static int make_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned thread)
{
	(void)arg;
	(void)thread;
	init_slice(optimizer, tile, from, n);
	return 0;
}

int init_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.writes = true, .wants = has_none, .slice = make_slice};
	int rc = pass_run(optimizer, &kind, NULL, NULL, error);

	optimizer->passes += !rc;
	return rc;
}

/* A fresh tile's state would be made from the weights, and a split tile's master weights are the
 * weights, which are unchanged in both. */
static bool has_weights(const struct nvs_optimizer *optimizer, size_t tile)
{
	return !is_fresh(&optimizer->tiles[tile]) && !optimizer->tiles[tile].split;
}

static int weights_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			 uint64_t n, unsigned thread)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	const float *master = tile_part(optimizer, tile, NVS_MASTER);
	struct segment segment;

	(void)arg;
	(void)thread;
	assert(has_weights(optimizer, tile) && from + n <= optimizer->tile_numel);
	while (next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment,
			     master + (segment.at - tile * optimizer->tile_numel));
	return 0;
}

int nvs_optimizer_get_weights(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	static const struct pass_kind kind = {
		.master_only = true, .wants = has_weights, .slice = weights_slice};
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	rc = pass_run(optimizer, &kind, NULL, NULL, error);
	call_end(optimizer);
	return rc;
}

/* ---- All state out or in ---- */

/* Moves elements through the caller's function, or through its transfers. */
struct bulk {
	int (*move)(struct bulk *bulk, const struct nvs_state_run *run, unsigned thread);
	bool import;
	nvs_state_fn *fn;
	void *arg;
	int rc; /* the first error of the caller's function; atomic */
	const struct tile_mover *mover;
};

static bool every_tile(const struct nvs_optimizer *optimizer, size_t tile)
{
	(void)optimizer;
	(void)tile;
	return true;
}

/* Moves elements [from, from + n) of a tile, as float32, run after run; an error ends the pass. */
static int move_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned thread)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	struct bulk *bulk = arg;
	struct segment segment;
	int rc = 0;

	assert(from + n <= optimizer->tile_numel);
	if (is_fresh(&optimizer->tiles[tile]))
		init_slice(optimizer, tile, from, n);
	while (!rc && next_segment(optimizer, &at, end, &segment)) {
		const struct state_run packed = state_packed(optimizer, tile, &segment);
		const struct nvs_state_run run = state_open(optimizer, &packed, &segment, thread,
							    !bulk->import);

		rc = bulk->move(bulk, &run, thread);
		if (!rc && bulk->import)
			state_close(optimizer, &packed, &segment, &run, 0);
	}
	return rc;
}

static const struct pass_kind exports = {.wants = every_tile, .slice = move_slice};
static const struct pass_kind imports = {
	.writes = true, .overwrites = true, .wants = every_tile, .slice = move_slice};

static int call_function(struct bulk *bulk, const struct nvs_state_run *run, unsigned thread)
{
	int rc = __atomic_load_n(&bulk->rc, __ATOMIC_RELAXED), expected = 0;

	(void)thread;
	rc = rc ?: bulk->fn(bulk->arg, run);
	if (rc > 0)
		rc = -EINVAL;
	if (rc)
		__atomic_compare_exchange_n(&bulk->rc, &expected, rc, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	return rc;
}

/* Runs a pass over every tile, unless a step is unfinished or the store is only read. */
static int bulk_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind,
		    struct bulk *bulk, struct nvs_error *error)
{
	int rc;

	assert(kind->wants == every_tile && kind->writes == kind->overwrites);
	if (!bulk->fn && !bulk->mover)
		return error_set(error, -EINVAL, "the function is NULL");
	rc = call_begin(optimizer, CALL_BETWEEN_STEPS | (kind->writes ? CALL_CHANGES : 0), error);
	if (rc)
		return rc;
	rc = pass_run(optimizer, kind, bulk, NULL, error);
	optimizer->passes += !rc && kind->writes;
	call_end(optimizer);
	if (bulk->rc)
		rc = error_set(error, bulk->rc,
			       "the caller's function ended the %s of the optimizer's state: %s",
			       kind->writes ? "import" : "export", nvs_strerror(bulk->rc));
	return rc;
}

int nvs_optimizer_export(struct nvs_optimizer *optimizer, nvs_state_fn *fn, void *arg,
			 struct nvs_error *error)
{
	HOLD_CANCEL;
	struct bulk bulk = {.move = call_function, .fn = fn, .arg = arg};

	return bulk_run(optimizer, &exports, &bulk, error);
}

int nvs_optimizer_import(struct nvs_optimizer *optimizer, nvs_state_fn *fn, void *arg,
			 struct nvs_error *error)
{
	HOLD_CANCEL;
	struct bulk bulk = {.move = call_function, .fn = fn, .arg = arg, .import = true};

	return bulk_run(optimizer, &imports, &bulk, error);
}

static int begin_tile(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned flight)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	const struct tile_mover *mover = ((const struct bulk *)arg)->mover;
	struct segment segment;

	assert(!from && n == optimizer->tile_numel);
	if (is_fresh(&optimizer->tiles[tile]))
		init_slice(optimizer, tile, from, n);
	while (next_segment(optimizer, &at, end, &segment)) {
		const struct state_run packed = state_packed(optimizer, tile, &segment);
		const struct nvs_state_run run = state_open(optimizer, &packed, &segment, 0, false);

		assert(!is_packed(&packed));
		mover->begin(mover->arg, &run, flight);
	}
	return 0;
}

static int complete_tile(struct nvs_optimizer *optimizer, void *arg, size_t tile, unsigned flight)
{
	uint64_t at = tile * optimizer->tile_numel, end = at + optimizer->tile_numel;
	const struct bulk *bulk = arg;
	int rc = bulk->mover->complete(bulk->mover->arg, flight);
	struct segment segment;

	assert(tile < optimizer->ntiles && rc <= 0);
	while (!rc && bulk->import && next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment, state_packed(optimizer, tile, &segment).master);
	return rc;
}

/* Where the state is not float32: through the float32 memory of the thread, whose number is that of
 * its flight. */
static int transfer_run(struct bulk *bulk, const struct nvs_state_run *run, unsigned thread)
{
	int rc;

	bulk->mover->begin(bulk->mover->arg, run, thread);
	rc = bulk->mover->complete(bulk->mover->arg, thread);
	assert(rc <= 0);
	return rc;
}

int optimizer_export_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.wants = every_tile, .slice = begin_tile, .complete = complete_tile};
	struct bulk bulk = {.move = transfer_run, .mover = mover};

	return bulk_run(optimizer, optimizer->state != NVS_STATE_FP32 ? &exports : &kind, &bulk,
			error);
}

int optimizer_import_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {.writes = true,
					      .overwrites = true,
					      .wants = every_tile,
					      .slice = begin_tile,
					      .complete = complete_tile};
	struct bulk bulk = {.move = transfer_run, .import = true, .mover = mover};

	return bulk_run(optimizer, optimizer->state != NVS_STATE_FP32 ? &imports : &kind, &bulk,
			error);
}
