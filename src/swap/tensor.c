/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's tensors: names, extents and information. Tensors of a kept store's manifest exist
 * from the start, and become visible when they are registered.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "swap/internal.h"

static int by_name(const void *a, const void *b)
{
	const struct nvs_tensor *left = a, *right = b;

	return strcmp(left->name, right->name);
}

static struct nvs_tensor *lookup(const struct nvs_engine *engine, const char *name)
{
	struct nvs_tensor key = {.name = (char *)(uintptr_t)name};
	struct nvs_tensor **found = tfind(&key, &engine->names, by_name);

	return found ? *found : NULL;
}

static uint64_t in_units(const struct nvs_engine *engine, uint64_t nbytes)
{
	uint32_t unit = store_unit(engine->store);

	return (nbytes + unit - 1) / unit * unit;
}

/* ---- The table ---- */

static int grow(struct nvs_engine *engine, size_t n)
{
	size_t max = engine->ntensors + n;
	struct nvs_tensor **tensors, **scratch;

	if (max <= engine->ntensors_max)
		return 0;
	if (max < engine->ntensors_max * 2)
		max = engine->ntensors_max * 2;
	tensors = realloc(engine->tensors, max * sizeof(struct nvs_tensor *));
	if (tensors)
		engine->tensors = tensors;
	scratch = realloc(engine->scratch, max * sizeof(struct nvs_tensor *));
	if (scratch)
		engine->scratch = scratch;
	/* Every tensor may have its own lease, with free runs between them. */
	if (!tensors || !scratch || pool_prepare(engine->pool, max + 1))
		return -ENOMEM;
	engine->ntensors_max = max;
	return 0;
}

static struct nvs_tensor *tensor_new(struct nvs_engine *engine, const struct nvs_tensor_spec *spec)
{
	struct nvs_tensor *tensor = calloc(1, sizeof(*tensor));

	if (!tensor)
		return NULL;
	tensor->engine = engine;
	tensor->name = strdup(spec->name);
	tensor->dtype = spec->dtype;
	tensor->numel = spec->numel;
	tensor->nbytes = spec->numel * nvs_dtype_size(spec->dtype);
	tensor->extent = in_units(engine, tensor->nbytes);
	tensor->state = NVS_EMPTY;
	tensor->committed = tensor->snapshot = NOWHERE;
	if (!tensor->name || !tsearch(tensor, &engine->names, by_name)) {
		free(tensor->name);
		free(tensor);
		return NULL;
	}
	assert(engine->ntensors < engine->ntensors_max);
	tensor->index = engine->ntensors;
	engine->tensors[engine->ntensors++] = tensor;
	return tensor;
}

static void take_off_table(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	struct nvs_tensor *last = engine->tensors[--engine->ntensors];

	engine->tensors[tensor->index] = last;
	last->index = tensor->index;
	tdelete(tensor, &engine->names, by_name);
}

int table_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, char *name,
		 struct nvs_error *error)
{
	struct nvs_tensor key = {.name = name}, **found;

	if (lookup(engine, name))
		return error_about(error, -EEXIST, name, 0, 0,
				   "%s: the engine or its kept store has a tensor of that name",
				   name);
	/* Inserting first: it is what may fail. */
	if (!tsearch(&key, &engine->names, by_name))
		return error_set(error, -ENOMEM, "out of memory while renaming a tensor");
	tdelete(tensor, &engine->names, by_name);
	free(tensor->name);
	tensor->name = name;
	found = tfind(&key, &engine->names, by_name);
	assert(found && *found == &key);
	*found = tensor;
	return 0;
}

static void tensor_free(struct nvs_tensor *tensor)
{
	pins_free(tensor);
	free(tensor->name);
	free(tensor);
}

static struct nvs_tensor *pop_forgotten(struct nvs_engine *engine)
{
	struct nvs_tensor *tensor = engine->forgotten;

	if (tensor)
		engine->forgotten = tensor->run_next;
	return tensor;
}

