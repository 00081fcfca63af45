/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is constant in an open store, for the layers above, and the error of changing one that is
 * open read-only.
 */
#include "store/store.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "store/internal.h"

int store_read_only(const struct store *store, struct nvs_error *error)
{
	assert(store->read_only && store->keep);
	assert(store->nmembers && store->members[0].read_only);
	return error_set(error, -EROFS,
			 "the store at %s is open read-only (\"nvswap\": {\"read_only\": true})",
			 store->members[0].path);
}

struct nvs_file *store_file(struct store *store)
{
	assert(store->file);
	return store->file;
}

uint32_t store_unit(const struct store *store)
{
	assert(store->unit >= UNIT_MIN && store->unit <= UNIT_MAX);
	return store->unit;
}

bool store_direct(const struct store *store)
{
	assert(!store->direct || store->members[0].direct_fd >= 0);
	return store->direct;
}

const char *store_path(const struct store *store)
{
	assert(store->nmembers && store->members[0].path);
	return store->members[0].path;
}
