/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store export` writes the contents of a store to a checkpoint that other programs read;
 * `import` reads one into a store, and commits it as a whole or not at all. Neither needs a
 * configuration. The groups of an optimizer are those of the store.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers.h"
#include "cli/store/store.h"

#define PARTS 3u /* of a group, at most: fp32 and the states of the rule */

/* What is copied, and how it went. */
struct copy {
	const struct store_job *job;
	struct nvs_store_place place;
	bool in;		    /* to the store */
	struct store_size size;	    /* of the store, or of the tensors that it gets */
	uint64_t n, nbytes, commit; /* tensors, or groups of an optimizer */
	uint64_t step;		    /* of an optimizer */
	struct nvs_error error;
};

static int no_memory(struct copy *copy)
{
	error_set(&copy->error, -ENOMEM, "no memory for the tensors");
	return -ENOMEM;
}

/* ---- Parameters ---- */

/*
 * The store of an earlier version may have names that are not UTF-8, which a checkpoint can't have:
 * it gets those with \xHH. NULL: it can have this one. The caller frees it.
 */
static char *utf8_form(const char *name)
{
	size_t length = strlen(name), room = 4 * length + 1;
	char *visible = text_is_utf8(name) ? NULL : malloc(room);

	if (visible)
		visible_text(name, length, visible, room);
	return visible;
}

/*
 * Registers the n tensors of the checkpoint, or, without one, of the store, and names them as items
 * of the checkpoint, which the caller frees.
 */
static int take_tensors(struct copy *copy, struct nvs_engine *engine,
			const struct nvs_checkpoint *checkpoint, size_t n,
			struct nvs_checkpoint_item **items)
{
	struct nvs_tensor **tensors = calloc(n + 1, sizeof(struct nvs_tensor *));
	struct nvs_tensor_spec *specs = calloc(n + 1, sizeof(*specs));
	struct nvs_checkpoint_tensor read = {.size = sizeof(read)};
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	int rc;

	*items = calloc(n + 1, sizeof(**items));
	rc = specs && tensors && *items ? 0 : no_memory(copy);
	for (size_t i = 0; i < n && !rc; i++) {
		struct nvs_tensor_spec *spec = &specs[i];

		rc = checkpoint ? nvs_checkpoint_get(checkpoint, i, &read)
				: nvs_engine_get_stored(engine, i, &stored);
		*spec = (struct nvs_tensor_spec){.size = sizeof(*spec),
						 .name = checkpoint ? read.name : stored.name,
						 .dtype = checkpoint ? read.dtype : stored.dtype,
						 .numel = checkpoint ? read.numel : stored.numel,
						 .shape = checkpoint ? read.shape : NULL,
						 .ndim = checkpoint ? read.ndim : 0};
		/* Bytes, of which a store has elements. */
		if (!nvs_dtype_size(spec->dtype)) {
			spec->dtype = NVS_U8;
			spec->numel = read.nbytes;
			spec->shape = NULL;
		}
		copy->nbytes += checkpoint ? 0 : stored.nbytes;
	}
	if (!rc && n)
		rc = nvs_tensor_register(engine, specs, n, tensors, &copy->error);
	for (size_t i = 0; i < n && !rc; i++)
		(*items)[i] = (struct nvs_checkpoint_item){.size = sizeof(**items),
							   .tensor = tensors[i],
							   .name = utf8_form(specs[i].name)};
	free(specs);
	free(tensors);
	return rc;
}

static int copy_parameters(struct copy *copy)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = copy->job->shard_bytes};
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint_item *items = NULL;
	struct nvs_checkpoint *checkpoint = NULL;
	struct nvs_config *config = NULL;
	struct nvs_engine *engine = NULL;
	int rc = 0;

	if (copy->in) {
		rc = nvs_checkpoint_open(&checkpoint, copy->job->from, &copy->error);
		if (rc)
			return rc;
		copy->n = nvs_checkpoint_count(checkpoint);
		for (size_t i = 0; !nvs_checkpoint_get(checkpoint, i, &tensor); i++) {
			copy->nbytes += tensor.nbytes;
			copy->size.largest = max_u64(copy->size.largest, tensor.nbytes);
		}
		copy->size.bytes = copy->nbytes;
	}
	rc = store_settings(&copy->place, copy->in, &copy->size, &config, &copy->error);
	if (!rc)
		rc = nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &copy->error);
	nvs_config_close(config);
	rc = store_opened(&copy->place, rc, &copy->error);
	if (!rc)
		rc = take_tensors(copy, engine, checkpoint, (size_t)copy->n, &items);
	if (!rc)
		rc = copy->in ? nvs_checkpoint_import(engine, checkpoint, items, (size_t)copy->n,
						      &copy->error)
			      : nvs_checkpoint_export(engine, items, (size_t)copy->n, copy->job->to,
						      &options, &copy->error);
	if (!rc && copy->in)
		rc = nvs_engine_commit(engine, &copy->error);
	copy->commit = nvs_engine_generation(engine);
	/* Closing would commit what an import has changed. */
	if (!copy->in || (engine && nvs_engine_abandon(engine, NULL)))
		nvs_engine_close(engine, NULL);
	for (size_t i = 0; items && i < copy->n; i++)
		free((char *)(uintptr_t)items[i].name);
	free(items);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

/* ---- The state of an optimizer ---- */

static int count_groups(struct copy *copy, struct nvs_optimizer *optimizer)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};
	int rc = nvs_optimizer_get_info(optimizer, &info, &copy->error);

	copy->n = info.ngroups;
	copy->step = info.step;
	copy->commit = info.generation;
	copy->nbytes = 0;
	for (size_t i = 0; i < info.ngroups && !rc; i++) {
		rc = nvs_optimizer_get_group_info(optimizer, i, &group, &copy->error);
		copy->nbytes += group.numel * (info.rule == NVS_RULE_ADAM ? PARTS : 2) *
				sizeof(float);
	}
	return rc;
}

static int move_file(struct copy *copy, struct nvs_optimizer *optimizer)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = copy->job->shard_bytes};
	struct nvs_checkpoint *checkpoint = NULL;
	int rc;

	if (!copy->in)
		return nvs_checkpoint_export_optimizer(optimizer, copy->job->to, &options,
						       &copy->error);
	rc = nvs_checkpoint_open(&checkpoint, copy->job->from, &copy->error);
	if (!rc)
		rc = nvs_checkpoint_import_optimizer(optimizer, checkpoint, NULL, &copy->error);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

static int copy_optimizer(struct copy *copy)
{
	struct nvs_optimizer *optimizer = NULL;
	struct nvs_config *config = NULL;
	int rc = store_settings(&copy->place, copy->in, &copy->size, &config, &copy->error);

	if (!rc)
		rc = nvs_optimizer_open(&optimizer, config, NULL, 0, NULL, &copy->error);
	nvs_config_close(config);
	rc = store_opened(&copy->place, rc, &copy->error);
	if (!rc)
		rc = count_groups(copy, optimizer);
	/* Gradients and the note of the last commit belong to the state that is replaced. */
	if (!rc && copy->in)
		rc = nvs_optimizer_clear_gradients(optimizer, &copy->error);
	if (!rc)
		rc = move_file(copy, optimizer);
	if (!rc && copy->in)
		rc = nvs_optimizer_set_note(optimizer, NULL, 0, &copy->error);
	if (!rc && copy->in)
		rc = nvs_optimizer_commit(optimizer, &copy->error);
	if (!rc && copy->in)
		rc = count_groups(copy, optimizer);
	if (copy->in)
		nvs_optimizer_abandon(optimizer, NULL);
	else
		nvs_optimizer_close(optimizer, NULL);
	return rc;
}

/* ---- Both ---- */

static int run_copy(struct copy *copy)
{
	const struct nvs_store_place *place = &copy->place;
	struct json_writer *json = copy->job->json;
	const char *file = copy->in ? copy->job->from : copy->job->to;
	bool optimizer = place->optimizer;
	uint64_t begun = clock_ns();

	copy->error.size = sizeof(copy->error);
	if (optimizer ? copy_optimizer(copy) : copy_parameters(copy))
		return REFUSE(STATUS_FAILED, "%s", copy->error.text);
	store_open_json(json, place);
	json_text(json, "file", file);
	json_count(json, "commit", copy->commit);
	json_count(json, optimizer ? "groups" : "tensors", copy->n);
	if (optimizer)
		json_count(json, "step", copy->step);
	json_count(json, "bytes", copy->nbytes);
	json_real(json, "seconds", (double)(clock_ns() - begun) / 1e9);
	json_close_object(json);
	return 0;
}

static int copy_stored(struct copy *copy)
{
	if (!store_measure(&copy->place, &copy->size))
		return STATUS_FAILED;
	copy->n = copy->size.tensors;
	return run_copy(copy);
}

/* ---- Export ---- */

static int export_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct copy copy = {.job = job, .place = *place};

	return copy_stored(&copy);
}

/* What moves the contents of directories, for errors. */
#define UNIVERSAL                                                                                  \
	"nvswap.export_universal and import_universal of the Python package move the state of an " \
	"optimizer to and from the directory of a universal checkpoint"

static bool is_directory(const char *path)
{
	struct stat status;

	return !stat(path, &status) && S_ISDIR(status.st_mode);
}

int store_export(struct store_job *job)
{
	if (!job->to)
		say("store export needs --to PATH, such as --to model.safetensors");
	else if (!text_ends_with(job->to, ".safetensors") && !text_ends_with(job->to, ".pt"))
		say("--to %s must end with .safetensors or .pt; " UNIVERSAL, job->to);
	else
		return store_choice_open(job) ? STATUS_FAILED : store_each(job, export_one);
	return STATUS_USAGE;
}

/* ---- Import ---- */

static int import_state(struct store_job *job, const struct nvs_store_place *place)
{
	struct copy copy = {.job = job, .place = *place, .in = true};

	return copy_stored(&copy);
}

int store_import(struct store_job *job)
{
	struct store_job all = *job, optimizers = *job, chosen = *job;
	struct copy copy = {
		.job = job,
		.place = {sizeof(copy.place), job->paths, job->npaths, (uint32_t)job->rank, false},
		.in = true};
	int status;

	if (!job->from)
		return REFUSE(STATUS_USAGE,
			      "store import needs --from PATH, such as --from model.safetensors");
	if (is_directory(job->from))
		return REFUSE(STATUS_USAGE, "--from %s is a directory: name a file; " UNIVERSAL,
			      job->from);
	if (job->kind == KIND_OPTIMIZER) {
		chosen.any_rank = false;
		status = store_each(&chosen, import_state);
		if (!store_count(&chosen))
			say("import fills an optimizer's store that is there, since only the "
			    "program that makes it knows the groups: run that with nvswap.keep "
			    "first, for rank %" PRIu64 " at this path",
			    job->rank);
		return status;
	}
	/* A store of parameters would be made beside it, whatever the file holds. */
	all.any_rank = optimizers.any_rank = true;
	optimizers.kind = KIND_OPTIMIZER;
	if (job->kind == KIND_ANY && store_count(&optimizers) &&
	    store_count(&optimizers) == store_count(&all))
		return REFUSE(STATUS_USAGE,
			      "%s holds the store of an optimizer alone: add --kind optimizer to "
			      "fill it, or "
			      "--kind parameters for a store of parameters beside it",
			      job->paths[0]);
	return run_copy(&copy);
}
