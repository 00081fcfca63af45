/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kept optimizer: the header, which has the step, the loss scale, the layout and the progress of
 * an unfinished step, and the commit of header and state, which the engine makes atomic.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"

_Static_assert(HEADER_UNIT == TILE_UNIT, "a stored tile is as aligned as a new one");

/* Whole master weights and float32 moments are fp32, however they were asked for. */
static enum nvs_optimizer_state stored_state(const struct nvs_optimizer *optimizer)
{
	return optimizer->moments == MOMENTS_FP32 ? NVS_STATE_FP32 : optimizer->state;
}

static struct header header_of(const struct nvs_optimizer *optimizer)
{
	return (struct header){
		.unfinished = is_unfinished(optimizer),
		.layout = optimizer->layout_sum,
		.tile_numel = optimizer->tile_numel,
		.ntiles = optimizer->ntiles,
		.noffloaded = optimizer->noffloaded,
		.ngradients = optimizer->ngradients,
		.ngroups = optimizer->ngroups,
		.gradient_dtype = optimizer->gradient_dtype,
		.state = stored_state(optimizer),
		.rule = optimizer->rule->id,
		.dynamic = is_dynamic(&optimizer->config.fp16),
		.step = optimizer->step,
		.scaler = optimizer->scaler,
		.lr = optimizer->step_lr,
		.factor = optimizer->step_factor,
		.norm = optimizer->step_norm,
		.clip = optimizer->step_clip,
	};
}

/* ---- Reading the header ---- */

#define NAME "optimizer"

static int adopt_rule(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const struct rule *stored = rule_at(optimizer->stored.rule);

	if (optimizer->takes_rule)
		optimizer->rule = stored;
	if (optimizer->rule == stored)
		return 0;
	return error_about(error, -ESTALE, "optimizer.type", 0, 0,
			   "the kept store holds the state of %s, and this optimizer is %s: set "
			   "optimizer.type to \"%s\"; or use another rank or nvme_path, or remove "
			   "the store, to begin with new state",
			   stored->name, optimizer->rule->name, stored->name);
}

/* A store's format stays: a run with another one would convert it unasked. */
static int adopt_format(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	enum nvs_optimizer_state stored = optimizer->stored.state;

	if (optimizer->takes_state)
		format_choose(optimizer, stored);
	if (stored_state(optimizer) == stored)
		return 0;
	return error_about(error, -ESTALE, "nvswap.optimizer_state", 0, 0,
			   "the kept store holds optimizer state in %s, and %s is asked for: set "
			   "nvswap.optimizer_state to \"%s\", or convert the store by nvswap store "
			   "convert --optimizer-state %s and its paths",
			   optimizer_state_name(stored), optimizer_state_name(optimizer->state),
			   optimizer_state_name(stored), optimizer_state_name(optimizer->state));
}

int header_find(struct nvs_optimizer *optimizer, uint64_t *tile_numel, struct nvs_error *error)
{
	struct nvs_stored_tensor other = {.size = sizeof(other)};
	uint64_t nbytes;
	int rc;

	*tile_numel = 0;
	if (!optimizer->keep)
		return 0;
	if (!engine_has_stored(optimizer->engine, NAME, &nbytes)) {
		if (optimizer->read_only)
			return error_set(error, -ENODATA,
					 "the kept store holds no state of an optimizer to read");
		if (nvs_engine_get_stored(optimizer->engine, 0, &other))
			return 0;
		return error_set(error, -ESTALE,
				 "the kept store holds tensors, such as %s, and no state of an "
				 "optimizer: it is an engine's, or that of a rule in Python. Use "
				 "another rank or nvme_path, or remove the store",
				 other.name);
	}
	rc = register_bytes(optimizer->engine, NAME, nbytes, &optimizer->header_tensor, error);
	if (rc)
		return rc;
	optimizer->header = calloc(1, nbytes < HEADER_BYTES ? HEADER_BYTES : nbytes);
	optimizer->header_bytes = nbytes;
	if (!optimizer->header)
		return error_set(error, -ENOMEM, "out of memory for the optimizer's header");

	void *data = optimizer->header;
	struct nvs_error why = {.size = sizeof(why)};

	rc = batch_swap_in_to(optimizer->engine, &optimizer->header_tensor, &data, 1, error);
	rc = rc ?: batch_wait(optimizer->engine, &optimizer->header_tensor, 1, 0, -1, error);
	if (rc)
		return rc;
	rc = header_decode(data, nbytes, &optimizer->stored, &why);
	if (rc)
		return error_about(error, rc, NAME, 0, 0,
				   "the optimizer's header in the kept store is invalid: %s. "
				   "Restore the store from a copy, or remove it if it is not "
				   "needed",
				   why.text);
	rc = adopt_rule(optimizer, error);
	rc = rc ?: adopt_format(optimizer, error);
	if (rc)
		return rc;

	uint64_t most = layout_tile_numel_max(optimizer);

	/* The layout bounds both lengths; refuse a header that no run wrote before tiles are
	 * allocated. */
	if (optimizer->stored.tile_numel > most)
		return error_set(error, -ESTALE,
				 "the kept store holds optimizer state in tiles of %" PRIu64
				 " elements, but these %zu groups have tiles of up to %" PRIu64
				 ": use another rank or nvme_path, or remove the store",
				 optimizer->stored.tile_numel, optimizer->ngroups, most);
	*tile_numel = optimizer->stored.tile_numel;
	return 0;
}

