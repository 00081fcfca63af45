/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Effects of tuning on a drive besides the search: filling, which leaves no block unwritten and
 * keeps to its time; the file, which one process has at a time; and the test for writes that slow
 * down.
 */
#include "support/support.h"

#include "aio/aio.h"
#include "base/clock.h"
#include "cli/modes/modes.h"
#include "cli/tune/tune.h"
#include "config/config.h"

#define MIB	((uint64_t)1 << 20)
#define LONG_NS UINT64_C(3600000000000)

static int stop;

static int asked_to_stop(void)
{
	return stop;
}

static uint64_t real_ns(void *arg)
{
	(void)arg;
	return clock_ns();
}

static struct tune_drive drive;
static struct tune_workload load;
static const char *directory;
static struct nvs_error error = {.size = sizeof(error)};

static void begin(uint64_t working_set)
{
	stop = false;
	drive = (struct tune_drive){.slows_down = false};
	directory = temp_directory();
	load = (struct tune_workload){.now_ns = real_ns,
				      .fd = make_scratch_file(directory, working_set, &error),
				      .working_set = working_set,
				      .memory = aligned_alloc(4096, 64 * MIB),
				      .memory_bytes = 64 * MIB,
				      .writes_max = UINT64_MAX,
				      .stopped = asked_to_stop};
	assert_true(load.fd >= 0);
	assert_non_null(load.memory);
	memset(load.memory, 0xa5, 64 * MIB);
}

static int fill(uint64_t soft_ns, uint64_t hard_ns)
{
	return tune_fill(&load, NVS_IOENGINE_AUTO, &drive, soft_ns, hard_ns, &error);
}

static int end(void **state)
{
	if (load.memory)
		close(load.fd);
	free(load.memory);
	load.memory = NULL;
	return cleanup(state);
}

static void check_filled(uint64_t nbytes)
{
	static char block[4096];
	uint64_t stamp;

	for (uint64_t at = 0; at < nbytes; at += sizeof(block)) {
		assert_int_equal(pread(load.fd, block, sizeof(block), (off_t)at), sizeof(block));
		memcpy(&stamp, block, sizeof(stamp));
		assert_int_equal(stamp, at);
		assert_int_equal(block[sizeof(block) - 1], (char)0xa5);
	}
}

TEST(every_block_is_written_and_no_two_are_alike)
{
	struct stat st;

	begin(97 * MIB);
	assert_int_equal(fstat(load.fd, &st), 0);
	assert_true((st.st_mode & 07777) == 0600 && !st.st_nlink);
	SUCCEEDS(fill(LONG_NS, LONG_NS), &error);
	assert_true(load.working_set == 97 * MIB && load.written == 97 * MIB && drive.fill > 0);
	check_filled(97 * MIB);
}

TEST(a_fill_that_takes_too_long_ends_early_or_is_an_error)
{
	begin(512 * MIB);
	SUCCEEDS(fill(0, LONG_NS), &error);
	assert_in_range(load.working_set, TUNE_WORKING_SET_MIN, 128 * MIB);
	check_filled(load.working_set);
	close(load.fd);
	free(load.memory);
	begin(64 * MIB);
	assert_int_equal(fill(0, 0), -ETIME);
	assert_says(error.text, "give a longer --time");
	stop = true;
	assert_int_equal(fill(LONG_NS, LONG_NS), -EINTR);
}

TEST(one_process_at_a_time_tunes_in_a_directory)
{
	struct tune_drive first = {.slows_down = false}, second = first;

	directory = temp_directory();
	SUCCEEDS(tune_look(directory, &first, &error), &error);
	assert_int_equal(tune_look(directory, &second, &error), -EBUSY);
	assert_says(error.text, "another nvswap tune");
	close(first.directory);
	close(second.directory);
	SUCCEEDS(tune_look(directory, &second, &error), &error);
	close(second.directory);
}

TEST(writes_a_fifth_slower_are_reported_with_numbers)
{
	static const double rates[][2] = {{2e9, 2e9}, {2e9, 1.7e9}, {1e9, 3e9}, {2e9, 0}, {0, 0}};

	for (size_t i = 0; i < COUNT(rates); i++) {
		drive = (struct tune_drive){.reference = {rates[i][0], rates[i][1]}};
		tune_judge_writes(&drive, 4096 * MIB);
		assert_false(drive.slows_down || *drive.slows_text);
	}
	drive = (struct tune_drive){.reference = {3e9, 0.6e9}};
	tune_judge_writes(&drive, 4096 * MIB);
	assert_true(drive.slows_down);
	assert_says(drive.slows_text, "from 3.00 to 0.60 GB/s (80 % less) within 4.0 GiB");
	assert_says(drive.slows_text, "--working-set");
}

#define GIB (1024 * MIB)

static const struct nvs_machine_info large = {
	.cpus = 6,
	.memory_bytes = 64 * GIB,
	.memory_free_bytes = 48 * GIB,
	.auto_ioengine = NVS_IOENGINE_LIBAIO,
	.ioengine[NVS_IOENGINE_LIBAIO].works = true,
	.ioengine[NVS_IOENGINE_POSIX].works = true,
};

