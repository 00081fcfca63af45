/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The posix engine: a thread pool with preadv2 and pwritev2, which work everywhere. One thread per
 * I/O of the queue depth up to THREADS_MAX, or as many as the system allows.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "aio/engines/engine.h"
#include "base/state_checks.h"
#include "base/threads/thread.h"

#define STACK_BYTES (128 * 1024)
/* More keep no drive busier, and a deep queue would take all threads of the user or container. */
#define THREADS_MAX 256u

/* A ring of `depth` entries. An I/O is in at most one of the two, so neither overflows. */
struct io_ring {
	struct io **ios;
	uint32_t head, count, size;
};

struct thread_pool {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct io_ring todo, completed;
	pthread_t *threads;
	uint32_t nthreads;
	bool single_submit, woken, interrupted, closing;
	struct engine_facts *facts;
};

/* Under the lock. */
static void pool_check(const struct thread_pool *pool)
{
	if (!STATE_CHECKS)
		return;
	assert(pool->todo.count + pool->completed.count <= pool->todo.size);
	assert(pool->todo.size == pool->completed.size && pool->nthreads <= pool->todo.size);
}

static void push_io(struct io_ring *ring, struct io *io)
{
	assert(ring->count < ring->size && ring->head < ring->size);
	ring->ios[(ring->head + ring->count++) % ring->size] = io;
}

static struct io *pop_io(struct io_ring *ring)
{
	struct io *io = ring->ios[ring->head];

	assert(ring->count && ring->head < ring->size);
	ring->head = (ring->head + 1) % ring->size;
	ring->count--;
	return io;
}

static void *serve_ios(void *arg)
{
	struct thread_pool *pool = arg;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		struct io *io;

		while (!pool->todo.count && !pool->closing)
			pthread_cond_wait(&pool->work, &pool->lock);
		if (!pool->todo.count)
			break;
		io = pop_io(&pool->todo);
		pthread_mutex_unlock(&pool->lock);

		struct iovec run = {.iov_base = io->data, .iov_len = io->nbytes};
		ssize_t rc;

		rc = io->write ? pwritev2(io->fd, &run, 1, (off_t)io->offset,
					  io->sync ? RWF_DSYNC : 0)
			       : preadv2(io->fd, &run, 1, (off_t)io->offset, 0);
		io->result = rc < 0 ? -errno : (int)rc;
		pthread_mutex_lock(&pool->lock);
		push_io(&pool->completed, io);
		pool_check(pool);
		pthread_cond_signal(&pool->done);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

static void pool_free(struct thread_pool *pool)
{
	assert(!pool->todo.count && !pool->completed.count);
	free(pool->todo.ios);
	free(pool->completed.ios);
	free(pool->threads);
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->done);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

static int posix_open(void **queue, const struct engine_options *options,
		      struct engine_facts *facts, char *reason, size_t reason_bytes)
{
	struct thread_pool *pool = calloc(1, sizeof(*pool));
	uint32_t nthreads;
	int rc = 0;

	if (!pool)
		goto no_memory;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	pthread_cond_init(&pool->done, NULL);
	pool->facts = facts;
	pool->single_submit = options->single_submit;
	pool->todo.size = pool->completed.size = options->depth;
	pool->todo.ios = calloc(options->depth, sizeof(struct io *));
	pool->completed.ios = calloc(options->depth, sizeof(struct io *));
	nthreads = options->depth < THREADS_MAX ? options->depth : THREADS_MAX;
	pool->threads = calloc(nthreads, sizeof(*pool->threads));
	if (!pool->todo.ios || !pool->completed.ios || !pool->threads)
		goto no_memory;
	while (!rc && pool->nthreads < nthreads) {
		pthread_attr_t attr;

		pthread_attr_init(&attr);
		pthread_attr_setstacksize(&attr, stack_size(STACK_BYTES));
		rc = -pthread_create(&pool->threads[pool->nthreads], &attr, serve_ios, pool);
		pthread_attr_destroy(&attr);
		pool->nthreads += !rc;
	}
	if (!pool->nthreads) {
		pool_free(pool);
		snprintf(reason, reason_bytes, "can't start a thread: %s", strerror(-rc));
		return rc;
	}
	pool_check(pool);
	*queue = pool;
	return 0;

no_memory:
	if (pool)
		pool_free(pool);
	snprintf(reason, reason_bytes, "out of memory");
	return -ENOMEM;
}

static void posix_close(void *queue)
{
	struct thread_pool *pool = queue;

	pthread_mutex_lock(&pool->lock);
	assert(!pool->todo.count && !pool->closing);
	pool->closing = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->nthreads; i++)
		pthread_join(pool->threads[i], NULL);
	pool_free(pool);
}

static int posix_submit(void *queue, struct io *const *ios, unsigned n)
{
	struct thread_pool *pool = queue;
	unsigned step = pool->single_submit ? 1 : n;

	for (unsigned i = 0; i < n; i += step) {
		pthread_mutex_lock(&pool->lock);
		for (unsigned j = 0; j < step; j++)
			push_io(&pool->todo, ios[i + j]);
		pool_check(pool);
		if (step > 1)
			pthread_cond_broadcast(&pool->work);
		else
			pthread_cond_signal(&pool->work);
		pthread_mutex_unlock(&pool->lock);
		pool->facts->submit_calls++;
	}
	return (int)n;
}

static int posix_reap(void *queue, struct io **ios, unsigned max, unsigned min)
{
	struct thread_pool *pool = queue;
	unsigned n = 0;

	pool->facts->reap_calls++;
	pthread_mutex_lock(&pool->lock);
	while (pool->completed.count < min && !pool->interrupted && !(pool->woken && min == 1))
		pthread_cond_wait(&pool->done, &pool->lock);
	if (min)
		pool->interrupted = false;
	if (min == 1)
		pool->woken = false;
	while (n < max && pool->completed.count)
		ios[n++] = pop_io(&pool->completed);
	pool_check(pool);
	pthread_mutex_unlock(&pool->lock);
	return (int)n;
}

static void posix_wake(void *queue, bool any)
{
	struct thread_pool *pool = queue;

	pthread_mutex_lock(&pool->lock);
	pool->woken |= !any;
	pool->interrupted |= any;
	pthread_cond_signal(&pool->done);
	pthread_mutex_unlock(&pool->lock);
}

const struct engine_ops engine_posix = {
	.name = "posix",
	.open = posix_open,
	.submit = posix_submit,
	.reap = posix_reap,
	.wake = posix_wake,
	.close = posix_close,
};