/* ---- Adopting it ---- */

int header_check(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const struct header *stored = &optimizer->stored;
	XXH3_state_t *state = optimizer->keep ? XXH3_createState() : NULL;

	if (!optimizer->keep)
		return 0;
	if (!state)
		return error_set(error, -ENOMEM, "out of memory for the optimizer's header");
	/* Computed once, on open: no later call allocates. */
	XXH3_64bits_reset(state);
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		const struct group *group = &optimizer->groups[i];
		uint8_t place[16];

		put_u64(place, group->numel);
		put_u64(place + 8, group->at);
		XXH3_64bits_update(state, group->name, strlen(group->name) + 1);
		XXH3_64bits_update(state, place, sizeof(place));
	}
	optimizer->layout_sum = XXH3_64bits_digest(state);
	XXH3_freeState(state);
	if (!optimizer->header)
		return 0;
	assert(header_nbytes(stored) == optimizer->header_bytes);
	assert(stored->tile_numel == optimizer->tile_numel);
	if (stored->layout == optimizer->layout_sum && stored->ntiles == optimizer->ntiles &&
	    stored->noffloaded == optimizer->noffloaded &&
	    stored->ngradients == optimizer->ngradients && stored->ngroups == optimizer->ngroups &&
	    stored->gradient_dtype == optimizer->gradient_dtype)
		return 0;
	return error_set(error, -ESTALE,
			 "the kept store holds optimizer state of %" PRIu64 " groups in %" PRIu64
			 " tiles, laid out for other groups, another ratio or another "
			 "grad_accum_dtype than these %zu groups in %zu tiles: use another rank or "
			 "nvme_path, or remove the store",
			 stored->ngroups, stored->ntiles, optimizer->ngroups, optimizer->ntiles);
}

/* ---- What the store has ---- */

/* Never 0, which stands for contents that are not known. */
static uint64_t sum_of(const void *data, uint64_t nbytes)
{
	return XXH3_64bits(data, nbytes) | 1;
}

static uint64_t *host_sum(const struct nvs_optimizer *optimizer, size_t tile, unsigned part)
{
	assert(tile >= optimizer->noffloaded && tile < optimizer->ntiles);
	return &optimizer
			->stored_sums[1 + (tile - optimizer->noffloaded) * optimizer->rule->nparts +
				      part];
}

static int load_host(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc; i++) {
		struct nvs_tensor *const *parts = optimizer->tiles[i].parts;
		void *state[PARTS];

		for (unsigned part = 0; part < optimizer->rule->nparts; part++)
			state[part] = tile_part(optimizer, i, part);
		rc = batch_swap_in_to(optimizer->engine, parts, state, optimizer->rule->nparts,
				      error);
		if (!rc)
			rc = batch_wait(optimizer->engine, parts, optimizer->rule->nparts, 0, -1,
					error);
		for (unsigned part = 0; part < optimizer->rule->nparts && !rc; part++)
			*host_sum(optimizer, i, part) = sum_of(state[part],
							       part_nbytes(optimizer, i, part));
	}
	return rc;
}

