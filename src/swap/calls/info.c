/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller may ask of a tensor: its name, its state, its memory; and of a kept store: its
 * tensors, and the number of its last commit.
 */
#include "base/shape.h"
#include "base/struct_size.h"
#include "swap/calls/calls.h"

const char *nvs_tensor_state_name(enum nvs_tensor_state state)
{
	static const char *const names[] = {[NVS_EMPTY] = "empty",
					    [NVS_ON_DRIVE] = "on drive",
					    [NVS_READING] = "reading",
					    [NVS_RESIDENT] = "resident",
					    [NVS_WRITING] = "writing"};

	return (unsigned)state < COUNT_OF(names) ? names[state] : "unknown";
}

int nvs_tensor_get_info(struct nvs_engine *engine, struct nvs_tensor *tensor,
			struct nvs_tensor_info *info)
{
	struct nvs_tensor_info full;
	const uint64_t *shape;
	size_t ndim;

	if (!info || check_arguments(engine, &tensor, 1, NULL))
		return -EINVAL;
	engine_lock(engine);
	events_hurry(engine);
	shape = shape_dimensions(tensor->rest->shape, tensor->rest->ndim, &tensor->numel, &ndim);
	full = (struct nvs_tensor_info){.size = sizeof(full),
					.name = tensor->rest->name,
					.dtype = tensor->rest->dtype,
					.numel = tensor->numel,
					.nbytes = tensor->nbytes,
					.store_offset = tensor->offset + tensor->rest->skip,
					.state = tensor_state(tensor),
					.dirty = is_dirty(tensor),
					.pins = tensor->pins.count,
					.status = tensor->status,
					.ndim = ndim,
					.shape = shape};
	engine_unlock(engine);
	return struct_out(info, &full, sizeof(full));
}

void *nvs_tensor_data(const struct nvs_tensor *tensor)
{
	void *data;

	if (!tensor)
		return NULL;
	engine_lock(tensor->engine);
	data = needs_memory(tensor) || is_external(tensor) ? NULL : first_byte(tensor);
	engine_unlock(tensor->engine);
	return data;
}

struct nvs_tensor *nvs_tensor_find(struct nvs_engine *engine, const char *name)
{
	struct nvs_tensor *tensor;

	if (!engine || !name)
		return NULL;
	engine_lock(engine);
	tensor = table_find(engine, name);
	if (tensor && tensor->registration != REGISTRATION_DONE)
		tensor = NULL;
	engine_unlock(engine);
	return tensor;
}

bool engine_has_stored(struct nvs_engine *engine, const char *name, uint64_t *numel)
{
	const struct nvs_tensor *tensor;
	bool stored;

	engine_lock(engine);
	tensor = table_find(engine, name);
	stored = tensor && tensor->registration != REGISTRATION_DONE;
	if (stored)
		*numel = tensor->numel;
	engine_unlock(engine);
	return stored;
}

/* Those of the files' headers, which nobody forgets. */
static int get_listed(struct nvs_engine *engine, size_t index, struct nvs_stored_tensor *stored)
{
	const struct nvs_tensor *tensor;
	struct nvs_stored_tensor full;
	const uint64_t *shape;
	size_t ndim;

	if (index >= engine->nlisted)
		return -ENOENT;
	engine_lock(engine);
	tensor = engine->tensors[index];
	shape = shape_dimensions(tensor->rest->shape, tensor->rest->ndim, &tensor->numel, &ndim);
	full = (struct nvs_stored_tensor){.name = tensor->rest->name,
					  .dtype = tensor->rest->dtype,
					  .numel = tensor->numel,
					  .nbytes = tensor->nbytes,
					  .has_contents = true,
					  .has_checksum = tensor->checksum_state != CHECKSUM_NONE,
					  .checksum = tensor->rest->checksum,
					  .path = store_file_path(engine->store, tensor->offset),
					  .ndim = ndim,
					  .shape = shape};
	engine_unlock(engine);
	return struct_out(stored, &full, sizeof(full));
}

int nvs_engine_get_stored(struct nvs_engine *engine, size_t index, struct nvs_stored_tensor *stored)
{
	struct nvs_stored_tensor full;
	const struct store_entry *entry;
	const uint64_t *shape;
	size_t n, ndim;

	if (!engine || !stored)
		return -EINVAL;
	if (engine->of_files)
		return get_listed(engine, index, stored);
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
