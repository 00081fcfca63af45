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
	static const char *const names[] = {
		[RW_SWAPOUT] = "swapout", [RW_SWAPIN] = "swapin", [RW_SWAP] = "swap"};

	return names[rw];
}

static inline const struct nvs_offload_config *config_block(const struct nvs_config *config,
							    enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? &config->param : &config->optimizer;
}

/*
 * Processor time of the whole process for each GiB swapped, out and in together, without what it
 * took to make and to compare the contents.
 */
static inline double cpu_ms_per_gib(const struct bench_result *result)
{
	double gib = (double)(result->bytes[NVS_READ] + result->bytes[NVS_WRITE]) / (1u << 30);
	double us = (double)(result->user_us + result->system_us) - (double)result->data_us;

	return gib > 0 && us > 0 ? us / 1e3 / gib : 0;
}

void bench_report_text(FILE *file, const struct bench_report *report);
/* 0, or -ENOMEM: nothing was written then. */
int bench_report_json(FILE *file, const struct bench_report *report);

#endif
