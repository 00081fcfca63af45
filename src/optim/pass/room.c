/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool for a tile or for gradients, beside the tiles of the host cache. Tensors of
 * float32 state and of gradients have one length, so what is free is room for any of them. With
 * other formats their lengths differ, and held tiles may leave pieces that are too short: then one
 * after the other is held no longer until there is room.
 */
#include <errno.h>

#include "base/error.h"
#include "optim/pass/pass.h"

#define PATIENCE_MS 100 /* after which nothing but held tiles may be in the way */

/* Whether no tile of the pass is in flight or computed, which would make room by its end. */
static bool is_quiet(struct pass *pass)
{
	bool quiet;

	if (!pass)
		return true;
	pthread_mutex_lock(&pass->lock);
	quiet = pass->front == pass->nfetched && !pass->nactive;
	pthread_mutex_unlock(&pass->lock);
	return quiet;
}

static bool is_waiting(struct pass *pass, const struct tile *tile)
{
	enum tile_task task;

	if (!pass)
		return is_held(tile);
	pthread_mutex_lock(&pass->lock);
	task = tile->task;
	pthread_mutex_unlock(&pass->lock);
	return (task == TASK_NONE || task == TASK_QUEUED) && is_held(tile);
}

/* Unpins a held tile other than `own`, so that it can be evicted. -EAGAIN: there is none. */
static int stop_holding(struct nvs_optimizer *optimizer, struct pass *pass, size_t own,
			struct nvs_error *error)
{
	for (size_t i = 0; i < optimizer->noffloaded; i++) {
		struct tile *tile = &optimizer->tiles[i];
		enum nvs_how how;
		int rc;

		if (i == own || !is_waiting(pass, tile))
			continue;
		how = tile->place == TILE_HELD_CHANGED ? NVS_DIRTY : NVS_CLEAN;
		rc = batch_release(optimizer->engine, tile->parts, optimizer->rule->nparts,
				   tile->pin, how, error);
		if (!rc)
			tile_set_place(optimizer, tile, TILE_LOOSE);
		return rc;
	}
	return -EAGAIN;
}

int pin_in_room(struct nvs_optimizer *optimizer, struct pass *pass, size_t own,
		struct nvs_tensor *const *tensors, size_t n, bool read, uint64_t *pin,
		struct nvs_error *error)
{
	int timeout_ms = optimizer->state == NVS_STATE_FP32 ? -1 : PATIENCE_MS, rc;

	for (;;) {
		struct nvs_error why = {.size = sizeof(why)};

		rc = read ? batch_swap_in(optimizer->engine, tensors, n, timeout_ms, pin, &why)
			  : batch_pin(optimizer->engine, tensors, n, timeout_ms, pin, &why);
		if (rc != -ETIMEDOUT || timeout_ms < 0 || why.cause == NVS_CAUSE_IO) {
			if (rc)
				error_copy(error, &why);
			return rc;
		}
		if (why.cause != NVS_CAUSE_ROOM || !is_quiet(pass))
			continue;
		rc = stop_holding(optimizer, pass, own, error);
		if (rc == -EAGAIN)
			timeout_ms = -1;
		else if (rc)
			return rc;
	}
}

int pin_and_read(struct nvs_optimizer *optimizer, size_t own, struct nvs_tensor *const *tensors,
		 size_t n, uint64_t *pin, struct nvs_error *error)
{
	int rc = pin_in_room(optimizer, NULL, own, tensors, n, true, pin, error);

	if (rc)
		return rc;
	rc = batch_wait(optimizer->engine, tensors, n, *pin, -1, error);
	for (size_t i = 0; i < n && rc; i++)
		engine_unpin(optimizer->engine, tensors[i], *pin);
	return rc;
}
