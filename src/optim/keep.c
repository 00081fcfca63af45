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
#include "optim/internal.h"

#define MAGIC	"nvsoptim"
#define VERSION 2u

/* The header in the store, see docs/store-format.md. Numbers have the machine's byte order. */
struct header {
	char magic[8];
	uint32_t version, unfinished;
	uint64_t layout; /* checksum of the groups' names and places */
	uint64_t tile_numel, ntiles, noffloaded, ngradients, ngroups;
	uint32_t gradient_dtype, dynamic; /* dynamic: the loss scale */
	uint64_t step;
	struct scaler scaler;
	double step_lr, step_factor, step_norm, step_clip;
	/* A byte for each tile (done), each gradient tile (valid) and each group (below). */
	uint8_t marks[];
};

enum { GROUP_ADDED = 1, GROUP_LENT = 2 };

static size_t header_size(const struct nvs_optimizer *optimizer)
{
	return sizeof(struct header) + optimizer->ntiles + optimizer->ngradients +
	       optimizer->ngroups;
}

/* Computed once, on open: no later call allocates. */
static int sum_layout(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	XXH3_state_t *state = XXH3_createState();

	if (!state)
		return error_set(error, -ENOMEM, "out of memory for the optimizer's header");
	XXH3_64bits_reset(state);
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		const struct group *group = &optimizer->groups[i];

		XXH3_64bits_update(state, group->name, strlen(group->name) + 1);
		XXH3_64bits_update(state, &group->numel, sizeof(group->numel));
		XXH3_64bits_update(state, &group->at, sizeof(group->at));
	}
	optimizer->layout_sum = XXH3_64bits_digest(state);
	XXH3_freeState(state);
	return 0;
}

/* ---- Reading the header ---- */

#define NAME "optimizer"

static int register_header(struct nvs_optimizer *optimizer, uint64_t numel, struct nvs_error *error)
{
	const struct nvs_tensor_spec spec = {.name = NAME, .dtype = NVS_U8, .numel = numel};

	return nvs_tensor_register(optimizer->engine, &spec, 1, &optimizer->header_tensor, error);
}

static bool is_header(const struct header *header, uint64_t nbytes)
{
	return nbytes >= sizeof(*header) && !memcmp(header->magic, MAGIC, sizeof(header->magic)) &&
	       header->version == VERSION && header->tile_numel &&
	       header->tile_numel % TILE_UNIT == 0 && header->scaler.hysteresis &&
	       header->ntiles <= nbytes && header->ngradients <= nbytes &&
	       header->ngroups <= nbytes &&
	       nbytes == sizeof(*header) + header->ntiles + header->ngradients + header->ngroups;
}

static int read_header(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	void *data = optimizer->header;
	int rc = nvs_tensor_swap_in_to(optimizer->engine, &optimizer->header_tensor, &data, 1,
				       error);

	if (!rc)
		rc = nvs_tensor_wait(optimizer->engine, &optimizer->header_tensor, 1, -1, error);
	if (!rc && !is_header(optimizer->header, optimizer->header_bytes))
		rc = error_about(error, -EUCLEAN, NAME, 0, 0,
				 "the optimizer's header in the kept store is invalid: "
				 "restore the store from a copy, or remove it if it is not needed");
	return rc;
}

int header_find(struct nvs_optimizer *optimizer, uint64_t *tile_numel, struct nvs_error *error)
{
	uint64_t nbytes;
	int rc;

	*tile_numel = 0;
	if (!optimizer->keep || !engine_has_stored(optimizer->engine, NAME, &nbytes))
		return 0;
	rc = register_header(optimizer, nbytes, error);
	if (rc)
		return rc;
	optimizer->header = calloc(1,
				   nbytes < sizeof(struct header) ? sizeof(struct header) : nbytes);
	optimizer->header_bytes = nbytes;
	if (!optimizer->header)
		return error_set(error, -ENOMEM, "out of memory for the optimizer's header");
	rc = read_header(optimizer, error);
	if (!rc)
		*tile_numel = optimizer->header->tile_numel;
	return rc;
}

/* ---- Adopting it ---- */

