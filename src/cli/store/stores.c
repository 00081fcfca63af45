/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stores that the options choose, one after the other, their names, and how the library opens
 * them without a configuration.
 */
#include <errno.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/store/store.h"

const char *const store_formats[] = {"fp32", "split", "bf16", "8bit", NULL};

/* The chosen place from number *index on; -ENODATA: there is none. */
static int next_chosen(const struct store_job *job, unsigned *index, struct nvs_store_place *place,
		       struct nvs_error *error)
{
	int rc;

	do {
		*place = (struct nvs_store_place){
			.size = sizeof(*place), .paths = job->paths, .npaths = job->npaths};
		rc = nvs_store_find(job->paths[job->look_at], (*index)++, place, error);
	} while (!rc &&
		 !((job->any_rank || place->rank == job->rank) &&
		   (job->kind == KIND_ANY || place->optimizer == (job->kind == KIND_OPTIMIZER))));
	return rc;
}

int store_each(struct store_job *job, store_fn *fn)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_store_place place;
	unsigned index = 0, n = 0;
	int status = 0, rc;

	while (!(rc = next_chosen(job, &index, &place, &error))) {
		int mine = fn(job, &place);

		status = mine > status ? mine : status;
		n++;
	}
	if (rc == -ENODATA && n)
		return status;
	if (rc != -ENODATA)
		say("%s", error.text);
	else
		say("%s holds no store%s", job->paths[0],
		    job->any_rank && job->kind == KIND_ANY ? "" : " of that rank and kind");
	return STATUS_FAILED;
}

unsigned store_count(const struct store_job *job)
{
	struct nvs_store_place place;
	unsigned index = 0, n = 0;

	while (!next_chosen(job, &index, &place, NULL))
		n++;
	return n;
}

bool store_choice_open(const struct store_job *job)
{
	if (store_count(job) < 2)
		return false;
	say("%s holds several stores: choose one by --rank and --kind (nvswap store list)",
	    job->paths[job->look_at]);
	return true;
}

struct nvs_store *store_look(const struct nvs_store_place *place, unsigned flags,
			     struct nvs_store_info *info)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_store *store;

	*info = (struct nvs_store_info){.size = sizeof(*info)};
	if (nvs_store_open(place, flags, &store, &error)) {
		say("%s", error.text);
		return NULL;
	}
	nvs_store_get_info(store, info);
	return store;
}

bool store_measure(const struct nvs_store_place *place, struct store_size *size)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);

	if (!store)
		return false;
	*size = (struct store_size){.tensors = info.tensors, .bytes = info.tensor_bytes};
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		size->largest = max_u64(size->largest, tensor.nbytes);
	nvs_store_close(store);
	return true;
}

#define TILES 4u /* of an optimizer in the pool, of which the largest tensors are parts */
#define PARTS 3u

int store_settings(const struct nvs_store_place *place, bool writes, const struct store_size *size,
		   struct nvs_config **config, struct nvs_error *error)
{
	bool optimizer = place->optimizer;
	uint64_t least = (optimizer ? TILES * PARTS : 2) * size->largest;
	uint64_t pool = max_u64(max_u64(min_u64(size->bytes, POOL_MAX), least), POOL_MIN);
	/* The pool is one buffer, of elements of float32. */
	const struct {
		const char *key;
		uint64_t number;
	} settings[] = {
		{optimizer ? "offload_optimizer.buffer_count" : "offload_param.buffer_count", 1},
		{optimizer ? "zero_optimization.sub_group_size" : "offload_param.buffer_size",
		 (pool + 3) / 4},
		{"aio.block_size", MIB},
		{"aio.queue_depth", 32},
		{"nvswap.rank", place->rank},
		{writes ? "nvswap.keep" : "nvswap.read_only", 1},
		{"offload_param.max_in_cpu", 0}, /* last: not of an optimizer */
	};
	int rc = nvs_config_open(config, error);

	if (!rc)
		rc = nvs_config_set_paths(*config,
					  optimizer ? NVS_OFFLOAD_OPTIMIZER : NVS_OFFLOAD_PARAM,
					  place->paths, place->npaths, error);
	for (size_t i = 0; i < COUNT_OF(settings) - optimizer && !rc; i++)
		rc = nvs_config_set_number(*config, settings[i].key, settings[i].number, error);
	return rc;
}

int store_opened(const struct nvs_store_place *place, int rc, struct nvs_error *error)
{
	struct nvs_store *store;

	/* The engine's advice is for programs: they can take another rank. */
	if (rc != -EBUSY || nvs_store_open(place, NVS_STORE_LOCK, &store, error))
		return rc;
	nvs_store_close(store);
	return error_set(error, rc, "a process reads the store at %s: wait until it ends",
			 place->paths[0]);
}

void store_open_json(struct json_writer *json, const struct nvs_store_place *place)
{
	json_open_object(json, NULL);
	json_text(json, "path", place->paths[0]);
	json_count(json, "rank", place->rank);
	json_text(json, "kind", place->optimizer ? "optimizer" : "parameters");
}
