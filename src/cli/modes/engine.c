/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors are registered in the model's order, so that neighbours are adjacent in the store.
 */
#include "cli/modes/engine.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

static int register_tensors(struct bench_engine *opened, const struct model *model,
			    struct nvs_error *error)
{
	struct nvs_tensor_spec *specs = calloc(model->n, sizeof(*specs));
	int rc = -ENOMEM;

	for (size_t i = 0; i < model->n && specs; i++)
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = model->tensors[i].name,
						    .dtype = model->tensors[i].dtype,
						    .numel = model->tensors[i].numel};
	if (specs)
		rc = nvs_tensor_register(opened->engine, specs, model->n, opened->tensors, error);
	free(specs);
	return rc;
}

int bench_opened(int rc, struct nvs_error *error)
{
	return rc != -EEXIST ? rc
			     : error_set(error, rc,
					 "there is a kept store, which bench does not touch: give "
					 "another --nvme-path, or another \"rank\" in the "
					 "configuration");
}

int bench_engine_open(struct bench_engine *opened, const struct nvs_config *config,
		      enum nvs_block block, const struct model *model, struct bench_result *result)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	int rc;

	*opened = (struct bench_engine){.tensors = calloc(model->n, sizeof(struct nvs_tensor *))};
	if (!opened->tensors)
		return -ENOMEM;
	rc = bench_opened(nvs_engine_open(&opened->engine, config, block, &result->error),
			  &result->error);
	if (rc) {
		opened->engine = NULL;
		return rc;
	}
	nvs_engine_get_stats(opened->engine, &stats);
	opened->pool_bytes = stats.pool.bytes;
	return register_tensors(opened, model, &result->error);
}

int bench_engine_compare(struct bench_engine *opened, const struct pattern *pattern, size_t first,
			 size_t n, uint32_t generation, struct bench_result *result)
{
	const struct model *model = pattern->model;
	struct nvs_error error = {.size = sizeof(error)};

	for (size_t i = first; i < first + n; i++) {
		int rc = pattern_compare(pattern, i, generation,
					 nvs_tensor_data(opened->tensors[i]), &error);

		if (rc && rc != -EBADMSG) {
			result->error = error;
			return rc;
		}
		if (rc && !result->verify_errors++)
			opened->difference = error;
		result->verified_bytes += model->tensors[i].nbytes;
	}
	return 0;
}

int bench_engine_verdict(const struct bench_engine *opened, int rc, struct bench_result *result)
{
	if (rc || !result->verify_errors)
		return rc;
	result->error = opened->difference;
	return -EBADMSG;
}

int bench_engine_close(struct bench_engine *opened, int rc, struct bench_result *result)
{
	struct nvs_error closing = {.size = sizeof(closing)};
	int closed = 0;

	if (opened->engine) {
		result->engine.size = sizeof(result->engine);
		nvs_engine_get_stats(opened->engine, &result->engine);
		result->pool_peak = result->engine.pool.used_max;
		result->opened = true;
		closed = nvs_engine_close(opened->engine, &closing);
	}
	free(opened->tensors);
	*opened = (struct bench_engine){0};
	if (rc || !closed)
		return rc;
	result->error = closing;
	return closed;
}
