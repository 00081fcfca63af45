/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Effects of tuning on a drive besides the search: filling, which leaves no block unwritten and
 * keeps to its time; the file, which one process has at a time; and the test for writes that slow
 * down.
 */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aio/aio.h"
#include "base/clock.h"
#include "cli/tune/bounds.h"
#include "cli/tune/drive.h"
#include "cli/tune/scratch_file.h"
#include "config/config.h"
#include "support/tests.h"

#define MIB	((uint64_t)1 << 20)
#define LONG_NS UINT64_C(3600000000000)

static bool stop;

static bool asked_to_stop(void)
{
	return stop;
}

static struct tune_drive drive;
static struct scratch_file file;
static struct tune_work work;
static struct nvs_error error = {.size = sizeof(error)};

static uint64_t real_ns(void *arg)
{
	(void)arg;
	return clock_ns();
}

static int open_real(void *arg, const struct nvs_config *config, struct nvs_aio **aio,
		     struct nvs_error *failure)
{
	(void)arg;
	return nvs_aio_open(aio, config, failure);
}

static void begin(uint64_t working_set)
{
	stop = false;
	drive = (struct tune_drive){.working_set = working_set};
	SUCCEEDS(scratch_file_make(&file, temp_directory(), working_set, &error), &error);
	work = (struct tune_work){.drive = &drive,
				  .workload = {.open = open_real,
					       .now_ns = real_ns,
					       .path = file.path,
					       .working_set = working_set,
					       .memory = aligned_alloc(4096, 64 * MIB),
					       .memory_bytes = 64 * MIB,
					       .writes_max = UINT64_MAX,
					       .stopped = asked_to_stop}};
	assert_non_null(work.workload.memory);
	memset(work.workload.memory, 0xa5, 64 * MIB);
}

static void end(void)
{
	struct stat st;

	scratch_file_remove(&file);
	assert_int_equal(lstat(file.path, &st), -1);
	free(work.workload.memory);
}

