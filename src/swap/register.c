/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering tensors, reserving their extents, renaming and forgetting them. Tensors of a kept
 * store exist from the start and become visible when they are registered.
 */
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/shape.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error)
{
	size_t n;
	const struct store_entry *entries = store_entries(engine->store, &n);
	int rc = table_grow(engine, n);

	for (size_t i = 0; i < n && !rc; i++) {
		const struct store_entry *entry = &entries[i];
		const struct nvs_tensor_spec spec = {.size = sizeof(spec),
						     .name = entry->name,
						     .dtype = entry->dtype,
						     .numel = entry->numel,
						     .shape = entry->shape,
						     .ndim = entry->ndim};
		struct nvs_tensor *tensor;

		if (!engine->read_only && !text_is_utf8(entry->name))
			return error_about(
				error, -EILSEQ, entry->name, 0, 0,
				"the kept store has a tensor named %s, which is not UTF-8: export "
				"the store, which writes that name with \\xHH for such bytes "
				"(nvswap store export, or open it with nvswap.read_only), and "
				"import "
				"it into a new one; nothing was changed",
				entry->name);
		tensor = table_add(engine, &spec);
		if (!tensor) {
			rc = -ENOMEM;
			break;
		}
		tensor->offset = entry->offset;
		tensor->rest->spare = entry->spare;
		tensor->rest->checksum = entry->checksum;
		if (entry->has_checksum && entry->written)
			tensor->checksum_state = CHECKSUM_UNVERIFIED;
		tensor->content = entry->written ? CONTENT_DRIVE : CONTENT_NONE;
		tensor->rest->committed = entry->written ? tensor->offset : NOWHERE;
		assert(tensor->nbytes == entry->nbytes);
		extents_check(engine, tensor);
		tensor_check(tensor);
	}
	return rc ? error_set(error, rc, "out of memory while reading the manifest") : 0;
}

/* ---- Registering ---- */

static int read_spec(struct nvs_tensor_spec *spec, const struct nvs_engine *engine,
		     const struct nvs_tensor_spec *specs, size_t i, struct nvs_error *error)
{
	int rc = struct_in_at(spec, sizeof(*spec), specs, i);
	size_t size;

	if (rc)
		return struct_refused(error, rc, "nvs_tensor_spec", "specs[%zu]", i);
	size = nvs_dtype_size(spec->dtype);
	rc = check_name(engine, spec->name, error);
	if (rc)
		return rc;
	if (!size && nvs_dtype_bits(spec->dtype))
		return error_named(error, -EINVAL, spec->name,
				   ": an element of %s has less than a byte: register the tensor's "
				   "bytes as U8",
				   nvs_dtype_name(spec->dtype));
	if (!size)
		return error_named(error, -EINVAL, spec->name, ": unknown dtype %d",
				   (int)spec->dtype);
	if (spec->numel > INT64_MAX / size)
		return error_named(error, -EINVAL, spec->name,
				   ": %" PRIu64 " elements are more than can be addressed",
				   spec->numel);
	return spec->shape ? shape_check(spec->name, spec->shape, spec->ndim, spec->numel, error)
			   : 0;
}

static int registered_already(const char *name, struct nvs_error *error)
{
	return error_named(error, -EEXIST, name,
			   " is registered already: nvs_tensor_find returns it");
}

/* What a call allocates and reserves before it adds its tensors to the table. */
struct reserved {
	size_t n;		       /* tensors of the call */
	struct nvs_tensor_spec *specs; /* the caller's, checked */
	uint64_t **shapes;	       /* those given for tensors of the kept store; or NULL */
	/* Extents of the `count` tensors that are new to the engine: all first ones, then all spare
	 * ones, so that those in use lie side by side. One block of memory. */
	uint64_t *nbytes, *offsets;
	size_t count;
};

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void keep_name(void *name)
{
	(void)name;
}

/* Under the lock: checks all specs, copies them, and notes the lengths of the new tensors. */
static int find_new(struct nvs_engine *engine, const struct nvs_tensor_spec *specs,
		    struct reserved *reserved, struct nvs_error *error)
{
	uint64_t total = 0, nbytes;
	void *names = NULL;
	int rc = 0;