int header_adopt(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const struct header header = header_of(optimizer);
	uint64_t size = header_nbytes(&header);
	int rc;

	if (!optimizer->keep)
		return 0;

	size_t nhost = optimizer->ntiles - optimizer->noffloaded;

	optimizer->stored_sums = calloc(1 + optimizer->rule->nparts * nhost,
					sizeof(*optimizer->stored_sums));
	rc = optimizer->stored_sums
		     ? 0
		     : error_set(error, -ENOMEM, "out of memory for the state's checksums");
	rc = rc ?: stored_groups_make(optimizer, error);
	if (rc)
		return rc;
	if (!optimizer->header) {
		rc = register_bytes(optimizer->engine, NAME, size, &optimizer->header_tensor,
				    error);
		if (rc)
			return rc;
		optimizer->header = calloc(1, size);
		optimizer->header_bytes = size;
		return optimizer->header ? 0
					 : error_set(error, -ENOMEM,
						     "out of memory for the optimizer's header");
	}
	assert(size == optimizer->header_bytes);
	optimizer->stored_sums[0] = sum_of(optimizer->header, size);
	optimizer->step = optimizer->stored.step;
	/* A fixed loss scale, or none, is as configured now. */
	if (optimizer->stored.dynamic && is_dynamic(&optimizer->config.fp16))
		optimizer->scaler = optimizer->stored.scaler;
	optimizer->step_state = optimizer->stored.unfinished ? STEP_INHERITED : STEP_NONE;
	optimizer->step_lr = optimizer->stored.lr;
	optimizer->step_factor = optimizer->stored.factor;
	optimizer->step_norm = optimizer->stored.norm;
	optimizer->step_clip = optimizer->stored.clip;

	const uint8_t *mark = optimizer->header + HEADER_BYTES;

	/* A commit leaves no tile without state: one that has none has lost it. */
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		bool updated = *mark++ && is_unfinished(optimizer);

		optimizer->tiles[i].progress = updated ? TILE_UPDATED : TILE_PENDING;
		tile_set_place(optimizer, &optimizer->tiles[i], TILE_LOOSE);
	}
	for (size_t i = 0; i < optimizer->ngradients; i++)
		optimizer->gradients[i].valid = *mark++;
	for (size_t i = 0; i < optimizer->ngroups; i++, mark += GROUP_BYTES) {
		struct group *group = &optimizer->groups[i];
		bool lent = get_u64(mark) == GROUP_LENT;

		group->added = lent ? 0 : get_u64(mark);
		assert(group->gradients == NVS_GRADIENTS_NONE && group->added <= HEADER_COUNTS_MAX);
		if (group->added)
			group_set_gradients(optimizer, group, NVS_GRADIENTS_ADDED);
		else if (lent && is_unfinished(optimizer))
			group_set_gradients(optimizer, group, NVS_GRADIENTS_OWED);
	}
	assert(mark == optimizer->header + optimizer->header_bytes);
	for (size_t i = 0; i < optimizer->ngradients && !rc; i++)
		if (optimizer->gradients[i].valid)
			rc = register_gradients(optimizer, error);
	return rc ?: load_host(optimizer, error);
}

/* ---- Committing ---- */

/* Writes what the store does not have: a commit of the same contents changes nothing. */
static int write_from(struct nvs_optimizer *optimizer, struct nvs_tensor *tensor, const void *data,
		      uint64_t nbytes, uint64_t *stored, struct nvs_error *error)
{
	uint64_t sum = sum_of(data, nbytes);
	int rc;

	if (sum == *stored)
		return 0;
	*stored = 0;
	rc = batch_swap_out_from(optimizer->engine, &tensor, &data, 1, error);
	rc = rc ?: batch_wait(optimizer->engine, &tensor, 1, 0, -1, error);
	if (!rc)
		*stored = sum;
	return rc;
}

