/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes over all state. It is created from the caller's weights, and copied back to them. All of it
 * goes out or in, in one pass: each tile is read or written once, all parts together, while the
 * threads call the caller's function with the runs of the tiles before it. Or by whole tiles, for a
 * caller that transfers them itself: its transfers of several tiles are in flight while others are read
 * from the store or written to it.
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
	optimizer_check(optimizer);
	call_end(optimizer);
	return rc;
}

/* ---- All state out or in ---- */

struct bulk {
	nvs_state_fn *fn;
	void *arg;
	bool import;
	int rc; /* the first error of the caller's function; atomic */
};

static bool every_tile(const struct nvs_optimizer *optimizer, size_t tile)
{
	(void)optimizer;
	(void)tile;
	return true;
}

/* Moves a run of state out or in; an error ends the pass. */
typedef int move_run_fn(void *arg, const struct nvs_state_run *run, unsigned thread);

/* Moves elements [from, from + n) of a tile, as float32, run after run. */
static int move_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n,
		      unsigned thread, bool import, move_run_fn *move, void *arg)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	struct segment segment;
	int rc = 0;

	assert(from + n <= optimizer->tile_numel);
	if (is_fresh(&optimizer->tiles[tile]))
		init_slice(optimizer, tile, from, n);
	while (!rc && next_segment(optimizer, &at, end, &segment)) {
		const struct state_run packed = state_packed(optimizer, tile, &segment);
		const struct nvs_state_run run = state_open(optimizer, &packed, &segment, thread,
							    !import);

		rc = move(arg, &run, thread);
		if (!rc && import)
			state_close(optimizer, &packed, &segment, &run, 0);
	}
	return rc;
}

/* Has the caller's function move it. The first error ends the pass. */
static int call_function(void *arg, const struct nvs_state_run *run, unsigned thread)
{
	struct bulk *bulk = arg;
	int rc = __atomic_load_n(&bulk->rc, __ATOMIC_RELAXED), expected = 0;

	(void)thread;
	if (!rc)
		rc = bulk->fn(bulk->arg, run);
	if (rc > 0)
		rc = -EINVAL;
	if (rc)
		__atomic_compare_exchange_n(&bulk->rc, &expected, rc, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	return rc;
}

static int bulk_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned thread)
{
	const struct bulk *bulk = arg;

	return move_slice(optimizer, tile, from, n, thread, bulk->import, call_function, arg);
}

/* Runs a pass over every tile, unless a step is unfinished or the store is only read. */
static int bulk_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind, void *arg,
		    struct nvs_error *error)
{
	int rc;

	assert(kind->wants == every_tile && kind->writes == kind->overwrites);
	rc = call_begin(optimizer, CALL_BETWEEN_STEPS | (kind->writes ? CALL_CHANGES : 0), error);
	if (rc)
		return rc;
	rc = pass_run(optimizer, kind, arg, NULL, error);
	optimizer->passes += !rc && kind->writes;
	optimizer_check(optimizer);
	call_end(optimizer);
	return rc;
}

static int run_bulk(struct nvs_optimizer *optimizer, const struct pass_kind *kind,
		    struct bulk *bulk, struct nvs_error *error)
{
	int rc = bulk->fn ? 0 : error_set(error, -EINVAL, "the function is NULL");

	if (!rc)
		rc = bulk_run(optimizer, kind, bulk, error);
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
	static const struct pass_kind kind = {.wants = every_tile, .slice = bulk_slice};
	struct bulk bulk = {.fn = fn, .arg = arg};

	return run_bulk(optimizer, &kind, &bulk, error);
}

int nvs_optimizer_import(struct nvs_optimizer *optimizer, nvs_state_fn *fn, void *arg,
			 struct nvs_error *error)
{
	HOLD_CANCEL;
	static const struct pass_kind kind = {
		.writes = true, .overwrites = true, .wants = every_tile, .slice = bulk_slice};
	struct bulk bulk = {.fn = fn, .arg = arg, .import = true};

	return run_bulk(optimizer, &kind, &bulk, error);
}

static int begin_tile(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
		      uint64_t n, unsigned flight)
{
	uint64_t at = tile * optimizer->tile_numel + from, end = at + n;
	const struct tile_mover *mover = arg;
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
	const struct tile_mover *mover = arg;
	int rc = mover->complete(mover->arg, flight);

	assert(tile < optimizer->ntiles && rc <= 0);
	return rc;
}

static int complete_import(struct nvs_optimizer *optimizer, void *arg, size_t tile, unsigned flight)
{
	uint64_t at = tile * optimizer->tile_numel, end = at + optimizer->tile_numel;
	int rc = complete_tile(optimizer, arg, tile, flight);
	struct segment segment;

	while (!rc && next_segment(optimizer, &at, end, &segment))
		give_weights(optimizer, &segment, state_packed(optimizer, tile, &segment).master);
	return rc;
}

/* Where the state is not float32: through the float32 memory of the thread, whose number is that of its
 * flight. */
static int transfer_run(void *arg, const struct nvs_state_run *run, unsigned thread)
{
	const struct tile_mover *mover = arg;
	int rc;

	mover->begin(mover->arg, run, thread);
	rc = mover->complete(mover->arg, thread);
	assert(rc <= 0);
	return rc;
}

static int export_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			uint64_t n, unsigned thread)
{
	return move_slice(optimizer, tile, from, n, thread, false, transfer_run, arg);
}

static int import_slice(struct nvs_optimizer *optimizer, void *arg, size_t tile, uint64_t from,
			uint64_t n, unsigned thread)
{
	return move_slice(optimizer, tile, from, n, thread, true, transfer_run, arg);
}

unsigned optimizer_flights(const struct nvs_optimizer *optimizer)
{
	return pass_flights(optimizer);
}

int optimizer_export_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {
		.wants = every_tile, .slice = begin_tile, .complete = complete_tile};
	static const struct pass_kind by_slices = {.wants = every_tile, .slice = export_slice};
	struct tile_mover own = *mover;

	return bulk_run(optimizer, optimizer->state != NVS_STATE_FP32 ? &by_slices : &kind, &own,
			error);
}

int optimizer_import_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error)
{
	static const struct pass_kind kind = {.writes = true,
					      .overwrites = true,
					      .wants = every_tile,
					      .slice = begin_tile,
					      .complete = complete_import};
	static const struct pass_kind by_slices = {
		.writes = true, .overwrites = true, .wants = every_tile, .slice = import_slice};
	struct tile_mover own = *mover;

	return bulk_run(optimizer, optimizer->state != NVS_STATE_FP32 ? &by_slices : &kind, &own,
			error);
}
