/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering tensors, reserving their extents, and forgetting them. Tensors of a kept store exist
 * from the start and become visible when they are registered.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/shape.h"
#include "base/struct_size.h"
#include "swap/calls/calls.h"

/* The dimensions, to be freed; NULL: out of memory. */
static uint64_t *copy_shape(const uint64_t *shape, size_t ndim)
{
	uint64_t *copy = calloc(ndim + 1, sizeof(*copy));

	assert(shape && ndim <= NVS_NDIM_MAX);
	for (size_t i = 0; copy && i < ndim; i++)
		copy[i] = shape[i];
	return copy;
}

/* A tensor of the table, as the kept store has it. NULL: out of memory. */
static struct nvs_tensor *add_found(struct nvs_engine *engine, const struct store_entry *entry)
{
	const struct nvs_tensor_spec spec = {.size = sizeof(spec),
					     .name = entry->name,
					     .dtype = entry->dtype,
					     .numel = entry->numel};
	uint64_t *shape = entry->shape ? copy_shape(entry->shape, entry->ndim) : NULL;
	struct nvs_tensor *tensor = NULL;

	assert(entry->name && nvs_dtype_size(entry->dtype));
	if (shape || !entry->shape)
		tensor = table_add(engine, &spec);
	if (!tensor) {
		free(shape);
		return NULL;
	}
	assert(tensor->registration == REGISTRATION_NONE && !tensor->rest->shape);
	tensor->rest->shape = shape;
	tensor->rest->ndim = entry->ndim;
	return tensor;
}

int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error)
{
	size_t n;
	const struct store_entry *entries = store_entries(engine->store, &n);
	int rc = table_grow(engine, n);

	assert(!engine->opened && !engine->ntensors && (!n || (engine->keep && entries)));
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor *tensor = add_found(engine, &entries[i]);

		if (!tensor) {
			rc = -ENOMEM;
			break;
		}
		tensor->offset = entries[i].offset;
		tensor->rest->spare = entries[i].spare;
		tensor->rest->checksum = entries[i].checksum;
		if (entries[i].has_checksum && entries[i].written)
			tensor->checksum_state = CHECKSUM_UNVERIFIED;
		tensor->content = entries[i].written ? CONTENT_DRIVE : CONTENT_NONE;
		tensor->rest->committed = on_drive(tensor->content) ? tensor->offset : NOWHERE;
		assert(tensor->nbytes == entries[i].nbytes);
		extents_check(engine, tensor);
		tensor_check(tensor);
	}
	if (rc)
		return error_set(error, rc, "out of memory while reading the manifest");
	assert(engine->ntensors == n && !engine->nregistered);
	return 0;
}

/* ---- Registering ---- */

static int check_spec(const struct nvs_tensor_spec *spec, struct nvs_error *error)
{
	size_t size = nvs_dtype_size(spec->dtype);

	if (!spec->name || !spec->name[0] || strlen(spec->name) > NVS_NAME_MAX)
		return error_set(error, -EINVAL,
				 "a tensor's name must have 1 to %d bytes; this one has %zu",
				 NVS_NAME_MAX, spec->name ? strlen(spec->name) : 0);
	if (!size)
		return error_about(error, -EINVAL, spec->name, 0, 0, "%s: unknown dtype %d",
				   spec->name, (int)spec->dtype);
	if (spec->numel > INT64_MAX / size)
		return error_about(error, -EINVAL, spec->name, 0, 0,
				   "%s: %" PRIu64 " elements are more than can be addressed",
				   spec->name, spec->numel);
	return spec->shape ? shape_check(spec->name, spec->shape, spec->ndim, spec->numel, error)
			   : 0;
}

