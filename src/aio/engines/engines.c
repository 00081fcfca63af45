/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of I/O engines, in the order in which auto tries them, and which of them work on this
 * machine.
 */
#include <stdio.h>
#include <string.h>

#include "aio/engines/engine.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "base/threads/thread.h"
#include "topo/topo.h"

const struct engine_ops *const ioengines[NVS_IOENGINE_COUNT] = {
	[NVS_IOENGINE_IO_URING] = &engine_io_uring,
	[NVS_IOENGINE_LIBAIO] = &engine_libaio,
	[NVS_IOENGINE_POSIX] = &engine_posix,
};

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

	attempt->rc = attempt->ops->open(&queue, &options, &facts, attempt->reason,
					 attempt->nbytes);
	if (!attempt->rc)
		attempt->ops->close(queue);
	return NULL;
}

int ioengine_try(enum nvs_ioengine ioengine, char *reason, size_t nbytes)
{
	/* The result, unless the thread is killed. */
	struct attempt attempt = {
		.ops = ioengines[ioengine], .reason = reason, .nbytes = nbytes, .rc = -EPERM};
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
	return attempt.rc;
}

int nvs_machine_get_info(struct nvs_machine_info *info, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_machine_info full;
	__typeof__(full.ioengine[0]) *automatic = &full.ioengine[NVS_IOENGINE_AUTO];

	if (!struct_sized(info))
		return error_set(error, -EINVAL, "info is NULL, or its size is not set");
	/* Each field reports its own failure. */
	machine_facts(&full);
	for (int i = NVS_IOENGINE_IO_URING; i <= NVS_IOENGINE_POSIX; i++) {
		char *reason = full.ioengine[i].reason, *earlier = automatic->reason;
		size_t used = strlen(earlier);

		full.ioengine[i].works = !ioengine_try((enum nvs_ioengine)i, reason,
						       sizeof(full.ioengine[i].reason));
		if (automatic->works)
			continue;
		/* auto takes the first that works, and says why the earlier ones don't. */
		automatic->works = full.ioengine[i].works;
		if (automatic->works)
			full.auto_ioengine = (enum nvs_ioengine)i;
		else
			snprintf(earlier + used, sizeof(automatic->reason) - used, "%s%s: %s",
				 used ? "; " : "", nvs_ioengine_name((enum nvs_ioengine)i), reason);
	}
	return struct_out(info, &full, sizeof(full));
}