void tensors_free(struct nvs_engine *engine)
{
	struct nvs_tensor *tensor;

	while (engine->ntensors) {
		tensor = engine->tensors[engine->ntensors - 1];
		take_off_table(engine, tensor);
		tensor_free(tensor);
	}
	while ((tensor = pop_forgotten(engine)))
		tensor_free(tensor);
	free(engine->tensors);
	free(engine->scratch);
}

int tensors_from_manifest(struct nvs_engine *engine, struct nvs_error *error)
{
	size_t n;
	const struct store_entry *entries = store_entries(engine->store, &n);
	int rc = grow(engine, n);

	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_spec spec = {.size = sizeof(spec),
					       .name = entries[i].name,
					       .dtype = entries[i].dtype,
					       .numel = entries[i].numel};
		struct nvs_tensor *tensor = tensor_new(engine, &spec);

		if (!tensor) {
			rc = -ENOMEM;
			break;
		}
		tensor->offset = entries[i].offset;
		tensor->spare = entries[i].spare;
		tensor->checksum = entries[i].checksum;
		tensor->has_checksum = tensor->unverified = entries[i].has_checksum;
		tensor->has_contents = entries[i].written;
		tensor->committed = tensor->has_contents ? tensor->offset : NOWHERE;
		tensor->state = tensor->has_contents ? NVS_ON_DRIVE : NVS_EMPTY;
	}
	if (rc)
		return error_set(error, rc, "out of memory while reading the manifest");
	return 0;
}

static void release_extents(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	store_release(engine->store, tensor->offset, tensor->nbytes);
	if (engine->keep)
		store_release(engine->store, tensor->spare, tensor->nbytes);
}

void tensors_committed(struct nvs_engine *engine)
{
	for (size_t i = 0; i < engine->ntensors; i++) {
		engine->tensors[i]->committed = engine->tensors[i]->snapshot;
		engine->tensors[i]->snapshot = NOWHERE;
	}
}

void tensors_release_forgotten(struct nvs_engine *engine, struct nvs_tensor *forgotten)
{
	while (forgotten) {
		struct nvs_tensor *tensor = forgotten;

		forgotten = tensor->run_next;
		release_extents(engine, tensor);
		tensor_free(tensor);
	}
}

/* ---- Registering ---- */

int too_large(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
	      struct nvs_error *error)
{
	char need[32], have[32];

	return error_about(error, -E2BIG, tensor->name, 0, 0,
			   "%s has %s (%" PRIu64 " bytes), more than the whole pool of %s (%s): "
			   "set %s to %" PRIu64 " elements or more",
			   tensor->name, size_text(tensor->nbytes, need), tensor->nbytes,
			   size_text(pool_bytes(engine->pool), have), engine->remedy,
			   engine->pool_key,
			   (tensor->extent + engine->pool_step - 1) / engine->pool_step);
}

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
	return 0;
}

/* A tensor that the kept store holds must match its registration. */
static int check_found(const struct nvs_tensor *tensor, const struct nvs_tensor_spec *spec,
		       struct nvs_error *error)
{
	if (tensor->registered)
		return error_about(error, -EEXIST, spec->name, 0, 0, "%s is registered already",
				   spec->name);
	if (tensor->dtype != spec->dtype || tensor->numel != spec->numel)
		return error_about(error, -ESTALE, spec->name, 0, 0,
				   "the kept store holds %s as %s x %" PRIu64
				   ", not as %s x %" PRIu64 ": it belongs to another model "
				   "(use another rank or nvme_path, or remove the store)",
				   spec->name, nvs_dtype_name(tensor->dtype), tensor->numel,
				   nvs_dtype_name(spec->dtype), spec->numel);
	return 0;
}

static int find_or_make(struct nvs_engine *engine, const struct nvs_tensor_spec *spec,
			struct nvs_tensor **out, struct nvs_error *error)
{
	struct nvs_tensor *tensor;
	int rc = check_spec(spec, error);