static void check_filled(uint64_t nbytes)
{
	static char block[4096];
	uint64_t stamp;
	int fd = open(file.path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	for (uint64_t at = 0; at < nbytes; at += sizeof(block)) {
		assert_int_equal(pread(fd, block, sizeof(block), (off_t)at), sizeof(block));
		memcpy(&stamp, block, sizeof(stamp));
		assert_int_equal(stamp, at);
		assert_int_equal(block[sizeof(block) - 1], (char)0xa5);
	}
	close(fd);
}

TEST(every_block_is_written_and_no_two_are_alike)
{
	struct stat st;

	begin(97 * MIB);
	assert_int_equal(stat(file.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	SUCCEEDS(tune_fill(&work, LONG_NS, LONG_NS, &error), &error);
	assert_int_equal(work.workload.working_set, 97 * MIB);
	assert_int_equal(work.workload.written, 97 * MIB);
	assert_true(work.fill_first > 0 && work.fill_last > 0);
	check_filled(97 * MIB);
	end();
}

TEST(a_fill_that_takes_too_long_ends_early)
{
	begin(512 * MIB);
	SUCCEEDS(tune_fill(&work, 0, LONG_NS, &error), &error);
	assert_in_range(work.workload.working_set, TUNE_WORKING_SET_MIN, 128 * MIB);
	assert_int_equal(drive.working_set, work.workload.working_set);
	check_filled(drive.working_set);
	end();
}

TEST(a_fill_without_an_end_is_an_error)
{
	begin(64 * MIB);
	assert_int_equal(tune_fill(&work, 0, 0, &error), -ETIME);
	assert_says(error.text, "give a longer --time");
	stop = true;
	assert_int_equal(tune_fill(&work, LONG_NS, LONG_NS, &error), -EINTR);
	end();
}

TEST(one_process_at_a_time_owns_the_file_of_a_directory)
{
	struct scratch_file second;
	char directory[PATH_MAX];

	begin(64 * MIB);
	memcpy(directory, file.path, sizeof(directory));
	*strrchr(directory, '/') = '\0';
	assert_int_equal(scratch_file_make(&second, directory, MIB, &error), -EBUSY);
	assert_says(error.text, "another nvswap tune");
	end();
	SUCCEEDS(scratch_file_make(&second, directory, MIB, &error), &error);
	scratch_file_remove(&second);
}

TEST(a_link_in_place_of_the_file_is_not_followed)
{
	const char *directory = temp_directory(), *precious = path_in(directory, "precious");
	const char *name = path_in(directory, ".nvswap-tune");
	struct scratch_file refused;
	struct stat st;
	int fd = open(precious, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "data", 4), 4);
	close(fd);
	assert_int_equal(symlink("precious", name), 0);
	assert_int_equal(scratch_file_make(&refused, directory, MIB, &error), -EEXIST);
	assert_int_equal(unlink(name), 0);
	/* Of a file with a second name, only this name is removed. */
	assert_int_equal(link(precious, name), 0);
	SUCCEEDS(scratch_file_make(&refused, directory, MIB, &error), &error);
	scratch_file_remove(&refused);
	assert_int_equal(stat(precious, &st), 0);
	assert_int_equal(st.st_size, 4);
}

static bool judge(double fill_first, double fill_last, double first, double last)
{
	drive = (struct tune_drive){.working_set = 512 * MIB};
	work = (struct tune_work){.drive = &drive,
				  .workload.written = 4096 * MIB,
				  .fill_first = fill_first,
				  .fill_last = fill_last,
				  .reference_first = first};
	tune_judge_writes(&work, last);
	return drive.slows_down;
}

TEST(writes_a_fifth_slower_are_reported_with_numbers)
{
	assert_false(judge(2e9, 2e9, 2e9, 2e9));
	assert_false(judge(2e9, 1.7e9, 2e9, 1.7e9));
	assert_string_equal(drive.slows_text, "");
	assert_false(judge(0, 0, 1e9, 3e9)); /* faster, and a fill too short to decide */
	assert_true(judge(2e9, 1e9, 2e9, 1.9e9));
	assert_says(drive.slows_text, "from 2.00 to 1.00 GB/s (50 % less) within 0.5 GiB");
	assert_true(judge(2e9, 1.9e9, 3e9, 0.6e9));
	assert_says(drive.slows_text, "from 3.00 to 0.60 GB/s (80 % less) within 4.0 GiB");
	assert_says(drive.slows_text, "--working-set");
}

static struct tune_options options;

TEST(the_space_follows_machine_and_options)
{
	struct tune_space space;

	options = (struct tune_options){0};
	drive = (struct tune_drive){.working_set = 1024 * MIB};
	drive.machine.cpus = 6;
	drive.machine.memory_bytes = 64 * 1024 * MIB;
	drive.machine.memory_free_bytes = 48 * 1024 * MIB;
	drive.machine.auto_ioengine = NVS_IOENGINE_LIBAIO;
	drive.machine.ioengine[NVS_IOENGINE_LIBAIO].works = true;
	drive.machine.ioengine[NVS_IOENGINE_POSIX].works = true;
	SUCCEEDS(tune_space_make(&options, &drive, &space, &error), &error);
	assert_int_equal(space.nblock_sizes, 9);
	assert_int_equal(space.block_sizes[0], 65536);
	assert_int_equal(space.block_sizes[8], 16 * MIB);
	assert_int_equal(space.nqueue_depths, 9);
	assert_int_equal(space.queue_depths[8], 256);
	assert_int_equal(space.nthread_counts, 3);
	assert_int_equal(space.nioengines, 2);
	assert_int_equal(space.ioengines[0], NVS_IOENGINE_LIBAIO);
	assert_int_equal(space.in_flight_max, 128 * MIB);

	options = (struct tune_options){.block_size_min = 32 * MIB,
					.queue_depth_max = 3,
					.thread_count_max = 16,
					.ioengine = NVS_IOENGINE_POSIX};
	SUCCEEDS(tune_space_make(&options, &drive, &space, &error), &error);
	assert_int_equal(space.nblock_sizes, 1);
	assert_int_equal(space.nqueue_depths, 2);
	assert_int_equal(space.nthread_counts, 5);
	assert_int_equal(space.nioengines, 1);
	options.ioengine = NVS_IOENGINE_IO_URING;
	assert_int_equal(tune_space_make(&options, &drive, &space, &error), -ENOTSUP);
}

TEST(memory_for_tuning_is_half_of_what_a_limit_leaves_at_most)
{
	struct tune_drive large = {
		.machine = {.memory_bytes = 64 * 1024 * MIB, .memory_free_bytes = 64 * 1024 * MIB}};

	assert_int_equal(tune_memory_bytes(&large), 256 * MIB);
	large.machine.memory_free_bytes = 300 * MIB;
	assert_int_equal(tune_memory_bytes(&large), 150 * MIB);
	large.machine.memory_free_bytes = 100 * MIB;
	assert_int_equal(tune_memory_bytes(&large), 50 * MIB);
	large.machine.memory_free_bytes = 1;
	assert_int_equal(tune_memory_bytes(&large), 8 * MIB);
}

TEST(a_block_that_may_not_be_in_flight_is_refused_with_what_helps)
{
	struct tune_space space;

	options = (struct tune_options){.block_size_min = TUNE_BLOCK_SIZE_MAX};
	drive.working_set = 512 * MIB;
	assert_int_equal(tune_space_make(&options, &drive, &space, &error), -EINVAL);
	assert_says(error.text, "the 64 MiB that may be in flight: give a larger --working-set");
	drive.working_set = 1024 * MIB;
	SUCCEEDS(tune_space_make(&options, &drive, &space, &error), &error);
	drive.machine.memory_bytes = 1024 * MIB;
	assert_int_equal(tune_space_make(&options, &drive, &space, &error), -EINVAL);
	assert_says(error.text, "the 64 MiB that may be in flight: give a smaller --block-size");
	/* The options accept all values of the space. */
	options = (struct tune_options){.block_size_min = 4096,
					.block_size_max = TUNE_BLOCK_SIZE_MAX};
	SUCCEEDS(tune_space_make(&options, &drive, &space, &error), &error);
	assert_int_equal(space.block_sizes[space.nblock_sizes - 1], TUNE_BLOCK_SIZE_MAX);
}

TEST(the_working_set_leaves_room_on_the_drive)
{
	options = (struct tune_options){.directory = "here", .max_writes = 32 * 1024 * MIB};
	drive.path.free_bytes = 100 * 1024 * MIB;
	SUCCEEDS(tune_choose_working_set(&options, &drive, &error), &error);
	assert_int_equal(drive.working_set, 1024 * MIB);
	drive.path.free_bytes = 1000 * MIB;
	SUCCEEDS(tune_choose_working_set(&options, &drive, &error), &error);
	assert_int_equal(drive.working_set, 250 * MIB);
	drive.path.free_bytes = 71 * MIB;
	SUCCEEDS(tune_choose_working_set(&options, &drive, &error), &error);
	assert_int_equal(drive.working_set, 64 * MIB);
	drive.path.free_bytes = 70 * MIB;
	assert_int_equal(tune_choose_working_set(&options, &drive, &error), -ENOSPC);
	options.working_set = 100 * MIB;
	drive.path.free_bytes = 109 * MIB;
	assert_int_equal(tune_choose_working_set(&options, &drive, &error), -ENOSPC);
	assert_says(error.text, "smaller --working-set");
}

TEST(the_working_set_is_within_the_write_limit)
{
	options = (struct tune_options){.directory = "here", .max_writes = 1024 * MIB};
	drive.path.free_bytes = 100 * 1024 * MIB;
	SUCCEEDS(tune_choose_working_set(&options, &drive, &error), &error);
	assert_int_equal(drive.working_set, 256 * MIB);
	options.max_writes = 100 * MIB;
	SUCCEEDS(tune_choose_working_set(&options, &drive, &error), &error);
	assert_int_equal(drive.working_set, 64 * MIB);
	options.working_set = 101 * MIB;
	assert_int_equal(tune_choose_working_set(&options, &drive, &error), -EINVAL);
	assert_says(error.text, "more than --max-writes allows: give a smaller --working-set");
}

TEST(a_round_ends_before_it_exceeds_the_write_limit)
{
	const struct tune_point point = {NVS_IOENGINE_POSIX, MIB, 2, 1, false, true};
	struct tune_sample sample;
	uint64_t filled = 128 * MIB;

	begin(filled);
	SUCCEEDS(tune_fill(&work, LONG_NS, LONG_NS, &error), &error);
	work.workload.writes_max = filled + 96 * MIB;
	assert_int_equal(tune_measure(&work, &point, TUNE_SWAP, LONG_NS, &sample, &error), -EDQUOT);
	assert_in_range(work.workload.written, filled + 64 * MIB, filled + 96 * MIB);
	/* Reads continue. */
	SUCCEEDS(tune_measure(&work, &point, TUNE_READ, 1000000, &sample, &error), &error);
	end();
}

EACH_TEST(NULL, cleanup)
