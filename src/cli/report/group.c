/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds up the jobs of a group, which ran at the same time: bytes, CPU times, memory and sampled
 * rates add up, histograms merge, the longest window counts. The engine and kernel are the first
 * job's.
 */
#include "cli/report/group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"

/* 0: unknown. */
static uint64_t least(uint64_t a, uint64_t b)
{
	return a && b ? (a < b ? a : b) : a + b;
}

static double sum_of_squares_about_mean(const struct bench_samples *samples)
{
	double sum = samples->sum_squares - samples->sum * samples_mean(samples);

	return samples->n && sum > 0 ? sum : 0;
}

/* Like fio: means of rates add up; the deviation is that of one job's samples. */
static void add_samples(struct bench_samples *into, const struct bench_samples *from)
{
	double mean = samples_mean(into) + samples_mean(from);
	double about = sum_of_squares_about_mean(into) + sum_of_squares_about_mean(from);

	into->n += from->n;
	into->min += from->n ? from->min : 0;
	into->max += from->n ? from->max : 0;
	into->sum = mean * (double)into->n;
	into->sum_squares = about + mean * into->sum;
}

static void add_step_io(struct nvs_step_io *into, const struct nvs_step_io *from)
{
	into->wall_ns += from->wall_ns;
	into->io_ns += from->io_ns;
	into->compute_ns += from->compute_ns;
	into->hidden_ns += from->hidden_ns;
	into->read_bytes += from->read_bytes;
	into->written_bytes += from->written_bytes;
	into->hits += from->hits;
	into->misses += from->misses;
	into->stalls += from->stalls;
	into->stall_ns += from->stall_ns;
}

static void add_steps(struct step_figures *into, const struct step_figures *from)
{
	uint64_t first_wall_ns = max_u64(into->first.wall_ns, from->first.wall_ns);

	into->steps += from->steps;
	into->skipped += from->skipped;
	add_step_io(&into->sum, &from->sum);
	into->wall_min_ns = least(into->wall_min_ns, from->wall_min_ns);
	into->wall_max_ns = max_u64(into->wall_max_ns, from->wall_max_ns);
	into->shorter_ns += from->shorter_ns;
	into->updates_ns += from->updates_ns;
	into->tiles += from->tiles;
	add_step_io(&into->first, &from->first);
	into->first.wall_ns = first_wall_ns;
	into->layers = max_u64(into->layers, from->layers);
	into->elements += from->elements;
	into->groups += from->groups;
	into->threads += from->threads;
	into->peak_bytes += from->peak_bytes;
	into->pool_rss_bytes += from->pool_rss_bytes;
	into->own_bytes += from->own_bytes;
	into->host_bytes += from->host_bytes;
	into->store_bytes += from->store_bytes;
}

static void add_aio(struct nvs_aio_stats *into, const struct nvs_aio_stats *from)
{
	into->workers += from->workers;
	into->bounce_bytes += from->bounce_bytes;
	into->registered_bytes += from->registered_bytes;
	into->submit_calls += from->submit_calls;
	into->reap_calls += from->reap_calls;
	into->inflight_max = (uint32_t)max_u64(into->inflight_max, from->inflight_max);
	for (unsigned i = 0; i < NVS_DEPTHS; i++) {
		into->depth_ios[i] += from->depth_ios[i];
		into->submit_sizes[i] += from->submit_sizes[i];
		into->reap_sizes[i] += from->reap_sizes[i];
	}
	into->retries += from->retries;
	into->bounced_bytes += from->bounced_bytes;
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		into->io[d].bytes += from->io[d].bytes;
		into->io[d].ios += from->io[d].ios;
	}
}

static void add_engine(struct nvs_engine_stats *into, const struct nvs_engine_stats *from)
{
	into->pool.bytes += from->pool.bytes;
	into->pool.locked += from->pool.locked;
	into->pool.huge += from->pool.huge;
	into->pool.largest_free = max_u64(into->pool.largest_free, from->pool.largest_free);
	add_aio(&into->aio, &from->aio);
	into->store_bytes += from->store_bytes;
	into->verify_errors += from->verify_errors;
	into->direct &= from->direct;
}

