/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modes of a benchmark. Each opens what it needs, runs, and closes it again; it returns 0 or a
 * negative errno, with the text in result->error where there is more to say than the errno does.
 */
#ifndef CLI_BENCH_MODES_H
#define CLI_BENCH_MODES_H

#include "bench.h"

int bench_swap(const struct bench_options *options, const struct nvs_config *config,
	       enum nvs_block block, const struct model *model, struct bench_result *result);
int bench_step(const struct bench_options *options, const struct nvs_config *config,
	       const struct model *model, struct bench_result *result);
int bench_params(const struct bench_options *options, const struct nvs_config *config,
		 const struct model *model, struct bench_result *result);

#endif