static int write_outside(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc; i++)
		if (!is_fresh(&optimizer->tiles[i])) {
			/* Writes a tile that is in host memory. */
			for (unsigned part = 0; part < optimizer->rule->nparts && !rc; part++)
				rc = write_from(optimizer, optimizer->tiles[i].parts[part],
						tile_part(optimizer, i, part),
						part_nbytes(optimizer, i, part),
						host_sum(optimizer, i, part), error);
		}
	if (rc)
		return rc;
	if (optimizer->table)
		rc = write_from(optimizer, optimizer->table_tensor, optimizer->table,
				optimizer->table_bytes, &optimizer->table_sum, error);
	if (rc)
		return rc;

	const struct header header = header_of(optimizer);
	uint8_t *mark = optimizer->header + HEADER_BYTES;
	struct header again;

	header_encode(&header, optimizer->header);
	for (size_t i = 0; i < optimizer->ntiles; i++)
		*mark++ = optimizer->tiles[i].progress == TILE_UPDATED;
	for (size_t i = 0; i < optimizer->ngradients; i++)
		*mark++ = optimizer->gradients[i].valid;
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		const struct group *group = &optimizer->groups[i];

		bool lent = group->gradients == NVS_GRADIENTS_LENT ||
			    group->gradients == NVS_GRADIENTS_OWED;

		put_u64(mark, lent ? GROUP_LENT : group->added);
		mark += GROUP_BYTES;
	}
	assert(mark == optimizer->header + optimizer->header_bytes);
	/* The next run accepts what this one writes, and reads the same. */
	assert(!header_decode(optimizer->header, optimizer->header_bytes, &again, NULL));
	assert(again.step == header.step && again.unfinished == header.unfinished);
	assert(again.layout == header.layout && again.scaler.scale == header.scaler.scale);
	return write_from(optimizer, optimizer->header_tensor, optimizer->header,
			  optimizer->header_bytes, &optimizer->stored_sums[0], error);
}

static bool any_fresh(const struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < optimizer->ntiles; i++)
		if (is_fresh(&optimizer->tiles[i]))
			return true;
	return false;
}

/* A commit writes unpinned tensors, so held tiles are unpinned for it; they stay in the pool. */
static int suspend_tiles(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < optimizer->noffloaded && !rc; i++) {
		struct tile *tile = &optimizer->tiles[i];

		if (!is_held(tile))
			continue;
		rc = batch_release(optimizer->engine, tile->parts, optimizer->rule->nparts,
				   tile->pin,
				   tile->place == TILE_HELD_CHANGED ? NVS_DIRTY : NVS_CLEAN, error);
		if (!rc)
			tile_set_place(optimizer, tile, TILE_SUSPENDED);
	}
	return rc;
}

/* Pins them again. A tile that can't be pinned is fetched like any other when its turn comes. */
static void resume_tiles(struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < optimizer->noffloaded; i++) {
		struct tile *tile = &optimizer->tiles[i];

		if (tile->place != TILE_SUSPENDED)
			continue;
		tile_set_place(optimizer, tile,
			       engine_pin(optimizer->engine, tile->parts, optimizer->rule->nparts,
					  &tile->pin, NULL)
				       ? TILE_LOOSE
				       : TILE_HELD);
	}
}

int keep_commit(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	if (!optimizer->keep || optimizer->read_only)
		return 0;
	/* Waits for writes from host memory that an earlier commit started before the drive
	 * hung. */
	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc; i++)
		rc = engine_wait_landed(optimizer->engine, optimizer->tiles[i].parts,
					optimizer->rule->nparts, error);
	if (!rc && optimizer->table)
		rc = engine_wait_landed(optimizer->engine, &optimizer->table_tensor, 1, error);
	rc = rc ?: engine_wait_landed(optimizer->engine, &optimizer->header_tensor, 1, error);
	/* The weights that state is created from are the caller's, and gone with the run. */
	if (!rc && any_fresh(optimizer))
		rc = init_tiles(optimizer, error);
	assert(rc || !any_fresh(optimizer));
	rc = rc ?: suspend_tiles(optimizer, error);
	rc = rc ?: write_outside(optimizer, error);
	rc = rc ?: engine_commit(optimizer->engine, error);
	resume_tiles(optimizer);
	return rc;
}

int keep_commit_format(struct nvs_optimizer *optimizer, enum nvs_optimizer_state state,
		       struct nvs_error *error)
{
	int rc;

	optimizer->stored.state = state;
	header_encode(&optimizer->stored, optimizer->header);
	rc = write_from(optimizer, optimizer->header_tensor, optimizer->header,
			optimizer->header_bytes, &optimizer->stored_sums[0], error);
	return rc ?: engine_commit(optimizer->engine, error);
}

int nvs_optimizer_commit(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = call_begin(optimizer, CALL_CHANGES, error);

	if (rc)
		return rc;
	rc = keep_commit(optimizer, error);
	call_end(optimizer);
	return rc;
}