/* A tensor that the kept store holds must match its registration. */
static int check_found(const struct nvs_tensor *tensor, const struct nvs_tensor_spec *spec,
		       struct nvs_error *error)
{
	if (tensor->registration != REGISTRATION_NONE)
		return error_about(error, -EEXIST, spec->name, 0, 0,
				   "%s is registered already: nvs_tensor_find returns it",
				   spec->name);
	assert(tensor->engine->keep && tensor->memory == MEMORY_NONE);
	assert(!in_flight(tensor) && !in_plan(tensor));
	if (tensor->rest->dtype != spec->dtype || tensor->numel != spec->numel)
		return error_about(error, -ESTALE, spec->name, 0, 0,
				   "the kept store holds %s as %s x %" PRIu64
				   ", not as %s x %" PRIu64 ": it belongs to another model "
				   "(use another rank or nvme_path, or remove the store)",
				   spec->name, nvs_dtype_name(tensor->rest->dtype), tensor->numel,
				   nvs_dtype_name(spec->dtype), spec->numel);
	return 0;
}

static int find_or_make(struct nvs_engine *engine, const struct nvs_tensor_spec *spec,
			struct nvs_tensor **out, struct nvs_error *error)
{
	struct nvs_tensor *tensor = table_find(engine, spec->name);

	if (tensor) {
		int rc = check_found(tensor, spec, error);

		if (rc)
			return rc;
		table_check(engine, tensor);
		tensor->registration = REGISTRATION_DONE;
	} else {
		tensor = table_add(engine, spec);
		if (!tensor)
			return error_set(error, -ENOMEM, "out of memory while registering tensors");
		tensor->registration = REGISTRATION_NEW;
	}
	assert(tensor->registration != REGISTRATION_NONE && tensor->numel == spec->numel);
	*out = tensor;
	return 0;
}

struct shape {
	uint64_t *dimensions; /* NULL: none was given */
	size_t ndim;
};

/*
 * Extents for the tensors that are new to the engine: all first ones, then all spare ones; and the
 * shapes of all tensors of the call.
 */
struct reserved {
	uint64_t *nbytes, *offsets; /* one block of memory */
	size_t count;		    /* new tensors */
	size_t extents;
	struct shape *shapes;
	size_t nshapes;
};

static int reserved_alloc(struct reserved *reserved, size_t n)
{
	*reserved = (struct reserved){.nbytes = calloc(4 * n + 1, sizeof(*reserved->nbytes)),
				      .shapes = calloc(n + 1, sizeof(*reserved->shapes)),
				      .nshapes = n};
	reserved->offsets = reserved->nbytes ? reserved->nbytes + 2 * n : NULL;
	return reserved->nbytes && reserved->shapes ? 0 : -ENOMEM;
}

/* Frees the memory, and the shapes that no tensor has taken. */
static void reserved_free(struct reserved *reserved)
{
	assert(reserved->count <= reserved->nshapes);
	for (size_t i = 0; reserved->shapes && i < reserved->nshapes; i++)
		free(reserved->shapes[i].dimensions);
	free(reserved->shapes);
	free(reserved->nbytes);
}

static int reserve_shape(struct reserved *reserved, size_t i, const struct nvs_tensor_spec *spec,
			 struct nvs_error *error)
{
	struct shape *shape = &reserved->shapes[i];

	assert(i < reserved->nshapes && !shape->dimensions);
	if (!spec->shape)
		return 0;
	shape->ndim = spec->ndim;
	shape->dimensions = copy_shape(spec->shape, spec->ndim);
	return shape->dimensions
		       ? 0
		       : error_set(error, -ENOMEM, "out of memory while registering tensors");
}

static void take_shape(struct nvs_tensor *tensor, struct shape *shape)
{
	assert(shape->dimensions || !shape->ndim);
	if (!shape->dimensions)
		return;
	assert(shape_has(shape->dimensions, shape->ndim, tensor->numel));
	free(tensor->rest->shape);
	tensor->rest->shape = shape->dimensions;
	tensor->rest->ndim = shape->ndim;
	shape->dimensions = NULL;
}

static int read_spec(struct nvs_tensor_spec *spec, const struct nvs_tensor_spec *specs, size_t i,
		     struct nvs_error *error)
{
	int rc = struct_in_at(spec, sizeof(*spec), specs, i);