int header_check(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const struct header *header = optimizer->header;
	int rc = optimizer->keep ? sum_layout(optimizer, error) : 0;

	if (rc || !header)
		return rc;
	if (optimizer->header_bytes == header_size(optimizer) &&
	    header->layout == optimizer->layout_sum && header->ntiles == optimizer->ntiles &&
	    header->noffloaded == optimizer->noffloaded && header->ngroups == optimizer->ngroups &&
	    header->gradient_dtype == (uint32_t)optimizer->gradient_dtype)
		return 0;
	return error_set(error, -ESTALE,
			 "the kept store holds optimizer state of %" PRIu64 " groups in %" PRIu64
			 " tiles, laid out for other groups, another ratio or another "
			 "grad_accum_dtype than these %zu groups in %zu tiles: use another rank or "
			 "nvme_path, or remove the store",
			 header->ngroups, header->ntiles, optimizer->ngroups, optimizer->ntiles);
}

static bool has_dynamic_scale(const struct nvs_optimizer *optimizer)
{
	return optimizer->config.fp16.enabled && optimizer->config.fp16.loss_scale == 0;
}

static void adopt_marks(struct nvs_optimizer *optimizer, const struct header *header)
{
	const uint8_t *mark = header->marks;

	/* A commit leaves no tile without state: one that has none has lost it. */
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		optimizer->tiles[i].fresh = false;
		optimizer->tiles[i].done = *mark++;
	}
	for (size_t i = 0; i < optimizer->ngradients; i++)
		optimizer->gradients[i].valid = *mark++;
	for (size_t i = 0; i < optimizer->ngroups; i++, mark++) {
		optimizer->groups[i].added = *mark & GROUP_ADDED;
		optimizer->groups[i].owed = optimizer->unfinished && (*mark & GROUP_LENT);
	}
}

static void adopt(struct nvs_optimizer *optimizer, const struct header *header)
{
	optimizer->step = header->step;
	/* A fixed loss scale, or none, is as configured now. */
	if (header->dynamic && has_dynamic_scale(optimizer))
		optimizer->scaler = header->scaler;
	optimizer->unfinished = header->unfinished;
	optimizer->step_lr = header->step_lr;
	optimizer->step_factor = header->step_factor;
	optimizer->step_norm = header->step_norm;
	optimizer->step_clip = header->step_clip;
	adopt_marks(optimizer, header);
}

/* Reads the state of tiles that are not offloaded into host memory. */
static int load_host(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc; i++) {
		struct nvs_tensor *tensor = optimizer->tiles[i].tensor;
		void *state = tile_part(optimizer, i, NVS_MASTER);

		rc = nvs_tensor_swap_in_to(optimizer->engine, &tensor, &state, 1, error);
		if (!rc)
			rc = nvs_tensor_wait(optimizer->engine, &tensor, 1, -1, error);
	}
	return rc;
}

int header_adopt(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	size_t size = header_size(optimizer);
	int rc;

	if (!optimizer->keep)
		return 0;
	if (!optimizer->header) {
		rc = register_header(optimizer, size, error);
		if (rc)
			return rc;
		optimizer->header = calloc(1, size);
		optimizer->header_bytes = size;
		return optimizer->header ? 0
					 : error_set(error, -ENOMEM,
						     "out of memory for the optimizer's header");
	}
	adopt(optimizer, optimizer->header);
	rc = 0;
	for (size_t i = 0; i < optimizer->ngradients && !rc; i++)
		if (optimizer->gradients[i].valid)
			rc = register_gradients(optimizer, error);
	return rc ? rc : load_host(optimizer, error);
}

/* ---- Committing ---- */

static void fill_marks(const struct nvs_optimizer *optimizer, struct header *header)
{
	uint8_t *mark = header->marks;

	for (size_t i = 0; i < optimizer->ntiles; i++)
		*mark++ = optimizer->tiles[i].done;
	for (size_t i = 0; i < optimizer->ngradients; i++)
		*mark++ = optimizer->gradients[i].valid;
	for (size_t i = 0; i < optimizer->ngroups; i++) {
		const struct group *group = &optimizer->groups[i];

		*mark++ = (uint8_t)((group->added ? GROUP_ADDED : 0) |
				    (group->lent || group->owed ? GROUP_LENT : 0));
	}
}

