/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept stores: listing, the number of the last commit, and renaming.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/shape.h"
#include "swap/calls.h"

int nvs_engine_get_stored(struct nvs_engine *engine, size_t index, struct nvs_stored_tensor *stored)
{
	const struct store_entry *entries;
	const uint64_t *shape;
	size_t n, size, ndim;

	if (!engine || !stored || stored->size < sizeof(stored->size))
		return -EINVAL;
	entries = store_entries(engine->store, &n);
	if (index >= n)
		return -ENOENT;
	assert(engine->keep && entries[index].name);
	assert(entries[index].nbytes ==
	       entries[index].numel * nvs_dtype_size(entries[index].dtype));

	shape = shape_dimensions(entries[index].shape, entries[index].ndim, &entries[index].numel,
				 &ndim);

	const struct nvs_stored_tensor all = {.size = stored->size,
					      .name = entries[index].name,
					      .dtype = entries[index].dtype,
					      .numel = entries[index].numel,
					      .nbytes = entries[index].nbytes,
					      .has_contents = entries[index].written,
					      .has_checksum = entries[index].has_checksum,
					      .checksum = entries[index].checksum,
					      .ndim = ndim,
					      .shape = shape};

	size = stored->size < sizeof(all) ? stored->size : sizeof(all);
	memcpy(stored, &all, size);
	return 0;
}

uint64_t nvs_engine_generation(struct nvs_engine *engine)
{
	return engine ? store_generation(engine->store) : 0;
}

static int check_new_name(const char *name, struct nvs_error *error)
{
	size_t length = name ? strlen(name) : 0;

	if (length && length <= NVS_NAME_MAX)
		return 0;
	return error_set(error, -EINVAL,
			 "a tensor's name must have 1 to %d bytes; this one has %zu", NVS_NAME_MAX,
			 length);
}

int engine_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *name,
		  struct nvs_error *error)
{
	char *copy;
	int rc;

	rc = check_arguments(engine, &tensor, 1, error);
	if (!rc)
		rc = check_new_name(name, error);
	if (!rc)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	copy = strdup(name);
	if (!copy)
		return error_set(error, -ENOMEM, "out of memory while renaming a tensor");
	unlocked_check(engine);
	pthread_mutex_lock(&engine->naming);
	engine_lock(engine);
	engine_sums_check(engine);
	rc = table_rename(engine, tensor, copy, error);
	assert((rc == 0) == (tensor->name == copy));
	engine_sums_check(engine);
	engine_unlock(engine);
	pthread_mutex_unlock(&engine->naming);
	if (rc)
		free(copy);
	return rc;
}