	assert(reserved->specs && reserved->shapes && reserved->nbytes);
	for (size_t i = 0; i < reserved->n && !rc; i++) {
		struct nvs_tensor_spec *spec = &reserved->specs[i];
		struct nvs_tensor *tensor;

		rc = read_spec(spec, engine, specs, i, error);
		if (rc)
			break;
		/* A name that the same call gives twice must not reserve space. */
		if (tfind(spec->name, &names, by_text))
			rc = registered_already(spec->name, error);
		else if (!tsearch(spec->name, &names, by_text))
			rc = error_no_memory(error, "registering tensors");
		tensor = table_find(engine, spec->name);
		if (!rc && tensor && spec->shape) {
			reserved->shapes[i] = shape_copy(spec);
			rc = reserved->shapes[i] ? 0
						 : error_no_memory(error, "registering tensors");
		}
		nbytes = spec->numel * nvs_dtype_size(spec->dtype);
		if (rc)
			break;
		if (!tensor && __builtin_add_overflow(total, nbytes, &total))
			rc = error_set(error, -EINVAL, "the tensors have 2^64 bytes or more");
		else if (!tensor)
			reserved->nbytes[reserved->count++] = nbytes;
		else if (tensor->registration != REGISTRATION_NONE)
			rc = registered_already(spec->name, error);
		/* A tensor that the kept store holds must match its registration. */
		else if (tensor->rest->dtype != spec->dtype || tensor->numel != spec->numel)
			rc = error_about(error, -ESTALE, spec->name, 0, 0,
					 "the kept store holds %s as %s x %" PRIu64
					 ", not as %s x %" PRIu64 ": it belongs to another model "
					 "(use another rank or nvme_path, or remove the store)",
					 spec->name, nvs_dtype_name(tensor->rest->dtype),
					 tensor->numel, nvs_dtype_name(spec->dtype), spec->numel);
	}
	tdestroy(names, keep_name);
	return rc;
}

/* Under the lock: adds all tensors to the table, or none. Only memory may be lacking. */
static int add_all(struct nvs_engine *engine, struct reserved *reserved,
		   struct nvs_tensor **tensors, struct nvs_error *error)
{
	size_t n = reserved->n, done = 0, k = 0;

	if (table_grow(engine, n))
		return error_set(error, -ENOMEM, "out of memory while registering %zu tensor%s", n,
				 plural(n));
	for (; done < n; done++) {
		const struct nvs_tensor_spec *spec = &reserved->specs[done];

		tensors[done] = table_find(engine, spec->name);
		if (tensors[done])
			continue;
		tensors[done] = table_add(engine, spec);
		if (!tensors[done])
			break;
		tensors[done]->registration = REGISTRATION_NEW;
	}
	if (done < n) {
		while (done--)
			if (tensors[done]->registration == REGISTRATION_NEW) {
				table_remove(engine, tensors[done]);
				tensor_free(tensors[done]);
			}
		return error_no_memory(error, "registering tensors");
	}
	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensors[i];

		engine->nregistered++;
		engine->tensor_bytes += tensor->nbytes;
		if (reserved->shapes[i]) {
			free(tensor->rest->shape);
			tensor->rest->shape = reserved->shapes[i];
			tensor->rest->ndim = reserved->specs[i].ndim;
			reserved->shapes[i] = NULL;
		}
		if (tensor->registration == REGISTRATION_NEW) {
			assert(k < reserved->count && reserved->nbytes[k] == tensor->nbytes);
			tensor->offset = reserved->offsets[k];
			tensor->rest->spare = reserved->offsets[reserved->count + k++];
		}
		tensor->registration = REGISTRATION_DONE;
		extents_check(engine, tensor);
		tensor_check(tensor);
	}
	return 0;
}

int batch_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
		   struct nvs_tensor **tensors, struct nvs_error *error)
{
	struct reserved reserved = {.n = n};
	size_t extents = 0;
	int rc;

