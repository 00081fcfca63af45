/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a kept optimizer's store, which docs/store-format.md describes: encoded
 * little-endian, and checked when it is decoded. No I/O here.
 */
#ifndef OPTIM_HEADER_H
#define OPTIM_HEADER_H

#include "optim/step/numbers.h"

#define HEADER_BYTES	 144u
#define HEADER_UNIT	 1024u		     /* tiles are a multiple of it, in elements */
#define HEADER_NUMEL_MAX (UINT64_C(1) << 56) /* elements of a tile */
#define HEADER_COUNTS_MAX                                                                          \
	(UINT64_C(1) << 53) /* elements that were added, updates of the loss scale */

/* What a header holds before the marks. */
struct header {
	uint32_t unfinished; /* 0 or 1 */
	bool dynamic;	     /* the loss scale */
	uint64_t layout;     /* checksum of the groups' names and places */
	uint64_t tile_numel, ntiles, noffloaded, ngradients, ngroups;
	enum nvs_dtype gradient_dtype;
	/* of the moments: NVS_STATE_FP32, NVS_STATE_BF16 or NVS_STATE_8BIT; the master weights are
	 * whole */
	enum nvs_optimizer_state state;
	enum nvs_rule rule; /* whose states there are */
	uint64_t step;
	struct scaler scaler;
	/* of an unfinished step: */
	double lr, factor, norm, clip;
};

/* The marks behind it: a byte for each tile (1: done) and gradient tile (1: valid), and 8 bytes for
 * each group: the elements that were added, or this. */
#define GROUP_LENT  UINT64_MAX
#define GROUP_BYTES 8u

/* The bytes of a header with its marks. */
static inline uint64_t header_nbytes(const struct header *header)
{
	return HEADER_BYTES + header->ntiles + header->ngradients + GROUP_BYTES * header->ngroups;
}

/* Writes the first HEADER_BYTES; the marks are the caller's. */
void header_encode(const struct header *header, uint8_t *bytes);
/* Decodes and checks a header with its marks. -EUCLEAN: it is invalid; the error says which number
 * is wrong, and its bounds. */
int header_decode(const uint8_t *bytes, uint64_t nbytes, struct header *header,
		  struct nvs_error *error);

/*
 * ---- groups.c ----
 *
 * The table of a kept optimizer's groups, by which a program that does not know them opens the
 * store. docs/store-format.md describes it. It is checked when it is decoded.
 */

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
