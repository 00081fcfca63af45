/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench --compare: the job file for fio, and fio's JSON read back. test_fio_turns.sh runs the
 * complete command, with fio and with failing programs in its place.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/prepare.h"
#include "cli/fio/fio.h"
#include "support/support.h"

#define JOBS_FILE_BYTES 4096

struct fixture {
	char directory[64];
	struct bench_plan plan;
	struct bench_result *results[JOBS_MAX];
};

/* Plans job sections, each "name" and lines, as if all had been prepared on `ioengine`. */
static void plan_jobs(struct fixture *fixture, const char *sections, const char *ioengine)
{
	char path[128], text[JOBS_FILE_BYTES];
	char command[] = "bench";
	char *argv[] = {command, path, NULL};
	struct nvs_error error = {.size = sizeof(error)};
	int fd;

	snprintf(fixture->directory, sizeof(fixture->directory), "/var/tmp/nvswap-test-XXXXXX");
	assert_non_null(mkdtemp(fixture->directory));
	snprintf(path, sizeof(path), "%s/jobs.ini", fixture->directory);
	snprintf(text, sizeof(text), "[global]\ndirectory=%s\nbs=64k\niodepth=16\n%s",
		 fixture->directory, sections);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	assert_int_equal(jobs_plan(&fixture->plan, 2, argv), 0);
	unlink(path);
	for (unsigned i = 0; i < fixture->plan.n; i++) {
		assert_int_equal(bench_prepare(&fixture->plan.jobs[i], &error), 0);
		fixture->results[i] = calloc(1, sizeof(struct bench_result));
		assert_non_null(fixture->results[i]);
		fixture->results[i]->opened = true;
		fixture->results[i]->engine.store_bytes = fixture->plan.jobs[i].options.size;
		fixture->results[i]->engine.aio.ioengine = ioengine;
	}
}

static void free_plan(struct fixture *fixture)
{
	for (unsigned i = 0; i < fixture->plan.n; i++) {
		free(fixture->results[i]);
		bench_release(&fixture->plan.jobs[i]);
	}
	jobs_free(&fixture->plan);
	rmdir(fixture->directory);
}

/*
 * The sections must give this job file for fio, without its [global] and with DIR for the
 * directory.
 */
static void expect(const char *sections, const char *ioengine, const char *expected)
{
	struct fixture fixture = {0};
	char line[128], *text, *jobs, *at;

	plan_jobs(&fixture, sections, ioengine);
	assert_int_equal(fio_job_file(&fixture.plan,
				      (const struct bench_result *const *)fixture.results, "run",
				      false, true, &text),
			 0);
	snprintf(line, sizeof(line), "directory=%s\n", fixture.directory);
	jobs = strstr(text, "[run-0]\n");
	assert_non_null(jobs);
	while ((at = strstr(jobs, line)))
		memmove(at, at + strlen(line), strlen(at + strlen(line)) + 1);
	assert_string_equal(jobs, expected);
	free(text);
	free_plan(&fixture);
}

#define URING "ioengine=io_uring\niodepth=16\nfixedbufs=1\nregisterfiles=1\nbs=65536\nunlink=1\n"

static void modes_of_nvswap_move_the_same_bytes(void **state)
{
	(void)state;
	expect("[out]\nrw=swapout\nsize=128m\n", "io_uring",
	       "[run-0]\nnew_group=1\nrw=write\n" URING "size=134217728\ndirect=1\nnumjobs=1\n");
	expect("[in]\nrw=swapin\nsize=128m\nloops=3\n", "io_uring",
	       "[run-0]\nnew_group=1\nrw=read\n" URING
	       "size=134217728\ndirect=1\nnumjobs=1\nloops=3\n");
	expect("[both]\nrw=swap\nsize=128m\n", "io_uring",
	       "[run-0]\nnew_group=1\nrw=rw\noverwrite=1\n" URING
	       "size=134217728\nio_size=268435456\ndirect=1\nnumjobs=1\n");
}

static void modes_of_fio_stay_as_they_are(void **state)
{
	(void)state;
	expect("[a]\nrw=randrw\nrwmixread=70\nsize=1m\nruntime=5\ntime_based\nramp_time=500ms\n"
	       "startdelay=2\nrate=10m\n",
	       "io_uring",
	       "[run-0]\nnew_group=1\nrw=randrw\nrwmixread=70\noverwrite=1\n" URING
	       "size=1048576\ndirect=1\nnumjobs=1\nrate=10485760\nruntime="
	       "5000ms\n"
	       "time_based=1\nramp_time=500ms\nstartdelay=2000ms\n");
	expect("[a]\nrw=randwrite\nsize=1m\nbssplit=4k/25:64k/75\nrate=8m\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=randwrite\nioengine=libaio\niodepth=16\n"
	       "bssplit=4096/25:65536/"
	       "75\nnorandommap=1\nunlink=1\nsize=1048576\ndirect=1\nnumjobs=1\n"
	       "rate=8388608\n");
}