static void add_measured(struct bench_result *into, const struct bench_result *from)
{
	if (into->measured) {
		add_aio(&into->aio, &from->aio);
		add_steps(&into->steps, &from->steps);
	} else {
		into->aio = from->aio;
		into->steps = from->steps;
		into->replay = from->replay; /* of one job */
	}
	into->measured = true;
	into->window_ns = max_u64(into->window_ns, from->window_ns);
	into->user_us += from->user_us;
	into->system_us += from->system_us;
	into->data_us += from->data_us;
	into->updates_us += from->updates_us;
	into->context_switches += from->context_switches;
	into->major_faults += from->major_faults;
	into->minor_faults += from->minor_faults;
	into->transfers += from->transfers;
	into->evictions += from->evictions;
	into->pool_waits += from->pool_waits;
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		into->bytes[d] += from->bytes[d];
		add_samples(&into->bw_bytes[d], &from->bw_bytes[d]);
		add_samples(&into->iops[d], &from->iops[d]);
		for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++) {
			into->latency[d][kind].size = sizeof(struct nvs_latency);
			nvs_latency_merge(&into->latency[d][kind], &from->latency[d][kind]);
		}
	}
}

static void add_opened(struct bench_result *into, const struct bench_result *from)
{
	if (into->opened)
		add_engine(&into->engine, &from->engine);
	else
		into->engine = from->engine;
	into->opened = true;
	into->pool_peak += from->pool_peak;
	into->first_bytes += from->first_bytes;
	into->first_ns = max_u64(into->first_ns, from->first_ns);
	into->verified_bytes += from->verified_bytes;
	into->verify_errors += from->verify_errors;
}

static void add_result(struct bench_result *into, const struct bench_result *from)
{
	if (!into->error.code)
		into->error = from->error;
	if (!into->signal)
		into->signal = from->signal;
	if (!into->pid)
		into->pid = from->pid;
	into->started_unix_ms = least(into->started_unix_ms, from->started_unix_ms);
	into->elapsed_s = fmax(into->elapsed_s, from->elapsed_s);
	if (from->measured)
		add_measured(into, from);
	if (from->opened)
		add_opened(into, from);
}

/* ---- Jobs reported as one */

static double all_bytes_per_s(const struct bench_report *report, unsigned groupid, int direction)
{
	uint64_t nbytes = 0, window_ns = 0;

	for (unsigned i = 0; i < report->plan->n; i++) {
		const struct bench_result *result = report->results[i];

		if (report->plan->jobs[i].groupid != groupid || !result->bytes[direction])
			continue;
		nbytes += result->bytes[direction];
		window_ns = max_u64(window_ns, result->window_ns);
	}
	return window_ns ? (double)nbytes * 1e9 / (double)window_ns : 0;
}

static bool goes_with(const struct bench_job *job, const struct bench_job *first)
{
	return job->groupid == first->groupid && job->options.group_reporting &&
	       first->options.group_reporting;
}

static void add_job(struct report_group *group, const struct bench_job *job,
		    const struct bench_result *result)
{
	group->njobs++;
	group->one_mode &= job->options.rw == group->job->options.rw;
	group->asked_verify += job->options.verify;
	group->compared += job->options.verify && result->verified_bytes;
	group->run_ns += result->window_ns;
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (result->bytes[d] || result->aio.io[d].ios)
			group->window_ns[d] = max_u64(group->window_ns[d], result->window_ns);
	add_result(&group->result, result);
}

struct report_group *report_group_make(void)
{
	return calloc(1, sizeof(struct report_group));
}

bool report_group_next(const struct bench_report *report, struct report_group *group)
{
	const struct bench_plan *plan = report->plan;
	unsigned next = group->job ? (unsigned)(group->job - plan->jobs) + group->njobs : 0;

	if (next == plan->n)
		return false;
	memset(group, 0, sizeof(*group));
	group->job = &plan->jobs[next];
	group->one_mode = true;
	do
		add_job(group, &plan->jobs[next], report->results[next]);
	while (++next < plan->n && goes_with(&plan->jobs[next], group->job));
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		group->all_bytes_per_s[d] = all_bytes_per_s(report, group->job->groupid, d);
	return true;
}
