/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept stores: listing, the number of the last commit, and renaming.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/shape.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

int nvs_engine_get_stored(struct nvs_engine *engine, size_t index, struct nvs_stored_tensor *stored)
{
	struct nvs_stored_tensor full;
	const struct store_entry *entry;
	const uint64_t *shape;
	size_t n, ndim;

	if (!engine || !stored)
		return -EINVAL;
	entry = store_entries(engine->store, &n);
	if (index >= n)
		return -ENOENT;
	entry += index;
	shape = shape_dimensions(entry->shape, entry->ndim, &entry->numel, &ndim);
	full = (struct nvs_stored_tensor){.name = entry->name,
					  .dtype = entry->dtype,
					  .numel = entry->numel,
					  .nbytes = entry->nbytes,
					  .has_contents = entry->written,
					  .has_checksum = entry->has_checksum,
					  .checksum = entry->checksum,
					  .ndim = ndim,
					  .shape = shape};
	return struct_out(stored, &full, sizeof(full));
}

uint64_t nvs_engine_generation(struct nvs_engine *engine)
{
	return engine ? store_generation(engine->store) : 0;
}

int nvs_tensor_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *name,
		      struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_unowned(engine, OTHER_TENSORS, error);

	if (!rc)
		rc = check_arguments(engine, &tensor, 1, error);
	if (!rc)
		rc = check_name(engine, name, error);
	if (!rc)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&engine->naming);
	engine_lock(engine);
	rc = table_rename(engine, tensor, name, error);
	engine_unlock(engine);
	pthread_mutex_unlock(&engine->naming);
	return rc;
}
