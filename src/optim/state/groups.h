/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of a kept optimizer's groups, by which a program that does not know them opens the
 * store. docs/store-format.md describes it. It is checked when it is decoded. No I/O here.
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

#endif
