/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of I/O engines, in the order in which auto tries them.
 */
#include <assert.h>

#include "aio/engines/engine.h"

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

int ioengine_try(enum nvs_ioengine ioengine, char *reason, size_t nbytes)
{
	const struct engine_ops *ops = ioengine_ops(ioengine);
	struct engine_options options = {.depth = 1};
	struct engine_facts facts = {0};
	void *queue;
	int rc;

	reason[0] = '\0';
	rc = ops->open(&queue, &options, &facts, reason, nbytes);
	if (!rc)
		ops->close(queue);
	return rc;
}
