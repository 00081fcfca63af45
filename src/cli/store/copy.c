/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store export` and `import`: the tensors of a store of parameters to a file that other
 * programs read, and from one into a store.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/store/store.h"

#define MIB	 ((uint64_t)1 << 20)
#define POOL_MIN (64 * MIB)
#define POOL_MAX (512 * MIB)

/* What is copied, and how it went. */
struct copy {
	struct store_job *job;
	struct nvs_store_place place;
	struct nvs_engine *engine;
	struct nvs_checkpoint_item *items;
	size_t n;
	uint64_t stripe_size; /* of the store that is there; 0: there is none, or one path */
	uint64_t nbytes, commit;
	double seconds;
	struct nvs_error *error;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Several transfers at a time, or two tensors of the largest. */
static uint64_t pool_bytes(uint64_t total, uint64_t largest)
{
	uint64_t nbytes = total < POOL_MAX ? total : POOL_MAX;

	if (nbytes < 2 * largest)
		nbytes = 2 * largest;
	return nbytes < POOL_MIN ? POOL_MIN : nbytes;
}

static int configure(struct copy *copy, struct nvs_config *config, bool keep, uint64_t pool)
{
	const struct {
		const char *key;
		uint64_t number;
	} settings[] = {
		{"aio.block_size", MIB},
		{"aio.queue_depth", 32},
		{"nvswap.rank", copy->place.rank},
		{keep ? "nvswap.keep" : "nvswap.read_only", 1},
		{"offload_param.buffer_count", 1},
		/* in elements of float32 */
		{"offload_param.buffer_size", (pool + 3) / 4},
		{"offload_param.max_in_cpu", 0},
		{"nvswap.stripe_size", copy->stripe_size},
	};
	size_t n = sizeof(settings) / sizeof(*settings) - !copy->stripe_size;
	int rc = nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, copy->place.paths,
				      copy->place.npaths, copy->error);

	for (size_t i = 0; i < n && !rc; i++)
		rc = nvs_config_set_number(config, settings[i].key, settings[i].number,
					   copy->error);
	return rc;
}

static int open_engine(struct copy *copy, bool keep, uint64_t pool)
{
	struct nvs_config *config = NULL;
	int rc = nvs_config_open(&config, copy->error);

	if (!rc)
		rc = configure(copy, config, keep, pool);
	if (!rc)
		rc = nvs_engine_open(&copy->engine, config, NVS_OFFLOAD_PARAM, copy->error);
	nvs_config_close(config);
	return rc;
}

static int no_memory(struct copy *copy)
{
	*copy->error = (struct nvs_error){
		.size = sizeof(*copy->error), .code = -ENOMEM, .text = "no memory for the tensors"};
	return -ENOMEM;
}

/* Registers tensors, and names them as the items of the checkpoint. */
static int take(struct copy *copy, const struct nvs_tensor_spec *specs, size_t n)
{
	struct nvs_tensor **tensors = calloc(n + 1, sizeof(struct nvs_tensor *));
	int rc;

	copy->items = calloc(n + 1, sizeof(*copy->items));
	if (!tensors || !copy->items)
		rc = no_memory(copy);
	else
		rc = n ? nvs_tensor_register(copy->engine, specs, n, tensors, copy->error) : 0;
	for (size_t i = 0; i < n && !rc; i++)
		copy->items[i] = (struct nvs_checkpoint_item){.size = sizeof(*copy->items),
							      .tensor = tensors[i]};
	copy->n = rc ? 0 : n;
	free(tensors);
	return rc;
}

static int report(const struct copy *copy, const char *file, const char *verb)
{
	struct store_job *job = copy->job;
	char size[32];

	if (copy->error->code) {
		say("%s", copy->error->text);
		return STATUS_FAILED;
	}
	if (job->json) {
		json_open_object(job->json, NULL);
		json_text(job->json, "path", copy->place.paths[0]);
		json_count(job->json, "rank", copy->place.rank);
		json_text(job->json, "file", file);
		json_count(job->json, "commit", copy->commit);
		json_count(job->json, "tensors", copy->n);
		json_count(job->json, "bytes", copy->nbytes);
		json_real(job->json, "seconds", copy->seconds);
		json_close_object(job->json);
		return 0;
	}
	store_print_text(job->out, copy->place.paths[0]);
	fprintf(job->out, "  rank %" PRIu32 ", commit %" PRIu64 ": %zu tensor%s of %s %s ",
		copy->place.rank, copy->commit, copy->n, plural(copy->n),
		size_text(copy->nbytes, size), verb);
	store_print_text(job->out, file);
	fprintf(job->out, " in %.1f s\n", copy->seconds);
	return 0;
}

static bool only_parameters(const struct nvs_store_place *place)
{
	if (place->optimizer)
		say("%s: the store of rank %" PRIu32 " is an optimizer's, whose groups only the "
		    "program knows that wrote it: call nvs_checkpoint_export_optimizer there",
		    place->paths[0], place->rank);
	return !place->optimizer;
}

/* ---- Export ---- */

static int take_stored(struct copy *copy, size_t n)
{
	struct nvs_tensor_spec *specs = calloc(n + 1, sizeof(*specs));
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	int rc = specs ? 0 : no_memory(copy);

	for (size_t i = 0; i < n && !rc; i++) {
		rc = nvs_engine_get_stored(copy->engine, i, &stored);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(*specs),
						    .name = stored.name,
						    .dtype = stored.dtype,
						    .numel = stored.numel};
		copy->nbytes += stored.nbytes;
	}
	if (!rc)
		rc = take(copy, specs, n);
	free(specs);
	return rc;
}

static int largest_of(const struct nvs_store_place *place, struct nvs_store_info *info,
		      uint64_t *largest)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store *store = store_look(place, 0, info);

	*largest = 0;
	if (!store)
		return -EIO;
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		*largest = tensor.nbytes > *largest ? tensor.nbytes : *largest;
	nvs_store_close(store);
	return 0;
}

static int export_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct copy copy = {.job = job, .place = *place, .error = &error};
	struct nvs_checkpoint_options options = {sizeof(options), job->shard_bytes};
	struct nvs_store_info info;
	uint64_t largest;
	double begun = now();
	int rc, status;

	if (!only_parameters(place) || largest_of(place, &info, &largest))
		return STATUS_FAILED;
	copy.stripe_size = place->npaths > 1 ? info.stripe_size : 0;
	rc = open_engine(&copy, false, pool_bytes(info.tensor_bytes, largest));
	if (!rc)
		rc = take_stored(&copy, (size_t)info.tensors);
	if (!rc)
		(void)nvs_checkpoint_export(copy.engine, copy.items, copy.n, job->to, &options,
					    copy.error);
	copy.seconds = now() - begun;
	copy.commit = nvs_engine_generation(copy.engine);
	status = report(&copy, job->to, "written to");
	nvs_engine_close(copy.engine, NULL);
	free(copy.items);
	return status;
}

int store_export(struct store_job *job)
{
	if (!job->to) {
		say("store export needs --to FILE, such as --to model.safetensors");
		return STATUS_USAGE;
	}
	if (store_count(job) > 1) {
		say("%s holds several stores: choose one by --rank and --kind (nvswap store list)",
		    job->paths[0]);
		return STATUS_FAILED;
	}
	return store_each(job, export_one);
}

/* ---- Import ---- */

static int take_checkpoint(struct copy *copy, const struct nvs_checkpoint *checkpoint)
{
	size_t n = nvs_checkpoint_count(checkpoint);
	struct nvs_tensor_spec *specs = calloc(n + 1, sizeof(*specs));
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	int rc = specs ? 0 : no_memory(copy);

	for (size_t i = 0; i < n && !rc; i++) {
		rc = nvs_checkpoint_get(checkpoint, i, &tensor);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(*specs),
						    .name = tensor.name,
						    .dtype = tensor.dtype,
						    .numel = tensor.numel};
	}
	if (!rc)
		rc = take(copy, specs, n);
	free(specs);
	return rc;
}

static uint64_t pool_for(struct copy *copy, const struct nvs_checkpoint *checkpoint)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	uint64_t largest = 0;

	for (size_t i = 0; !nvs_checkpoint_get(checkpoint, i, &tensor); i++) {
		copy->nbytes += tensor.nbytes;
		largest = tensor.nbytes > largest ? tensor.nbytes : largest;
	}
	return pool_bytes(copy->nbytes, largest);
}

/* The stripes of the store that is there; what else is wrong with it, its engine says. */
static uint64_t stripe_size_of(const struct nvs_store_place *place)
{
	struct nvs_store_info info = {.size = sizeof(info)};
	struct nvs_store *store;

	if (place->npaths == 1 || nvs_store_open(place, 0, &store, NULL))
		return 0;
	nvs_store_get_info(store, &info);
	nvs_store_close(store);
	return info.stripe_size;
}

/* Commits all that was read, or nothing. */
static void fill_store(struct copy *copy, const struct nvs_checkpoint *checkpoint)
{
	int rc;

	copy->stripe_size = stripe_size_of(&copy->place);
	rc = open_engine(copy, true, pool_for(copy, checkpoint));
	if (!rc)
		rc = take_checkpoint(copy, checkpoint);
	if (!rc)
		rc = nvs_checkpoint_import(copy->engine, checkpoint, copy->items, copy->n,
					   copy->error);
	if (!rc)
		(void)nvs_engine_commit(copy->engine, copy->error);
	copy->commit = nvs_engine_generation(copy->engine);
	if (copy->engine && nvs_engine_abandon(copy->engine, NULL))
		nvs_engine_close(copy->engine, NULL);
	free(copy->items);
}

int store_import(struct store_job *job)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct copy copy = {
		.job = job,
		.place = {sizeof(copy.place), job->paths, job->npaths, job->rank, false},
		.error = &error};
	struct nvs_checkpoint *checkpoint = NULL;
	double begun = now();

	if (!job->from) {
		say("store import needs --from FILE, such as --from model.safetensors");
		return STATUS_USAGE;
	}
	if (job->kind == KIND_OPTIMIZER) {
		say("store import fills stores of parameters; nvs_checkpoint_import_optimizer "
		    "fills an optimizer's");
		return STATUS_USAGE;
	}
	if (!nvs_checkpoint_open(&checkpoint, job->from, copy.error))
		fill_store(&copy, checkpoint);
	nvs_checkpoint_close(checkpoint);
	copy.seconds = now() - begun;
	return report(&copy, job->from, "read from");
}
