/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of results made here: they have the form that readers of fio's output expect, add up
 * grouped jobs, and never report an unverified run as verified.
 */
#include "support/support.h"

#include <math.h>

#include "base/json/read.h"
#include "base/statistics/latency.h"
#include "cli/report/report.h"

#define JOBS 4
#define MIB  (1u << 20)
#define S    1000000000ull

static struct run {
	struct bench_plan plan;
	struct bench_job jobs[JOBS];
	struct bench_result result[JOBS];
	const struct bench_result *results[JOBS];
	struct bench_report report;
	char *output;
} * run;

static void add_ios(struct bench_result *result, int d, unsigned n, uint64_t slat, uint64_t clat)
{
	for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++)
		result->latency[d][kind].size = sizeof(struct nvs_latency);
	for (unsigned i = 0; i < n; i++) {
		latency_add(&result->latency[d][NVS_SLAT], slat);
		latency_add(&result->latency[d][NVS_CLAT], clat);
		latency_add(&result->latency[d][NVS_LAT], slat + clat);
	}
	result->aio.io[d].ios += n;
	result->aio.io[d].bytes += (uint64_t)n * MIB;
	result->bytes[d] += (uint64_t)n * MIB;
}

/* One second of swapping, 100 I/Os of 1 MiB in each direction at depth 8. */
static void make_result(struct bench_result *result, int pid)
{
	result->pid = pid;
	result->started_unix_ms = 1700000000000 + (uint64_t)pid;
	result->elapsed_s = 1.5;
	result->measured = result->opened = true;
	result->window_ns = S;
	result->user_us = 50000;
	result->system_us = 125000;
	result->context_switches = 321;
	result->minor_faults = 7;
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		add_ios(result, d, 50, 3000, 400000);
		add_ios(result, d, 50, 6000, 1500000);
		result->bw_bytes[d] = (struct bench_samples){2, 90e6, 110e6, 200e6, 20200e12};
		result->iops[d] = (struct bench_samples){2, 90, 110, 200, 20200};
	}
	result->aio.ioengine = "io_uring";
	result->aio.workers = 1;
	result->aio.depth_ios[0] = 1;
	result->aio.depth_ios[3] = 199;
	result->aio.submit_sizes[1] = result->aio.reap_sizes[1] = 50;
	result->engine.aio = result->aio;
	result->engine.aio.fixed_buffers = true;
	result->engine.aio.registered_bytes = 66 * MIB;
	result->engine.direct = true;
	result->engine.pool = (struct nvs_pool_stats){.bytes = 64 * MIB, .locked = 64 * MIB};
	result->pool_peak = 32 * MIB;
}

static int free_run(void **state)
{
	(void)state;
	/* A test may have made the plan shorter. */
	for (unsigned i = 0; run && i < JOBS; i++)
		nvs_config_close(run->jobs[i].config);
	free(run ? run->output : NULL);
	free(run);
	run = NULL;
	return 0;
}

/* Makes `n` jobs that swap, without group_reporting. */
static void make_run(unsigned n)
{
	free_run(NULL);
	run = calloc(1, sizeof(*run));
	assert_non_null(run);
	run->plan.jobs = run->jobs;
	run->plan.n = n;
	run->report = (struct bench_report){.plan = &run->plan, .results = run->results};
	for (unsigned i = 0; i < n; i++) {
		struct bench_job *job = &run->jobs[i];

		*job = (struct bench_job){.index = i,
					  .options = {.rw = RW_SWAP, .loops = 1, .seed = 1},
					  .model = {.n = 4,
						    .n_whole = 4,
						    .nbytes = 100 * MIB,
						    .nbytes_whole = 100 * MIB}};
		snprintf(job->name, sizeof(job->name), "job%u", i);
		assert_int_equal(nvs_config_open(&job->config, NULL), 0);
		run->results[i] = &run->result[i];
		make_result(&run->result[i], 1000 + (int)i);
	}
}

static const char *written(void (*report)(FILE *, const struct bench_report *))
{
	size_t size;
	FILE *file;

	free(run->output);
	file = open_memstream(&run->output, &size);
	assert_non_null(file);
	report(file, &run->report);
	fclose(file);
	return run->output;
}

/* A number of the first job in the JSON; `third` may be NULL. */
static double number(const char *first, const char *second, const char *third)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct json_document *document;
	const struct json_value *at;
	double real;

	SUCCEEDS(json_parse(&document, run->output, strlen(run->output), "it", SIZE_MAX, &error),
		 &error);
	at = json_member(json_root(document), "jobs")->first;
	at = json_member(json_member(at, first), second);
	assert_int_equal(json_read_real(third ? json_member(at, third) : at, &real), 0);
	json_free(document);
	return real;
}

