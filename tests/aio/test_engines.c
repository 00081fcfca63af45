/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of an I/O engine, and what trying engines and closing queues leaves behind.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "aio/aio.h"
#include "aio/completions.h"
#include "aio/engines/engine.h"
#include "config/config.h"
#include "nvswap.h"
#include "support/inject.h"
#include "support/support.h"
#include "support/tests.h"

#define BLOCK 65536u

static const enum nvs_ioengine engines[] = {NVS_IOENGINE_IO_URING, NVS_IOENGINE_LIBAIO,
					    NVS_IOENGINE_POSIX};

static bool works(enum nvs_ioengine ioengine)
{
	char reason[192];

	return !ioengine_try(ioengine, reason, sizeof(reason));
}

static int open_with(struct nvs_aio **aio, enum nvs_ioengine ioengine, const struct nvs_log *log,
		     struct nvs_error *error)
{
	const struct aio_config config = {.block_size = BLOCK,
					  .queue_depth = 4,
					  .thread_count = 1,
					  .overlap_events = true,
					  .ioengine = ioengine};

	return aio_open(aio, &config, log, error);
}

/* ---- The choice ---- */

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

TEST(the_machine_has_the_first_engine_that_works)
{
	struct nvs_machine_info info = {.size = sizeof(info)};
	enum nvs_ioengine first = NVS_IOENGINE_AUTO;

	assert_int_equal(nvs_machine_get_info(&info, NULL), 0);
	for (size_t i = 0; i < COUNT(engines); i++) {
		bool it_works = works(engines[i]);

		assert_int_equal(info.ioengine[engines[i]].works, it_works);
		assert_int_equal(!info.ioengine[engines[i]].reason[0], it_works);
		if (it_works && first == NVS_IOENGINE_AUTO)
			first = engines[i];
	}
	assert_int_equal(info.auto_ioengine, first);
}

static void count_choices(void *arg, enum nvs_log_level level, const char *text)
{
	(void)level;
	*(unsigned *)arg += strstr(text, "ioengine auto chose libaio (io_uring: ") != NULL;
}

static unsigned choices_of_auto(void)
{
	struct nvs_error error = {.size = sizeof(error)};
	unsigned choices = 0;
	const struct nvs_log log = {count_choices, &choices};
	struct nvs_aio *aio;

	if (open_with(&aio, NVS_IOENGINE_AUTO, &log, &error))
		return UINT32_MAX;
	nvs_aio_close(aio);
	return choices;
}

static int auto_without_io_uring(void *arg)
{
	struct nvs_machine_info info = {.size = sizeof(info)};

	(void)arg;
	if (deny_syscall(SYS_io_uring_setup, EPERM))
		return CHILD_SKIPPED;
	EXPECT(choices_of_auto() == 1);
	EXPECT(!nvs_machine_get_info(&info, NULL) && info.auto_ioengine == NVS_IOENGINE_LIBAIO);
	EXPECT(!info.ioengine[NVS_IOENGINE_IO_URING].works);
	EXPECT(strstr(info.ioengine[NVS_IOENGINE_IO_URING].reason, "forbidden"));
	return CHILD_OK;
}

TEST(auto_logs_its_choice_only_if_it_passed_over_an_engine)
{
	if (!works(NVS_IOENGINE_IO_URING) || !works(NVS_IOENGINE_LIBAIO))
		SKIP("io_uring and libaio do not both work here");
	assert_int_equal(choices_of_auto(), 0);
	pass_in_child(auto_without_io_uring, NULL, "no seccomp filter can be set here");
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
