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
#include "base/state_checks.h"

/* The result of an I/O that the kernel has accepted, until it is reaped. */
#define IN_KERNEL (-EINPROGRESS)

struct aio_context {
	io_context_t id;
	struct engine_facts *facts;
	uint32_t depth;
	bool single_submit;
	int wake_fd;
	bool wake_armed;
	struct iocb wake;
	int stop_fd;	    /* of wake(any) */
	struct iocb *stops; /* polls of it, as many as a reap may wait for; data NULL: not armed */
	uint32_t stops_max, nstops; /* nstops of them are armed */
	struct iocb *iocbs;	    /* by io.index */
	struct iocb **batch;	    /* arguments of one io_submit() */
	struct io_event *events;    /* results of one io_getevents() */
	struct io **refused;	    /* refused by io_submit(); the next reap returns them */
	uint32_t nrefused;
};

static void context_check(const struct aio_context *context)
{
	if (!STATE_CHECKS)
		return;
	assert(context->depth && context->nrefused <= context->depth);
	assert(context->wake_fd >= 0 && context->facts);
	assert(context->nstops <= context->stops_max);
}

static void context_free(struct aio_context *context)
{
	assert(!context->nrefused);
	if (context->wake_fd >= 0)
		close(context->wake_fd);
	if (context->stop_fd >= 0)
		close(context->stop_fd);
	free(context->stops);
	free(context->iocbs);
	free(context->batch);
	free(context->events);
	free(context->refused);
	free(context);
}

static int libaio_open(void **out, const struct engine_options *options, struct engine_facts *facts,
		       char *reason, size_t reason_bytes)
{
	struct aio_context *context = calloc(1, sizeof(*context));
	int rc = -ENOMEM;

	if (!context)
		goto fail;
	context->facts = facts;
	context->depth = options->depth;
	context->single_submit = options->single_submit;
	context->stops_max = options->wait_max > 1 ? options->wait_max : 0;
	context->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	context->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (context->wake_fd < 0 || context->stop_fd < 0) {
		rc = -errno;
		goto fail;
	}
	context->stops = calloc(context->stops_max + 1, sizeof(*context->stops));
	context->iocbs = calloc(options->depth, sizeof(*context->iocbs));
	context->batch = calloc(options->depth, sizeof(struct iocb *));
	context->events = calloc(options->depth + 1 + context->stops_max, sizeof(*context->events));
	context->refused = calloc(options->depth, sizeof(struct io *));
	if (!context->stops || !context->iocbs || !context->batch || !context->events ||
	    !context->refused)
		goto fail;
	/* More events than the depth for the polls that wake() completes. */
	rc = io_setup((int)(options->depth + 1 + context->stops_max), &context->id);
	if (!rc) {
		/* A filter may forbid these calls alone, which else only the first I/O would
		 * show. */
		rc = io_submit(context->id, 0, NULL);
		if (rc >= 0)
			rc = io_getevents(context->id, 0, 1, context->events, NULL);
		if (rc < 0)
			io_destroy(context->id);
		rc = rc < 0 ? rc : 0;
	}
	if (rc)
		goto fail;
	context_check(context);
	*out = context;
	return 0;

fail:
	if (rc == -EAGAIN)
		snprintf(reason, reason_bytes,
			 "%u more events exceed sysctl fs.aio-max-nr (fs.aio-nr are in use); raise "
			 "it or lower queue_depth x thread_count",
			 options->depth + 1 + (context ? context->stops_max : 0));
	else if (rc == -ENOSYS || rc == -EPERM)
		snprintf(reason, reason_bytes,
			 "this kernel has no aio, or a seccomp filter hides it");
	else
		snprintf(reason, reason_bytes, "%s", nvs_strerror(rc));
	if (context)
		context_free(context);
	/* -EAGAIN means the limit on threads. */
	return rc == -EAGAIN ? -ENOTSUP : rc;
}

static void libaio_close(void *arg)
{
	struct aio_context *context = arg;

	assert(!context->nrefused);
	io_destroy(context->id);
	context_free(context);
}

