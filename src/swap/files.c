/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of an engine of files, and rows of them: each is a tensor by itself, in the table
 * like any other, and more than one may have the same bytes of a file, since nothing is written.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

/* A tensor that is read from files, `nbytes` at `offset` of them. NULL: out of memory. */
static struct nvs_tensor *add_from_files(struct nvs_engine *engine,
					 const struct nvs_tensor_spec *spec, uint64_t offset,
					 uint64_t nbytes)
{
	struct store_window window = store_window(engine->store, offset, nbytes);
	struct nvs_tensor *tensor = table_add(engine, spec);

	if (!tensor)
		return NULL;
	/* Its elements may have less than a byte. */
	tensor->nbytes = nbytes;
	tensor->extent = window.extent;
	tensor->offset = window.offset;
	tensor->rest->loaded = window.nbytes;
	tensor->rest->skip = window.skip;
	tensor->rest->small = window.small;
	tensor->content = CONTENT_DRIVE;
	tensor->registration = REGISTRATION_DONE;
	engine->nregistered++;
	engine->tensor_bytes += nbytes;
	tensor_check(tensor);
	return tensor;
}

int tensors_from_files(struct nvs_engine *engine, const struct weights *weights,
		       struct nvs_error *error)
{
	int rc = table_grow(engine, weights->ntensors);

	for (size_t i = 0; i < weights->ntensors && !rc; i++) {
		const struct weights_tensor *from = &weights->tensors[i];
		const struct nvs_tensor_spec spec = {.size = sizeof(spec),
						     .name = from->name,
						     .dtype = from->dtype,
						     .numel = from->numel,
						     .shape = from->shape,
						     .ndim = from->ndim};
		uint64_t offset = store_file_offset(engine->store, from->file, from->offset);
		struct nvs_tensor *tensor = add_from_files(engine, &spec, offset, from->nbytes);

		rc = tensor ? 0 : -ENOMEM;
		if (tensor && from->has_checksum) {
			tensor->checksum_state = CHECKSUM_KNOWN;
			tensor->rest->checksum = from->checksum;
		}
	}
	engine->nlisted = engine->ntensors;
	return rc ? error_set(error, rc, "out of memory for %zu tensors", weights->ntensors) : 0;
}

/* ---- Rows ---- */

/* Under the lock. */
static int add_rows(struct nvs_engine *engine, const struct nvs_tensor_rows *rows,
		    struct nvs_tensor **added, struct nvs_error *error)
{
	const struct nvs_tensor *tensor = rows->tensor;
	const struct tensor_rest *rest = tensor->rest;
	const char *name = rest->name;
	uint64_t first_bit, row_bits, length = rest->ndim ? rest->shape[0] : 0;
	uint64_t shape[NVS_NDIM_MAX] = {rows->count};
	struct nvs_tensor_spec spec;
	char made[NVS_NAME_MAX + 1];
	int rc;

	if (!rest->ndim)
		return error_named(error, -EINVAL, name, " is a scalar, and has no rows");
	if (!rows->count || rows->first > length || rows->count > length - rows->first)
		return error_named(error, -EINVAL, name,
				   ": %" PRIu64 " rows from row %" PRIu64
				   " are not 1 or more of its %" PRIu64,
				   rows->count, rows->first, length);
	/* The bytes of all rows are fewer than 2^59. */
	row_bits = tensor->numel / length * nvs_dtype_bits(rest->dtype);
	first_bit = rows->first * row_bits;
	if (first_bit % 8 || rows->count * row_bits % 8)
		return error_named(error, -EINVAL, name,
				   ": rows %" PRIu64 " to %" PRIu64 " of %" PRIu64
				   " bits each begin or end within a byte",
				   rows->first, rows->first + rows->count, row_bits);
	for (size_t i = 1; i < rest->ndim; i++)
		shape[i] = rest->shape[i];
	if (!rows->name && (size_t)snprintf(made, sizeof(made), "%s[%" PRIu64 ":%" PRIu64 "]", name,
					    rows->first, rows->first + rows->count) >= sizeof(made))
		return error_named(error, -EINVAL, name,
				   ": its rows need a name of their own: theirs would have more "
				   "than %d bytes",
				   NVS_NAME_MAX);
	spec = (struct nvs_tensor_spec){.size = sizeof(spec),
					.name = rows->name ? rows->name : made,
					.dtype = rest->dtype,
					.numel = tensor->numel / length * rows->count,
					.shape = shape,
					.ndim = rest->ndim};
	rc = check_name(engine, spec.name, error);
	if (rc)
		return rc;
	if (table_find(engine, spec.name))
		return error_named(error, -EEXIST, spec.name,
				   " is registered already: nvs_tensor_find returns it");
	*added = table_grow(engine, 1) ? NULL
				       : add_from_files(engine, &spec,
							tensor->offset + rest->skip + first_bit / 8,
							rows->count * row_bits / 8);
	if (!*added) {
		error_no_memory(error, "registering rows");
		return -ENOMEM;
	}
	(*added)->rest->rows = true;
	return 0;
}

int nvs_tensor_register_rows(struct nvs_engine *engine, const struct nvs_tensor_rows *rows,
			     size_t n, struct nvs_tensor **tensors, struct nvs_error *error)
{
	HOLD_CANCEL;
	size_t done = 0;
	int rc = 0;

	if (!engine || (n && (!rows || !tensors)))
		return error_set(error, -EINVAL, "%s is NULL",
				 !engine ? "engine"
				 : !rows ? "rows"
					 : "tensors");
	if (!engine->of_files)
		return error_set(
			error, -ENOTSUP,
			"only the tensors of files (nvs_engine_open_files) have rows that are "
			"read alone: register tensors of a row each, or use nvs_tensor_read");
	pthread_mutex_lock(&engine->naming);
	engine_lock(engine);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_rows one;

		rc = struct_in_at(&one, sizeof(one), rows, i);
		if (rc)
			struct_refused(error, rc, "nvs_tensor_rows", "rows[%zu]", i);
		rc = rc ?: check_tensor(engine, one.tensor, i, error)
			?: add_rows(engine, &one, &tensors[i], error);
		done += !rc;
	}
	while (rc && done--) {
		engine->nregistered--;
		engine->tensor_bytes -= tensors[done]->nbytes;
		table_remove(engine, tensors[done]);
		tensor_free(tensors[done]);
	}
	engine_unlock(engine);
	pthread_mutex_unlock(&engine->naming);
	return rc;
}
