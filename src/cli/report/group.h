/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An entry of a report: a job, or neighbouring jobs of the plan with group_reporting added up as
 * one, and the figures computed from its result.
 */
#ifndef CLI_REPORT_GROUP_H
#define CLI_REPORT_GROUP_H

#include "cli/report/report.h"
#include "cli/settings.h"

/* Too large for a stack. */
struct report_group {
	const struct bench_job *job;	 /* the first, for name and options */
	unsigned njobs;			 /* starting with it */
	bool one_mode;			 /* all have the same rw */
	unsigned asked_verify, compared; /* jobs with verify, and those that compared something */
	uint64_t run_ns;		 /* sum of all windows, the base of CPU shares */
	/* By enum nvs_direction, of all jobs with the same groupid, also those outside the group.
	 */
	double all_bytes_per_s[2];
	/* The longest window of jobs that moved anything in a direction; the base of rates. */
	uint64_t window_ns[2];
	struct bench_result result; /* its window is the longest */
};

/* Zeroed, for the call below; freed by free(). NULL without memory. */
struct report_group *report_group_make(void);
/* Advances to the next entry of the report, or the first; false at the end. */
bool report_group_next(const struct bench_report *report, struct report_group *group);

/* Bounds of fio's "lat (nsec)", "lat (usec)" and "lat (msec)". */
#define LATENCY_BOUNDS	  10 /* of ns and us */
#define LATENCY_BOUNDS_MS 12
#define LATENCY_SHARES	  (2 * LATENCY_BOUNDS + LATENCY_BOUNDS_MS)
extern const char *const latency_bounds[LATENCY_BOUNDS_MS];

/* fio's names of nvs_aio_stats' depth_ios, and of its submit_sizes and reap_sizes. */
extern const char *const depth_bounds[NVS_DEPTHS], *const call_bounds[NVS_DEPTHS];

/* Percentage of I/Os from the previous bound up to, not including, each bound. */
void group_latency_shares(const struct report_group *group, double share[LATENCY_SHARES]);
/* Percentages; a count that is not 0 is at least 0.1. */
void depth_shares(const uint64_t counts[NVS_DEPTHS], double share[NVS_DEPTHS]);

double group_bytes_per_s(const struct report_group *group, enum nvs_direction direction);
double group_iops(const struct report_group *group, enum nvs_direction direction);
/* Rounded up to milliseconds; 0 if nothing moved in the direction. */
uint64_t window_ms(uint64_t window_ns);
uint64_t group_runtime_ms(const struct report_group *group, enum nvs_direction direction);
double group_cpu_percent(const struct report_group *group, uint64_t cpu_us);
/* Percentage of the bandwidth of all jobs with the same groupid. */
double group_bandwidth_share(const struct report_group *group, enum nvs_direction direction);

double samples_mean(const struct bench_samples *samples);
double samples_stddev(const struct bench_samples *samples);

double disk_busy_percent(const struct disk_use *disk);

static inline uint64_t job_block_size(const struct bench_job *job)
{
	return setting_number(job->config, "aio.block_size");
}

static inline uint64_t job_queue_depth(const struct bench_job *job)
{
	return setting_number(job->config, "aio.queue_depth");
}

/* The engine in use, or the one asked for if none was opened. */
static inline const char *group_ioengine(const struct report_group *group)
{
	return group->result.opened ? group->result.engine.aio.ioengine
				    : nvs_ioengine_name(setting_ioengine(group->job->config));
}

/* Whether all jobs ran steps of one kind. */
static inline bool group_has_steps(const struct report_group *group)
{
	unsigned rw = group->job->options.rw;

	return group->one_mode && (rw == RW_STEP || rw == RW_PARAMS);
}

/* The engine's own checksum errors come on top of the command's. */
static inline uint64_t verify_errors(const struct bench_result *result)
{
	return result->verify_errors + result->engine.verify_errors;
}

/* The mean over the measured steps of a sum. */
static inline double per_step(const struct bench_result *result, uint64_t sum)
{
	return result->steps.steps ? (double)sum / (double)result->steps.steps : 0;
}

/* Why the steps show nothing of swapping; NULL: they do. */
static inline const char *steps_note(const struct bench_result *result)
{
	const struct nvs_step_io *sum = &result->steps.sum;

	return sum->read_bytes || sum->written_bytes
		       ? NULL
		       : "the pool holds everything, so the steps did not use the drive: give a "
			 "smaller --pool";
}

/* The hidden part of the shorter of I/O and compute. */
static inline double hidden_share(const struct bench_result *result)
{
	double share = result->steps.shorter_ns ? (double)result->steps.sum.hidden_ns /
							  (double)result->steps.shorter_ns
						: 0;

	return share < 1 ? share : 1;
}

/* Peak memory of the process without pool, state and the caller's own memory. */
static inline uint64_t peak_rest(const struct step_figures *steps)
{
	uint64_t accounted = steps->pool_rss_bytes + steps->host_bytes + steps->own_bytes;

	return steps->peak_bytes > accounted ? steps->peak_bytes - accounted : 0;
}

#endif
