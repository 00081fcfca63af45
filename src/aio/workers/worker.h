/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a worker's round that have files of their own. On the worker's thread.
 */
#ifndef AIO_WORKERS_WORKER_H
#define AIO_WORKERS_WORKER_H

#include <assert.h>

#include "aio/internal.h"

static inline uint32_t pieces_in_flight(const struct worker *worker)
{
	return worker->aio->config.queue_depth - worker->nfree;
}

/* ---- claim.c ---- */

/*
 * Asserts after each step, with or without the lock, that every piece is free, to be submitted,
 * with the engine, or finished.
 */
void worker_check(const struct worker *worker);
/* Under the lock: fills the queue with I/Os. */
void worker_claim(struct worker *worker, uint64_t now, struct transfer_list *completed);
/* Under the lock: frees the pieces that have ended. */
void worker_account(struct worker *worker, uint64_t now, struct transfer_list *completed);

/* ---- catch_up.c ---- */

/*
 * Under the lock, which it drops: applies changes of the aio's files, regions and binding.
 * aio_sync() waits for this.
 */
void worker_catch_up(struct worker *worker);

#endif
