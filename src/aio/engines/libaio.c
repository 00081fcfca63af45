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

/* The result of an I/O that the kernel has accepted, until it is reaped. */
#define IN_KERNEL (-EINPROGRESS)

struct queue {
	io_context_t context;
	struct engine_facts *facts;
	uint32_t depth;
	bool single_submit;
	int wake_fd;
	bool wake_armed;
	struct iocb wake;
	int stop_fd;	    /* of interrupt() */
	struct iocb *stops; /* polls of it, as many as a reap may wait for; data NULL: not armed */
	uint32_t stops_max, nstops; /* nstops of them are armed */
	struct iocb *iocbs;	    /* by io.index */
	struct iocb **batch;	    /* arguments of one io_submit() */
	struct io_event *events;    /* results of one io_getevents() */
	struct io **refused;	    /* refused by io_submit(); the next reap returns them */
	uint32_t nrefused;
};

static void queue_check(const struct queue *queue)
{
	assert(queue->depth && queue->nrefused <= queue->depth);
	assert(queue->wake_fd >= 0 && queue->facts);
	assert(queue->nstops <= queue->stops_max);
}

static void queue_free(struct queue *queue)
{
	assert(!queue->nrefused);
	if (queue->wake_fd >= 0)
		close(queue->wake_fd);
	if (queue->stop_fd >= 0)
		close(queue->stop_fd);
	free(queue->stops);
	free(queue->iocbs);
	free(queue->batch);
	free(queue->events);
	free(queue->refused);
	free(queue);
}

static void why_not(int rc, uint32_t events, char *reason, size_t reason_bytes)
{
	assert(rc < 0);
	if (rc == -EAGAIN)
		snprintf(reason, reason_bytes,
			 "%u more events exceed sysctl fs.aio-max-nr (fs.aio-nr are in use); raise "
			 "it or lower queue_depth x thread_count",
			 events);
	else if (rc == -ENOSYS || rc == -EPERM)
		snprintf(reason, reason_bytes,
			 "this kernel has no aio, or a seccomp filter hides it");
	else
		snprintf(reason, reason_bytes, "%s",
			 strerrordesc_np(-rc) ? strerrordesc_np(-rc) : "unknown error");
}

/* A filter may forbid these calls alone, which else only the first I/O would show. */
static int probe_calls(struct queue *queue)
{
	int rc = io_submit(queue->context, 0, NULL);

	if (rc >= 0)
		rc = io_getevents(queue->context, 0, 1, queue->events, NULL);
	if (rc < 0)
		io_destroy(queue->context);
	return rc < 0 ? rc : 0;
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
	queue->stops_max = options->wait_max > 1 ? options->wait_max : 0;
	queue->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	queue->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (queue->wake_fd < 0 || queue->stop_fd < 0) {
		rc = -errno;
		goto fail;
	}
	queue->stops = calloc(queue->stops_max + 1, sizeof(*queue->stops));
	queue->iocbs = calloc(options->depth, sizeof(*queue->iocbs));
	queue->batch = calloc(options->depth, sizeof(struct iocb *));
	queue->events = calloc(options->depth + 1 + queue->stops_max, sizeof(*queue->events));
	queue->refused = calloc(options->depth, sizeof(struct io *));
	if (!queue->stops || !queue->iocbs || !queue->batch || !queue->events || !queue->refused)
		goto fail;
	/* More events than the depth for the polls that wake() and interrupt() complete. */
	rc = io_setup((int)(options->depth + 1 + queue->stops_max), &queue->context);
	if (!rc)
		rc = probe_calls(queue);
	if (rc)
		goto fail;
	queue_check(queue);
	assert(!queue->nrefused && !queue->nstops);
	*out = queue;
	return 0;

fail:
	why_not(rc, options->depth + 1 + (queue ? queue->stops_max : 0), reason, reason_bytes);
	if (queue)
		queue_free(queue);
	/* -EAGAIN means the limit on threads. */
	return rc == -EAGAIN ? -ENOTSUP : rc;
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
	assert(io->result != IN_KERNEL);
	assert(io->fd >= 0 && io->data && io->nbytes);
	if (io->write)
		io_prep_pwrite(iocb, io->fd, io->data, io->nbytes, (long long)io->offset);
	else
		io_prep_pread(iocb, io->fd, io->data, io->nbytes, (long long)io->offset);
	if (io->sync)
		iocb->aio_rw_flags = RWF_DSYNC;
	iocb->data = io;
	io->result = 0;
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
		for (int i = 0; i < rc && ios[taken + (unsigned)i]->result >= 0; i++)
			ios[taken + (unsigned)i]->result = IN_KERNEL;
		taken += (unsigned)rc;
		queue_check(queue);
	}
	assert(taken == n);
	return (int)taken;
}

