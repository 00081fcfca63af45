/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of a kept optimizer's groups, by which a program that does not know them opens the
 * store. docs/store-format.md describes it. It is checked when it is decoded.
 */
#ifndef OPTIM_GROUPS_H
#define OPTIM_GROUPS_H

#include "nvswap.h"

#define GROUPS_BYTES 32u /* before the first group */

struct group_table {
	double ratio; /* as offload_optimizer.ratio */
	enum nvs_dtype gradient_dtype;
	struct nvs_group_spec *specs; /* with name and numel; fp32, no weights */
	size_t n;
	char *names; /* memory of the decoded names */
};

/* The bytes of an encoded table. */
uint64_t groups_nbytes(const struct group_table *table);
/* Writes groups_nbytes() bytes. */
void groups_encode(const struct group_table *table, uint8_t *bytes);
/*
 * Decodes a table, which groups_free() frees; on an error it is empty.
 * Errors:
 * -EUCLEAN  it is invalid: the error says what is wrong
 * -ENOMEM
 */
int groups_decode(const uint8_t *bytes, uint64_t nbytes, struct group_table *table,
		  struct nvs_error *error);
void groups_free(struct group_table *table);

/* ---- stored_groups.c: the table in a kept store, read before the optimizer is opened ---- */

#define GROUPS_TENSOR "groups"

/* Registers a tensor of bytes. Errors: those of nvs_tensor_register. */
int register_bytes(struct nvs_engine *engine, const char *name, uint64_t nbytes,
		   struct nvs_tensor **tensor, struct nvs_error *error);
struct engine_ops;
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
