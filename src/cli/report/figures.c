/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures of all formats of a report, by fio's definitions: rates over the window, shares of I/Os
 * by latency and depth, statistics of samples.
 */
#include <math.h>

#include "cli/report/group.h"

/*
 * CPU time of the whole process per GiB moved in both directions together, without generating and
 * comparing contents and without an optimizer's updates and norm.
 */
double cpu_ms_per_gib(const struct bench_result *result)
{
	double gib = (double)(result->bytes[NVS_READ] + result->bytes[NVS_WRITE]) / (1u << 30);
	double us = (double)(result->user_us + result->system_us) - (double)result->data_us -
		    (double)result->updates_us;

	return gib > 0 && us > 0 ? us / 1e3 / gib : 0;
}

/* ---- Rates */

static double per_second(uint64_t count, uint64_t ns)
{
	return ns ? (double)count * 1e9 / (double)ns : 0;
}

double group_bytes_per_s(const struct report_group *group, enum nvs_direction direction)
{
	return per_second(group->result.bytes[direction], group->window_ns[direction]);
}

double group_iops(const struct report_group *group, enum nvs_direction direction)
{
	return per_second(group->result.aio.io[direction].ios, group->window_ns[direction]);
}

uint64_t window_ms(uint64_t window_ns)
{
	return window_ns / 1000000 + (window_ns % 1000000 != 0);
}

uint64_t group_runtime_ms(const struct report_group *group, enum nvs_direction direction)
{
	return group->result.bytes[direction] ? window_ms(group->window_ns[direction]) : 0;
}

double group_cpu_percent(const struct report_group *group, uint64_t cpu_us)
{
	return group->run_ns ? (double)cpu_us * 1e5 / (double)group->run_ns : 0;
}

/* ---- Samples */

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

double group_bandwidth_share(const struct report_group *group, enum nvs_direction direction)
{
	double all = group->all_bytes_per_s[direction];
	double percent = all > 0 ? 100 * samples_mean(&group->result.bw_bytes[direction]) / all : 0;

	return percent < 100 ? percent : 100;
}

/* ---- Shares */

const char *const latency_bounds[LATENCY_BOUNDS_MS] = {
	"2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000"};

const char *const depth_bounds[NVS_DEPTHS] = {"1", "2", "4", "8", "16", "32", ">=64"};
const char *const call_bounds[NVS_DEPTHS] = {"0", "4", "8", "16", "32", "64", ">=64"};

/* Like fio, round a share that is not 0 up to the smallest that its digits can show. */
static double percent(uint64_t part, uint64_t whole, double least)
{
	double share = whole ? 100 * (double)part / (double)whole : 0;

	return part && share < least ? least : share;
}

static uint64_t within(const struct report_group *group, uint64_t ns)
{
	return nvs_latency_within(&group->result.latency[NVS_READ][NVS_CLAT], ns) +
	       nvs_latency_within(&group->result.latency[NVS_WRITE][NVS_CLAT], ns);
}

void group_latency_shares(const struct report_group *group, double share[LATENCY_SHARES])
{
	static const uint64_t bounds[] = {2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000};
	uint64_t all = group->result.latency[NVS_READ][NVS_CLAT].count +
		       group->result.latency[NVS_WRITE][NVS_CLAT].count;
	uint64_t below = 0, unit = 1;

	for (unsigned i = 0; i < LATENCY_SHARES; i++) {
		unsigned at = i < 2 * LATENCY_BOUNDS ? i % LATENCY_BOUNDS : i - 2 * LATENCY_BOUNDS;
		uint64_t upto = all;

		if (i == LATENCY_BOUNDS || i == 2 * LATENCY_BOUNDS)
			unit *= 1000;
		if (i < LATENCY_SHARES - 1)
			upto = within(group, bounds[at] * unit - 1);
		share[i] = percent(upto - below, all, 0.01);
		below = upto;
	}
}

void depth_shares(const uint64_t counts[NVS_DEPTHS], double share[NVS_DEPTHS])
{
	uint64_t all = 0;

	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		all += counts[i];
	for (unsigned i = 0; i < NVS_DEPTHS; i++)
		share[i] = percent(counts[i], all, 0.1);
}