	return rc ? struct_refused(error, rc, "nvs_tensor_spec", "specs[%zu]", i)
		  : check_spec(spec, error);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* A name that the same call gives twice must not reserve space. */
static int note_name(void **names, const char *name, struct nvs_error *error)
{
	assert(name && name[0]);
	if (tfind(name, names, by_text))
		return error_about(error, -EEXIST, name, 0, 0,
				   "%s is registered already: nvs_tensor_find returns it", name);
	return tsearch(name, names, by_text)
		       ? 0
		       : error_set(error, -ENOMEM, "out of memory while registering tensors");
}

static void keep_name(void *name)
{
	(void)name;
}

/* Under the lock: checks all specs, and notes the lengths of the new tensors. */
static int find_new(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
		    struct reserved *reserved, struct nvs_error *error)
{
	uint64_t total = 0, nbytes;
	void *names = NULL;
	int rc = 0;

	lock_check(engine);
	assert(!reserved->count && !reserved->extents);
	assert(reserved->nshapes == n);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_spec spec;
		struct nvs_tensor *tensor;

		rc = read_spec(&spec, specs, i, error);
		if (rc)
			break;
		rc = note_name(&names, spec.name, error);
		if (!rc)
			rc = reserve_shape(reserved, i, &spec, error);
		tensor = table_find(engine, spec.name);
		nbytes = spec.numel * nvs_dtype_size(spec.dtype);
		if (tensor && !rc)
			rc = check_found(tensor, &spec, error);
		else if (!rc && __builtin_add_overflow(total, nbytes, &total))
			rc = error_set(error, -EINVAL, "the tensors have 2^64 bytes or more");
		else if (!rc)
			reserved->nbytes[reserved->count++] = nbytes;
		assert(reserved->count <= i + 1);
	}
	assert(reserved->count <= n);
	tdestroy(names, keep_name);
	return rc;
}

/* Without the lock: files grow, which may take seconds. */
static int reserve(struct nvs_engine *engine, struct reserved *reserved, struct nvs_error *error)
{
	size_t count = reserved->count, extents = engine->keep ? 2 * count : count;
	int rc = count ? check_writable(engine, error) : 0;

	unlocked_check(engine);
	assert(!reserved->extents);
	assert(count <= reserved->nshapes && reserved->offsets);
	/* All spare extents after all first ones, so that those in use lie side by side. */
	memcpy(reserved->nbytes + count, reserved->nbytes, count * sizeof(*reserved->nbytes));
	if (!rc && count)
		rc = store_reserve(engine->store, reserved->nbytes, extents, reserved->offsets,
				   error);
	if (!rc)
		reserved->extents = extents;
	assert(rc || !count || !engine->read_only);
	return rc;
}

static void release_reserved(struct nvs_engine *engine, struct reserved *reserved)
{
	unlocked_check(engine);
	assert(reserved->extents <= 2 * reserved->count);
	for (size_t i = 0; i < reserved->extents; i++)
		store_release(engine->store, reserved->offsets[i], reserved->nbytes[i]);
	reserved->extents = 0;
}

static void undo_register(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	while (n--) {
		assert(tensors[n]->memory == MEMORY_NONE);
		assert(tensors[n]->registration != REGISTRATION_NONE);
		table_check(engine, tensors[n]);
		if (tensors[n]->registration == REGISTRATION_NEW) {
			table_remove(engine, tensors[n]);
			tensor_free(tensors[n]);
		} else {
			tensors[n]->registration = REGISTRATION_NONE;
		}
	}
}

/* Under the lock. Extents of new tensors were reserved before, without it. */
static int add_all(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
		   struct reserved *reserved, struct nvs_tensor **tensors, struct nvs_error *error)
{
	struct nvs_tensor_spec spec;
	size_t done = 0, k = 0;
	int rc = table_grow(engine, n);