	if (rc)
		return rc;
	tensor = lookup(engine, spec->name);
	if (tensor) {
		rc = check_found(tensor, spec, error);
		if (rc)
			return rc;
		tensor->registered = true;
	} else {
		tensor = tensor_new(engine, spec);
		if (!tensor)
			return error_set(error, -ENOMEM, "out of memory while registering tensors");
		tensor->registered = tensor->is_new = true;
	}
	*out = tensor;
	return 0;
}

static int reserve(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
		   struct nvs_error *error)
{
	uint64_t *numbers = calloc(4 * n + 1, sizeof(*numbers));
	uint64_t *nbytes, *offsets;
	size_t count = 0;
	int rc;

	if (!numbers)
		return error_set(error, -ENOMEM, "out of memory while registering tensors");
	nbytes = numbers;
	offsets = numbers + 2 * n;
	for (size_t i = 0; i < n; i++)
		if (tensors[i]->is_new)
			nbytes[count++] = tensors[i]->nbytes;
	/* A tensor that the kept store does not have. */
	rc = count ? check_writable(engine, error) : 0;
	if (rc) {
		free(numbers);
		return rc;
	}
	/* All spare extents after all first ones, so that those in use lie side by side. */
	memcpy(nbytes + count, nbytes, count * sizeof(*nbytes));
	rc = store_reserve(engine->store, nbytes, engine->keep ? 2 * count : count, offsets, error);
	for (size_t i = 0, k = 0; i < n && !rc; i++)
		if (tensors[i]->is_new) {
			tensors[i]->offset = offsets[k];
			tensors[i]->spare = offsets[count + k++];
			tensors[i]->is_new = false;
		}
	free(numbers);
	return rc;
}

static void undo_register(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	while (n--) {
		if (tensors[n]->is_new) {
			take_off_table(engine, tensors[n]);
			tensor_free(tensors[n]);
		} else {
			tensors[n]->registered = false;
		}
	}
}

int nvs_tensor_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
			struct nvs_tensor **tensors, struct nvs_error *error)
{
	struct nvs_tensor_spec spec;
	size_t done = 0;
	int rc;

	if (!engine || (n && (!specs || !tensors)))
		return error_set(error, -EINVAL, "%s is NULL",
				 !engine  ? "engine"
				 : !specs ? "specs"
					  : "tensors");
	pthread_mutex_lock(&engine->lock);
	rc = grow(engine, n);
	if (rc)
		error_set(error, rc, "out of memory while registering %zu tensors", n);
	while (done < n && !rc) {
		tensors[done] = NULL;
		rc = struct_in_at(&spec, sizeof(spec), specs, done);
		rc = rc ? error_set(
				  error, rc,
				  "the size of specs[%zu] is not that of a struct nvs_tensor_spec",
				  done)
			: find_or_make(engine, &spec, &tensors[done], error);
		done += tensors[done] != NULL;
	}
	if (!rc)
		rc = reserve(engine, tensors, n, error);
	if (rc)
		undo_register(engine, tensors, done);
	for (size_t i = 0; i < n && !rc; i++) {
		engine->nregistered++;
		engine->tensor_bytes += tensors[i]->nbytes;
	}
	pthread_mutex_unlock(&engine->lock);
	return rc;
}

struct nvs_tensor *nvs_tensor_find(struct nvs_engine *engine, const char *name)
{
	struct nvs_tensor *tensor;

	if (!engine || !name)
		return NULL;
	pthread_mutex_lock(&engine->lock);
	tensor = lookup(engine, name);
	if (tensor && !tensor->registered)
		tensor = NULL;
	pthread_mutex_unlock(&engine->lock);
	return tensor;
}

bool engine_has_stored(struct nvs_engine *engine, const char *name, uint64_t *numel)
{
	const struct nvs_tensor *tensor;
	bool stored;

	pthread_mutex_lock(&engine->lock);
	tensor = lookup(engine, name);
	stored = tensor && !tensor->registered;
	if (stored)
		*numel = tensor->numel;
	pthread_mutex_unlock(&engine->lock);
	return stored;
}

