/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tile in a pass: its tensors are pinned and waited for before it is computed, and released,
 * written or kept afterwards. Tiles that need the same gradients share one pin of them. What a pass
 * does with each tile is decided at its beginning, and from then on one task follows the other, so
 * that no tile is computed twice or while it is read.
 */

#include "optim/pass/pass.h"

size_t mirrored(const struct pass *pass, size_t i)
{
	return pass->reverse ? pass->optimizer->noffloaded - 1 - i : i;
}

bool stays(const struct pass *pass, size_t tile)
{
	const struct nvs_optimizer *optimizer = pass->optimizer;

	/* Those that the next pass needs first. */
	if (optimizer->config.overlap_step)
		return tile < optimizer->ncached;
	return mirrored(pass, tile) + optimizer->ncached >= optimizer->noffloaded;
}

/* The added gradients that the pass needs for a tile, or NULL. */
static struct gradient_tile *tile_gradients(const struct pass *pass, size_t tile)
{
	struct nvs_optimizer *optimizer = pass->optimizer;
	struct gradient_tile *gradients =
		&optimizer->gradients[tile * optimizer->tile_numel / optimizer->gradient_numel];

	assert(gradients < optimizer->gradients + optimizer->ngradients);
	return pass->kind->gradients && gradients->valid ? gradients : NULL;
}

static bool is_offloaded(const struct pass *pass, size_t tile)
{
	return tile < pass->optimizer->noffloaded;
}

/* The parts of a tile that the pass needs in the pool, the first ones: 0 if it is not offloaded. */
static unsigned parts_of(const struct pass *pass, size_t tile)
{
	if (!is_offloaded(pass, tile))
		return 0;
	return pass->kind->master_only ? 1 : pass->optimizer->rule->nparts;
}

static bool is_resident(const struct pass *pass, size_t tile)
{
	struct nvs_optimizer *optimizer = pass->optimizer;
	struct nvs_tensor_info info = {.size = sizeof(info)};

	for (unsigned part = 0; part < parts_of(pass, tile); part++) {
		nvs_tensor_get_info(optimizer->engine, optimizer->tiles[tile].parts[part], &info);
		if (info.state != NVS_RESIDENT && info.state != NVS_WRITING)
			return false;
	}
	return true;
}

/* The last one to leave ends the pin, unless a failed read has done so. */
static void stop_sharing(struct pass *pass, struct gradient_tile *gradients)
{
	uint64_t pin;
	bool last;

	pthread_mutex_lock(&pass->lock);
	assert(gradients->sharers);
	pin = gradients->pin;
	last = !--gradients->sharers;
	pthread_mutex_unlock(&pass->lock);
	if (last)
		engine_unpin(pass->optimizer->engine, gradients->tensor, pin);
}

/* Leaves gradients whose read may have failed, under the lock, so that no other reads them again.
 */
static void leave_unread(struct pass *pass, struct gradient_tile *gradients)
{
	batch_wait(pass->optimizer->engine, &gradients->tensor, 1, gradients->pin, -1, NULL);
	stop_sharing(pass, gradients);
}

/* Pins the first n of a tile's tensors, of which the last may be gradients; waits for room. */
static int pin_tensors(struct pass *pass, size_t i, struct nvs_tensor *const *tensors, unsigned n,
		       struct nvs_error *error)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	struct tile *tile = &pass->optimizer->tiles[i];
	unsigned parts = parts_of(pass, i), first = 0;
	uint64_t pin;
	int rc = 0;

	assert(n >= parts && n - parts <= 1);
	if (parts) {
		/* An update ends a tile's part in the step: it is not fetched again. */
		if (is_held(tile) || (tile->progress != TILE_AHEAD && is_resident(pass, i)))
			pass->figures.hits++;
		else if (!is_fresh(tile))
			pass->figures.misses++;
		if (tile->progress == TILE_AHEAD)
			tile->progress = TILE_PENDING;
		first = is_held(tile) || is_fresh(tile) || pass->kind->overwrites ? parts : 0;
		if (first && !is_held(tile))
			rc = pin_in_room(pass->optimizer, pass, i, tensors, parts, false,
					 &tile->pin, error);
	}
	if (rc || first == n)
		return rc;
	rc = pin_in_room(pass->optimizer, pass, i, tensors + first, n - first, true, &pin, error);
	if (rc && first && !is_held(tile))
		batch_release(engine, tensors, parts, tile->pin, NVS_CLEAN, NULL);
	if (!rc && parts && !first)
		tile->pin = pin;
	if (!rc && n > parts)
		tile_gradients(pass, i)->pin = pin;
	return rc;
}

int tile_fetch(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct gradient_tile *gradients = tile_gradients(pass, i);
	struct nvs_tensor *tensors[PARTS + 1];
	unsigned n = 0;
	bool shared = false;
	int rc;

	/* Its parts if it is offloaded, and gradients if some were added. */
	for (; n < parts_of(pass, i); n++)
		tensors[n] = pass->optimizer->tiles[i].parts[n];
	if (gradients) {
		tensors[n++] = gradients->tensor;
		pthread_mutex_lock(&pass->lock);
		assert(gradients->valid && gradients->users);
		shared = gradients->sharers;
		gradients->sharers += shared;
		pthread_mutex_unlock(&pass->lock);
	}
	/* A tile that needs no tensor is at hand and never fetched. */
	assert(n && tensors[0] && tensors[n - 1]);
	rc = pin_tensors(pass, i, tensors, n - shared, error);
	if (rc && shared)
		leave_unread(pass, gradients);
	else if (!rc && gradients && !shared) {
		pthread_mutex_lock(&pass->lock);
		assert(!gradients->sharers && gradients->users && gradients->pin);
		gradients->sharers = 1;
		pthread_mutex_unlock(&pass->lock);
	}
	return rc;
}

