/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modes of a benchmark. Each opens what it needs, runs, and closes it; it returns 0 or a
 * negative errno, with a text in result->error if the errno alone is unclear.
 */
#ifndef CLI_MODES_MODES_H
#define CLI_MODES_MODES_H

#include "cli/jobs/jobs.h"

struct job_watch; /* watch.h; NULL: none */

/* Modes read, write, randread and randwrite. */
int bench_blocks(const struct bench_options *options, const struct nvs_config *config,
		 enum nvs_block block, struct bench_result *result, struct job_watch *watch);
int bench_swap(const struct bench_options *options, const struct nvs_config *config,
	       enum nvs_block block, const struct model *model, struct bench_result *result,
	       struct job_watch *watch);
int bench_step(const struct bench_options *options, const struct nvs_config *config,
	       const struct model *model, struct bench_result *result, struct job_watch *watch);
/* Computing in a visit is a span of `trace`, which may be NULL. */
int bench_params(const struct bench_options *options, const struct nvs_config *config,
		 struct nvs_trace *trace, const struct model *model, struct bench_result *result,
		 struct job_watch *watch);

#endif
