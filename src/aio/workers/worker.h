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
	assert(worker->nfree <= worker->aio->config.queue_depth);
	assert(worker->submitted <= worker->aio->config.queue_depth - worker->nfree);
	return worker->aio->config.queue_depth - worker->nfree;
}

/* Asserts after each step that every piece is free, to be submitted, with the engine, or finished. */
void worker_check(const struct worker *worker);

/* ---- Under the lock ---- */

/* Fills the queue with I/Os. */
void worker_claim(struct worker *worker, uint64_t now, struct transfer_list *completed);
/* Frees the pieces that have ended. */
void worker_account(struct worker *worker, uint64_t now, struct transfer_list *completed);
/* Applies changes of the aio's files, regions and binding, for which it drops the lock; aio_sync() waits
 * for this. */
void worker_catch_up(struct worker *worker);

#endif
