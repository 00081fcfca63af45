/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of I/O engines, in the order in which auto tries them.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "aio/engines/engine.h"
#include "base/threads/thread.h"

static const struct engine_ops *const engines[NVS_IOENGINE_COUNT] = {
	[NVS_IOENGINE_IO_URING] = &engine_io_uring,
	[NVS_IOENGINE_LIBAIO] = &engine_libaio,
	[NVS_IOENGINE_POSIX] = &engine_posix,
};

const struct engine_ops *ioengine_ops(enum nvs_ioengine ioengine)
{
	assert(ioengine > NVS_IOENGINE_AUTO && ioengine < NVS_IOENGINE_COUNT);
	assert(engines[ioengine]->open && engines[ioengine]->submit && engines[ioengine]->reap);
	return engines[ioengine];
}

struct attempt {
	const struct engine_ops *ops;
	char *reason;
	size_t nbytes;
	int rc;
};

static void *try_to_open(void *arg)
{
	const struct engine_options options = {.depth = 1};
	struct attempt *attempt = arg;
	struct engine_facts facts = {0};
	void *queue;
	int rc;

	assert(attempt->ops && attempt->nbytes);
	rc = attempt->ops->open(&queue, &options, &facts, attempt->reason, attempt->nbytes);
	assert(rc <= 0);
	if (!rc)
		attempt->ops->close(queue);
	attempt->rc = rc;
	return NULL;
}

int ioengine_try(enum nvs_ioengine ioengine, char *reason, size_t nbytes)
{
	assert(reason && nbytes);
	/* The result, unless the thread is killed. */
	struct attempt attempt = {
		.ops = ioengine_ops(ioengine), .reason = reason, .nbytes = nbytes, .rc = -EPERM};
	pthread_t thread;
	int rc;

	snprintf(reason, nbytes, "%s", ENGINE_KILLED);
	rc = thread_start(&thread, try_to_open, &attempt);
	if (rc) {
		snprintf(reason, nbytes, "%s", thread_strerror(rc));
		return rc;
	}
	pthread_join(thread, NULL);
	if (!attempt.rc)
		reason[0] = '\0';
	assert(attempt.rc <= 0);
	return attempt.rc;
}
