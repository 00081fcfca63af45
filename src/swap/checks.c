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

int check_arguments(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error)
{
	if (!engine || (n && !tensors))
		return error_set(error, -EINVAL, "%s is NULL", engine ? "tensors" : "engine");
	for (size_t i = 0; i < n; i++) {
		int rc = check_tensor(engine, tensors[i], i, error);

		if (rc)
			return rc;
	}
	return 0;
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

int check_named_once(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		     struct nvs_error *error)
{
	engine->batch++;
	for (size_t i = 0; i < n; i++) {
		if (tensors[i]->batch == engine->batch)
			return error_about(error, -EINVAL, tensors[i]->name, 0, 0,
					   "%s is named twice in one batch", tensors[i]->name);
		tensors[i]->batch = engine->batch;
	}
	return 0;
}

int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	int rc = check_named_once(engine, tensors, n, error);

	for (size_t i = 0; i < n && !rc; i++)
		if (tensors[i]->pins.count || is_external(tensors[i]))
			rc = error_about(error, -EBUSY, tensors[i]->name, 0, 0, "%s is pinned: %s",
					 tensors[i]->name,
					 is_external(tensors[i]) ? "wait for its transfer first"
								 : "release it first");
	return rc;
}
