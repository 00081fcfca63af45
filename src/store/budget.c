/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store writes to its drives.
 */
#include "aio/aio.h"
#include "store/internal.h"

static uint64_t member_written(const struct store *store, unsigned i)
{
	const struct member *member = &store->members[i];
	uint64_t written = __atomic_load_n(&member->written, __ATOMIC_RELAXED);

	if (member->kind == MEMBER_MEMORY)
		return 0;
	if (!i)
		written += __atomic_load_n(&store->slots.written, __ATOMIC_RELAXED);
	return written + (store->file ? file_written(store->file, i) : 0);
}

uint64_t store_written(const struct store *store)
{
	uint64_t written = 0;

	for (unsigned i = 0; i < store->nmembers; i++)
		written += member_written(store, i);
	return written;
}