static void io_size_is_moved(void **state)
{
	(void)state;
	expect("[a]\nrw=read\nsize=3m\nio_size=12m\nthread_count=3\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "unlink=1\nsize=1048576\nio_size=4194304\ndirect=1\nnumjobs=3\n");
}

static void an_existing_file_is_read_and_kept(void **state)
{
	(void)state;
	expect("[a]\nrw=randread\nsize=1m\nfilename=data\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=randread\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "filename=data\nsize=1048576\ndirect=1\nnumjobs=1\n");
}

static void an_absolute_file_name_ignores_the_directory(void **state)
{
	struct fixture fixture = {0};
	char *text;

	(void)state;
	plan_jobs(&fixture, "[a]\nrw=randread\nsize=1m\nfilename=/whole/name\n", "libaio");
	assert_int_equal(fio_job_file(&fixture.plan,
				      (const struct bench_result *const *)fixture.results, "run",
				      false, true, &text),
			 0);
	assert_non_null(strstr(text, "\ndirectory=/whole\nfilename=name\n"));
	free(text);
	free_plan(&fixture);
}

static void a_file_is_read_in_parts_by_workers_and_whole_by_clones(void **state)
{
	(void)state;
	expect("[a]\nrw=read\nsize=3m\nfilename=a\nthread_count=3\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "filename=a\nsize=1048576\noffset_increment=1048576\ndirect=1\nnumjobs=3\n");
	/* An absolute path is unchanged, whatever the job's directory. */
	expect("[a]\nrw=read\nsize=3m\nfilename=/var/a\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "directory=/var\nfilename=a\nsize=3145728\ndirect=1\nnumjobs=1\n");
	expect("[a]\nrw=write\nsize=3m\nfilename=/a\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=write\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "directory=/\nunlink=1\nsize=3145728\ndirect=1\nnumjobs=1\n");
	/* Each clone reads the whole file, in parts if it has several workers. */
	expect("[a]\nrw=read\nsize=2m\nfilename=data\nnumjobs=2\nthread_count=2\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "filename=data\nsize=1048576\noffset_increment=1048576\ndirect=1\nnumjobs=2\n"
	       "[run-0]\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "filename=data\nsize=1048576\noffset_increment=1048576\ndirect=1\nnumjobs=2\n");
	expect("[a]\nrw=read\nsize=3m\nfilename=data\nnumjobs=2\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "filename=data\nsize=3145728\ndirect=1\nnumjobs=2\n");
}

/* Each worker gets its share of bytes and rate; clones multiply the jobs. */
static void workers_and_clones_are_jobs(void **state)
{
	(void)state;
	expect("[a]\nrw=write\nsize=3m\nthread_count=2\nnumjobs=3\nrate=8m\n", "libaio",
	       "[run-0]\nnew_group=1\nrw=write\nioengine=libaio\niodepth=16\nbs=65536\nunlink=1\n"
	       "size=1572864\ndirect=1\nnumjobs=6\nrate=4194304\n");
	expect("[a]\nrw=write\nsize=3m\nthread_count=2\n", "posix",
	       "[run-0]\nnew_group=1\nrw=write\nioengine=psync\nbs=65536\nunlink=1\n"
	       "size=65536\ndirect=1\nnumjobs=32\n");
}

static void stages_follow_each_other(void **state)
{
	(void)state;
	expect("[a]\nrw=read\nsize=1m\n[b]\nrw=read\nsize=2m\n[c]\nstonewall\nrw=read\nsize=4m\n",
	       "libaio",
	       "[run-0]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\nunlink=1\n"
	       "size=1048576\ndirect=1\nnumjobs=1\n"
	       "[run-1]\nnew_group=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\nunlink=1\n"
	       "size=2097152\ndirect=1\nnumjobs=1\n"
	       "[run-2]\nnew_group=1\nstonewall=1\nrw=read\nioengine=libaio\niodepth=16\nbs=65536\n"
	       "unlink=1\nsize=4194304\ndirect=1\nnumjobs=1\n");
}

static void expect_refused(const char *sections, const char *why)
{
	struct fixture fixture = {0};
	struct nvs_error error = {.size = sizeof(error)};

	plan_jobs(&fixture, sections, "io_uring");
	assert_int_equal(fio_check(&fixture.plan, &error), -ENOTSUP);
	assert_non_null(strstr(error.text, "job a can't be compared with fio: it"));
	assert_non_null(strstr(error.text, why));
	free_plan(&fixture);
}

static void options_that_fio_lacks_are_refused(void **state)
{
	(void)state;
	expect_refused("[a]\nrw=params\n", "training steps");
	expect_refused("[a]\nrw=step\n", "training steps");
	expect_refused("[a]\nrw=swap\nverify\n", "leave out verify");
	expect_refused("[a]\nrw=swap\nramp_loops=1\n", "give ramp-time");
	expect_refused("[a]\nrw=swap\ndirectory=/var/tmp:/tmp\n", "give one path");
	expect_refused("[a]\nrw=read\nfilename=a$b\n", "allow no # ; $");
}

/* ---- fio's JSON ---- */

static const char fio_json[] =
	"fio: something to remark\n"
	"{\"fio version\": \"fio-3.33\", \"jobs\": [{\"jobname\": \"run-0\", \"error\": 0,"
	" \"read\": {\"io_bytes\": 1073741824, \"bw_bytes\": 2000000, \"iops\": 30.5,"
	"  \"clat_ns\": {\"percentile\": {\"50.000000\": 1500, \"99.000000\": 9000}}},"
	" \"write\": {\"io_bytes\": 1073741824, \"bw_bytes\": 1000000, \"iops\": 15.25,"
	"  \"clat_ns\": {\"min\": 0}},"
	" \"job_runtime\": 2000, \"usr_cpu\": 1.5, \"sys_cpu\": 3.5}]}";

static void figures_of_fio_are_read(void **state)
{
	struct job_figures figures = {0};
	struct nvs_error error = {.size = sizeof(error)};

	(void)state;
	assert_int_equal(fio_read(strdup(fio_json), &figures, 1, &error), 0);
	assert_int_equal(figures.bytes[NVS_READ], 1 << 30);
	assert_true(figures.bytes_per_s[NVS_READ] == 2e6 && figures.bytes_per_s[NVS_WRITE] == 1e6);
	assert_true(figures.iops[NVS_READ] == 30.5 && figures.iops[NVS_WRITE] == 15.25);
	assert_true(figures.p50_ns[NVS_READ] == 1500 && figures.p99_ns[NVS_READ] == 9000);
	assert_true(figures.p50_ns[NVS_WRITE] == 0 && figures.p99_ns[NVS_WRITE] == 0);
	/* 5 % of 2 s for 2 GiB */
	assert_true(figures.cpu_ms_per_gib > 49.999 && figures.cpu_ms_per_gib < 50.001);
}

static void json_that_is_not_fios_is_refused(void **state)
{
	static const struct {
		const char *json, *why;
	} cases[] = {
		{"", "fio's output:1:1: "},
		{"no jobs here", "fio's output:1:1: "},
		{"{\"jobs\": [", "fio's output:1:11: "},
		{"{\"jobs\": []}", "list of \"jobs\""},
		{"{\"jobs\": [{}, {}]}", "fio's output has 2 jobs instead of 1"},
		{"{\"job\": 1}", "list of \"jobs\""},
		{"{\"jobs\": [{\"error\": 28}]}", "No space left on device"},
	};
	struct job_figures figures;
	struct nvs_error error = {.size = sizeof(error)};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_int_equal(fio_read(strdup(cases[i].json), &figures, 1, &error), -EINVAL);
		assert_non_null(strstr(error.text, cases[i].why));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(modes_of_nvswap_move_the_same_bytes),
		cmocka_unit_test(modes_of_fio_stay_as_they_are),
		cmocka_unit_test(io_size_is_moved),
		cmocka_unit_test(an_existing_file_is_read_and_kept),
		cmocka_unit_test(an_absolute_file_name_ignores_the_directory),
		cmocka_unit_test(a_file_is_read_in_parts_by_workers_and_whole_by_clones),
		cmocka_unit_test(workers_and_clones_are_jobs),
		cmocka_unit_test(stages_follow_each_other),
		cmocka_unit_test(options_that_fio_lacks_are_refused),
		cmocka_unit_test(figures_of_fio_are_read),
		cmocka_unit_test(json_that_is_not_fios_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