	lock_check(engine);
	assert(reserved->nshapes == n);
	assert(reserved->extents == (engine->keep ? 2 : 1) * reserved->count);
	if (rc)
		error_set(error, rc, "out of memory while registering %zu tensor%s", n, plural(n));
	while (done < n && !rc) {
		rc = read_spec(&spec, specs, done, error);
		if (!rc)
			rc = find_or_make(engine, &spec, &tensors[done], error);
		done += !rc;
	}
	if (rc) {
		undo_register(engine, tensors, done);
		return rc;
	}
	for (size_t i = 0; i < n; i++) {
		engine->nregistered++;
		engine->tensor_bytes += tensors[i]->nbytes;
		take_shape(tensors[i], &reserved->shapes[i]);
		if (tensors[i]->registration != REGISTRATION_NEW)
			continue;
		assert(k < reserved->count && reserved->nbytes[k] == tensors[i]->nbytes);
		tensors[i]->offset = reserved->offsets[k];
		tensors[i]->rest->spare = reserved->offsets[reserved->count + k++];
		extents_check(engine, tensors[i]);
		tensors[i]->registration = REGISTRATION_DONE;
		tensor_check(tensors[i]);
	}
	assert(k == reserved->count);
	return 0;
}

/* With `naming` locked, so that a name that is new stays new while its extents are reserved. */
static int register_all(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
			struct nvs_tensor **tensors, struct nvs_error *error)
{
	struct reserved reserved;
	int rc = reserved_alloc(&reserved, n);

	if (rc) {
		reserved_free(&reserved);
		return error_set(error, rc, "out of memory while registering tensors");
	}
	engine_lock(engine);
	rc = find_new(engine, specs, n, &reserved, error);
	engine_unlock(engine);
	if (!rc)
		rc = reserve(engine, &reserved, error);
	if (!rc) {
		engine_lock(engine);
		rc = add_all(engine, specs, n, &reserved, tensors, error);
		engine_unlock(engine);
		if (rc)
			release_reserved(engine, &reserved);
	}
	reserved_free(&reserved);
	return rc;
}

int batch_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
		   struct nvs_tensor **tensors, struct nvs_error *error)
{
	int rc;

	if (!engine || (n && (!specs || !tensors)))
		return error_set(error, -EINVAL, "%s is NULL",
				 !engine  ? "engine"
				 : !specs ? "specs"
					  : "tensors");
	unlocked_check(engine);
	pthread_mutex_lock(&engine->naming);
	rc = register_all(engine, specs, n, tensors, error);
	pthread_mutex_unlock(&engine->naming);
	return rc;
}

/* ---- Forgetting ---- */

static void forget(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	lock_check(engine);
	assert(tensor->registration == REGISTRATION_DONE);
	assert(!in_flight(tensor) && !tensor->pins.count && !engine->read_only);
	assert(engine->nregistered && engine->tensor_bytes >= tensor->nbytes);
	if (plan_has(&engine->plan, tensor))
		plan_drop(engine);
	drop(engine, tensor);
	engine->nregistered--;
	engine->tensor_bytes -= tensor->nbytes;
	assert(needs_memory(tensor) && !in_plan(tensor));
	table_remove(engine, tensor);
	/* After a crash the next run still finds the tensor, so its bytes stay until a commit. */
	if (tensor->rest->committed != NOWHERE || tensor->rest->snapshot != NOWHERE) {
		tensor->run_next = engine->forgotten;
		engine->forgotten = tensor;
		return;
	}
	extents_release(engine, tensor);
	tensor_free(tensor);
}

int batch_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 struct nvs_error *error)
{
	int rc = check_arguments(engine, tensors, n, error);

	if (!rc)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	engine_lock(engine);
	rc = wait_for_engine(engine, (struct turn){.tensors = tensors, .n = n}, error);
	if (!rc)
		rc = check_unpinned(engine, tensors, n, error);
	for (size_t i = 0; i < n && !rc; i++)
		if (in_flight(tensors[i]))
			rc = error_about(error, -EBUSY, tensors[i]->rest->name, 0, 0,
					 "%s is in flight: wait for it first",
					 tensors[i]->rest->name);
	assert(rc || n <= engine->nregistered);
	for (size_t i = 0; i < n && !rc; i++)
		forget(engine, tensors[i]);
	if (!rc)
		events_changed(engine);
	engine_unlock(engine);
	return rc;
}
