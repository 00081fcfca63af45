/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds up the jobs of a group, which ran at the same time: bytes, CPU times, memory and sampled
 * rates add up, histograms merge, the longest window counts. What does not add up, such as the
 * engine and the kernel, is the first job's.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "cli/report/report.h"

/* ---- Adding up ---- */

/* How a field of results merges; LEAST: 0 is unknown. Fields are words, or arrays of them. */
struct merge {
	enum { SUM, MOST, LEAST } how;
	size_t offset, nbytes;
};

#define MERGE(how, field)                                                                          \
	{                                                                                          \
		how, offsetof(struct bench_result, field),                                         \
			sizeof(((struct bench_result *)0)->field)                                  \
	}
#define MERGE_AIO(aio)                                                                             \
	MERGE(SUM, aio.workers), MERGE(SUM, aio.bounce_bytes), MERGE(SUM, aio.registered_bytes),   \
		MERGE(SUM, aio.submit_calls), MERGE(SUM, aio.reap_calls),                          \
		MERGE(MOST, aio.inflight_max), MERGE(SUM, aio.depth_ios),                          \
		MERGE(SUM, aio.submit_sizes), MERGE(SUM, aio.reap_sizes), MERGE(SUM, aio.retries), \
		MERGE(SUM, aio.bounced_bytes), MERGE(SUM, aio.io[NVS_READ].bytes),                 \
		MERGE(SUM, aio.io[NVS_READ].ios), MERGE(SUM, aio.io[NVS_WRITE].bytes),             \
		MERGE(SUM, aio.io[NVS_WRITE].ios)

static const struct merge of_measured[] = {MERGE(MOST, window_ns),
					   MERGE(SUM, user_us),
					   MERGE(SUM, system_us),
					   MERGE(SUM, data_us),
					   MERGE(SUM, updates_us),
					   MERGE(SUM, context_switches),
					   MERGE(SUM, major_faults),
					   MERGE(SUM, minor_faults),
					   MERGE(SUM, bytes),
					   MERGE(SUM, transfers),
					   MERGE(SUM, evictions),
					   MERGE(SUM, pool_waits),
					   MERGE_AIO(aio),
					   MERGE(SUM, steps.steps),
					   MERGE(SUM, steps.skipped),
					   MERGE(SUM, steps.sum),
					   MERGE(LEAST, steps.wall_min_ns),
					   MERGE(MOST, steps.wall_max_ns),
					   MERGE(SUM, steps.shorter_ns),
					   MERGE(SUM, steps.updates_ns),
					   MERGE(SUM, steps.tiles),
					   MERGE(MOST, steps.first.wall_ns),
					   MERGE(SUM, steps.first.read_bytes),
					   MERGE(SUM, steps.first.written_bytes),
					   MERGE(MOST, steps.layers),
					   MERGE(SUM, steps.elements),
					   MERGE(SUM, steps.groups),
					   MERGE(SUM, steps.threads),
					   MERGE(SUM, steps.compared),
					   MERGE(SUM, steps.peak_bytes),
					   MERGE(SUM, steps.pool_rss_bytes),
					   MERGE(SUM, steps.own_bytes),
					   MERGE(SUM, steps.host_bytes),
					   MERGE(SUM, steps.store_bytes)};

static const struct merge of_opened[] = {MERGE_AIO(engine.aio),
					 MERGE(SUM, engine.pool.bytes),
					 MERGE(SUM, engine.pool.locked),
					 MERGE(SUM, engine.pool.huge),
					 MERGE(MOST, engine.pool.largest_free),
					 MERGE(SUM, engine.store_bytes),
					 MERGE(SUM, engine.verify_errors),
					 MERGE(SUM, pool_peak),
					 MERGE(SUM, first_bytes),
					 MERGE(MOST, first_ns),
					 MERGE(SUM, verified_bytes),
					 MERGE(SUM, verify_errors)};

static uint64_t merged(int how, uint64_t a, uint64_t b)
{
	if (how == SUM || (how == LEAST && !(a && b)))
		return a + b;
	return (how == MOST) == (a > b) ? a : b;
}

static void merge_fields(struct bench_result *into, const struct bench_result *from,
			 const struct merge *fields, size_t n)
{
	for (const struct merge *field = fields; field < fields + n; field++) {
		void *a = (char *)into + field->offset;
		const void *b = (const char *)from + field->offset;

		if (field->nbytes == sizeof(uint32_t))
			*(uint32_t *)a = (uint32_t)merged(field->how, *(uint32_t *)a,
							  *(const uint32_t *)b);
		for (size_t i = 0; i < field->nbytes / sizeof(uint64_t); i++)
			((uint64_t *)a)[i] = merged(field->how, ((uint64_t *)a)[i],
						    ((const uint64_t *)b)[i]);
	}
}

/* Like fio: means of rates add up; the deviation is that of one job's samples. */
static void add_samples(struct bench_samples *into, const struct bench_samples *from)
{
	double mean = samples_mean(into) + samples_mean(from);
	double about = into->sum_squares - into->sum * samples_mean(into) + from->sum_squares -
		       from->sum * samples_mean(from);

	into->n += from->n;
	into->min += from->n ? from->min : 0;
	into->max += from->n ? from->max : 0;
	into->sum = mean * (double)into->n;
	into->sum_squares = fmax(about, 0) + mean * into->sum;
}

