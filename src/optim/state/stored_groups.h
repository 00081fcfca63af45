/* SPDX-License-Identifier: Apache-2.0 */
/* The table of groups in a kept store, read before the optimizer is opened. */
#ifndef OPTIM_STORED_GROUPS_H
#define OPTIM_STORED_GROUPS_H

#include "optim/state/groups.h"
#include "swap/swap.h"

#define GROUPS_TENSOR "groups"

/*
 * Reads the table of groups of the store of the offload_optimizer block through an engine that is
 * closed again, on `aio` or NULL. groups_free() frees it.
 * Errors: those of nvs_engine_open and nvs_tensor_swap_in_to, and
 * -EINVAL   the configuration has no kept store
 * -ENODATA  there is no store, or it has no table
 * -EUCLEAN  the table is invalid
 */
int stored_groups(const struct nvs_config *config, struct nvs_aio *aio,
		  const struct engine_ops *ops, void *ops_arg, struct group_table *table,
		  struct nvs_error *error);

/*
 * Registers and encodes the table of an open optimizer, which the next commit writes, unless the
 * store has one. Errors: those of nvs_tensor_register.
 */
int stored_groups_make(struct nvs_optimizer *optimizer, struct nvs_error *error);

#endif
