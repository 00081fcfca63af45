/* SPDX-License-Identifier: Apache-2.0 */
/* The stores that the options choose, and how the library opens them without a configuration;
 * `nvswap store remove`, `repair` and `convert`, which ask nothing, and say what they did. */
#include <errno.h>

#include "base/clock.h"
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

/* ---- Actions that write to a store ---- */

/* Removes a store, or its empty folders; false with the error. */
static bool removed(struct store_job *job, const struct nvs_store_place *place, const char *what,
		    struct nvs_error *error)
{
	if (nvs_store_remove(place, error))
		return false;
	store_open_json(job->json, place);
	json_text(job->json, "removed", what);
	json_close_object(job->json);
	return true;
}

static int remove_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (removed(job, place, "store", &error))
		return 0;
	return REFUSE(STATUS_FAILED, "%s", error.text);
}

/* Several stores are never removed by one command that names none of them. */
int store_remove(struct store_job *job)
{
	const struct nvs_store_place place = {.size = sizeof(place),
					      .paths = job->paths,
					      .npaths = job->npaths,
					      .rank = (uint32_t)job->rank,
					      .optimizer = job->kind == KIND_OPTIMIZER};

	/* Of a store that has lost its first path, a later one has the rest. */
	while (job->look_at < job->npaths && !store_count(job))
		job->look_at++;
	if (job->look_at < job->npaths)
		return store_choice_open(job) ? STATUS_FAILED : store_each(job, remove_one);
	job->look_at = 0;
	/* A run that was killed may have left them. */
	return removed(job, &place, "empty folders", NULL) ? 0 : store_each(job, remove_one);
}

int store_repair(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_repairs repairs = {.size = sizeof(repairs)};
	struct nvs_error error = {.size = sizeof(error)};
	struct json_writer *json = job->json;

	if (nvs_store_repair(place, job->rollback ? NVS_STORE_ROLLBACK : 0, &repairs, &error))
		return REFUSE(STATUS_FAILED, "%s", error.text);
	store_open_json(json, place);
	json_count(json, "labels", repairs.labels);
	json_count(json, "manifests", repairs.manifests);
	json_count(json, "commit", repairs.commit);
	json_count(json, "lost_commit", repairs.lost);
	json_close_object(json);
	return 0;
}

static int convert_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_state_conversion done = {.size = sizeof(done)};
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_config *config = NULL;
	struct json_writer *json = job->json;
	uint64_t begun = clock_ns();
	struct store_size size;
	int rc;

	if (!store_measure(place, &size))
		return STATUS_FAILED;
	rc = store_settings(place, true, &size, &config, &error);
	if (!rc)
		rc = nvs_optimizer_convert(config, (enum nvs_optimizer_state)job->state, &done,
					   &error);
	nvs_config_close(config);
	if (store_opened(place, rc, &error))
		return REFUSE(STATUS_FAILED, "%s", error.text);
	store_open_json(json, place);
	json_count(json, "commit", done.generation);
	json_count(json, "step", done.step);
	json_text(json, "from", store_formats[done.from]);
	json_text(json, "to", store_formats[done.to]);
	json_count(json, "moments", 2 * done.numel);
	json_count(json, "rounded", done.rounded);
	json_real(json, "seconds", (double)(clock_ns() - begun) / 1e9);
	json_close_object(json);
	return 0;
}

int store_convert(struct store_job *job)
{
	if (job->state == STATE_NONE)
		return REFUSE(STATUS_USAGE, "store convert needs --optimizer-state FORMAT, such as "
					    "--optimizer-state bf16");
	if (job->kind == KIND_PARAMETERS)
		return REFUSE(
			STATUS_USAGE,
			"convert changes the state of an optimizer: leave out --kind parameters");
	job->kind = KIND_OPTIMIZER;
	return store_choice_open(job) ? STATUS_FAILED : store_each(job, convert_one);
}
