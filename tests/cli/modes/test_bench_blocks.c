/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block modes from open to close, in a directory of the test, which observes the job: it reads
 * the file while nothing is in flight.
 */
#include <signal.h>

#include "cli/commands.h"
#include "cli/jobs/jobs.h"
#include "cli/modes/modes.h"
#include "config/config.h"
#include "support/support.h"

#define KIB (1024ull)
#define MIB (1024ull * 1024)

/* ---- Observing the job ---- */

static struct {
	const char *directory;
	void (*on_begin)(void), (*on_measures)(void), (*on_measured)(void);
	uint64_t paced[2], longest_paced, pace_ends; /* bytes; pace_ends 0: never */
} watch;

bool job_begin(struct job_watch *job)
{
	(void)job;
	if (watch.on_begin)
		watch.on_begin();
	return !stop_signal();
}

void job_measures(struct job_watch *job, struct nvs_aio *aio, struct nvs_engine *engine,
		  struct baseline *from)
{
	(void)job;
	measure_begin(aio, engine, from);
	watch.paced[NVS_READ] = watch.paced[NVS_WRITE] = 0;
	if (watch.on_measures)
		watch.on_measures();
}

void job_measured(struct job_watch *job, struct bench_result *result)
{
	(void)job;
	(void)result;
	if (watch.on_measured)
		watch.on_measured();
}

bool job_pace(struct job_watch *job, enum nvs_direction direction, uint64_t nbytes)
{
	(void)job;
	if (watch.pace_ends && watch.paced[direction] + nbytes > watch.pace_ends)
		return false;
	watch.paced[direction] += nbytes;
	if (nbytes > watch.longest_paced)
		watch.longest_paced = nbytes;
	return true;
}

/* Opens the job's file, which has no name, through this process's descriptor of it. */
static int file_of_job(int flags)
{
	char path[64], target[4096];
	char *whole = realpath(watch.directory, NULL);
	int found = -1;

	for (int fd = 3; fd < 256 && found < 0; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = 0;
		if (!strncmp(target, whole, strlen(whole)) && strstr(target, " (deleted)"))
			found = open(path, flags | O_CLOEXEC);
	}
	free(whole);
	assert_true(found >= 0);
	return found;
}

/* ---- Jobs ---- */

struct job {
	struct bench_options options;
	struct nvs_config config;
	struct bench_result result;
};

static struct job *new_job(unsigned rw, uint64_t size)
{
	static struct job job;

	memset(&job, 0, sizeof(job));
	memset(&watch, 0, sizeof(watch));
	job.result.error.size = sizeof(job.result.error);
	watch.directory = temp_directory();
	config_init(&job.config);
	job.config.aio.block_size = 16 * KIB;
	job.config.aio.queue_depth = 4;
	job.options = (struct bench_options){.rw = rw, .size = size, .loops = 1, .seed = 11};
	return &job;
}

static int run_job(struct job *job)
{
	const struct bench_job of = {
		.options = job->options, .config = &job->config, .block = NVS_OFFLOAD_PARAM};

	job->result.error.code = nvs_config_set_paths(&job->config, NVS_OFFLOAD_PARAM,
						      &watch.directory, 1, NULL)
					 ?: bench_blocks(&of, NULL, &job->result);
	config_free(&job->config);
	return job->result.error.code;
}

static const unsigned modes[] = {RW_READ, RW_WRITE, RW_RANDREAD, RW_RANDWRITE};

TEST(each_mode_moves_its_blocks_by_each_engine)
{
	static const enum nvs_ioengine engines[] = {NVS_IOENGINE_AUTO, NVS_IOENGINE_POSIX,
						    NVS_IOENGINE_LIBAIO};

	for (unsigned i = 0; i < COUNT(modes); i++)
		for (unsigned workers = 1; workers <= COUNT(engines); workers++) {
			struct job *job = new_job(modes[i], 3 * MIB + 5 * KIB);
			const uint64_t bytes = 2 * 3 * MIB;
			bool writes = block_mode_writes(modes[i]);
			const struct bench_result *result = &job->result;

			job->options.loops = 2;
			job->options.ramp_loops = 1;
			job->config.aio.thread_count = workers;
			job->config.aio.ioengine = engines[workers - 1];
			SUCCEEDS(run_job(job), &job->result.error);
			assert_true(result->measured && result->opened);
			assert_int_equal(result->bytes[0] + result->bytes[1], bytes);
			for (int d = 0; d < 2; d++) {
				assert_int_equal(result->bytes[d], watch.paced[d]);
				assert_int_equal(result->aio.io[d].bytes, result->bytes[d]);
				assert_int_equal(result->aio.io[d].ios,
						 result->bytes[d] / (16 * KIB));
				assert_int_equal(result->latency[d][NVS_CLAT].count,
						 result->aio.io[d].ios);
			}
			assert_true(result->aio.inflight_max <= 4);
			assert_int_equal(result->engine.aio.workers, workers);
			assert_int_equal(result->bytes[writes ? NVS_WRITE : NVS_READ], bytes);
			assert_int_equal(result->first_bytes, writes ? 0 : 3 * MIB);
			assert_int_equal(entries_of(watch.directory), 0);
		}
}

static void refuses(struct job *job, int rc, const char *says)
{
	assert_int_equal(run_job(job), rc);
	assert_says(job->result.error.text, says);
	assert_false(job->result.measured);
	assert_int_equal(entries_of(watch.directory), 0);
}