static void fill_header(const struct nvs_optimizer *optimizer, struct header *header)
{
	*header = (struct header){
		.version = VERSION,
		.unfinished = optimizer->unfinished,
		.layout = optimizer->layout_sum,
		.tile_numel = optimizer->tile_numel,
		.ntiles = optimizer->ntiles,
		.noffloaded = optimizer->noffloaded,
		.ngradients = optimizer->ngradients,
		.ngroups = optimizer->ngroups,
		.gradient_dtype = (uint32_t)optimizer->gradient_dtype,
		.dynamic = has_dynamic_scale(optimizer),
		.step = optimizer->step,
		.scaler = optimizer->scaler,
		.step_lr = optimizer->step_lr,
		.step_factor = optimizer->step_factor,
		.step_norm = optimizer->step_norm,
		.step_clip = optimizer->step_clip,
	};
	memcpy(header->magic, MAGIC, sizeof(header->magic));
	fill_marks(optimizer, header);
}

static int write_from(struct nvs_optimizer *optimizer, struct nvs_tensor *tensor, const void *data,
		      struct nvs_error *error)
{
	int rc = nvs_tensor_swap_out_from(optimizer->engine, &tensor, &data, 1, error);

	return rc ? rc : nvs_tensor_wait(optimizer->engine, &tensor, 1, -1, error);
}

static int write_outside(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc; i++)
		if (!optimizer->tiles[i].fresh)
			rc = write_from(optimizer, optimizer->tiles[i].tensor,
					tile_part(optimizer, i, NVS_MASTER), error);
	if (rc)
		return rc;
	fill_header(optimizer, optimizer->header);
	return write_from(optimizer, optimizer->header_tensor, optimizer->header, error);
}

/* A commit writes unpinned tensors, so held tiles are released for it; they stay in the pool. */
static int release_held(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < optimizer->noffloaded && !rc; i++) {
		struct tile *tile = &optimizer->tiles[i];

		if (!tile->held)
			continue;
		rc = nvs_tensor_release(optimizer->engine, &tile->tensor, 1,
					tile->changed ? NVS_DIRTY : NVS_CLEAN, error);
		tile->held = rc;
		tile->released = !rc;
	}
	return rc;
}

/* A tile that can't be pinned again is fetched like any other when its turn comes. */
static void hold_again(struct nvs_optimizer *optimizer, bool written)
{
	for (size_t i = 0; i < optimizer->noffloaded; i++) {
		struct tile *tile = &optimizer->tiles[i];

		if (!tile->released)
			continue;
		tile->released = false;
		tile->held = !engine_pin(optimizer->engine, tile->tensor, NULL);
		tile->changed &= !written;
	}
}

static bool any_fresh(const struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < optimizer->ntiles; i++)
		if (optimizer->tiles[i].fresh)
			return true;
	return false;
}

/* Waits for writes from host memory that an earlier commit started before the drive hung. */
static int wait_for_writes(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc; i++)
		rc = engine_wait_landed(optimizer->engine, &optimizer->tiles[i].tensor, 1, error);
	return rc ? rc : engine_wait_landed(optimizer->engine, &optimizer->header_tensor, 1, error);
}

int keep_commit(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc;

	if (!optimizer->keep)
		return 0;
	rc = wait_for_writes(optimizer, error);
	/* The weights that state is created from are the caller's, and gone with the run. */
	if (!rc && any_fresh(optimizer))
		rc = init_tiles(optimizer, error);
	if (!rc)
		rc = release_held(optimizer, error);
	if (!rc)
		rc = write_outside(optimizer, error);
	if (!rc)
		rc = nvs_engine_commit(optimizer->engine, error);
	hold_again(optimizer, !rc);
	return rc;
}

int nvs_optimizer_commit(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	int rc = check_given(optimizer, "optimizer", error);

	if (rc)
		return rc;
	pthread_mutex_lock(&optimizer->lock);
	rc = keep_commit(optimizer, error);
	pthread_mutex_unlock(&optimizer->lock);
	return rc;
}
