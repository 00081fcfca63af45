/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring engine: one ring per worker, with registered buffers and files, a single issuer and
 * deferred task running. It does without each of these on older kernels (fixed files 5.1, sparse
 * buffers 5.19, single issuer 6.0, deferred task running 6.1).
 */
#include <liburing.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "aio/engines/engine.h"
#include "base/numbers.h"
#include "base/state_checks.h"

/*
 * The block layer plugs the I/Os of one io_uring_enter() until all are built. That saves processor
 * time for large I/Os but idles the drive for small ones, so those are submitted a few at a time.
 */
#define SMALL_IO_BYTES	   (64u * 1024)
#define SMALL_IOS_PER_CALL 4

struct uring {
	struct io_uring ring;
	struct engine_facts *facts;
	int wake_fd;
	uint64_t wake_count; /* buffer of the armed read of wake_fd */
	bool wake_armed;
	int stop_fd;	     /* of wake(any); -1: no reap waits for several */
	uint64_t stop_count; /* buffer of its read */
	unsigned stops;	     /* operations that wake(any) completes */
	bool stop_armed;     /* the first of them is in flight */
	bool single_submit;
	unsigned unsubmitted_ios; /* in the submission queue, without what is for wake() */
};

/* After each step: what the submission queue holds is counted. */
static void uring_check(const struct uring *uring)
{
	if (!STATE_CHECKS)
		return;
	assert(uring->unsubmitted_ios <= io_uring_sq_ready(&uring->ring));
	assert(uring->wake_fd >= 0 && uring->facts);
	assert(!uring->stop_armed || uring->stops > 1);
}

/* Tries the setup flags from the newest kernel's to the oldest's. */
static int set_up_ring(struct uring *uring, const struct engine_options *options)
{
	static const unsigned steps[] = {
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
		IORING_SETUP_SUBMIT_ALL,
		0,
	};
	unsigned avoid = 0;
	int rc = -EINVAL;

	if (options->without & WITHOUT_DEFER_TASKRUN)
		avoid |= IORING_SETUP_DEFER_TASKRUN;
	if (options->without & WITHOUT_SINGLE_ISSUER)
		avoid |= IORING_SETUP_SINGLE_ISSUER;

	for (size_t i = 0; i < COUNT_OF(steps) && rc == -EINVAL; i++) {
		if (steps[i] & avoid)
			continue;
		/* More entries than the depth for what wake() completes. */
		rc = io_uring_queue_init(options->depth + 1 + uring->stops, &uring->ring, steps[i]);
		uring->facts->single_issuer = steps[i] & IORING_SETUP_SINGLE_ISSUER;
		uring->facts->defer_taskrun = steps[i] & IORING_SETUP_DEFER_TASKRUN;
	}
	return rc;
}

static const char *why_not(int rc)
{
	switch (rc) {
	case -ENOSYS:
		return "this kernel has no io_uring, or a seccomp filter hides it";
	case -EPERM:
		return "io_uring is forbidden here (seccomp filter of the container runtime, or "
		       "sysctl kernel.io_uring_disabled)";
	case -ENOMEM:
		return "no memory for the ring, which counts towards the memlock limit (ulimit -l)";
	default:
		return nvs_strerror(rc);
	}
}

static void close_eventfds(struct uring *uring)
{
	if (uring->wake_fd >= 0)
		close(uring->wake_fd);
	if (uring->stop_fd >= 0)
		close(uring->stop_fd);
}

static int uring_open(void **queue, const struct engine_options *options,
		      struct engine_facts *facts, char *reason, size_t reason_bytes)
{
	struct uring *uring = calloc(1, sizeof(*uring));
	int rc = -ENOMEM;

	if (!uring)
		goto fail;
	uring->facts = facts;
	uring->single_submit = options->single_submit;
	uring->stop_fd = -1;
	uring->stops = options->wait_max > 1 ? options->wait_max : 0;
	uring->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (uring->wake_fd >= 0 && uring->stops)
		uring->stop_fd = eventfd(0, EFD_CLOEXEC);
	rc = uring->wake_fd < 0 || (uring->stops && uring->stop_fd < 0) ? -errno : 0;
	rc = rc ?: set_up_ring(uring, options);
	/* A filter may forbid io_uring_enter() alone, which else only the first I/O would show. */
	if (!rc && syscall(SYS_io_uring_enter, uring->ring.ring_fd, 0, 0, IORING_ENTER_GETEVENTS,
			   NULL, 0) < 0) {
		rc = -errno;
		io_uring_queue_exit(&uring->ring);
	}
	if (rc)
		goto fail;
	if (!(options->without & WITHOUT_FIXED_FILES)) {
		int none[ENGINE_FILES];
		struct rlimit limit;
		unsigned n = ENGINE_FILES;

		/* Registers as many slots as the limit on open files allows; setting a slot beyond
		 * fails. Uses the system call because io_uring_register_files(3) raises that limit
		 * for the whole process. */
		memset(none, -1, sizeof(none));
		if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < n)
			n = (unsigned)limit.rlim_cur;
		uring->facts->fixed_files = !syscall(SYS_io_uring_register, uring->ring.ring_fd,
						     IORING_REGISTER_FILES, none, n);
	}
	if (!(options->without & WITHOUT_FIXED_BUFFERS)) {
		uring->facts->buffers_status = io_uring_register_buffers_sparse(&uring->ring,
										ENGINE_BUFFERS);
		uring->facts->fixed_buffers = !uring->facts->buffers_status;
	}
	uring_check(uring);
	*queue = uring;
	return 0;