#define LATENCY                                                                                    \
	"     latency   : 950.0 us mean, 50 % 401.4, 99 % 1500.0, 99.9 % 1500.0, at most "         \
	"1500.0 us\n"
#define RATES "104.9 MB/s, 100 IOPS, 100 MiB in 1.000 s; 90 MB/s to 110 MB/s in half seconds\n"

TEST(the_text_has_the_figures)
{
	make_run(1);
	run->jobs[0].options.description = "as told";
	assert_string_equal(
		written(report_text),
		"nvswap " NVS_VERSION ", 1 job\n"
		"job0: rw=swap, group 0, 1 job, pid 1000\n"
		"  description  : as told\n"
		"  read         : " RATES LATENCY "  written      : " RATES LATENCY
		"  load         : 4 made-up tensors, 100 MiB, 1 loop, seed 1\n"
		"  cpu per GiB  : 896.0 ms (user 50 ms, system 125 ms, in 1.00 s)\n"
		"  engine       : io_uring, 1 worker x depth 8, blocks of 1 MiB, fixed buffers, "
		"direct\n"
		"  pool         : 64 MiB, at most 32 MiB used (50 %), 64 MiB locked, no huge "
		"pages\n"
		"     registered: 66 MiB with the rings\n"
		"  bounce       : 0 bytes set aside, 0 bytes went through it\n"
		"  verify       : not asked for (--verify)\n");
	run->report.status = true;
	assert_int_equal(strncmp(written(report_text), "job0: rw=swap", 13), 0);
}

TEST(shares_of_latencies_fall_where_fios_do)
{
	/* Histograms are exact to 1/64, so keep clear of the bounds. */
	static const uint64_t clat[] = {1,	    3,		970,	    1020,    1960,
					2040,	    730000,	1020000,    1960000, 2040000,
					1960000000, 2040000000, 90000000000};
	static const struct {
		const char *unit, *bound;
		double percent;
	} shares[] = {{"latency_ns", "2", 7.69},      {"latency_ns", "4", 7.69},
		      {"latency_ns", "1000", 7.69},   {"latency_ns", "750", 0},
		      {"latency_us", "2", 15.38},     {"latency_us", "4", 7.69},
		      {"latency_us", "750", 7.69},    {"latency_ms", "2", 15.38},
		      {"latency_ms", "4", 7.69},      {"latency_ms", "2000", 7.69},
		      {"latency_ms", ">=2000", 15.38}};

	make_run(1);
	run->result[0] = (struct bench_result){.measured = true};
	/* One of 13 is 7.69 %. */
	for (unsigned i = 0; i < COUNT(clat); i++)
		add_ios(&run->result[0], NVS_READ, 1, 100, clat[i]);
	written(report_json);
	for (unsigned i = 0; i < COUNT(shares); i++)
		assert_true(fabs(number(shares[i].unit, shares[i].bound, NULL) -
				 shares[i].percent) < 0.01);
}

/* ---- Several jobs ---- */

TEST(grouped_jobs_add_up)
{
	static struct report_group the_group, *group = &the_group;
	const struct nvs_latency *merged = &group->result.latency[NVS_READ][NVS_CLAT];
	static struct nvs_latency all = {.size = sizeof(all)};

	make_run(2);
	run->jobs[0].options.group_reporting = run->jobs[1].options.group_reporting = true;
	add_ios(&run->result[1], NVS_READ, 100, 1000, 7000000);
	run->result[1].window_ns = 2 * S;
	run->result[1].elapsed_s = 2.5;
	run->result[1].system_us = 25000;
	assert_true(report_group_next(&run->report, group));
	assert_int_equal(group->njobs, 2);
	assert_true(group->result.system_us == 150000 && group->result.context_switches == 642 &&
		    group->result.minor_faults == 14);
	for (int i = 0; i < 2; i++)
		nvs_latency_merge(&all, &run->result[i].latency[NVS_READ][NVS_CLAT]);
	assert_memory_equal(&all, merged, sizeof(all));
	assert_true(group->result.bytes[NVS_READ] == 300 * MIB &&
		    group->result.aio.io[NVS_READ].ios == 300);
	assert_true(group->result.window_ns == 2 * S && group->run_ns == 3 * S);
	assert_false(report_group_next(&run->report, group));
	written(report_text);
	assert_says(run->output, "\n  read         : 157.3 MB/s, 150 IOPS, 300 MiB in 2.000 s; 180 "
				 "MB/s to 220 MB/s in half seconds\n");
	assert_non_null(strstr(run->output, "job0: rw=swap, group 0, 2 jobs, pid 1000\n"));
	assert_null(strstr(run->output, "job1: "));
	assert_null(strstr(run->output, "all of group"));
	/* Moving is neither generating and comparing contents nor an optimizer's step. */
	run->result[0].data_us = 40000;
	run->result[0].updates_us = 35000;
	assert_says(written(report_json), "\"cpu_ms_per_gib\": 358.400000,");
	assert_non_null(strstr(run->output, "\"elapsed\": 3,"));
	assert_non_null(strstr(run->output, "\"job_start\": 1700000001000,"));
	assert_non_null(strstr(run->output, "\"job_runtime\": 3000,"));
	assert_non_null(strstr(run->output, "\"usr_cpu\": 3.333333,"));
}

