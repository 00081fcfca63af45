/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modes of a benchmark. Each opens what it needs, runs, and closes it again; it returns 0 or a
 * negative errno, with the text in result->error where there is more to say than the errno does.
 */
#ifndef CLI_BENCH_MODES_H
#define CLI_BENCH_MODES_H

#include "jobs.h"

struct job_watch; /* stage.h; NULL: nobody watches */

/* fio's modes. `job_name` and `clone` name the file, where no option does. */
int bench_io(const struct bench_options *options, const struct nvs_config *config,
	     struct bench_result *result, struct job_watch *watch, const char *job_name,
	     unsigned clone);
int bench_swap(const struct bench_options *options, const struct nvs_config *config,
	       enum nvs_block block, const struct model *model, struct bench_result *result,
	       struct job_watch *watch);
int bench_step(const struct bench_options *options, const struct nvs_config *config,
	       const struct model *model, struct bench_result *result, struct job_watch *watch);
int bench_params(const struct bench_options *options, const struct nvs_config *config,
		 const struct model *model, struct bench_result *result, struct job_watch *watch);

/*
 * Opens an engine, runs what a prepared job says, closes it. Returns result->error.code. A signal
 * to end stops it at the next batch.
 */
int bench_run(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);

#endif
