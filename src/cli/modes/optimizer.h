/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer of a benchmark, with the groups that the model's parameters are cut into. */
#ifndef CLI_MODES_OPTIMIZER_H
#define CLI_MODES_OPTIMIZER_H

#include "cli/jobs/bench.h"
#include "cli/modes/model/parameters.h"

/* Groups have no weights if `parameters` has none. Errors are in result->error. */
int bench_optimizer_open(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			 const struct parameters *parameters, struct bench_result *result);
/*
 * Stores the statistics of the optimizer's engine and closes it. Returns rc, or, if that is 0, the
 * error of closing.
 */
int bench_optimizer_close(struct nvs_optimizer *optimizer, int rc, struct bench_result *result);

#endif
