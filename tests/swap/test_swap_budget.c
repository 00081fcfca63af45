/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The write budget: the count outlives stores, runs and kills; nine tenths are warned of; beyond it
 * no run starts. What a step has written stands in its result and in the trace.
 */
#include "support/inject.h"
#include "swap/swap_fixture.h"

#include <sys/file.h>

ONE_ENGINE

#define BUDGET	(100 * MIB)
#define AHEAD	MIB /* counted before it is written, at the least */
#define REFUSAL "nvswap.write_budget is 100 MiB: raise the budget, or remove that file"

static const char *count_file(void)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/nvswap/written", f->paths[0]);
	return path;
}

static uint64_t counted(void)
{
	FILE *file = fopen(count_file(), "re");
	uint64_t count;

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%" SCNu64 " bytes written", &count), 1);
	fclose(file);
	return count;
}

static void set_count(const char *text)
{
	FILE *file = fopen(count_file(), "we");

	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static void set_written(uint64_t nbytes)
{
	char text[64];

	snprintf(text, sizeof(text), "%020" PRIu64 " bytes written\n", nbytes);
	set_count(text);
}

static void init(bool keep)
{
	INIT(f, .place = PLACE_DISK, .keep = keep);
	f->config.write_budget = BUDGET;
}

static void write_mib(void)
{
	struct nvs_tensor *t = nvs_tensor_find(f->engine, "t");

	tensor_store(f, t ? t : tensor_add(f, "t", MIB), 1);
}

/* Opens, writes so many MiB, and closes. Returns what the engine counts. */
static uint64_t run(unsigned mib)
{
	uint64_t written;

	OK(f, fixture_reopen(f));
	for (unsigned i = 0; i < mib; i++)
		write_mib();
	written = stats_of(f).drive_written_bytes;
	fixture_shut(f);
	return written;
}

TEST(runs_of_a_path_are_counted_together)
{
	uint64_t written;

	init(false);
	written = run(5);
	assert_in_range(written, 5 * MIB, 6 * MIB);
	assert_int_equal(counted(), written);
	written += run(0);
	f->config.rank = 1;
	written += run(3);
	assert_int_equal(counted(), written);
	/* Without the key, a run is not counted. */
	f->config.write_budget = 0;
	run(1);
	assert_int_equal(counted(), written);
}

TEST(each_path_counts_what_it_was_given)
{
	uint64_t written, first;

	INIT(f, .place = PLACE_DISK, .npaths = 2, .stripe_size = 64 * KIB);
	f->config.write_budget = BUDGET;
	written = run(4);
	first = counted();
	assert_in_range(first, 2 * MIB, 2 * MIB + MIB / 2);
	snprintf(f->log, sizeof(f->log), "%s", f->paths[0]);
	f->paths[0] = f->paths[1];
	assert_int_equal(first + counted(), written);
	f->paths[0] = strdup(f->log);
	f->log[0] = 0;
}

TEST(a_run_does_not_start_beyond_the_budget)
{
	uint64_t before;

	init(true);
	before = run(1);
	/* The commit at the end is counted. */
	assert_in_range(counted(), before + 6 * 4096, before + MIB);
	set_written(BUDGET);
	assert_int_equal(fixture_reopen(f), -EDQUOT);
	assert_string_equal(f->error.subject, "nvswap.write_budget");
	expect_error(f, f->error.code, -EDQUOT, REFUSAL);
	assert_int_equal(counted(), BUDGET);
	/* Reading writes nothing. */
	f->config.keep = false;
	f->config.read_only = true;
	OK(f, fixture_reopen(f));
	fixture_shut(f);
	f->config.keep = true;
	f->config.read_only = false;
	assert_int_equal(counted(), BUDGET);
	/* A larger budget, or a new count. */
	f->config.write_budget = 2 * BUDGET;
	run(1);
	assert_in_range(counted(), BUDGET + MIB, BUDGET + 2 * MIB);
	f->config.write_budget = BUDGET;
	assert_int_equal(unlink(count_file()), 0);
	run(1);
	assert_in_range(counted(), MIB, 2 * MIB);
}

TEST(nine_tenths_of_the_budget_are_warned_of_once)
{
	init(false);
	/* io_uring says so in the log if an ordinary user can't register all memory. */
	f->config.aio.ioengine = NVS_IOENGINE_POSIX;
	run(1);
	assert_string_equal(f->log, "");
	set_written(BUDGET / 10 * 9 - 4 * MIB);
	run(1);
	assert_string_equal(f->log, "");
	set_written(BUDGET / 10 * 9);
	run(1);
	assert_says(f->log, "of the 100 MiB that nvswap.write_budget allows were written below");
	assert_says(f->log, "nvswap/written is removed");
	f->log[0] = 0;
	/* And in the middle of a run, which goes on, also beyond the budget. */
	set_written(BUDGET / 10 * 9 - 2 * MIB);
	run(30);
	assert_says(f->log, "nvswap.write_budget allows");
	assert_null(strstr(strstr(f->log, "write_budget") + 1, "write_budget"));
	assert_in_range(counted(), BUDGET, BUDGET + 20 * MIB);
	expect_error(f, fixture_reopen(f), -EDQUOT, REFUSAL);
}

static int write_and_die(void *arg)
{
	(void)arg;
	if (fixture_reopen(f))
		_exit(1);
	for (unsigned i = 0; i < 10; i++) {
		write_mib();
		events_await_idle(f->engine);
	}
	_exit(0);
}

TEST(a_killed_run_counts_at_least_what_it_wrote)
{
	init(false);
	assert_int_equal(in_child(write_and_die, NULL), 0);
	assert_in_range(counted(), 10 * MIB, 10 * MIB + MIB / 2 + AHEAD);
}

TEST(a_file_that_is_no_count_is_refused_by_name)
{
	init(false);
	run(1);
	set_count("many\n");
	expect_error(f, fixture_reopen(f), -EUCLEAN, "nvswap/written is not a count of bytes");
	set_count("");
	run(1);
	assert_in_range(counted(), MIB, 2 * MIB);
	assert_int_equal(unlink(count_file()), 0);
	assert_int_equal(symlink("/dev/null", count_file()), 0);
	expect_error(f, fixture_reopen(f), -ELOOP, "nvswap/written");
}

TEST(a_count_that_cannot_be_replaced_does_not_stop_a_run)
{
	int fd;

	init(false);
	OK(f, fixture_reopen(f));
	fd = open(count_file(), O_RDONLY | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	write_mib();
	events_await_idle(f->engine);
	assert_says(f->log, "what this run writes can't be counted for nvswap.write_budget");
	assert_int_equal(counted(), AHEAD);
	close(fd);
	write_mib();
	events_await_idle(f->engine);
	assert_int_equal(counted(), 2 * MIB + AHEAD);
	fixture_shut(f);
	assert_int_equal(counted(), 2 * MIB);
}

TEST(whichever_call_of_an_opening_fails_the_count_is_whole)
{
	uint64_t failed = 1;

	init(false);
	run(1);
	for (uint64_t nth = 1; failed; nth++) {
		int rc;

		set_written(5 * MIB);
		inject_fail(INJECT_ANY & ~(unsigned)INJECT_MEMORY, nth, 1, EIO);
		rc = fixture_reopen(f);
		inject_stop(&failed);
		if (!rc)
			fixture_shut(f);
		else
			assert_true(failed && *f->error.text);
		/* What was added and could not be made durable may stay. */
		assert_in_range(counted(), 5 * MIB, 5 * MIB + AHEAD);
	}
	run(1);
}

TEST(a_block_device_has_no_budget)
{
	const char *why, *device = loop_device(96 * MIB, 512, &why);
	int rc;

	if (!device)
		SKIP("%s", why);
	INIT(f, .in = device);
	f->config.write_budget = BUDGET;
	rc = fixture_reopen(f);
	expect_error(f, rc, -EOPNOTSUPP, "is a block device");
}

TEST(a_store_in_memory_writes_to_no_drive)
{
	INIT(f, .device = NVS_DEVICE_CPU);
	f->config.write_budget = BUDGET;
	OK(f, fixture_reopen(f));
	write_mib();
	assert_int_equal(stats_of(f).drive_written_bytes, 0);
}

TEST(a_step_and_its_trace_have_the_bytes_that_the_drive_was_given)
{
	struct nvs_step_io io = {.size = sizeof(io)};
	char words[64], *text;
	const char *path;

	INIT(f, .place = PLACE_DISK);
	assert_int_equal(nvs_trace_open(&f->config.trace, 1000, NULL), 0);
	OK(f, fixture_reopen(f));
	OK(f, nvs_engine_step_begin(f->engine, &f->error));
	tensor_store(f, tensor_add(f, "t", MIB + 1), 1);
	OK(f, nvs_engine_step_end(f->engine, &io, &f->error));
	assert_int_equal(io.written_bytes, MIB + 1);
	assert_in_range(io.drive_written_bytes, MIB + 512, MIB + 8192);
	path = path_in(f->paths[0], "trace.json");
	assert_int_equal(nvs_trace_write(f->config.trace, path, NULL, NULL), 0);
	fixture_shut(f);
	nvs_trace_close(f->config.trace);
	f->config.trace = NULL;
	text = file_text(path);
	snprintf(words, sizeof(words), "\"call\":\"step-end\",\"offset\":0,\"bytes\":%" PRIu64,
		 io.drive_written_bytes);
	assert_says(text, words);
	free(text);
}
