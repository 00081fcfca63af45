/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the state of an optimizer's store to a checkpoint, and back. The groups are those of the
 * store; in a universal checkpoint each is a parameter.
 */
#include <stdlib.h>

#include "cli/store/copy.h"

#define PARTS	    3u
#define TILES_LEAST 4u /* in the pool */

static int open_optimizer(const struct copy *copy, bool keep, struct nvs_optimizer **optimizer)
{
	/* The largest tensors are the parts of tiles. */
	uint64_t tiles = TILES_LEAST * PARTS * copy->largest;
	struct nvs_config *config = NULL;
	int rc = copy_configure(copy, keep, copy_pool_bytes(copy->stored, tiles / 2), &config);

	if (!rc)
		rc = nvs_optimizer_open(optimizer, config, NULL, 0, NULL, copy->error);
	nvs_config_close(config);
	return copy_opened(copy, rc);
}

/* What the report tells. */
static int count(struct copy *copy, struct nvs_optimizer *optimizer)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};
	int rc = nvs_optimizer_get_info(optimizer, &info, copy->error);

	copy->n = info.ngroups;
	copy->step = info.step;
	copy->commit = info.generation;
	copy->nbytes = 0;
	for (size_t i = 0; i < info.ngroups && !rc; i++) {
		rc = nvs_optimizer_get_group_info(optimizer, i, &group, copy->error);
		copy->nbytes += group.numel * PARTS * sizeof(float);
	}
	return rc;
}

/* ---- Universal checkpoints ---- */

/* A parameter for each group, whole; copy->n of them. NULL after an error. */
static struct nvs_checkpoint_param *params_of(const struct copy *copy,
					      struct nvs_optimizer *optimizer)
{
	struct nvs_checkpoint_param *params = calloc(copy->n, sizeof(*params));
	struct nvs_group_info group = {.size = sizeof(group)};

	if (!params)
		copy_no_memory(copy);
	for (size_t i = 0; i < copy->n && params; i++) {
		nvs_optimizer_get_group_info(optimizer, i, &group, NULL);
		params[i] = (struct nvs_checkpoint_param){.size = sizeof(*params),
							  .name = group.name,
							  .group = i,
							  .numel = group.numel};
	}
	return params;
}

static int move_universal(const struct copy *copy, struct nvs_optimizer *optimizer, bool out)
{
	struct nvs_checkpoint_param *params = params_of(copy, optimizer);
	int rc;

	if (!params)
		return copy->error->code;
	rc = out ? nvs_checkpoint_export_universal(optimizer, params, copy->n, copy->job->to, NULL,
						   copy->error)
		 : nvs_checkpoint_import_universal(optimizer, params, copy->n, copy->job->from,
						   copy->error);
	free(params);
	return rc;
}

/* ---- Out ---- */

int copy_optimizer_out(struct copy *copy)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = copy->job->shard_bytes};
	struct nvs_optimizer *optimizer = NULL;
	int rc = open_optimizer(copy, false, &optimizer);

	if (!rc)
		rc = count(copy, optimizer);
	if (!rc)
		rc = copy->universal ? move_universal(copy, optimizer, true)
				     : nvs_checkpoint_export_optimizer(optimizer, copy->job->to,
								       &options, copy->error);
	nvs_optimizer_close(optimizer, NULL);
	return rc;
}

/* ---- In ---- */

static int import_file(const struct copy *copy, struct nvs_optimizer *optimizer)
{
	struct nvs_checkpoint *checkpoint = NULL;
	int rc = nvs_checkpoint_open(&checkpoint, copy->job->from, copy->error);

	if (!rc)
		rc = nvs_checkpoint_import_optimizer(optimizer, checkpoint, NULL, copy->error);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

/* Gradients and the note of the last commit belong to the state that is replaced. */
static int fill(struct copy *copy, struct nvs_optimizer *optimizer)
{
	int rc = count(copy, optimizer);

	if (!rc)
		rc = nvs_optimizer_clear_gradients(optimizer, copy->error);
	if (!rc)
		rc = copy->universal ? move_universal(copy, optimizer, false)
				     : import_file(copy, optimizer);
	if (!rc)
		rc = nvs_optimizer_set_note(optimizer, NULL, 0, copy->error);
	if (!rc)
		rc = nvs_optimizer_commit(optimizer, copy->error);
	return rc ? rc : count(copy, optimizer);
}

int copy_optimizer_in(struct copy *copy)
{
	struct nvs_optimizer *optimizer = NULL;
	int rc = open_optimizer(copy, true, &optimizer);

	if (!rc)
		rc = fill(copy, optimizer);
	nvs_optimizer_abandon(optimizer, NULL);
	return rc;
}
