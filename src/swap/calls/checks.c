/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls on tensors check before they change anything. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
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
	if (!tensor)
		return error_set(error, -EINVAL,
				 "tensor %zu is NULL: nvs_tensor_find returns NULL for a name "
				 "that is not registered",
				 i);
	return error_set(error, -EINVAL, "tensor %zu is forgotten, or belongs to another engine",
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
	if (!engine->read_only)
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
		return error_about(error, -EINVAL, tensor->rest->name, 0, 0,
				   "%s is named twice in one batch", tensor->rest->name);
	tensor->batch = engine->batch;
	return 0;
}

int check_not_external(const struct nvs_tensor *tensor, struct nvs_error *error)
{
	if (!is_external(tensor))
		return 0;
	return error_about(error, -EBUSY, tensor->rest->name, 0, 0,
			   "%s is in flight from or to external memory: wait for it first",
			   tensor->rest->name);
}

int check_unpinned_one(const struct nvs_tensor *tensor, struct nvs_error *error)
{
	int rc = check_not_external(tensor, error);

	if (rc)
		return rc;
	if (!tensor->pins.count)
		return 0;
	return error_about(error, -EBUSY, tensor->rest->name, 0, 0,
			   "%s is pinned: release it first", tensor->rest->name);
}

int check_unpinned(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error)
{
	int rc = 0;

	begin_batch(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		load_later(tensors, i, n);
		rc = check_in_batch(engine, tensors[i], i, error);
		if (!rc)
			rc = check_unpinned_one(tensors[i], error);
	}
	return rc;
}

/* ---- Ranges ---- */

struct nvs_tensor_range range_at(const struct nvs_tensor_range *ranges, size_t i)
{
	struct nvs_tensor_range range;
	int rc = struct_in_at(&range, sizeof(range), ranges, i);

	assert(!rc);
	(void)rc;
	return range;
}

struct nvs_tensor **ranged_tensors(struct nvs_engine *engine, const struct nvs_tensor_range *ranges,
				   size_t n, struct nvs_tensor *few[RANGED_FEW], size_t *count,
				   struct nvs_error *error)
{
	struct nvs_tensor **tensors = few;

	*count = 0;
	if (n > RANGED_FEW)
		tensors = calloc(n, sizeof(struct nvs_tensor *));
	if (!tensors) {
		error_set(error, -ENOMEM, "out of memory for %zu parts of tensors", n);
		return NULL;
	}
	engine_lock(engine);
	begin_batch(engine);
	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor_range range = range_at(ranges, i);

		if (!range.nbytes)
			continue;
		if (range.tensor->batch != engine->batch)
			tensors[(*count)++] = range.tensor;
		range.tensor->batch = engine->batch;
	}
	engine_unlock(engine);
	return tensors;
}

void ranged_free(struct nvs_tensor *few[RANGED_FEW], struct nvs_tensor **tensors)
{
	if (tensors != few)
		free(tensors);
}

int check_ranges(const struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		 struct nvs_error *error)
{
	struct nvs_tensor_range range;
	uint64_t nbytes;
	int rc = 0;

	if (!engine || (n && !ranges))
		return error_set(error, -EINVAL, "%s is NULL", engine ? "ranges" : "engine");
	for (size_t i = 0; i < n && !rc; i++) {
		rc = struct_in_at(&range, sizeof(range), ranges, i);
		if (rc)
			return struct_refused(error, rc, "nvs_tensor_range", "ranges[%zu]", i);
		rc = check_tensor(engine, range.tensor, i, error);
		if (rc)
			break;
		nbytes = range.tensor->nbytes;
		if (range.offset > nbytes || range.nbytes > nbytes - range.offset)
			rc = error_about(error, -EINVAL, range.tensor->rest->name, 0, range.offset,
					 "%s: %" PRIu64 " bytes from offset %" PRIu64
					 " are not within its %" PRIu64 " bytes",
					 range.tensor->rest->name, range.nbytes, range.offset,
					 nbytes);
		else if (range.nbytes && !range.data)
			rc = error_about(error, -EINVAL, range.tensor->rest->name, 0, 0,
					 "%s: the data of ranges[%zu] is NULL",
					 range.tensor->rest->name, i);
	}
	return rc;
}