static void forget(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	if (plan_has(&engine->plan, tensor))
		plan_drop(engine);
	drop(engine, tensor);
	engine->nregistered--;
	engine->tensor_bytes -= tensor->nbytes;
	take_off_table(engine, tensor);
	/* After a crash the next run still finds the tensor, so its bytes stay until a commit. */
	if (tensor->committed != NOWHERE || tensor->snapshot != NOWHERE) {
		tensor->run_next = engine->forgotten;
		engine->forgotten = tensor;
		return;
	}
	release_extents(engine, tensor);
	tensor_free(tensor);
}

int nvs_tensor_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      struct nvs_error *error)
{
	int rc = check_arguments(engine, tensors, n, error);

	if (!rc)
		rc = check_writable(engine, error);
	if (rc)
		return rc;
	pthread_mutex_lock(&engine->lock);
	rc = wait_for_engine(engine, tensors, n, error);
	if (!rc)
		rc = check_unpinned(engine, tensors, n, error);
	for (size_t i = 0; i < n && !rc; i++)
		if (in_flight(tensors[i]))
			rc = error_about(error, -EBUSY, tensors[i]->name, 0, 0,
					 "%s is in flight: wait for it first", tensors[i]->name);
	for (size_t i = 0; i < n && !rc; i++)
		forget(engine, tensors[i]);
	if (!rc)
		events_changed(engine);
	pthread_mutex_unlock(&engine->lock);
	return rc;
}

int check_arguments(const struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error)
{
	if (!engine || (n && !tensors))
		return error_set(error, -EINVAL, "%s is NULL", engine ? "tensors" : "engine");
	for (size_t i = 0; i < n; i++)
		if (!tensors[i])
			return error_set(error, -EINVAL,
					 "tensors[%zu] is NULL: nvs_tensor_find returns NULL for "
					 "a name that is not registered",
					 i);
	return 0;
}

/* ---- Information ---- */

const char *nvs_tensor_state_name(enum nvs_tensor_state state)
{
	static const char *const names[] = {[NVS_EMPTY] = "empty",
					    [NVS_ON_DRIVE] = "on drive",
					    [NVS_READING] = "reading",
					    [NVS_RESIDENT] = "resident",
					    [NVS_WRITING] = "writing"};

	return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

int nvs_tensor_get_info(struct nvs_engine *engine, struct nvs_tensor *tensor,
			struct nvs_tensor_info *info)
{
	struct nvs_tensor_info full;

	if (!engine || !tensor || !info)
		return -EINVAL;
	pthread_mutex_lock(&engine->lock);
	full = (struct nvs_tensor_info){.size = sizeof(full),
					.name = tensor->name,
					.dtype = tensor->dtype,
					.numel = tensor->numel,
					.nbytes = tensor->nbytes,
					.store_offset = tensor->offset,
					.state = tensor->state,
					.dirty = tensor->dirty,
					.uses = tensor->uses,
					.status = tensor->status};
	pthread_mutex_unlock(&engine->lock);
	return struct_out(info, &full, sizeof(full));
}

static int failed(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		  enum nvs_direction direction, int status, uint64_t offset,
		  struct nvs_error *error)
{
	const struct transfer transfer = {.file = store_file(engine->store),
					  .direction = direction,
					  .status = status,
					  .error_offset = offset};

	return transfer_error(&transfer, tensor->name, error);
}

int tensor_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 struct nvs_error *error)
{
	return failed(engine, tensor, tensor->status_direction, tensor->status,
		      tensor->error_offset, error);
}

int report_failed_write(const struct nvs_engine *engine, struct nvs_tensor *tensor,
			struct nvs_error *error)
{
	int status = tensor->unreported;

	if (!status || in_flight(tensor))
		return 0;
	tensor->unreported = 0;
	return failed(engine, tensor, NVS_WRITE, status, tensor->unreported_at, error);
}
