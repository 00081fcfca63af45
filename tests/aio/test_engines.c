/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trying engines and closing queues leaves behind, and the threads of the posix engine.
 */
#include "aio/completions.h"
#include "aio/engines/engine.h"
#include "config/config.h"
#include "nvswap.h"
#include "support/inject.h"
#include "support/support.h"
#include "support/tests.h"

static const enum nvs_ioengine engines[] = {NVS_IOENGINE_IO_URING, NVS_IOENGINE_LIBAIO,
					    NVS_IOENGINE_POSIX};

static bool works(enum nvs_ioengine ioengine)
{
	char reason[192];

	return !ioengine_try(ioengine, reason, sizeof(reason));
}

TEST(trying_an_engine_leaves_nothing_open)
{
	for (size_t i = 0; i < COUNT(engines); i++) {
		struct inject_held before = inject_held(), after;

		(void)works(engines[i]);
		after = inject_held();
		assert_int_equal(after.files, before.files);
		assert_int_equal(after.blocks, before.blocks);
	}
}

/* With 32 workers, a thread for each I/O would take all that pid_max of a small machine allows. */
TEST(a_deep_queue_of_the_posix_engine_has_256_threads)
{
	const struct engine_options options = {.depth = NVS_QUEUE_DEPTH_MAX, .wait_max = 1};
	unsigned before = entries_of("/proc/self/task");
	struct engine_facts facts = {0};
	char reason[192];
	void *queue;

	assert_int_equal(engine_posix.open(&queue, &options, &facts, reason, sizeof(reason)), 0);
	assert_int_equal(entries_of("/proc/self/task"), before + 256);
	engine_posix.close(queue);
}

TEST(a_closed_queue_leaves_no_memory)
{
	int64_t before = inject_held().blocks;
	struct completions *queue;

	assert_int_equal(completions_open(&queue), 0);
	completions_close(queue);
	assert_int_equal(inject_held().blocks, before);
}