fail:
	snprintf(reason, reason_bytes, "%s", why_not(rc));
	if (uring)
		close_eventfds(uring);
	free(uring);
	return rc;
}

static void uring_close(void *queue)
{
	struct uring *uring = queue;

	uring_check(uring);
	assert(!uring->unsubmitted_ios);
	io_uring_queue_exit(&uring->ring);
	close_eventfds(uring);
	free(uring);
}

static void prepare_io(struct uring *uring, struct io_uring_sqe *sqe, struct io *io)
{
	bool fixed = io->buffer_slot >= 0 && uring->facts->fixed_buffers;
	int fd = io->fd;

	if (fixed && io->write)
		io_uring_prep_write_fixed(sqe, fd, io->data, io->nbytes, io->offset,
					  io->buffer_slot);
	else if (fixed)
		io_uring_prep_read_fixed(sqe, fd, io->data, io->nbytes, io->offset,
					 io->buffer_slot);
	else if (io->write)
		io_uring_prep_write(sqe, fd, io->data, io->nbytes, io->offset);
	else
		io_uring_prep_read(sqe, fd, io->data, io->nbytes, io->offset);
	if (io->sync)
		sqe->rw_flags = RWF_DSYNC;
	if (io->file_slot >= 0 && uring->facts->fixed_files) {
		sqe->fd = io->file_slot;
		sqe->flags |= IOSQE_FIXED_FILE;
	}
	io_uring_sqe_set_data(sqe, io);
}

static int flush_submissions(struct uring *uring, unsigned wait_for)
{
	int rc;

	assert(io_uring_sq_ready(&uring->ring) || wait_for);
	uring->facts->submit_calls += uring->unsubmitted_ios > 0;
	uring->unsubmitted_ios = 0;
	do
		rc = wait_for ? io_uring_submit_and_wait(&uring->ring, wait_for)
			      : io_uring_submit(&uring->ring);
	while (rc == -EINTR || (rc > 0 && !wait_for && io_uring_sq_ready(&uring->ring)));
	uring_check(uring);
	if (rc == -EAGAIN)
		sched_yield();
	/* Out of memory, or completions must be reaped first: reap retries the rest. */
	return rc == -EAGAIN || rc == -EBUSY ? 0 : rc < 0 ? rc : 0;
}

static int uring_submit(void *queue, struct io *const *ios, unsigned n)
{
	struct uring *uring = queue;
	unsigned taken = 0;

	if (ios[0]->nbytes < SMALL_IO_BYTES) {
		/* On failure the entries stay in the queue, and the reap reports the error. */
		if (uring->unsubmitted_ios)
			(void)flush_submissions(uring, 0);
		if (n > SMALL_IOS_PER_CALL)
			n = SMALL_IOS_PER_CALL;
	}
	for (; taken < n; taken++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

		if (!sqe)
			break;
		prepare_io(uring, sqe, ios[taken]);
		uring->unsubmitted_ios++;
		/* The entry stays in the queue, and the reap reports the error. */
		if (uring->single_submit && flush_submissions(uring, 0))
			return (int)taken + 1;
	}
	uring_check(uring);
	return taken ? (int)taken : -EAGAIN;
}

/*
 * A reap that waits for several completions ends when there are as many. So wake(any) completes as
 * many: a read of its eventfd, and empty operations linked to that. They stay in flight over any
 * number of reaps, so they cost nothing until then.
 */
static void arm_stops(struct uring *uring)
{
	assert(!uring->stop_armed && uring->stops);
	if (io_uring_sq_space_left(&uring->ring) < uring->stops)
		return;
	for (unsigned i = 0; i < uring->stops; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

		if (i)
			io_uring_prep_nop(sqe);
		else
			io_uring_prep_read(sqe, uring->stop_fd, &uring->stop_count,
					   sizeof(uring->stop_count), 0);
		if (i + 1 < uring->stops)
			sqe->flags |= IOSQE_IO_LINK;
		io_uring_sqe_set_data(sqe, i ? &uring->stops : (void *)&uring->stop_fd);
	}
	uring->stop_armed = true;
	uring_check(uring);
}

struct woken {
	bool wake, any;
};

/*
 * Whether the entry is of wake(), which *woken then notes. Of the operations of wake(any), the
 * first tells; the others end the kernel's wait.
 */
