/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups are named "group 0" and so on. A kept store is never opened: see bench_opened().
 */
#include "cli/modes/optimizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/modes/engine.h"

int bench_optimizer_open(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			 const struct parameters *parameters, struct bench_result *result)
{
	struct nvs_group_spec *specs = calloc(parameters->ngroups, sizeof(*specs));
	char(*names)[32] = calloc(parameters->ngroups, sizeof(*names));
	void *weights = parameters->weights;
	int rc = -ENOMEM;

	for (size_t group = 0; group < parameters->ngroups && specs && names; group++) {
		snprintf(names[group], sizeof(names[group]), "group %zu", group);
		specs[group] = (struct nvs_group_spec){
			.size = sizeof(struct nvs_group_spec),
			.name = names[group],
			.numel = parameters_group_numel(parameters, group),
			.dtype = parameters->dtype,
			.weights = weights ? parameters_at(parameters, weights, group) : NULL};
	}
	if (specs && names)
		rc = nvs_optimizer_open(optimizer, config, specs, parameters->ngroups, NULL,
					&result->error);
	free(specs);
	free(names);
	return bench_opened(rc, &result->error);
}

int bench_optimizer_close(struct nvs_optimizer *optimizer, int rc, struct bench_result *result)
{
	struct nvs_error closing = {.size = sizeof(closing)};
	int closed;

	result->engine.size = sizeof(result->engine);
	nvs_engine_get_stats(nvs_optimizer_engine(optimizer), &result->engine);
	result->pool_peak = result->engine.pool.used_max;
	result->opened = true;
	closed = nvs_optimizer_close(optimizer, &closing);
	if (rc || !closed)
		return rc;
	result->error = closing;
	return closed;
}
