/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store export` writes the contents of a store to a checkpoint that other programs read;
 * `import` reads one into a store.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/store/copy.h"

/* ---- The store ---- */

/* What the store holds, or says why not and returns false. */
static bool look(struct copy *copy)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_info info;
	struct nvs_store *store = store_look(&copy->place, 0, &info);

	if (!store)
		return false;
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		copy->largest = tensor.nbytes > copy->largest ? tensor.nbytes : copy->largest;
	copy->n = info.tensors;
	copy->stored = info.tensor_bytes;
	nvs_store_close(store);
	return true;
}

/* ---- The report ---- */

static void report_json(const struct copy *copy, const char *file, double seconds)
{
	struct json_writer *json = copy->job->json;

	json_open_object(json, NULL);
	json_text(json, "path", copy->place.paths[0]);
	json_count(json, "rank", copy->place.rank);
	json_text(json, "kind", copy->place.optimizer ? "optimizer" : "parameters");
	json_text(json, "file", file);
	json_count(json, "commit", copy->commit);
	json_count(json, copy->place.optimizer ? "groups" : "tensors", copy->n);
	if (copy->place.optimizer)
		json_count(json, "step", copy->step);
	json_count(json, "bytes", copy->nbytes);
	json_real(json, "seconds", seconds);
	json_close_object(json);
}

static void report_text(const struct copy *copy, const char *file, const char *verb, double seconds)
{
	bool optimizer = copy->place.optimizer;
	FILE *out = copy->job->out;
	char size[32];

	print_visible(out, copy->place.paths[0]);
	fprintf(out, "  rank %" PRIu32 "%s, commit %" PRIu64 ": %" PRIu64 " %s%s of %s ",
		copy->place.rank, optimizer ? ", optimizer" : "", copy->commit, copy->n,
		optimizer ? "group" : "tensor", plural(copy->n), size_text(copy->nbytes, size));
	if (optimizer)
		fprintf(out, "after %" PRIu64 " step%s ", copy->step, plural(copy->step));
	fprintf(out, "%s ", verb);
	print_visible(out, file);
	fprintf(out, " in %.1f s\n", seconds);
}

/* Copies, and tells how it went. */
static int run(struct copy *copy, int (*fn)(struct copy *copy), const char *file, const char *verb)
{
	uint64_t begun = clock_ns();
	double seconds;

	if (fn(copy)) {
		say("%s", copy->error->text);
		return STATUS_FAILED;
	}
	seconds = (double)(clock_ns() - begun) / 1e9;
	if (copy->job->json)
		report_json(copy, file, seconds);
	else
		report_text(copy, file, verb, seconds);
	return 0;
}

/* ---- Export ---- */

/* Everything else is the name of a file, or a wrong one of a file. */
static bool names_directory(const char *path)
{
	return !text_ends_with(path, ".safetensors") && !text_ends_with(path, ".pt") &&
	       !text_ends_with(path, ".index.json");
}

static bool is_directory(const char *path)
{
	struct stat status;

	return !stat(path, &status) && S_ISDIR(status.st_mode);
}

/* Whether the last name of the path has a dot, as the mistyped name of a file has. */
static bool has_dot(const char *path)
{
	size_t length = strlen(path);

	while (length && path[length - 1] == '/')
		length--;
	while (length && path[length - 1] != '/')
		if (path[--length] == '.')
			return true;
	return false;
}

static int export_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct copy copy = {.job = job,
			    .place = *place,
			    .universal = names_directory(job->to),
			    .error = &error};

	if (copy.universal && !place->optimizer) {
		say("--to %s names the directory of a universal checkpoint, which holds the state "
		    "of an optimizer; for parameters the name must end with .safetensors or .pt",
		    job->to);
		return STATUS_FAILED;
	}
	if (copy.universal && has_dot(job->to) && !is_directory(job->to)) {
		say("--to %s ends neither with .safetensors nor with .pt; a directory for a "
		    "universal checkpoint is there already, or its name has no dot",
		    job->to);
		return STATUS_FAILED;
	}
	if (!look(&copy))
		return STATUS_FAILED;
	return run(&copy, place->optimizer ? copy_optimizer_out : copy_parameters_out, job->to,
		   "written to");
}

int store_export(struct store_job *job)
{
	if (!job->to) {
		say("store export needs --to PATH, such as --to model.safetensors");
		return STATUS_USAGE;
	}
	if (job->shard_bytes && names_directory(job->to)) {
		say("--shard-size divides a .safetensors file, and --to %s is none", job->to);
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

static int import_parameters(struct store_job *job)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct copy copy = {
		.job = job,
		.place = {sizeof(copy.place), job->paths, job->npaths, job->rank, false},
		.error = &error};

	if (is_directory(job->from)) {
		say("--from %s is a directory, as a universal checkpoint, which holds the state of "
		    "an optimizer: add --kind optimizer, or name a file",
		    job->from);
		return STATUS_USAGE;
	}
	return run(&copy, copy_parameters_in, job->from, "read from");
}

static int import_state(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct copy copy = {
		.job = job, .place = *place, .universal = is_directory(job->from), .error = &error};

	if (!look(&copy))
		return STATUS_FAILED;
	return run(&copy, copy_optimizer_in, job->from, "read from");
}

static int import_optimizer(const struct store_job *job)
{
	struct store_job chosen = *job;
	int status;

	chosen.any_rank = false;
	status = store_each(&chosen, import_state);
	if (!store_count(&chosen))
		say("import fills an optimizer's store that is there, since only the program that "
		    "makes it knows the groups: run that with nvswap.keep first, for rank %" PRIu32
		    " at this path",
		    job->rank);
	return status;
}

/* A store of parameters would be made beside it, whatever the file holds. */
static bool is_optimizers(const struct store_job *job)
{
	struct store_job optimizers = *job, all = *job;

	optimizers.kind = KIND_OPTIMIZER;
	optimizers.any_rank = all.any_rank = true;
	return store_count(&optimizers) && store_count(&optimizers) == store_count(&all);
}

int store_import(struct store_job *job)
{
	if (!job->from) {
		say("store import needs --from PATH, such as --from model.safetensors");
		return STATUS_USAGE;
	}
	if (job->kind == KIND_ANY && !is_directory(job->from) && is_optimizers(job)) {
		say("%s holds the store of an optimizer alone: add --kind optimizer to fill it, or "
		    "--kind parameters for a store of parameters beside it",
		    job->paths[0]);
		return STATUS_USAGE;
	}
	return job->kind == KIND_OPTIMIZER ? import_optimizer(job) : import_parameters(job);
}