static bool is_call(struct uring *uring, const void *data, struct woken *woken)
{
	if (!data) {
		assert(uring->wake_armed);
		uring->wake_armed = false;
		woken->wake = true;
	} else if (data == &uring->stop_fd) {
		assert(uring->stop_armed);
		uring->stop_armed = false;
		woken->any = true;
	} else {
		return data == &uring->stops;
	}
	return true;
}

/* Takes the entries of the completion queue; notes in *woken which calls they are from. */
static unsigned take_completions(struct uring *uring, struct io **ios, unsigned max,
				 struct woken *woken)
{
	struct io_uring_cqe *cqes[64];
	unsigned n = 0;

	while (n < max) {
		unsigned room = max - n < 64 ? max - n : 64;
		unsigned got = io_uring_peek_batch_cqe(&uring->ring, cqes, room);

		for (unsigned i = 0; i < got; i++) {
			struct io *io = io_uring_cqe_get_data(cqes[i]);

			if (is_call(uring, io, woken))
				continue;
			io->result = cqes[i]->res;
			ios[n++] = io;
		}
		io_uring_cq_advance(&uring->ring, got);
		if (!got)
			break;
	}
	return n;
}

/*
 * After a failed system call (a seccomp filter installed later, say), withdraws the I/Os that the
 * kernel has not consumed and completes them with the error.
 */
static unsigned withdraw_unsubmitted(struct uring *uring, struct io **ios, unsigned max, int rc)
{
	struct io_uring_sq *sq = &uring->ring.sq;
	struct woken ignored;
	unsigned n = 0;

	while (n < max && sq->sqe_tail != __atomic_load_n(sq->khead, __ATOMIC_ACQUIRE)) {
		struct io *io =
			(void *)(uintptr_t)sq->sqes[--sq->sqe_tail & *sq->kring_mask].user_data;

		if (is_call(uring, io, &ignored))
			continue;
		io->result = rc;
		ios[n++] = io;
	}
	sq->sqe_head = sq->sqe_tail;
	__atomic_store_n(sq->ktail, sq->sqe_tail, __ATOMIC_RELEASE);
	assert(!io_uring_sq_ready(&uring->ring) || n == max);
	return n;
}

static int uring_reap(void *queue, struct io **ios, unsigned max, unsigned min)
{
	struct uring *uring = queue;
	struct woken woken = {0};
	unsigned n = 0;

	uring_check(uring);
	uring->facts->reap_calls++;
	for (;;) {
		int rc;

		if (min == 1 && !uring->wake_armed) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

			if (sqe) {
				io_uring_prep_read(sqe, uring->wake_fd, &uring->wake_count,
						   sizeof(uring->wake_count), 0);
				io_uring_sqe_set_data(sqe, NULL);
				uring->wake_armed = true;
			}
		}
		if (min > 1 && !uring->stop_armed)
			arm_stops(uring);
		if (io_uring_sq_ready(&uring->ring) || n < min) {
			rc = flush_submissions(uring, n < min ? min - n : 0);
			if (rc) {
				n += take_completions(uring, ios + n, max - n, &woken);
				n += withdraw_unsubmitted(uring, ios + n, max - n, rc);
				return n ? (int)n : rc;
			}
		}
		if (!min)
			io_uring_get_events(&uring->ring);
		n += take_completions(uring, ios + n, max - n, &woken);
		if (n >= min || woken.any || (woken.wake && min == 1))
			return (int)n;
	}
}

static void uring_wake(void *queue, bool any)
{
	struct uring *uring = queue;

	/* Fails only if the counter is full, and then the read completes anyway. */
	(void)!write(uring->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
	if (any && uring->stop_fd >= 0)
		(void)!write(uring->stop_fd, &(uint64_t){1}, sizeof(uint64_t));
}

static int uring_set_file(void *queue, unsigned slot, int fd)
{
	struct uring *uring = queue;
	int rc;

	if (!uring->facts->fixed_files)
		return -ENOTSUP;
	rc = io_uring_register_files_update(&uring->ring, slot, &fd, 1);
	return rc < 0 ? rc : 0;
}

static int uring_set_buffer(void *queue, unsigned slot, void *data, size_t nbytes)
{
	struct uring *uring = queue;
	struct iovec region = {.iov_base = data, .iov_len = data ? nbytes : 0};
	__u64 tag = 0;
	int rc;

	if (!uring->facts->fixed_buffers)
		return -ENOTSUP;
	rc = io_uring_register_buffers_update_tag(&uring->ring, slot, &region, &tag, 1);
	return rc < 0 ? rc : 0;
}

const struct engine_ops engine_io_uring = {
	.name = "io_uring",
	.open = uring_open,
	.submit = uring_submit,
	.reap = uring_reap,
	.wake = uring_wake,
	.set_file = uring_set_file,
	.set_buffer = uring_set_buffer,
	.close = uring_close,
};