int tile_write(struct pass *pass, struct tile *tile, struct nvs_error *error)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	int rc = batch_release(engine, tile->parts, pass->optimizer->rule->nparts, tile->pin,
			       NVS_DIRTY, error);

	assert(pass->kind->writes && !pass->optimizer->read_only);
	assert(is_offloaded(pass, (size_t)(tile - pass->optimizer->tiles)));
	tile_set_place(pass->optimizer, tile, TILE_LOOSE);
	rc = rc ?: batch_swap_out(engine, tile->parts, pass->optimizer->rule->nparts, error);
	if (!rc && !pass->optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write)
		rc = batch_wait(engine, tile->parts, pass->optimizer->rule->nparts, 0, -1, error);
	return rc;
}

int tile_finish(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct tile *tile = &pass->optimizer->tiles[i];
	bool changed = pass->kind->writes && tile->task != TASK_FAILED;

	assert(tile->task == TASK_COMPUTED || tile->task == TASK_FAILED);
	assert(!tile->slices);

	struct gradient_tile *gradients = tile_gradients(pass, i);
	bool done;

	if (gradients) {
		pthread_mutex_lock(&pass->lock);
		assert(gradients->users && gradients->sharers);
		done = !--gradients->users;
		gradients->sharers -= done;
		pthread_mutex_unlock(&pass->lock);
		/* The last one discards them before they can be written back. */
		if (done)
			gradients_discard(pass->optimizer, gradients);
		else
			stop_sharing(pass, gradients);
	}
	if (pass->kind->gradients)
		tile->progress = TILE_UPDATED;
	if (!is_offloaded(pass, i)) {
		if (changed)
			tile_set_place(pass->optimizer, tile, TILE_LOOSE);
		return 0;
	}
	if (!changed)
		return is_held(tile)
			       ? 0
			       : batch_release(pass->optimizer->engine, tile->parts,
					       parts_of(pass, i), tile->pin, NVS_CLEAN, error);
	if (!stays(pass, i))
		return tile_write(pass, tile, error);
	tile_set_place(pass->optimizer, tile, TILE_HELD_CHANGED);
	return 0;
}

void tile_abandon(struct pass *pass, size_t i)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	struct tile *tile = &pass->optimizer->tiles[i];
	struct gradient_tile *gradients = tile_gradients(pass, i);

	assert(pass->rc && !tile->slices);
	if (is_offloaded(pass, i) && !is_held(tile)) {
		/* If the drive hangs, the tile lands later. */
		engine_wait_landed(engine, tile->parts, parts_of(pass, i), NULL);
		for (unsigned part = 0; part < parts_of(pass, i); part++)
			engine_unpin(engine, tile->parts[part], tile->pin);
	}
	if (gradients)
		leave_unread(pass, gradients);
}

int tile_wait(const struct pass *pass, size_t i, struct nvs_error *error)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	const struct tile *tile = &pass->optimizer->tiles[i];
	const struct gradient_tile *gradients = tile_gradients(pass, i);
	unsigned n = parts_of(pass, i);
	int rc = 0;

	assert(n || gradients);
	if (n)
		rc = batch_wait(engine, tile->parts, n, tile->pin, -1, error);
	if (!rc && gradients)
		rc = batch_wait(engine, &gradients->tensor, 1, gradients->pin, -1, error);
	return rc;
}

/* ---- Tasks ---- */

void tasks_begin(const struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;

	for (size_t i = 0; i < optimizer->ngradients; i++)
		optimizer->gradients[i].users = 0;
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		struct tile *tile = &optimizer->tiles[i];
		struct gradient_tile *gradients = tile_gradients(pass, i);

		tile_check(optimizer, tile);
		if (!pass->kind->wants(optimizer, i))
			tile->task = TASK_NONE;
		else
			tile->task = is_offloaded(pass, i) || gradients ? TASK_QUEUED
									: TASK_AT_HAND;
		if (gradients && tile->task != TASK_NONE)
			gradients->users++;
	}
}

void task_set(struct pass *pass, size_t tile, enum tile_task task)
{
	static const unsigned before[] = {
		[TASK_NONE] = 1 << TASK_LANDED | 1 << TASK_COMPUTED | 1 << TASK_FAILED,
		[TASK_FETCHED] = 1 << TASK_QUEUED,
		[TASK_LANDED] = 1 << TASK_FETCHED,
		[TASK_COMPUTED] = 1 << TASK_LANDED | 1 << TASK_AT_HAND,
		[TASK_FAILED] = 1 << TASK_COMPUTED | 1 << TASK_FAILED,
	};
	struct tile *changed = &pass->optimizer->tiles[tile];

	assert(before[task] & 1u << changed->task);
	changed->task = task;

	size_t i = (size_t)(changed - pass->optimizer->tiles);

	assert(pass->front <= pass->nlanded && pass->nlanded <= pass->nfetched);
	assert(changed->task != TASK_AT_HAND || !is_offloaded(pass, i));
	assert(changed->task != TASK_FETCHED || !is_offloaded(pass, i) || changed->pin);
	assert(changed->task == TASK_COMPUTED || changed->task == TASK_FAILED || !changed->slices);
}

void tasks_end(struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;

	assert(pass->all_fetched && !pass->nactive && !pass->front_taken && !pass->host_taken);
	assert(pass->front == pass->nfetched);
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		struct tile *tile = &optimizer->tiles[i];

		if (pass->rc && (tile->task == TASK_QUEUED || tile->task == TASK_AT_HAND))
			tile->task = TASK_NONE;
		tile_check(optimizer, tile);
	}
	for (size_t i = 0; i < optimizer->ngradients; i++)
		assert(!optimizer->gradients[i].sharers);
}
