/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs of single I/Os, against the counters of the aio that did them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/clock.h"
#include "cli/job_log.h"
#include "inject.h"
#include "support.h"

#define PAGE	4096u
#define DEPTH	8u
#define NPAGES	100u
#define NWRITES 2u

struct fixture {
	const char *directory;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct job_log log;
	struct nvs_error error;
	char *data;
};

static void make_file(const char *path, const void *data, size_t nbytes)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, nbytes, file), nbytes);
	assert_int_equal(fclose(file), 0);
}

static int begin(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct nvs_config config;

	assert_non_null(fixture);
	fixture->directory = temp_directory();
	fixture->data = calloc(NPAGES, PAGE);
	assert_non_null(fixture->data);
	nvs_config_init(&config);
	config.aio.block_size = PAGE;
	config.aio.queue_depth = DEPTH;
	config.aio.thread_count = NWRITES;
	SUCCEEDS(nvs_aio_open(&fixture->aio, &config.aio, &config.log, &fixture->error),
		 &fixture->error);
	make_file(path_in(fixture->directory, "file"), fixture->data, (size_t)NPAGES * PAGE);
	SUCCEEDS(nvs_file_open(fixture->aio, path_in(fixture->directory, "file"),
			       NVS_FILE_WRITE | NVS_FILE_BUFFERED, &fixture->file, &fixture->error),
		 &fixture->error);
	nvs_config_free(&config);
	*state = fixture;
	return 0;
}

static int end(void **state)
{
	struct fixture *fixture = *state;

	nvs_file_close(fixture->file);
	nvs_aio_close(fixture->aio);
	free(fixture->data);
	free(fixture);
	return 0;
}

static void open_logs(struct fixture *fixture, uint64_t log_avg_msec)
{
	const char *prefix = path_in(fixture->directory, "log");
	const struct bench_job job = {.options = {.write_bw_log = prefix,
						  .write_lat_log = prefix,
						  .log_avg_msec = log_avg_msec}};

	SUCCEEDS(job_log_open(&fixture->log, &job, &fixture->error), &fixture->error);
}

static void move(struct fixture *fixture, enum nvs_direction direction)
{
	struct nvs_transfer transfer = {.file = fixture->file,
					.direction = direction,
					.data = fixture->data,
					.nbytes = (uint64_t)NPAGES * PAGE};
	struct nvs_transfer *transfers[] = {&transfer};

	SUCCEEDS(nvs_submit(fixture->aio, transfers, 1, &fixture->error), &fixture->error);
	SUCCEEDS(nvs_transfer_wait(fixture->aio, transfers, 1, -1, &fixture->error),
		 &fixture->error);
}

/* Of one direction. */
struct lines {
	unsigned n;
	double sum;
};

static void read_log(struct fixture *fixture, const char *kind, struct lines lines[2])
{
	char name[64];
	uint64_t msec, value;
	unsigned direction, nbytes;
	FILE *file;

	snprintf(name, sizeof(name), "log_%s.1.log", kind);
	file = fopen(path_in(fixture->directory, name), "r");
	assert_non_null(file);
	memset(lines, 0, 2 * sizeof(*lines));
	while (fscanf(file, "%" SCNu64 ", %" SCNu64 ", %u, %u, 0\n", &msec, &value, &direction,
		      &nbytes) == 4) {
		assert_true(direction < 2);
		assert_int_equal(nbytes, PAGE);
		assert_true(msec < 3600000);
		lines[direction].n++;
		lines[direction].sum += (double)value;
	}
	assert_true(feof(file));
	fclose(file);
}

static void each_io_has_its_line(void **state)
{
	static const char *const kinds[] = {
		[NVS_SLAT] = "slat", [NVS_CLAT] = "clat", [NVS_LAT] = "lat"};
	struct fixture *fixture = *state;
	struct lines lines[2];

	open_logs(fixture, 0);
	move(fixture, NVS_READ);
	job_log_prepare(&fixture->log, fixture->aio);
	nvs_aio_reset_stats(fixture->aio);
	job_log_begin(&fixture->log, now_ns());
	move(fixture, NVS_WRITE);
	job_log_ios(&fixture->log, fixture->aio);
	move(fixture, NVS_READ);
	move(fixture, NVS_WRITE);
	job_log_end(&fixture->log, fixture->aio);
	/* What comes later is not of it. */
	move(fixture, NVS_READ);
	SUCCEEDS(job_log_close(&fixture->log, &fixture->error), &fixture->error);
	for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++) {
		struct nvs_latency *latency = calloc(1, sizeof(*latency));

		assert_non_null(latency);
		read_log(fixture, kinds[kind], lines);
		nvs_aio_get_latency(fixture->aio, NVS_WRITE, kind, latency);
		assert_int_equal(lines[NVS_WRITE].n, NWRITES * NPAGES);
		assert_int_equal(lines[NVS_READ].n, NPAGES);
		/* Whole numbers, of which sums are exact. */
		assert_true(lines[NVS_WRITE].sum == latency->sum_ns);
		free(latency);
	}
	read_log(fixture, "bw", lines);
	assert_int_equal(lines[NVS_WRITE].n, NWRITES * NPAGES);
	assert_true(lines[NVS_READ].sum > 0);
}

static void lines_that_are_missing_are_told(void **state)
{
	struct fixture *fixture = *state;
	struct lines lines[2];

	open_logs(fixture, 0);
	fixture->log.room = 2;
	job_log_prepare(&fixture->log, fixture->aio);
	job_log_begin(&fixture->log, now_ns());
	move(fixture, NVS_WRITE);
	job_log_end(&fixture->log, fixture->aio);
	assert_int_equal(job_log_close(&fixture->log, &fixture->error), -ENOBUFS);
	read_log(fixture, "clat", lines);
	assert_in_range(lines[NVS_WRITE].n, 1, 2);
	assert_says(fixture->error.text, lines[NVS_WRITE].n == 1 ? "lack 99 I/Os" : "lack 98 I/Os");
	assert_says(fixture->error.text, "give log_avg_msec");
}

static void no_memory_for_them_is_told(void **state)
{
	struct fixture *fixture = *state;

	open_logs(fixture, 0);
	inject_fail(INJECT_MEMORY, 2, 1, ENOMEM);
	job_log_prepare(&fixture->log, fixture->aio);
	job_log_begin(&fixture->log, now_ns());
	inject_stop(NULL);
	move(fixture, NVS_WRITE);
	job_log_end(&fixture->log, fixture->aio);
	assert_int_equal(job_log_close(&fixture->log, &fixture->error), -ENOMEM);
	assert_says(fixture->error.text, "no memory for the logs of single I/Os");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_io_has_its_line, begin, end),
		cmocka_unit_test_setup_teardown(lines_that_are_missing_are_told, begin, end),
		cmocka_unit_test_setup_teardown(no_memory_for_them_is_told, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
