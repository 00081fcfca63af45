/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the tensors of a store of parameters to a checkpoint, and from one into a store. */
#include <stdlib.h>

#include "cli/store/copy.h"

/* An open store, and its tensors as items of the checkpoint. */
struct taken {
	struct copy *copy;
	struct nvs_engine *engine;
	struct nvs_checkpoint_item *items;
	size_t n;
};

static int open_engine(struct taken *taken, bool keep, uint64_t pool)
{
	struct copy *copy = taken->copy;
	struct nvs_config *config = NULL;
	int rc = copy_configure(copy, keep, pool, &config);

	if (!rc)
		rc = nvs_engine_open(&taken->engine, config, NVS_OFFLOAD_PARAM, copy->error);
	nvs_config_close(config);
	return copy_opened(copy, rc);
}

/* Registers tensors, and names them as the items of the checkpoint. */
static int take(struct taken *taken, const struct nvs_tensor_spec *specs, size_t n)
{
	struct nvs_tensor **tensors = calloc(n + 1, sizeof(struct nvs_tensor *));
	struct copy *copy = taken->copy;
	int rc;

	taken->items = calloc(n + 1, sizeof(*taken->items));
	if (!tensors || !taken->items)
		rc = copy_no_memory(copy);
	else
		rc = n ? nvs_tensor_register(taken->engine, specs, n, tensors, copy->error) : 0;
	for (size_t i = 0; i < n && !rc; i++)
		taken->items[i] = (struct nvs_checkpoint_item){.size = sizeof(*taken->items),
							       .tensor = tensors[i]};
	taken->n = copy->n = rc ? 0 : n;
	free(tensors);
	return rc;
}

/* ---- Out ---- */

static int take_stored(struct taken *taken, size_t n)
{
	struct nvs_tensor_spec *specs = calloc(n + 1, sizeof(*specs));
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	int rc = specs ? 0 : copy_no_memory(taken->copy);

	for (size_t i = 0; i < n && !rc; i++) {
		rc = nvs_engine_get_stored(taken->engine, i, &stored);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(*specs),
						    .name = stored.name,
						    .dtype = stored.dtype,
						    .numel = stored.numel};
		taken->copy->nbytes += stored.nbytes;
	}
	if (!rc)
		rc = take(taken, specs, n);
	free(specs);
	return rc;
}

int copy_parameters_out(struct copy *copy)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = copy->job->shard_bytes};
	struct taken taken = {.copy = copy};
	size_t n = (size_t)copy->n;
	int rc = open_engine(&taken, false, copy_pool_bytes(copy->stored, copy->largest));

	if (!rc)
		rc = take_stored(&taken, n);
	if (!rc)
		rc = nvs_checkpoint_export(taken.engine, taken.items, taken.n, copy->job->to,
					   &options, copy->error);
	copy->commit = nvs_engine_generation(taken.engine);
	nvs_engine_close(taken.engine, NULL);
	free(taken.items);
	return rc;
}

/* ---- In ---- */

static int take_checkpoint(struct taken *taken, const struct nvs_checkpoint *checkpoint)
{
	size_t n = nvs_checkpoint_count(checkpoint);
	struct nvs_tensor_spec *specs = calloc(n + 1, sizeof(*specs));
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	int rc = specs ? 0 : copy_no_memory(taken->copy);

	for (size_t i = 0; i < n && !rc; i++) {
		rc = nvs_checkpoint_get(checkpoint, i, &tensor);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(*specs),
						    .name = tensor.name,
						    .dtype = tensor.dtype,
						    .numel = tensor.numel,
						    .shape = tensor.shape,
						    .ndim = tensor.ndim};
	}
	if (!rc)
		rc = take(taken, specs, n);
	free(specs);
	return rc;
}

static uint64_t pool_for(struct copy *copy, const struct nvs_checkpoint *checkpoint)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	uint64_t largest = 0;

	for (size_t i = 0; !nvs_checkpoint_get(checkpoint, i, &tensor); i++) {
		copy->nbytes += tensor.nbytes;
		largest = tensor.nbytes > largest ? tensor.nbytes : largest;
	}
	return copy_pool_bytes(copy->nbytes, largest);
}

static int fill(struct taken *taken, const struct nvs_checkpoint *checkpoint)
{
	struct copy *copy = taken->copy;
	int rc = open_engine(taken, true, pool_for(copy, checkpoint));

	if (!rc)
		rc = take_checkpoint(taken, checkpoint);
	if (!rc)
		rc = nvs_checkpoint_import(taken->engine, checkpoint, taken->items, taken->n,
					   copy->error);
	if (!rc)
		rc = nvs_engine_commit(taken->engine, copy->error);
	copy->commit = nvs_engine_generation(taken->engine);
	if (taken->engine && nvs_engine_abandon(taken->engine, NULL))
		nvs_engine_close(taken->engine, NULL);
	free(taken->items);
	return rc;
}

int copy_parameters_in(struct copy *copy)
{
	struct taken taken = {.copy = copy};
	struct nvs_checkpoint *checkpoint = NULL;
	int rc = nvs_checkpoint_open(&checkpoint, copy->job->from, copy->error);

	if (!rc)
		rc = fill(&taken, checkpoint);
	nvs_checkpoint_close(checkpoint);
	return rc;
}