TEST(sectors_are_moved_direct_where_the_drive_can)
{
	struct nvs_path_info info = {.size = sizeof(info)};
	struct job *job = new_job(RW_RANDREAD, 256 * KIB);

	SUCCEEDS(nvs_path_get_info(watch.directory, &info, &job->result.error), &job->result.error);
	job->config.aio.block_size = 512;
	if (info.dio_offset_align != 512) {
		refuses(job, -EINVAL, "takes direct I/O in multiples of");
		return;
	}
	SUCCEEDS(run_job(job), &job->result.error);
	assert_int_equal(job->result.bytes[0] + job->result.bytes[1], 256 * KIB);
	assert_int_equal(job->result.aio.io[0].ios + job->result.aio.io[1].ios, 512);
	assert_int_equal(job->result.aio.bounced_bytes, 0);
}

/* ---- Contents of the file ---- */

static unsigned zero_sectors;
static bool in_sequence; /* those that were written are at the file's beginning */

static void scan_file(void)
{
	static const char zeros[512];
	char sector[512];
	int fd = file_of_job(O_RDONLY);

	zero_sectors = 0;
	in_sequence = true;
	while (read(fd, sector, sizeof(sector)) == sizeof(sector)) {
		bool empty = !memcmp(sector, zeros, sizeof(zeros));

		in_sequence &= !zero_sectors || empty;
		zero_sectors += empty;
	}
	close(fd);
}

TEST(every_block_is_written_or_filled)
{
	static const uint64_t sizes[] = {16 * KIB, 3 * 16 * KIB, MIB, 5 * MIB};

	for (unsigned i = 0; i < COUNT(modes) * COUNT(sizes); i++) {
		unsigned rw = modes[i % COUNT(modes)];
		struct job *job = new_job(rw, sizes[i / COUNT(modes)]);

		*(block_mode_writes(rw) ? &watch.on_measured : &watch.on_begin) = scan_file;
		zero_sectors = 1;
		SUCCEEDS(run_job(job), &job->result.error);
		assert_int_equal(zero_sectors, 0);
	}
}

TEST(random_blocks_are_in_no_sequence)
{
	for (unsigned random = 0; random < 2; random++) {
		struct job *job = new_job(random ? RW_RANDWRITE : RW_WRITE, MIB);

		watch.pace_ends = MIB / 2;
		watch.on_measured = scan_file;
		SUCCEEDS(run_job(job), &job->result.error);
		assert_int_equal(job->result.bytes[NVS_WRITE], MIB / 2);
		assert_int_equal(in_sequence, !random);
	}
}

/* ---- The end of a job ---- */

TEST(the_rate_bounds_submissions)
{
	for (unsigned i = 0; i < COUNT(modes); i++) {
		struct job *job = new_job(modes[i], 4 * MIB);
		uint64_t bytes;

		job->config.aio.queue_depth = 64;
		job->options.rate = MIB;
		watch.pace_ends = MIB;
		SUCCEEDS(run_job(job), &job->result.error);
		bytes = job->result.bytes[0] + job->result.bytes[1];
		for (int d = 0; d < 2; d++)
			assert_true(job->result.bytes[d] <= MIB);
		assert_true(bytes >= MIB * 9 / 10);
		assert_true(watch.longest_paced <= MIB / 20);
	}
}

static void ask_to_end(void)
{
	raise(SIGTERM);
}

static int runs_until_signal(void *arg)
{
	struct job *job = arg;

	stop_catch_signals(NULL);
	EXPECT(run_job(job) == 0);
	EXPECT(stop_signal() == SIGTERM);
	EXPECT(job->result.measured);
	return CHILD_OK;
}

TEST(a_signal_ends_the_job)
{
	struct job *job = new_job(RW_WRITE, MIB);

	job->options.runtime_ms = 3600000;
	job->options.time_based = true;
	watch.on_measures = ask_to_end;
	assert_int_equal(in_child(runs_until_signal, job), CHILD_OK);
	config_free(&job->config);
	assert_int_equal(entries_of(watch.directory), 0);
}

TEST(impossible_accesses_are_refused)
{
	struct job *job;

	job = new_job(RW_READ, 15 * KIB);
	refuses(job, -EINVAL, "are less than one block of 16384");

	job = new_job(RW_READ, MIB);
	job->config.aio.block_size = 1u << 30;
	job->options.size = 1u << 30;
	job->config.aio.queue_depth = 4096;
	job->config.aio.thread_count = 32;
	refuses(job, -ENOMEM, "needs 256 TiB");

	job = new_job(RW_READ, 1ull << 60);
	assert_true(run_job(job) < 0);
	assert_says(job->result.error.text, "can't make a file of 1152921504606846976 bytes");
	assert_int_equal(entries_of(watch.directory), 0);
}

TEST(a_file_needs_direct_io_and_space)
{
	const char *memory = memory_directory(), *directory;
	struct job *job = new_job(RW_WRITE, MIB);

	if (memory) {
		watch.directory = memory;
		if (run_job(job))
			assert_says(job->result.error.text, "this file system has no direct I/O");
		assert_int_equal(entries_of(memory), 0);
	}
	directory = need_ext4(16 * MIB, 512);
	job = new_job(RW_WRITE, 32 * MIB);
	watch.directory = directory;
	assert_int_equal(run_job(job), -ENOSPC);
	assert_says(job->result.error.text, "give a smaller --size");
	job = new_job(RW_WRITE, 4 * MIB);
	watch.directory = directory;
	SUCCEEDS(run_job(job), &job->result.error);
}

EACH_TEST(NULL, cleanup)
