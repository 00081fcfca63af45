/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's tensors: their memory, the table of all, the tree of their names, and their extents
 * in the store.
 */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "swap/residency/internal.h"

/* Tensors in a slab. */
#define SLAB_TENSORS 64

static int by_name(const void *a, const void *b)
{
	const struct nvs_tensor *left = a, *right = b;

	return strcmp(left->rest->name, right->rest->name);
}

struct nvs_tensor *table_find(const struct nvs_engine *engine, const char *name)
{
	struct tensor_rest rest = {.name = name};
	struct nvs_tensor key = {.rest = &rest};
	struct nvs_tensor **found = tfind(&key, &engine->names, by_name);

	lock_check(engine);
	return found ? *found : NULL;
}

void extents_check(const struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	if (!STATE_CHECKS)
		return;

	uint32_t unit = store_unit(engine->store);
	uint64_t offset = tensor->offset, spare = tensor->rest->spare, extent = tensor->extent;

	assert(extent >= tensor->nbytes && extent - tensor->nbytes < unit && extent % unit == 0);
	assert(offset % unit == 0 && offset <= UINT64_MAX - extent);
	if (!engine->keep || !tensor->nbytes)
		return;
	assert(spare % unit == 0 && spare <= UINT64_MAX - extent);
	assert(spare >= offset + extent || offset >= spare + extent);
}

/* ---- Names ---- */

static struct tensor_name *name_make(const char *text)
{
	size_t nbytes = strlen(text) + 1;
	struct tensor_name *name = malloc(sizeof(*name) + nbytes);

	if (!name)
		return NULL;
	name->earlier = NULL;
	memcpy(name->text, text, nbytes);
	return name;
}

static void set_name(struct nvs_tensor *tensor, struct tensor_name *name)
{
	name->earlier = tensor->rest->names;
	tensor->rest->names = name;
	tensor->rest->name = name->text;
}

/* ---- Making and freeing ---- */

uint64_t *shape_copy(const struct nvs_tensor_spec *spec)
{
	uint64_t *copy = calloc(spec->ndim + 1, sizeof(*copy));

	if (copy)
		memcpy(copy, spec->shape, spec->ndim * sizeof(*copy));
	return copy;
}

int table_grow(struct nvs_engine *engine, size_t n)
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

/* Memory for tensors. Slots of forgotten ones are used again, and slabs are freed when the engine
 * is closed. */
struct tensor_slab {
	struct nvs_tensor tensors[SLAB_TENSORS];
	struct tensor_rest rests[SLAB_TENSORS];
	struct tensor_slab *next;
};

static void tensor_vacate(struct nvs_tensor *tensor)
{
	struct nvs_engine *engine = tensor->engine;

	tensor->engine = NULL;
	tensor->run_next = engine->vacant;
	engine->vacant = tensor;
}

static bool slab_add(struct nvs_engine *engine)
{
	struct tensor_slab *slab = aligned_alloc(_Alignof(struct tensor_slab), sizeof(*slab));

	if (!slab)
		return false;
	slab->next = engine->slabs;
	engine->slabs = slab;
	for (size_t i = SLAB_TENSORS; i--;) {
		slab->tensors[i].rest = &slab->rests[i];
		slab->tensors[i].run_next = engine->vacant;
		engine->vacant = &slab->tensors[i];
	}
	return true;
}

struct nvs_tensor *table_add(struct nvs_engine *engine, const struct nvs_tensor_spec *spec)
{
	struct tensor_name *name = name_make(spec->name);
	uint64_t *shape = spec->shape ? shape_copy(spec) : NULL;
	uint64_t unit = store_unit(engine->store);
	struct nvs_tensor *tensor;
	struct tensor_rest *rest;

	if (!name || (spec->shape && !shape) || (!engine->vacant && !slab_add(engine)))
		goto no_memory;
	tensor = engine->vacant;
	rest = tensor->rest;
	engine->vacant = tensor->run_next;
	*rest = (struct tensor_rest){.dtype = spec->dtype,
				     .shape = shape,
				     .ndim = shape ? spec->ndim : 0,
				     .committed = NOWHERE,
				     .snapshot = NOWHERE};
	*tensor = (struct nvs_tensor){.engine = engine,
				      .rest = rest,
				      .numel = spec->numel,
				      .nbytes = spec->numel * nvs_dtype_size(spec->dtype),
				      .content = CONTENT_NONE,
				      .class = PLAN_OUTSIDE,
				      .hangs_at = NOWHERE};
	tensor->extent = (tensor->nbytes + unit - 1) / unit * unit;
	set_name(tensor, name);
	if (!tsearch(tensor, &engine->names, by_name)) {
		tensor_vacate(tensor);
		goto no_memory;
	}
	rest->index = engine->ntensors;
	engine->tensors[engine->ntensors++] = tensor;
	return tensor;
no_memory:
	free(name);
	free(shape);
	return NULL;
}

void table_remove(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	struct nvs_tensor *last;

	assert(engine->tensors[tensor->rest->index] == tensor);
	assert(tensor->rest->copying == COPIED_NOT && !tensor->rest->in_line);
	assert(!in_plan(tensor));
	scrub_forgets(&engine->scrub, tensor);
	last = engine->tensors[--engine->ntensors];
	engine->tensors[tensor->rest->index] = last;
	last->rest->index = tensor->rest->index;
	tdelete(tensor, &engine->names, by_name);
}

int table_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *text,
		 struct nvs_error *error)
{
	struct tensor_rest rest = {.name = text};
	struct nvs_tensor key = {.rest = &rest}, *taken = table_find(engine, text), **found;
	struct tensor_name *name;

	if (taken == tensor)
		return 0;
	if (taken)
		return error_named(error, -EEXIST, text,
				   ": the engine or its kept store has a tensor of that name");
	name = name_make(text);
	/* Inserting first: it is what may fail. */
	if (!name || !tsearch(&key, &engine->names, by_name)) {
		free(name);
		return error_no_memory(error, "renaming a tensor");
	}
	tdelete(tensor, &engine->names, by_name);
	set_name(tensor, name);
	found = tfind(&key, &engine->names, by_name);
	assert(found && *found == &key);
	*found = tensor;
	return 0;
}

void tensor_free(struct nvs_tensor *tensor)
{
	struct tensor_name *name = tensor->rest->names;

	assert(tensor->io == IO_IDLE && tensor->memory != MEMORY_EXTERNAL);
	assert(!tensor->rest->parts && !tensor->rest->copy_pin);
	if (tensor->pins.max)
		free(tensor->pins.many);
	while (name) {
		struct tensor_name *earlier = name->earlier;

		free(name);
		name = earlier;
	}
	free(tensor->rest->shape);
	tensor_vacate(tensor);
}

void extents_release(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	assert(tensor->memory == MEMORY_NONE && tensor->io == IO_IDLE);
	extents_check(engine, tensor);
	store_release(engine->store, tensor->offset, tensor->nbytes);
	if (engine->keep)
		store_release(engine->store, tensor->rest->spare, tensor->nbytes);
}

void tensors_free(struct nvs_engine *engine)
{
	struct nvs_tensor *tensor;

	while (engine->ntensors) {
		tensor = engine->tensors[engine->ntensors - 1];
		table_remove(engine, tensor);
		tensor_free(tensor);
	}
	while ((tensor = engine->commit.forgotten)) {
		engine->commit.forgotten = tensor->run_next;
		tensor_free(tensor);
	}
	free(engine->tensors);
	free(engine->scratch);
	while (engine->slabs) {
		struct tensor_slab *slab = engine->slabs;

		engine->slabs = slab->next;
		free(slab);
	}
}
