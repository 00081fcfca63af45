/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All state out or in, in one pass: each tile is read or written once, all three parts together,
 * while the threads call the caller's function with the runs of the tiles before it.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

struct bulk {
	nvs_state_fn *fn;
	void *arg;
	bool import;
	int rc; /* the first error of the caller's function; atomic */
};

bool every_tile(const struct nvs_optimizer *optimizer, size_t tile)
{
	(void)optimizer;
	(void)tile;
	return true;
}

int move_slice(struct nvs_optimizer *optimizer, size_t tile, uint64_t from, uint64_t n,
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

int bulk_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind, void *arg,
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

	assert(bulk->import == kind->writes);
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
