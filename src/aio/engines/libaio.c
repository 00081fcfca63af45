/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libaio engine: the kernel's older asynchronous I/O, for systems that block io_uring. Buffered
 * I/O completes within io_submit(), and nothing can be registered.
 */
#include <assert.h>
#include <errno.h>
#include <libaio.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "aio/engines/engine.h"

struct queue {
	io_context_t context;
	struct engine_facts *facts;
	uint32_t depth;
	bool single_submit;
	int wake_fd;
	bool wake_armed;
	struct iocb wake;
	struct iocb *iocbs;	 /* by io.index */
	struct iocb **batch;	 /* arguments of one io_submit() */
	struct io_event *events; /* results of one io_getevents() */
	struct io **refused;	 /* refused by io_submit(); the next reap returns them */
	uint32_t nrefused;
};

static void queue_check(const struct queue *queue)
{
	assert(queue->depth && queue->nrefused <= queue->depth);
	assert(queue->wake_fd >= 0 && queue->facts);
}

static void queue_free(struct queue *queue)
{
	if (queue->wake_fd >= 0)
		close(queue->wake_fd);
	free(queue->iocbs);
	free(queue->batch);
	free(queue->events);
	free(queue->refused);
	free(queue);
}

static void why_not(int rc, uint32_t depth, char *reason, size_t reason_bytes)
{
	if (rc == -EAGAIN)
		snprintf(reason, reason_bytes,
			 "%u more events exceed sysctl fs.aio-max-nr (fs.aio-nr are in use); raise "
			 "it or lower queue_depth x thread_count",
			 depth + 1);
	else if (rc == -ENOSYS || rc == -EPERM)
		snprintf(reason, reason_bytes,
			 "this kernel has no aio, or a seccomp filter hides it");
	else
		snprintf(reason, reason_bytes, "%s",
			 strerrordesc_np(-rc) ? strerrordesc_np(-rc) : "unknown error");
}

static int libaio_open(void **out, const struct engine_options *options, struct engine_facts *facts,
		       char *reason, size_t reason_bytes)
{
	struct queue *queue = calloc(1, sizeof(*queue));
	int rc = -ENOMEM;

	if (!queue)
		goto fail;
	queue->facts = facts;
	queue->depth = options->depth;
	queue->single_submit = options->single_submit;
	queue->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (queue->wake_fd < 0) {
		rc = -errno;
		goto fail;
	}
	queue->iocbs = calloc(options->depth, sizeof(*queue->iocbs));
	queue->batch = calloc(options->depth, sizeof(struct iocb *));
	queue->events = calloc(options->depth + 1, sizeof(*queue->events));
	queue->refused = calloc(options->depth, sizeof(struct io *));
	if (!queue->iocbs || !queue->batch || !queue->events || !queue->refused)
		goto fail;
	/* One event more than the depth for the poll that wake() completes. */
	rc = io_setup((int)options->depth + 1, &queue->context);
	if (rc)
		goto fail;
	queue_check(queue);
	*out = queue;
	return 0;

fail:
	why_not(rc, options->depth, reason, reason_bytes);
	if (queue)
		queue_free(queue);
	return rc;
}

static void libaio_close(void *arg)
{
	struct queue *queue = arg;

	queue_check(queue);
	assert(!queue->nrefused);
	io_destroy(queue->context);
	queue_free(queue);
}

static void prepare(struct iocb *iocb, struct io *io)
{
	assert(io->fd >= 0 && io->data && io->nbytes);
	if (io->write)
		io_prep_pwrite(iocb, io->fd, io->data, io->nbytes, (long long)io->offset);
	else
		io_prep_pread(iocb, io->fd, io->data, io->nbytes, (long long)io->offset);
	if (io->sync)
		iocb->aio_rw_flags = RWF_DSYNC;
	iocb->data = io;
}

static int submit_iocbs(struct queue *queue, long n, struct iocb **iocbs)
{
	int rc;

	assert(n > 0 && n <= (long)queue->depth);
	do {
		queue->facts->submit_calls++;
		rc = io_submit(queue->context, n, iocbs);
	} while (rc == -EINTR);
	assert(rc <= n);
	return rc;
}

static int libaio_submit(void *arg, struct io *const *ios, unsigned n)
{
	struct queue *queue = arg;
	unsigned step = queue->single_submit ? 1 : n;
	unsigned taken = 0;

	assert(n && n <= queue->depth);
	queue_check(queue);
	for (unsigned i = 0; i < n; i++) {
		assert(ios[i]->index < queue->depth);
		prepare(&queue->iocbs[ios[i]->index], ios[i]);
		queue->batch[i] = &queue->iocbs[ios[i]->index];
	}
	while (taken < n) {
		int rc = submit_iocbs(queue, step < n - taken ? step : n - taken,
				      queue->batch + taken);

		if (rc == 0 || rc == -EAGAIN)
			return taken ? (int)taken : -EAGAIN;
		if (rc < 0) {
			ios[taken]->result = rc;
			queue->refused[queue->nrefused++] = ios[taken];
			rc = 1;
		}
		taken += (unsigned)rc;
		queue_check(queue);
	}
	return (int)taken;
}

static void arm_wake(struct queue *queue)
{
	struct iocb *wake = &queue->wake;

	assert(!queue->wake_armed);
	io_prep_poll(wake, queue->wake_fd, POLLIN);
	wake->data = NULL;
	queue->wake_armed = io_submit(queue->context, 1, &wake) == 1;
}

static int libaio_reap(void *arg, struct io **ios, unsigned max, unsigned min)
{
	struct queue *queue = arg;
	bool woken = false;
	unsigned n = 0;

	assert(min <= max);
	queue_check(queue);
	if (max > queue->depth)
		max = queue->depth;
	while (queue->nrefused && n < max)
		ios[n++] = queue->refused[--queue->nrefused];
	do {
		int got;

		if (min == 1 && !queue->wake_armed)
			arm_wake(queue);
		queue->facts->reap_calls++;
		got = io_getevents(queue->context, min > n ? min - n : 0, max - n + 1,
				   queue->events, NULL);
		/* Refused I/Os are already in ios[]: return them first. */
		if (got < 0 && got != -EINTR)
			return n ? (int)n : got;
		for (int i = 0; i < got; i++) {
			struct io *io = queue->events[i].data;

			if (io) {
				io->result = (int)(long)queue->events[i].res;
				ios[n++] = io;
				continue;
			}
			(void)!read(queue->wake_fd, &(uint64_t){0}, sizeof(uint64_t));
			queue->wake_armed = false;
			woken = true;
		}
	} while (n < min && !(woken && min == 1));
	assert(n <= max);
	queue_check(queue);
	return (int)n;
}

static void libaio_wake(void *arg)
{
	struct queue *queue = arg;

	/* Fails only if the counter is full, and then the poll completes anyway. */
	(void)!write(queue->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
}

const struct engine_ops engine_libaio = {
	.name = "libaio",
	.open = libaio_open,
	.submit = libaio_submit,
	.reap = libaio_reap,
	.wake = libaio_wake,
	.close = libaio_close,
};