	if (!engine || (n && (!specs || !tensors)))
		return error_set(error, -EINVAL, "%s is NULL",
				 !engine  ? "engine"
				 : !specs ? "specs"
					  : "tensors");
	reserved.specs = calloc(n + 1, sizeof(*reserved.specs));
	reserved.shapes = calloc(n + 1, sizeof(*reserved.shapes));
	reserved.nbytes = calloc(4 * n + 1, sizeof(*reserved.nbytes));
	rc = reserved.specs && reserved.shapes && reserved.nbytes
		     ? 0
		     : error_no_memory(error, "registering tensors");
	/* A name that is new stays new while its extents are reserved. */
	pthread_mutex_lock(&engine->naming);
	if (!rc) {
		engine_lock(engine);
		rc = find_new(engine, specs, &reserved, error);
		engine_unlock(engine);
	}
	if (!rc && reserved.count)
		rc = check_writable(engine, error);
	if (!rc && reserved.count) {
		size_t count = reserved.count;

		/* Without the lock: files grow, which may take seconds. */
		reserved.offsets = reserved.nbytes + 2 * n;
		memcpy(reserved.nbytes + count, reserved.nbytes, count * sizeof(*reserved.nbytes));
		extents = engine->keep ? 2 * count : count;
		rc = store_reserve(engine->store, reserved.nbytes, extents, reserved.offsets,
				   error);
		extents = rc ? 0 : extents;
	}
	if (!rc) {
		engine_lock(engine);
		rc = add_all(engine, &reserved, tensors, error);
		engine_unlock(engine);
	}
	for (size_t i = 0; i < extents && rc; i++)
		store_release(engine->store, reserved.offsets[i], reserved.nbytes[i]);
	pthread_mutex_unlock(&engine->naming);
	for (size_t i = 0; i < n && reserved.shapes; i++)
		free(reserved.shapes[i]);
	free(reserved.shapes);
	free(reserved.nbytes);
	free(reserved.specs);
	return rc;
}

int nvs_tensor_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
			struct nvs_tensor **tensors, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, OTHER_TENSORS, error)
		       ?: batch_register(engine, specs, n, tensors, error);
}

/* ---- Renaming and forgetting ---- */

int batch_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *name,
		 struct nvs_error *error)
{
	int rc = check_arguments(engine, &tensor, 1, error)
			 ?: check_name(engine, name, error)
			 ?: check_writable(engine, error);

	if (rc)
		return rc;
	pthread_mutex_lock(&engine->naming);
	engine_lock(engine);
	rc = table_rename(engine, tensor, name, error);
	engine_unlock(engine);
	pthread_mutex_unlock(&engine->naming);
	return rc;
}

int nvs_tensor_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *name,
		      struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, OTHER_TENSORS, error)
		       ?: batch_rename(engine, tensor, name, error);
}

int batch_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 struct nvs_error *error)
{
	int rc = check_arguments(engine, tensors, n, error);

	/* Rows that the caller has registered are no contents of their own. */
	for (size_t i = 0; i < n && !rc; i++)
		rc = tensors[i]->rest->rows ? 0 : check_writable(engine, error);
	if (rc)
		return rc;
	engine_lock(engine);
	rc = wait_for_engine(engine, (struct turn){.tensors = tensors, .n = n}, error);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor *tensor = tensors[i];

		assert(tensor->registration == REGISTRATION_DONE);
		/* A recording that has the tensor is lost. */
		if (engine->plan.step && tensor->rest->recorded == engine->plan.step)
			engine->plan.lost = true;
		if (in_plan(tensor))
			plan_drop(engine);
		drop(engine, tensor);
		engine->nregistered--;
		engine->tensor_bytes -= tensor->nbytes;
		table_remove(engine, tensor);
		/* After a crash the next run still finds the tensor, so its bytes stay until a
		 * commit. */
		if (tensor->rest->committed != NOWHERE || tensor->rest->snapshot != NOWHERE) {
			tensor->run_next = engine->commit.forgotten;
			engine->commit.forgotten = tensor;
			continue;
		}
		if (!engine->of_files)
			extents_release(engine, tensor);
		tensor_free(tensor);
	}
	if (!rc)
		events_changed(engine);
	engine_unlock(engine);
	return rc;
}

int nvs_tensor_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, OTHER_TENSORS, error)
		       ?: batch_forget(engine, tensors, n, error);
}
