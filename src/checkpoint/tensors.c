/* SPDX-License-Identifier: Apache-2.0 */
/* Exports and imports tensors of an engine: checks what the caller asks for, and moves it. */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/shape.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "checkpoint/move.h"

static int read_item(struct nvs_checkpoint_item *item, const struct nvs_checkpoint_item *items,
		     size_t i, struct nvs_tensor_info *info, struct nvs_engine *engine,
		     struct nvs_error *error)
{
	int rc = struct_in_at(item, sizeof(*item), items, i);

	if (rc)
		return struct_refused(error, rc, "nvs_checkpoint_item", "items[%zu]", i);
	if (!item->tensor || nvs_tensor_get_info(engine, item->tensor, info))
		return error_set(error, -EINVAL, "items[%zu]: the tensor is NULL", i);
	if (!item->name)
		item->name = info->name;
	if (!item->shape) {
		item->shape = info->shape;
		item->ndim = info->ndim;
	}
	return 0;
}

static int plan_item(struct nvs_checkpoint *plan, struct nvs_engine *engine,
		     const struct nvs_checkpoint_item *items, size_t i, struct pair *pair,
		     struct nvs_error *error)
{
	struct nvs_checkpoint_item item;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	int rc = read_item(&item, items, i, &info, engine, error);

	if (!rc)
		rc = shape_check(item.name, item.shape, item.ndim, info.numel, error);
	if (rc)
		return rc;
	if (info.nbytes > DATA_MAX - plan->nbytes)
		return error_set(error, -EINVAL, "the tensors have more than %llu bytes", DATA_MAX);
	pair->tensor = item.tensor;
	pair->entry = &plan->entries[i];
	if (entry_make(&plan->entries[i], item.name, info.dtype, info.numel, item.shape, item.ndim))
		return error_set(error, -ENOMEM, "no memory for the names of tensors");
	plan->nbytes += info.nbytes;
	plan->n++;
	return 0;
}

static int check_call(const void *engine, const void *items, size_t n, struct nvs_error *error)
{
	if (!engine)
		return error_set(error, -EINVAL, "engine is NULL");
	if (!items && n)
		return error_set(error, -EINVAL, "items is NULL");
	return n <= ENTRIES_MAX ? 0
				: error_set(error, -EINVAL, "%zu tensors; allowed are up to %u", n,
					    ENTRIES_MAX);
}

int nvs_checkpoint_export(struct nvs_engine *engine, const struct nvs_checkpoint_item *items,
			  size_t n, const char *path, const struct nvs_checkpoint_options *options,
			  struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_checkpoint_options chosen;
	struct writing writing = {0};
	struct pair *pairs;
	int rc = check_call(engine, items, n, error);

	if (!rc && !path)
		rc = error_set(error, -EINVAL, "path is NULL");
	if (!rc)
		rc = options_in(&chosen, options, error);
	if (rc)
		return rc;
	pairs = calloc(n + 1, sizeof(*pairs));
	writing.plan.entries = calloc(n + chosen.nstorages + 1, sizeof(struct entry));
	if (!pairs || !writing.plan.entries)
		rc = error_set(error, -ENOMEM, "no memory for the names of %zu tensors", n);
	else {
		rc = 0;

		for (size_t i = 0; i < n && !rc; i++)
			rc = plan_item(&writing.plan, engine, items, i, &pairs[i], error);
		if (!rc)
			rc = writing_begin(&writing, nvs_engine_aio(engine), path, &chosen, NULL,
					   error);
		if (!rc)
			rc = move_out(engine, pairs, n, &writing, error);
		rc = rc ? rc : writing_commit(&writing, error);
	}
	writing_end(&writing);
	free(pairs);
	return rc;
}

static int find_item(struct pair *pair, struct nvs_engine *engine,
		     const struct nvs_checkpoint *checkpoint,
		     const struct nvs_checkpoint_item *items, size_t i, struct nvs_error *error)
{
	struct nvs_checkpoint_item item;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	int rc = read_item(&item, items, i, &info, engine, error);

	if (rc)
		return rc;
	pair->tensor = item.tensor;
	pair->entry = checkpoint_find(checkpoint, item.name);
	if (!pair->entry)
		return checkpoint_lacks(checkpoint, item.name, error);
	/* Elements of less than a byte are imported as the bytes that they lie in. */
	if (!nvs_dtype_size(pair->entry->dtype) && info.dtype == NVS_U8 &&
	    info.numel == pair->entry->nbytes)
		return 0;
	if (pair->entry->dtype != info.dtype || pair->entry->numel != info.numel)
		return error_about(error, -ESTALE, item.name, 0, 0,
				   "%s: tensor %s has %llu elements of %s, that of the engine %llu "
				   "of %s",
				   checkpoint->paths[pair->entry->file], item.name,
				   (unsigned long long)pair->entry->numel,
				   nvs_dtype_name(pair->entry->dtype),
				   (unsigned long long)info.numel, nvs_dtype_name(info.dtype));
	return entry_check_shape(pair->entry, checkpoint->paths[pair->entry->file], item.name,
				 item.shape, item.ndim, error);
}

int nvs_checkpoint_import(struct nvs_engine *engine, const struct nvs_checkpoint *checkpoint,
			  const struct nvs_checkpoint_item *items, size_t n,
			  struct nvs_error *error)
{
	HOLD_CANCEL;
	struct reading reading = {0};
	struct pair *pairs;
	int rc = check_call(engine, items, n, error);

	if (rc)
		return rc;
	if (!checkpoint)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	pairs = calloc(n + 1, sizeof(*pairs));
	if (!pairs)
		return error_set(error, -ENOMEM, "no memory for the names of %zu tensors", n);
	for (size_t i = 0; i < n && !rc; i++)
		rc = find_item(&pairs[i], engine, checkpoint, items, i, error);
	if (!rc)
		rc = reading_begin(&reading, nvs_engine_aio(engine), checkpoint, error);
	if (!rc)
		rc = move_in(engine, pairs, n, &reading, error);
	if (reading.checkpoint)
		reading_end(&reading);
	free(pairs);
	return rc;
}