/* As in fio, a job that only writes does not extend the reads' time. */
TEST(each_direction_is_averaged_over_its_own_time)
{
	make_run(2);
	for (unsigned i = 0; i < 2; i++) {
		run->jobs[i].options.group_reporting = true;
		run->result[i].bytes[!i] = run->result[i].aio.io[!i].ios = 0;
	}
	run->result[1].window_ns = 2 * S;
	written(report_text);
	assert_says(run->output, "\n  read         : 104.9 MB/s, 100 IOPS, 100 MiB in 1.000 s; 180 "
				 "MB/s to 220 MB/s in half seconds\n");
	assert_says(run->output, "\n  written      : 52.43 MB/s, 50 IOPS, 100 MiB in 2.000 s; 180 "
				 "MB/s to 220 MB/s in half seconds\n");
}

TEST(only_adjacent_jobs_with_group_reporting_are_grouped)
{
	static const struct {
		bool asks[3];
		unsigned groupid[3], njobs[3];
	} cases[] = {
		{{true, true, false}, {0, 0, 0}, {2, 1, 0}},
		{{false, true, true}, {0, 0, 0}, {1, 2, 0}},
		{{true, false, true}, {0, 0, 0}, {1, 1, 1}},
		{{true, true, true}, {0, 0, 1}, {2, 1, 0}},
		{{true, true, true}, {0, 0, 0}, {3, 0, 0}},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		static struct report_group group;
		unsigned n = 0;

		make_run(3);
		group.job = NULL;
		for (unsigned job = 0; job < 3; job++) {
			run->jobs[job].options.group_reporting = cases[i].asks[job];
			run->jobs[job].groupid = cases[i].groupid[job];
		}
		while (report_group_next(&run->report, &group))
			assert_int_equal(group.njobs, cases[i].njobs[n++]);
		assert_true(n == 3 || !cases[i].njobs[n]);
	}
}

TEST(sums_of_a_group_are_of_all_its_jobs)
{
	make_run(4);
	run->result[1].window_ns = 2 * S;
	run->result[2].window_ns = 3 * S / 2;
	run->jobs[0].groupid = run->jobs[1].groupid = run->jobs[2].groupid = 4;
	run->jobs[3].groupid = 7;
	written(report_text);
	assert_says(run->output, "\nall of group 4\n  read         : 157.3 MB/s, 300 MiB\n"
				 "  written      : 157.3 MB/s, 300 MiB\njob3: ");
	assert_null(strstr(run->output, "all of group 7"));
	assert_int_equal(strncmp(run->output + strcspn(run->output, ","), ", 4 jobs\n", 9), 0);
}

/* ---- Failures ---- */

#define LOST "tensor w: the drive is gone"

static void break_off(struct bench_result *result)
{
	result->error.code = -EIO;
	strcpy(result->error.text, LOST);
}

TEST(a_failed_job_has_its_reason)
{
	make_run(2);
	break_off(&run->result[1]);
	run->result[1].measured = false;
	written(report_text);
	assert_non_null(strstr(run->output, "job1: rw=swap, group 0, 1 job, pid 1001\n"
					    "  error        : tensor w: the drive is gone\n"));
	assert_non_null(strstr(written(report_json), "\"error\": 5"));
	assert_non_null(strstr(run->output, "\"error_text\": \"tensor w: the drive is gone\""));
	run->jobs[0].options.group_reporting = run->jobs[1].options.group_reporting = true;
	assert_non_null(strstr(written(report_text),
			       "2 jobs, pid 1000\n  error        : tensor w: the drive"));
}

