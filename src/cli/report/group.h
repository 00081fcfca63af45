/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the forms of a report tell of: a job, or neighbours in the plan that asked for
 * group_reporting, added up as if they were one; and the figures that follow from its result.
 */
#ifndef CLI_REPORT_GROUP_H
#define CLI_REPORT_GROUP_H

#include "report.h"

/* Too large for a stack. */
struct report_group {
	const struct bench_job *job;	 /* the first, which gives name and options */
	unsigned njobs;			 /* from that on */
	bool one_mode;			 /* all of them have its rw */
	unsigned asked_verify, compared; /* jobs that were to compare, and that did */
	uint64_t run_ns;		 /* the windows of all, added up: processor time's base */
	/* Bytes a second of all jobs with its groupid, which may be more, by enum nvs_direction */
	double all_bytes_per_s[2];
	/* The longest window of those that moved something in a direction: rates are over it. */
	uint64_t window_ns[2];
	struct bench_result result; /* its window is the longest of all */
};

/* Zeroed memory for the calls below; NULL: there is none. */
struct report_group *report_group_make(void);
/* `n` jobs of a plan from the first on, as one; without what others of its groupid did. */
void report_group_of(const struct bench_plan *plan, const struct bench_result *const *results,
		     unsigned first, unsigned n, struct report_group *group);
/* The next one of the report, from the first on; false: there is none. */
bool report_group_next(const struct bench_report *report, struct report_group *group);

/* Bounds of fio's "lat (usec)" and its like, of the three units. */
#define LATENCY_BOUNDS	  10 /* of ns and us */
#define LATENCY_BOUNDS_MS 12
#define LATENCY_SHARES	  (2 * LATENCY_BOUNDS + LATENCY_BOUNDS_MS)
extern const char *const latency_bounds[LATENCY_BOUNDS_MS];

/* fio's names of nvs_aio_stats' depth_ios, and of its submit_sizes and reap_sizes. */
extern const char *const depth_bounds[NVS_DEPTHS], *const call_bounds[NVS_DEPTHS];

/* Per cent of the I/Os that took less than each bound, and no less than the one before. */
void group_latency_shares(const struct report_group *group, double share[LATENCY_SHARES]);
/* Per cent of what was counted in each; what is there at all is shown as 0.1 at least. */
void depth_shares(const uint64_t counts[NVS_DEPTHS], double share[NVS_DEPTHS]);
/* Of an I/O; of nvswap's modes it is tensors that come in several sizes. */
void job_block_sizes(const struct bench_job *job, enum nvs_direction direction, uint64_t *least,
		     uint64_t *most);
/* What was asked for, or what fio shows by itself. */
struct option_percentiles group_percentiles(const struct report_group *group);

double group_bytes_per_s(const struct report_group *group, enum nvs_direction direction);
double group_iops(const struct report_group *group, enum nvs_direction direction);
/* Begun milliseconds; 0 in a direction in which nothing moved. */
uint64_t window_ms(uint64_t window_ns);
uint64_t group_runtime_ms(const struct report_group *group, enum nvs_direction direction);
double group_cpu_percent(const struct report_group *group, uint64_t cpu_us);
/* Of what all jobs with its groupid moved, by the samples. */
double group_bandwidth_share(const struct report_group *group, enum nvs_direction direction);

double samples_mean(const struct bench_samples *samples);
double samples_stddev(const struct bench_samples *samples);

double disk_busy_percent(const struct disk_use *disk);

static inline const struct nvs_offload_config *job_block(const struct bench_job *job)
{
	return job->block == NVS_OFFLOAD_PARAM ? &job->config.param : &job->config.optimizer;
}

/* What was asked for, where it isn't known what works. */
static inline const char *group_ioengine(const struct report_group *group)
{
	return group->result.opened ? group->result.engine.aio.ioengine
				    : nvs_ioengine_name(group->job->config.aio.ioengine);
}

/* Whether the figures of steps are there, and of one kind. */
static inline bool group_has_steps(const struct report_group *group)
{
	unsigned rw = group->job->options.rw;

	return group->one_mode && (rw == RW_STEP || rw == RW_PARAMS);
}

/* Those by the engine are not among those by the command. */
static inline uint64_t verify_errors(const struct bench_result *result)
{
	return result->verify_errors + result->engine.verify_errors;
}

/* A mean over the measured steps of what was summed. */
static inline double per_step(const struct bench_result *result, uint64_t sum)
{
	return result->steps.steps ? (double)sum / (double)result->steps.steps : 0;
}

/* Of what could be hidden, the shorter of I/O and compute, how much was. */
static inline double hidden_share(const struct bench_result *result)
{
	double share = result->steps.shorter_ns ? (double)result->steps.sum.hidden_ns /
							  (double)result->steps.shorter_ns
						: 0;

	return share < 1 ? share : 1;
}

/* The most memory that the process had, less what is told apart: pool, state, the caller's own. */
static inline uint64_t peak_rest(const struct step_figures *steps)
{
	uint64_t accounted = steps->pool_rss_bytes + steps->host_bytes + steps->own_bytes;

	return steps->peak_bytes > accounted ? steps->peak_bytes - accounted : 0;
}

#endif
