/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of groups in a kept store. The groups decide the size of the optimizer's pool, so they
 * are read by another engine, which has a small pool and changes nothing.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "optim/internal.h"

#define POOL_NUMEL (256u * 1024)

int register_bytes(struct nvs_engine *engine, const char *name, uint64_t nbytes,
		   struct nvs_tensor **tensor, struct nvs_error *error)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = name, .dtype = NVS_U8, .numel = nbytes};

	return batch_register(engine, &spec, 1, tensor, error);
}

int stored_groups(const struct nvs_config *config, struct nvs_aio *aio,
		  const struct engine_ops *ops, void *ops_arg, struct group_table *table,
		  struct nvs_error *error)
{
	struct nvs_config own = *config;
	struct nvs_engine *engine = NULL;
	struct nvs_tensor *tensor = NULL;
	void *bytes = NULL;
	uint64_t nbytes = 0;
	int rc;

	*table = (struct group_table){0};
	if (!(config->keep || config->read_only) ||
	    config->offload[NVS_OFFLOAD_OPTIMIZER].device != NVS_DEVICE_NVME)
		return error_set(error, -EINVAL,
				 "there are no groups to optimize: name them, or set nvswap.keep "
				 "or nvswap.read_only to take those of a kept store");

	own.read_only = true;
	own.scrub = false;
	own.optimizer_max_in_cpu = 0;
	own.offload[NVS_OFFLOAD_OPTIMIZER].buffer_count = 1;
	own.offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = POOL_NUMEL;
	rc = aio ? nvs_engine_open_on(&engine, aio, &own, NVS_OFFLOAD_OPTIMIZER, error)
		 : engine_open_with(&engine, &own, NVS_OFFLOAD_OPTIMIZER, ops, ops_arg, error);
	if (rc)
		return rc;
	if (!engine_has_stored(engine, GROUPS_TENSOR, &nbytes))
		rc = error_set(error, -ENODATA,
			       "the kept store has no table of an optimizer's groups: it is an "
			       "engine's, that of a rule in Python, or of an nvswap without the "
			       "table, which naming the groups adds with the next commit");
	rc = rc ?: register_bytes(engine, GROUPS_TENSOR, nbytes, &tensor, error);
	if (!rc && !(bytes = malloc(nbytes)))
		rc = error_set(error, -ENOMEM, "no memory for the groups of the kept store");
	rc = rc ?: batch_swap_in_to(engine, &tensor, &bytes, 1, error);
	rc = rc ?: batch_wait(engine, &tensor, 1, 0, -1, error);
	if (!rc) {
		struct nvs_error why = {.size = sizeof(why)};

		rc = groups_decode(bytes, nbytes, table, &why);
		if (rc)
			error_about(error, rc, GROUPS_TENSOR, 0, 0,
				    "the kept store's table of groups is invalid: %s. Name the "
				    "groups, or restore the store from a copy",
				    why.text);
	}
	/* A drive that hangs may still write to the memory. */
	if (nvs_engine_close(engine, NULL) != -ETIMEDOUT)
		free(bytes);
	return rc;
}

int stored_groups_make(struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	struct group_table table = {
		.ratio = optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].ratio,
		.gradient_dtype = optimizer->gradient_dtype,
		.n = optimizer->ngroups,
	};
	uint64_t stored;

	if (optimizer->read_only || engine_has_stored(optimizer->engine, GROUPS_TENSOR, &stored))
		return 0;
	table.specs = calloc(table.n, sizeof(*table.specs));
	for (size_t i = 0; table.specs && i < table.n; i++) {
		table.specs[i].name = optimizer->groups[i].name;
		table.specs[i].numel = optimizer->groups[i].numel;
	}
	if (table.specs) {
		optimizer->table_bytes = groups_nbytes(&table);
		optimizer->table = malloc(optimizer->table_bytes);
	}
	if (optimizer->table)
		groups_encode(&table, optimizer->table);
	free(table.specs);
	return optimizer->table
		       ? register_bytes(optimizer->engine, GROUPS_TENSOR, optimizer->table_bytes,
					&optimizer->table_tensor, error)
		       : error_set(error, -ENOMEM, "out of memory for the table of groups");
}