static int libaio_submit(void *arg, struct io *const *ios, unsigned n)
{
	struct aio_context *context = arg;
	unsigned step = context->single_submit ? 1 : n;
	unsigned taken = 0;

	context_check(context);
	for (unsigned i = 0; i < n; i++) {
		struct io *io = ios[i];
		struct iocb *iocb = context->batch[i] = &context->iocbs[io->index];

		assert(io->result != IN_KERNEL);
		if (io->write)
			io_prep_pwrite(iocb, io->fd, io->data, io->nbytes, (long long)io->offset);
		else
			io_prep_pread(iocb, io->fd, io->data, io->nbytes, (long long)io->offset);
		if (io->sync)
			iocb->aio_rw_flags = RWF_DSYNC;
		iocb->data = io;
		io->result = 0;
	}
	while (taken < n) {
		long count = step < n - taken ? step : n - taken;
		int rc;

		do {
			context->facts->submit_calls++;
			rc = io_submit(context->id, count, context->batch + taken);
		} while (rc == -EINTR);
		if (rc == 0 || rc == -EAGAIN)
			return taken ? (int)taken : -EAGAIN;
		if (rc < 0) {
			ios[taken]->result = rc;
			context->refused[context->nrefused++] = ios[taken];
			rc = 1;
		}
		for (int i = 0; i < rc && ios[taken + (unsigned)i]->result >= 0; i++)
			ios[taken + (unsigned)i]->result = IN_KERNEL;
		taken += (unsigned)rc;
		context_check(context);
	}
	return (int)taken;
}

/*
 * A reap that waits for several events ends when there are as many. So wake(any) completes as
 * many polls. They stay in flight over any number of reaps.
 */
static void arm_stops(struct aio_context *context)
{
	for (uint32_t i = 0; i < context->stops_max; i++) {
		struct iocb *stop = &context->stops[i];

		if (stop->data)
			continue;
		io_prep_poll(stop, context->stop_fd, POLLIN);
		stop->data = context;
		if (io_submit(context->id, 1, &stop) != 1) {
			stop->data = NULL;
			return;
		}
		context->nstops++;
	}
}

struct woken {
	bool wake, any;
};

/* Waits for events: notes in *woken which are of wake(), and returns the number of
 * I/Os, or a negative errno. */
static int get_events(struct aio_context *context, struct io **ios, unsigned max, unsigned min,
		      struct woken *woken)
{
	int got, n = 0;

	context->facts->reap_calls++;
	got = io_getevents(context->id, min, max, context->events, NULL);
	for (int i = 0; i < got; i++) {
		const struct io_event *event = &context->events[i];
		bool wake = !event->data, stop = event->data == context;
		struct io *io = event->data;

		if (wake || stop) {
			(void)!read(stop ? context->stop_fd : context->wake_fd, &(uint64_t){0},
				    sizeof(uint64_t));
			woken->wake |= wake;
			woken->any |= stop;
			if (wake) {
				context->wake_armed = false;
			} else {
				assert(context->nstops);
				context->nstops--;
				event->obj->data = NULL;
			}
			continue;
		}
		assert(io->result == IN_KERNEL);
		/* The memory is still what the kernel was given. */
		assert(event->obj->u.c.buf == io->data);
		io->result = (int)(long)event->res;
		ios[n++] = io;
	}
	return got < 0 && got != -EINTR ? got : n;
}

static int libaio_reap(void *arg, struct io **ios, unsigned max, unsigned min)
{
	struct aio_context *context = arg;
	struct woken woken = {0};
	unsigned n = 0;

	context_check(context);
	if (max > context->depth)
		max = context->depth;
	while (context->nrefused && n < max)
		ios[n++] = context->refused[--context->nrefused];
	do {
		int got;

		if (min == 1 && !context->wake_armed) {
			struct iocb *wake = &context->wake;

			io_prep_poll(wake, context->wake_fd, POLLIN);
			wake->data = NULL;
			context->wake_armed = io_submit(context->id, 1, &wake) == 1;
		}
		if (min > 1 && context->nstops < context->stops_max)
			arm_stops(context);
		/* No more than `max` of the events are I/Os, since no more are in flight. */
		got = get_events(context, ios + n, max - n + 1 + context->stops_max,
				 min > n ? min - n : 0, &woken);
		/* Refused I/Os are already in ios[]: return them first. */
		if (got < 0)
			return n ? (int)n : got;
		n += (unsigned)got;
	} while (n < min && !woken.any && !(woken.wake && min == 1));
	assert(n <= max);
	context_check(context);
	return (int)n;
}

static void libaio_wake(void *arg, bool any)
{
	struct aio_context *context = arg;

	/* Fails only if the counter is full, and then the poll completes anyway. */
	(void)!write(context->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
	if (any)
		(void)!write(context->stop_fd, &(uint64_t){1}, sizeof(uint64_t));
}

const struct engine_ops engine_libaio = {
	.name = "libaio",
	.open = libaio_open,
	.submit = libaio_submit,
	.reap = libaio_reap,
	.wake = libaio_wake,
	.close = libaio_close,
};
