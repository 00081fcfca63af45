/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the calls on tensors check before they change anything.
 */
#include <errno.h>

#include "base/error.h"
#include "swap/calls.h"

int check_tensor(const struct nvs_engine *engine, const struct nvs_tensor *tensor, size_t i,
		 struct nvs_error *error)
{
	if (!tensor)
		return error_set(error, -EINVAL,
				 "tensor %zu is NULL: nvs_tensor_find returns NULL for a name "
				 "that is not registered",
				 i);
	if (tensor->engine != engine)
		return error_set(error, -EINVAL, "tensor %zu belongs to another engine", i);
	return 0;
}

int check_array(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		struct nvs_error *error)
{
	if (!engine || (n && !tensors))
		return error_set(error, -EINVAL, "%s is NULL", engine ? "tensors" : "engine");
	return 0;
}

int check_arguments(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error)
{
	int rc = check_array(engine, tensors, n, error);

	for (size_t i = 0; i < n && !rc; i++)
		rc = check_tensor(engine, tensors[i], i, error);
	return rc;
}

int check_writable(const struct nvs_engine *engine, struct nvs_error *error)
{
	if (!engine->read_only)
		return 0;
	return error_set(error, -EROFS,
			 "the store at %s is open read-only (\"nvswap\": {\"read_only\": true}): "
			 "nothing can be written, registered anew, renamed, forgotten or committed",
			 store_path(engine->store));
}

void begin_batch(struct nvs_engine *engine)
{
	engine->batch++;
}

int check_in_batch(const struct nvs_engine *engine, struct nvs_tensor *tensor, size_t i,
		   struct nvs_error *error)
{
	int rc = check_tensor(engine, tensor, i, error);

	if (rc)
		return rc;
	if (tensor->batch == engine->batch)
		return error_about(error, -EINVAL, tensor->name, 0, 0,
				   "%s is named twice in one batch", tensor->name);
	tensor->batch = engine->batch;
	return 0;
}

int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	int rc = 0;

	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		rc = check_in_batch(engine, tensors[i], i, error);
		if (!rc && (tensors[i]->pins.count || is_external(tensors[i])))
			rc = error_about(error, -EBUSY, tensors[i]->name, 0, 0, "%s is pinned: %s",
					 tensors[i]->name,
					 is_external(tensors[i]) ? "wait for its transfer first"
								 : "release it first");
	}
	return rc;
}