static void arm_wake(struct queue *queue)
{
	struct iocb *wake = &queue->wake;

	queue_check(queue);
	assert(!queue->wake_armed);
	io_prep_poll(wake, queue->wake_fd, POLLIN);
	wake->data = NULL;
	queue->wake_armed = io_submit(queue->context, 1, &wake) == 1;
}

/*
 * A reap that waits for several events ends when there are as many. So interrupt() completes as
 * many polls. They stay in flight over any number of reaps.
 */
static void arm_stops(struct queue *queue)
{
	assert(queue->stops_max && queue->stop_fd >= 0);
	for (uint32_t i = 0; i < queue->stops_max; i++) {
		struct iocb *stop = &queue->stops[i];

		if (stop->data)
			continue;
		io_prep_poll(stop, queue->stop_fd, POLLIN);
		stop->data = queue;
		if (io_submit(queue->context, 1, &stop) != 1) {
			stop->data = NULL;
			return;
		}
		queue->nstops++;
	}
	queue_check(queue);
}

struct woken {
	bool wake, interrupt;
};

/* Whether the event is of wake() or interrupt(), which *woken then notes. */
static bool is_call(struct queue *queue, const struct io_event *event, struct woken *woken)
{
	const void *data = event->data;

	assert(event->obj);
	if (data && data != queue)
		return false;
	(void)!read(data ? queue->stop_fd : queue->wake_fd, &(uint64_t){0}, sizeof(uint64_t));
	if (data) {
		assert(queue->nstops);
		queue->nstops--;
		event->obj->data = NULL;
		woken->interrupt = true;
	} else {
		queue->wake_armed = false;
		woken->wake = true;
	}
	return true;
}

/* Waits for events and sorts them; returns the number of I/Os, or a negative errno. */
static int get_events(struct queue *queue, struct io **ios, unsigned max, unsigned min,
		      struct woken *woken)
{
	int got, n = 0;

	assert(min <= max && max <= queue->depth + 1 + queue->stops_max);
	queue->facts->reap_calls++;
	got = io_getevents(queue->context, min, max, queue->events, NULL);
	for (int i = 0; i < got; i++) {
		struct io *io = queue->events[i].data;

		if (is_call(queue, &queue->events[i], woken))
			continue;
		assert(io->result == IN_KERNEL);
		io->result = (int)(long)queue->events[i].res;
		ios[n++] = io;
	}
	return got < 0 && got != -EINTR ? got : n;
}

static int libaio_reap(void *arg, struct io **ios, unsigned max, unsigned min)
{
	struct queue *queue = arg;
	struct woken woken = {0};
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
		if (min > 1 && queue->nstops < queue->stops_max)
			arm_stops(queue);
		/* No more than `max` of the events are I/Os, since no more are in flight. */
		got = get_events(queue, ios + n, max - n + 1 + queue->stops_max,
				 min > n ? min - n : 0, &woken);
		/* Refused I/Os are already in ios[]: return them first. */
		if (got < 0)
			return n ? (int)n : got;
		n += (unsigned)got;
	} while (n < min && !woken.interrupt && !(woken.wake && min == 1));
	assert(n <= max);
	queue_check(queue);
	return (int)n;
}

static void libaio_wake(void *arg)
{
	struct queue *queue = arg;

	assert(queue->wake_fd >= 0);
	/* Fails only if the counter is full, and then the poll completes anyway. */
	(void)!write(queue->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
}

static void libaio_interrupt(void *arg)
{
	struct queue *queue = arg;

	assert(queue->stop_fd >= 0);
	libaio_wake(arg);
	(void)!write(queue->stop_fd, &(uint64_t){1}, sizeof(uint64_t));
}

/* The ring of events that the kernel maps for the process; io_getevents(2) reads it, too. */
struct event_ring {
	unsigned id, nr, head, tail, magic, compat_features, incompat_features, header_length;
	struct io_event events[];
};

#define RING_MAGIC 0xa10a10a1u

static bool libaio_ended(void *arg, const struct io *io)
{
	const struct queue *queue = arg;
	const struct event_ring *ring = (const void *)queue->context;
	unsigned tail;

	assert(io->index < queue->depth);
	/* A ring of another form can't be read, and its I/Os have had their time. */
	if (io->result != IN_KERNEL || ring->magic != RING_MAGIC || ring->incompat_features)
		return true;
	tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
	assert(tail < ring->nr && ring->head < ring->nr);
	for (unsigned i = ring->head; i != tail; i = (i + 1) % ring->nr)
		if (ring->events[i].data == io)
			return true;
	return false;
}

const struct engine_ops engine_libaio = {
	.name = "libaio",
	.killable = true,
	.open = libaio_open,
	.submit = libaio_submit,
	.reap = libaio_reap,
	.wake = libaio_wake,
	.interrupt = libaio_interrupt,
	.close = libaio_close,
	.ended = libaio_ended,
};