TEST(only_compared_data_is_called_verified)
{
	static const struct {
		int asked, failed, compared; /* jobs */
		uint64_t errors;
		const char *outcome;
	} cases[] = {
		{0, 0, 0, 0, "not asked for (--verify)"},
		{2, 0, 2, 0, "2 MiB compared, every byte equal"},
		{1, 0, 1, 0,
		 "1 MiB compared, every byte equal in 1 job; not asked for in the other 1"},
		{2, 0, 0, 0, "nothing was compared"},
		{2, 0, 1, 0, "nothing was compared in 1 of 2 jobs"},
		{2, 0, 2, 3, "3 tensors DIFFER"},
		{2, 1, 2, 3, "3 tensors DIFFER"},
		{2, 0, 2, 1, "1 tensor DIFFERS"}, /* found by the engine */
		{2, 1, 2, 0, "2 MiB compared, every byte equal so far; the run failed: " LOST},
		{2, 1, 0, 0, "nothing was compared; the run failed: " LOST},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char whole[256];

		make_run(2);
		for (int job = 0; job < 2; job++) {
			run->jobs[job].options.group_reporting = true;
			run->jobs[job].options.verify = job < cases[i].asked;
			run->result[job].verified_bytes = job < cases[i].compared ? MIB : 0;
		}
		run->result[1].verify_errors = cases[i].errors / 2;
		run->result[1].engine.verify_errors = cases[i].errors - cases[i].errors / 2;
		if (cases[i].failed)
			break_off(&run->result[1]);
		written(report_text);
		snprintf(whole, sizeof(whole), "\n  verify       : %s\n", cases[i].outcome);
		assert_says(run->output, whole);
	}
}

TEST(steps_are_reported_with_their_figures)
{
	make_run(1);
	run->jobs[0].options.rw = RW_STEP;
	run->jobs[0].options.loops = 2;
	run->result[0].steps = (struct step_figures){.steps = 2,
						     .sum = {.wall_ns = 20000000,
							     .io_ns = 12000000,
							     .compute_ns = 10000000,
							     .hidden_ns = 2000000,
							     .read_bytes = 8 * MIB,
							     .written_bytes = 6 * MIB,
							     .drive_written_bytes = 7 * MIB,
							     .hits = 2,
							     .misses = 6},
						     .wall_min_ns = 9000000,
						     .wall_max_ns = 11000000,
						     .shorter_ns = 10000000,
						     .peak_bytes = 100 * MIB,
						     .pool_rss_bytes = 60 * MIB,
						     .own_bytes = 30 * MIB,
						     .skipped = 1};
	written(report_text);
	assert_says(run->output,
		    "\n  load         : 4 made-up tensors, 100 MiB, 2 steps, seed 1\n");
	assert_says(run->output, "\n  step time    : 10.0 ms (9.0 to 11.0, of 2): compute 5.0 ms, "
				 "I/O 6.0 ms, hidden 1.0 ms, 20 % of the shorter\n");
	assert_says(run->output, "\n     moved     : 4 MiB read, 3 MiB written; 1.0 of 4.0 tiles "
				 "found in memory; 0.0 stalls, 0.0 ms\n");
	assert_says(run->output, "\n     drive     : 3.50 MiB written to it in each step\n");
	assert_says(run->output, "\n     skipped   : 1 step: gradients overflowed\n");
	assert_says(run->output, "\n  memory       : 100 MiB at most: pool 60 MiB, the caller's "
				 "own 30 MiB, the rest 10 MiB\n");
	assert_null(strstr(run->output, "verify"));
}

TEST(figures_without_bytes_are_zero_or_omitted)
{
	make_run(1);
	memset(&run->result[0], 0, sizeof(run->result[0]));
	run->result[0].measured = true;
	written(report_text);
	assert_null(strstr(run->output, "  read: "));
	assert_null(strstr(run->output, "nan"));
	written(report_json);
	assert_true(number("read", "iops", NULL) == 0);
	assert_true(number("read", "clat_ns", "N") == 0);
	assert_true(number("write", "bw_agg", NULL) == 0);
}

TEST(the_largest_numbers_are_whole)
{
	struct bench_result *result;

	make_run(1);
	result = &run->result[0];
	memset(result->latency, 0, sizeof(result->latency));
	latency_add(&result->latency[NVS_READ][NVS_CLAT], UINT64_MAX);
	latency_add(&result->latency[NVS_READ][NVS_CLAT], UINT64_MAX);
	result->bytes[NVS_READ] = result->engine.store_bytes = UINT64_MAX;
	result->window_ns = UINT64_MAX;
	result->aio.io[NVS_READ].ios = UINT64_MAX;
	result->aio.depth_ios[0] = UINT64_MAX / 2;
	written(report_text);
	assert_says(run->output, "\n  read         : 1.00 GB/s, 1000000000 IOPS, 16 EiB in "
				 "18446744073.710 s; 90 MB/s to 110 MB/s in half seconds\n");
	written(report_json);
	assert_non_null(strstr(run->output, "\"io_bytes\": 18446744073709551615"));
	assert_non_null(strstr(run->output, "\"store_bytes\": 18446744073709551615"));
}

EACH_TEST(NULL, free_run)