static void add_result(struct bench_result *into, const struct bench_result *from)
{
	const size_t measured = offsetof(struct bench_result, measured),
		     opened = offsetof(struct bench_result, opened);

	if (!into->error.code)
		into->error = from->error;
	if (!into->signal)
		into->signal = from->signal;
	if (!into->pid)
		into->pid = from->pid;
	into->started_unix_ms = merged(LEAST, into->started_unix_ms, from->started_unix_ms);
	into->elapsed_s = fmax(into->elapsed_s, from->elapsed_s);
	for (int d = NVS_READ; d <= NVS_WRITE && from->measured; d++) {
		add_samples(&into->bw_bytes[d], &from->bw_bytes[d]);
		add_samples(&into->iops[d], &from->iops[d]);
		for (int kind = 0; kind < NVS_LATENCY_KINDS && into->measured; kind++)
			nvs_latency_merge(&into->latency[d][kind], &from->latency[d][kind]);
	}
	if (from->measured && into->measured)
		merge_fields(into, from, of_measured, COUNT_OF(of_measured));
	else if (from->measured)
		memcpy((char *)into + measured, (const char *)from + measured, opened - measured);
	if (from->opened && into->opened) {
		merge_fields(into, from, of_opened, COUNT_OF(of_opened));
		into->engine.direct &= from->engine.direct;
	} else if (from->opened) {
		memcpy((char *)into + opened, (const char *)from + opened, sizeof(*into) - opened);
	}
}

/* ---- Figures ---- */

double cpu_ms_per_gib(const struct bench_result *result)
{
	double gib = (double)(result->bytes[NVS_READ] + result->bytes[NVS_WRITE]) / (1u << 30);
	double us = (double)(result->user_us + result->system_us) - (double)result->data_us -
		    (double)result->updates_us;

	return gib > 0 && us > 0 ? us / 1e3 / gib : 0;
}

double samples_mean(const struct bench_samples *samples)
{
	return samples->n ? samples->sum / (double)samples->n : 0;
}

double samples_stddev(const struct bench_samples *samples)
{
	double n = (double)samples->n;
	double about = samples->sum_squares - samples->sum * samples_mean(samples);

	return samples->n > 1 && about > 0 ? sqrt(about / (n - 1)) : 0;
}

double per_step(const struct report_group *group, uint64_t sum)
{
	uint64_t steps = group->result.steps.steps;

	return steps ? (double)sum / (double)steps : 0;
}

static double per_second(uint64_t count, uint64_t ns)
{
	return ns ? (double)count * 1e9 / (double)ns : 0;
}

static void compute_way(const struct bench_report *report, struct report_group *group, int d)
{
	struct report_way *way = &group->way[d];
	const struct bench_result *result = &group->result;
	uint64_t nbytes = 0, window_ns = 0;

	for (unsigned i = 0; i < report->plan->n; i++)
		if (report->plan->jobs[i].groupid == group->job->groupid &&
		    report->results[i]->bytes[d]) {
			nbytes += report->results[i]->bytes[d];
			window_ns = max_u64(window_ns, report->results[i]->window_ns);
		}
	way->all_bytes_per_s = per_second(nbytes, window_ns);
	way->bytes_per_s = per_second(result->bytes[d], way->window_ns);
	way->iops = per_second(result->aio.io[d].ios, way->window_ns);
	if (result->bytes[d])
		way->runtime_ms = way->window_ns / 1000000 + (way->window_ns % 1000000 != 0);
}

bool report_group_next(const struct bench_report *report, struct report_group *group)
{
	const struct bench_plan *plan = report->plan;
	const struct bench_job *job = group->job ? group->job + group->njobs : plan->jobs;
	const struct bench_job *end = plan->jobs + plan->n;
	const struct step_figures *steps = &group->result.steps;

	if (job == end)
		return false;
	memset(group, 0, sizeof(*group));
	group->job = job;
	group->one_mode = true;
	do {
		const struct bench_result *result = report->results[job - plan->jobs];

		group->njobs++;
		group->one_mode &= job->options.rw == group->job->options.rw;
		group->asked_verify += job->options.verify;
		group->compared += job->options.verify && result->verified_bytes;
		group->run_ns += result->window_ns;
		for (int d = NVS_READ; d <= NVS_WRITE; d++)
			if (result->bytes[d] || result->aio.io[d].ios)
				group->way[d].window_ns = max_u64(group->way[d].window_ns,
								  result->window_ns);
		add_result(&group->result, result);
	} while (++job < end && job->groupid == group->job->groupid &&
		 job->options.group_reporting && group->job->options.group_reporting);
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		compute_way(report, group, d);
	group->verify_errors = group->result.verify_errors + group->result.engine.verify_errors;
	group->has_steps = group->one_mode && (group->job->options.rw == RW_STEP ||
					       group->job->options.rw == RW_PARAMS);
	if (steps->shorter_ns)
		group->hidden_share = fmin((double)steps->sum.hidden_ns / (double)steps->shorter_ns,
					   1);
	group->rest_bytes = steps->pool_rss_bytes + steps->host_bytes + steps->own_bytes;
	group->rest_bytes = steps->peak_bytes - min_u64(group->rest_bytes, steps->peak_bytes);
	if (!steps->sum.read_bytes && !steps->sum.written_bytes)
		group->no_moves = "the pool holds everything, so the steps did not use the drive: "
				  "give a smaller --pool";
	return true;
}
