/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is the table of a kept optimizer's groups. What is accepted is within its bounds, and
 * is written as the same bytes.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "allocations.h"
#include "optim/state/header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void check_accepted(const struct group_table *table, const uint8_t *bytes, size_t nbytes)
{
	uint8_t *again;

	assert(table->n && table->n <= nbytes && groups_nbytes(table) == nbytes);
	again = malloc(nbytes);
	assert(again);
	assert(table->ratio >= 0 && table->ratio <= 1);
	for (size_t i = 0; i < table->n; i++) {
		size_t length = strlen(table->specs[i].name);

		assert(length && length <= NVS_NAME_MAX);
		assert(table->specs[i].numel && table->specs[i].numel <= HEADER_NUMEL_MAX);
		assert(table->specs[i].dtype == NVS_F32 && !table->specs[i].weights);
	}
	groups_encode(table, again);
	assert(!memcmp(bytes, again, nbytes));
	free(again);
}

/* A group takes 24 bytes or more. */
size_t allocated_most(size_t nbytes)
{
	return 64 * nbytes + 4096;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct group_table table;
	/* Of exactly this length, so that a read behind it is found. */
	uint8_t *bytes = malloc(nbytes ? nbytes : 1);

	assert(bytes);
	memcpy(bytes, data, nbytes);
	if (!groups_decode(bytes, nbytes, &table, NULL))
		check_accepted(&table, bytes, nbytes);
	assert(table.n || (!table.specs && !table.names));
	groups_free(&table);
	free(bytes);
	return 0;
}
