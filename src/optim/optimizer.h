/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's functions for tests, beside the public ones.
 */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "config/config.h"
#include "nvswap.h"

struct engine_ops;
/* nvs_optimizer_open with this I/O engine instead of the configured one. */
int optimizer_open_with(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			const struct nvs_group_spec *groups, size_t n,
			const struct nvs_optimizer_options *options, const struct engine_ops *ops,
			void *ops_arg, struct nvs_error *error);

#endif
