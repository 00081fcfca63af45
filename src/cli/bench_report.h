/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result of a benchmark as text for people and as JSON in the shape of fio's.
 */
#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include <stdio.h>

#include "bench.h"

/* All that a report may tell; what a run did not come to is NULL. */
struct bench_report {
	const struct command_spec *command;
	const struct options_given *given;
	const struct bench_options *options;
	const struct nvs_config *config; /* as it was resolved */
	enum nvs_block block;
	const struct model *model;
	const struct bench_result *result;
};

static inline const char *bench_rw_name(unsigned rw)
{
	static const char *const names[] = {[RW_SWAPOUT] = "swapout",
					    [RW_SWAPIN] = "swapin",
					    [RW_SWAP] = "swap",
					    [RW_STEP] = "step",
					    [RW_PARAMS] = "params"};

	return names[rw];
}

static inline const struct nvs_offload_config *config_block(const struct nvs_config *config,
							    enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? &config->param : &config->optimizer;
}

/*
 * Processor time of the whole process for each GiB swapped, out and in together, without what it
 * took to make and to compare the contents, and without an optimizer's updates and norm.
 */
static inline double cpu_ms_per_gib(const struct bench_result *result)
{
	double gib = (double)(result->bytes[NVS_READ] + result->bytes[NVS_WRITE]) / (1u << 30);
	double us = (double)(result->user_us + result->system_us) - (double)result->data_us -
		    (double)result->updates_us;

	return gib > 0 && us > 0 ? us / 1e3 / gib : 0;
}

static inline bool has_steps(const struct bench_report *report)
{
	return report->options->rw == RW_STEP || report->options->rw == RW_PARAMS;
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

void bench_report_text(FILE *file, const struct bench_report *report);
/* 0, or -ENOMEM: nothing was written then. */
int bench_report_json(FILE *file, const struct bench_report *report);

#endif
