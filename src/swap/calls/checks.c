/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls on tensors check before they change anything. */
#include <string.h>

#include "base/text.h"
#include "swap/calls/calls.h"

int check_unowned(const struct nvs_engine *engine, const char *instead, struct nvs_error *error)
{
	if (!engine || !engine->owned)
		return 0;
	return error_set(error, -EBUSY,
			 "the engine belongs to an optimizer, which alone changes it: %s", instead);
}

int check_name(const struct nvs_engine *engine, const char *name, struct nvs_error *error)
{
	size_t length = name ? strlen(name) : 0;

	if (!length || length > NVS_NAME_MAX)
		return error_set(error, -EINVAL,
				 "a tensor's name must have 1 to %d bytes; this one has %zu",
				 NVS_NAME_MAX, length);
	if (!engine->read_only && !text_is_utf8(name))
		return error_about(error, -EINVAL, name, 0, 0, "the name %s is not UTF-8", name);
	return 0;
}

int not_of_engine(const struct nvs_tensor *tensor, size_t i, struct nvs_error *error)
{
	return error_set(error, -EINVAL,
			 tensor ? "tensor %zu is forgotten, or belongs to another engine"
				: "tensor %zu is NULL: nvs_tensor_find returns NULL for a name "
				  "that is not registered",
			 i);
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
	if (!engine || !engine->read_only)
		return 0;
	if (engine->of_files)
		return error_set(
			error, -EROFS,
			"the tensors of %s are read where they lie (nvs_engine_open_files), "
			"and can't be written, registered anew, renamed, forgotten or "
			"committed: import them into the store of another engine "
			"(nvs_checkpoint_import) to change them",
			store_path(engine->store));
	return error_set(error, -EROFS,
			 "the store at %s is open read-only (\"nvswap\": {\"read_only\": true}): "
			 "nothing can be written, registered anew, renamed, forgotten or committed",
			 store_path(engine->store));
}

int check_in_batch(const struct nvs_engine *engine, struct nvs_tensor *tensor, size_t i,
		   struct nvs_error *error)
{
	int rc = check_tensor(engine, tensor, i, error);

	if (rc)
		return rc;
	if (tensor->batch == engine->batch)
		return error_named(error, -EINVAL, tensor->rest->name,
				   " is named twice in one batch");
	tensor->batch = engine->batch;
	return 0;
}

int check_not_external(const struct nvs_tensor *tensor, struct nvs_error *error)
{
	if (!is_external(tensor))
		return 0;
	return error_named(error, -EBUSY, tensor->rest->name,
			   " is in flight from or to external memory: wait for it first");
}

int check_unpinned_one(const struct nvs_tensor *tensor, struct nvs_error *error)
{
	int rc = check_not_external(tensor, error);

	if (rc || !tensor->pins.count)
		return rc;
	return error_named(error, -EBUSY, tensor->rest->name, " is pinned: release it first");
}

int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	int rc = 0;

	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		load_later(tensors, i, n);
		rc = check_in_batch(engine, tensors[i], i, error)
			     ?: check_unpinned_one(tensors[i], error);
	}
	return rc;
}