TEST(the_space_follows_machine_and_options)
{
	struct tune_options options = {.block_size_min = 0};
	struct tune_space space;

	SUCCEEDS(tune_space_make(&options, &large, GIB, &space, &error), &error);
	assert_true(space.nblock_sizes == 9 && space.block_sizes[0] == 65536 &&
		    space.block_sizes[8] == 16 * MIB);
	assert_true(space.nqueue_depths == 9 && space.queue_depths[8] == 256);
	assert_int_equal(space.nthread_counts, 3);
	assert_true(space.nioengines == 2 && space.ioengines[0] == NVS_IOENGINE_LIBAIO);
	assert_int_equal(space.in_flight_max, 128 * MIB);

	options = (struct tune_options){.block_size_min = 32 * MIB,
					.queue_depth_max = 3,
					.thread_count_max = 16,
					.ioengine = NVS_IOENGINE_POSIX};
	SUCCEEDS(tune_space_make(&options, &large, GIB, &space, &error), &error);
	assert_true(space.nblock_sizes == 1 && space.nqueue_depths == 2 &&
		    space.nthread_counts == 5 && space.nioengines == 1);
	options.ioengine = NVS_IOENGINE_IO_URING;
	assert_int_equal(tune_space_make(&options, &large, GIB, &space, &error), -ENOTSUP);
}

TEST(memory_for_tuning_is_half_of_what_a_limit_leaves_at_most)
{
	static const uint64_t free_and_used[][2] = {
		{64 * GIB, 256 * MIB}, {300 * MIB, 150 * MIB}, {100 * MIB, 50 * MIB}, {1, 8 * MIB}};
	struct nvs_machine_info machine = large;

	for (size_t i = 0; i < COUNT(free_and_used); i++) {
		machine.memory_free_bytes = free_and_used[i][0];
		assert_int_equal(tune_memory_bytes(&machine), free_and_used[i][1]);
	}
}

TEST(a_block_that_may_not_be_in_flight_is_refused_with_what_helps)
{
	struct tune_options options = {.block_size_min = TUNE_BLOCK_SIZE_MAX};
	struct nvs_machine_info small = large;
	struct tune_space space;

	assert_int_equal(tune_space_make(&options, &large, 512 * MIB, &space, &error), -EINVAL);
	assert_says(error.text, "the 64 MiB that may be in flight: give a larger --working-set");
	SUCCEEDS(tune_space_make(&options, &large, GIB, &space, &error), &error);
	small.memory_bytes = GIB;
	assert_int_equal(tune_space_make(&options, &small, GIB, &space, &error), -EINVAL);
	assert_says(error.text, "the 64 MiB that may be in flight: give a smaller --block-size");
	/* The options accept all values of the space. */
	options = (struct tune_options){.block_size_min = 4096,
					.block_size_max = TUNE_BLOCK_SIZE_MAX};
	SUCCEEDS(tune_space_make(&options, &small, GIB, &space, &error), &error);
	assert_int_equal(space.block_sizes[space.nblock_sizes - 1], TUNE_BLOCK_SIZE_MAX);
}

TEST(the_working_set_leaves_room_and_is_within_the_write_limit)
{
	static const struct {
		uint64_t free_mib, max_writes_mib, asked_mib;
		int rc;
		uint64_t mib;
		const char *says;
	} cases[] = {
		{100 * 1024, 32 * 1024, 0, 0, 1024, ""},
		{1000, 32 * 1024, 0, 0, 250, ""},
		{71, 32 * 1024, 0, 0, 64, ""},
		{70, 32 * 1024, 0, -ENOSPC, 0, "make room"},
		{109, 32 * 1024, 100, -ENOSPC, 0, "smaller --working-set"},
		{100 * 1024, 1024, 0, 0, 256, ""},
		{100 * 1024, 100, 0, 0, 64, ""},
		{100 * 1024, 100, 101, -EINVAL, 0,
		 "more than --max-writes allows: give a smaller --working-set"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct tune_options options = {.directory = "here",
					       .max_writes = cases[i].max_writes_mib * MIB,
					       .working_set = cases[i].asked_mib * MIB};
		uint64_t set = 0;

		drive.path.free_bytes = cases[i].free_mib * MIB;
		assert_int_equal(tune_choose_working_set(&options, &drive, &set, &error),
				 cases[i].rc);
		assert_int_equal(set, cases[i].mib * MIB);
		assert_says(cases[i].rc ? error.text : "", cases[i].says);
	}
}

TEST(a_round_ends_before_it_exceeds_the_write_limit)
{
	const struct tune_point point = {NVS_IOENGINE_POSIX, MIB, 2, 1, false, true};
	struct tune_sample sample;
	uint64_t filled = 128 * MIB;

	begin(filled);
	SUCCEEDS(fill(LONG_NS, LONG_NS), &error);
	load.writes_max = filled + 96 * MIB;
	assert_int_equal(tune_workload_measure(&load, &point, TUNE_SWAP, LONG_NS, &sample, &error),
			 -EDQUOT);
	assert_in_range(load.written, filled + 64 * MIB, filled + 96 * MIB);
	/* Reads continue. */
	SUCCEEDS(tune_workload_measure(&load, &point, TUNE_READ, 1000000, &sample, &error), &error);
}

EACH_TEST(NULL, end)
