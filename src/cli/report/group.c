/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up the jobs of a group. What does not add up is the first job's. */
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "cli/report/report.h"

/* How a field merges; LEAST: 0 is unknown. Fields are words, or as good as arrays of words: struct
 * nvs_step_io, whose size nothing reads. */
struct sum {
	enum { ADDED, GREATEST, LEAST } how;
	size_t offset, nbytes;
};

#define FIELD(how, of, field)                                                                      \
	{                                                                                          \
		how, offsetof(struct of, field), sizeof(((struct of *)0)->field)                   \
	}
#define SUM(field)     FIELD(ADDED, bench_result, field)
#define MOST(field)    FIELD(GREATEST, bench_result, field)
#define AIO(field)     FIELD(ADDED, nvs_aio_stats, field)
#define STEP(field)    FIELD(ADDED, step_figures, field)
#define LONGEST(field) FIELD(GREATEST, step_figures, field)

static const struct sum aio_sums[] = {
	AIO(workers),	    AIO(bounce_bytes), AIO(registered_bytes),
	AIO(submit_calls),  AIO(reap_calls),   AIO(depth_ios),
	AIO(submit_sizes),  AIO(reap_sizes),   AIO(retries),
	AIO(bounced_bytes), AIO(io[0].bytes),  AIO(io[0].ios),
	AIO(io[1].bytes),   AIO(io[1].ios),    FIELD(GREATEST, nvs_aio_stats, inflight_max)};
static const struct sum measured[] = {
	/* beside those of steps and aio */
	MOST(window_ns), SUM(user_us),		SUM(system_us),	   SUM(data_us),
	SUM(updates_us), SUM(context_switches), SUM(major_faults), SUM(minor_faults),
	SUM(bytes),	 SUM(transfers),	SUM(evictions),	   SUM(pool_waits)};
#define STEP_SUMS                                                                                  \
	STEP(steps), STEP(skipped), STEP(sum), STEP(shorter_ns), STEP(updates_ns), STEP(tiles),    \
		STEP(first.read_bytes), STEP(first.written_bytes), STEP(elements), STEP(groups),   \
		STEP(threads), STEP(peak_bytes), STEP(pool_rss_bytes), STEP(own_bytes),            \
		STEP(host_bytes), STEP(store_bytes), LONGEST(layers),                              \
		FIELD(LEAST, step_figures, wall_min_ns), LONGEST(wall_max_ns),                     \
		LONGEST(first.wall_ns)
#define OPENED_SUMS                                                                                \
	SUM(engine.pool.bytes), SUM(engine.pool.locked), SUM(engine.pool.huge), SUM(pool_peak),    \
		SUM(engine.store_bytes), SUM(engine.drive_written_bytes),                          \
		SUM(engine.verify_errors), SUM(verify_errors), MOST(first_ns), SUM(first_bytes),   \
		SUM(verified_bytes), MOST(engine.pool.largest_free)
static const struct sum step_sums[] = {STEP_SUMS}, opened[] = {OPENED_SUMS};

static uint64_t merged(int how, uint64_t a, uint64_t b)
{
	if (how == ADDED || (how == LEAST && !(a && b)))
		return a + b;
	return (how == GREATEST) == (a > b) ? a : b;
}

static void merge_fields(void *into, const void *from, const struct sum *fields, size_t n)
{
	for (const struct sum *field = fields; field < fields + n; field++) {
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
	const size_t ran_at = offsetof(struct bench_result, measured),
		     opened_at = offsetof(struct bench_result, opened);

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
	if (from->measured && into->measured) {
		merge_fields(into, from, measured, COUNT_OF(measured));
		merge_fields(&into->steps, &from->steps, step_sums, COUNT_OF(step_sums));
		merge_fields(&into->aio, &from->aio, aio_sums, COUNT_OF(aio_sums));
	} else if (from->measured) {
		memcpy((char *)into + ran_at, (const char *)from + ran_at, opened_at - ran_at);
	}
	if (from->opened && into->opened) {
		merge_fields(into, from, opened, COUNT_OF(opened));
		merge_fields(&into->engine.aio, &from->engine.aio, aio_sums, COUNT_OF(aio_sums));
		into->engine.direct &= from->engine.direct;
	} else if (from->opened) {
		memcpy((char *)into + opened_at, (const char *)from + opened_at,
		       sizeof(*into) - opened_at);
	}
}

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
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		struct report_way *way = &group->way[d];
		const struct bench_result *result = &group->result;
		uint64_t window_ns = 0;

		for (unsigned i = 0; i < report->plan->n; i++)
			if (report->plan->jobs[i].groupid == group->job->groupid &&
			    report->results[i]->bytes[d]) {
				way->all_bytes += report->results[i]->bytes[d];
				window_ns = max_u64(window_ns, report->results[i]->window_ns);
			}
		way->all_bytes_per_s = per_second(way->all_bytes, window_ns);
		way->bytes_per_s = per_second(result->bytes[d], way->window_ns);
		way->iops = per_second(result->aio.io[d].ios, way->window_ns);
		if (result->bytes[d])
			way->runtime_ms = way->window_ns / 1000000 +
					  (way->window_ns % 1000000 != 0);
	}
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
