/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a universal checkpoint. The first rank makes all files; each rank writes its elements to
 * them; then the first one, which knows all checksums, completes them and gives them their names.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/threads/cancel.h"
#include "checkpoint/torch/torch.h"
#include "checkpoint/universal/universal.h"

#define LATEST "latest_universal"

struct export_job {
	struct nvs_optimizer *optimizer;
	struct nvs_aio *aio;
	struct nvs_universal_options options;
	struct params params;
	struct tree tree;
	struct open_files files;
	char *path, *latest;
	const char *tag; /* the last part of `path` */
	uint64_t step;
	uint64_t *data_at; /* of each parameter, in each of its files */
	uint32_t *sums;	   /* of each part of each parameter */
	struct run *runs;  /* one for each rank */
};

/* ---- What is to be written ---- */

static int set_paths(struct export_job *export, const char *path, struct nvs_error *error)
{
	size_t length = path ? strlen(path) : 0, parent;

	while (length > 1 && path[length - 1] == '/')
		length--;
	if (asprintf(&export->path, "%.*s", (int)length, path ? path : "") < 0) {
		export->path = NULL;
		return error_set(error, -ENOMEM, "no memory for the path %s", path);
	}
	export->tag = strrchr(export->path, '/');
	export->tag = export->tag ? export->tag + 1 : export->path;
	if (!*export->tag || !strcmp(export->tag, ".") || !strcmp(export->tag, ".."))
		return error_set(error, -EINVAL,
				 "path must end with the name of the checkpoint's directory, such "
				 "as run/global_step50");
	parent = (size_t)(export->tag - export->path);
	if (asprintf(&export->latest, "%.*s" LATEST, (int)parent, export->path) < 0)
		export->latest = NULL;
	return export->latest ? 0 : error_set(error, -ENOMEM, "no memory for the path %s", path);
}

static int begin_export(struct export_job *export, struct nvs_optimizer *optimizer,
			const struct nvs_checkpoint_param *params, size_t n, const char *path,
			struct nvs_error *error)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (!rc && !export->options.optimizer_state != !export->options.optimizer_state_bytes)
		rc = error_set(error, -EINVAL,
			       "optimizer_state and its number of bytes: one is not set");
	if (!rc)
		rc = params_read(&export->params, optimizer, params, n, error);
	if (!rc)
		rc = set_paths(export, path, error);
	if (rc)
		return rc;
	/* All memory that is needed where the other ranks wait for this one. */
	export->data_at = calloc(n, sizeof(*export->data_at));
	export->sums = calloc(n * PARTS, sizeof(*export->sums));
	export->runs = calloc(export->options.world, sizeof(*export->runs));
	if (!export->data_at || !export->sums || !export->runs)
		return error_set(error, -ENOMEM, "no memory for %zu parameters of %u ranks", n,
				 export->options.world);
	export->optimizer = optimizer;
	export->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	export->step = info.step;
	if (!export->options.rank)
		rc = tree_create(&export->tree, export->path, error);
	for (size_t i = 0; i < n && !rc; i++) {
		const struct param *param = &export->params.all[i];
		struct nvs_checkpoint plan;
		struct torch torch;
		char place[PLACE_MAX];

		/* Finds the place of the data in the files of a parameter; the first rank also
		 * makes these. */
		rc = param_lay_out(param, &plan, &torch, error);
		if (!rc)
			export->data_at[i] = plan.entries->offset;
		if (!rc && !export->options.rank)
			rc = tree_add(&export->tree, param->name, error);
		for (unsigned part = 0;
		     part < export->params.rule->nparts && !rc && !export->options.rank; part++) {
			param_place(&export->params, param, part, place);
			rc = tree_create_file(&export->tree, place, torch.file_bytes, error);
		}
		torch_free(&torch);
		checkpoint_free(&plan);
	}
	return rc;
}

/* ---- Elements ---- */

static int submit_write(struct state_move *move, struct state_io *io, struct nvs_error *error)
{
	struct export_job *export = move->arg;
	size_t owner = export->params.owners[io->fragment];
	int rc = open_files_take(&export->files, owner, io->part, &io->file, error);

	if (!rc)
		rc = sink_write(&io->file->sink, move->aio, io->data, io->numel * sizeof(float),
				export->data_at[owner] + io->at * sizeof(float), io->requests,
				&io->n, error);
	/* While it is being written. */
	if (!rc)
		sum_add(export->sums, &export->params, io);
	return rc;
}

/* Makes durable what this rank has written; the first one has written to all files. */
static int sync_elements(const struct export_job *export, struct nvs_error *error)
{
	const struct params *params = &export->params;
	char place[PLACE_MAX];
	int rc = 0;

	for (size_t i = 0; i < params->n; i++)
		for (unsigned part = 0; part < params->rule->nparts && !rc &&
					(!export->options.rank || params->all[i].fragment.numel);
		     part++) {
			param_place(params, &params->all[i], part, place);
			rc = tree_sync(&export->tree, place, error);
		}
	return rc;
}

/* Makes the checksums those of the whole parts: the exclusive or of what all ranks have of them. */
static int combine_sums(struct export_job *export, struct nvs_error *error)
{
	const size_t most = GATHER_MAX / sizeof(*export->sums), nsums = export->params.n * PARTS,
		     world = export->options.world;
	uint32_t own[GATHER_MAX / sizeof(*export->sums)];

	for (size_t i = 0; i < nsums; i += most) {
		size_t n = nsums - i < most ? nsums - i : most;
		const void *gathered;
		int rc;

		memcpy(own, export->sums + i, n * sizeof(*own));
		rc = ranks_gather(&export->options, own, n * sizeof(*own), &gathered, error);
		if (rc)
			return rc;
		memset(export->sums + i, 0, n * sizeof(*own));
		for (size_t word = 0; word < n * world; word++)
			export->sums[i + word % n] ^= ((const uint32_t *)gathered)[word];
	}
	return 0;
}

/* ---- Completing the files ---- */

/*
 * Writes what stands before and behind the data, through the page cache, or, with `torch` NULL, the
 * caller's state of the optimizer.
 */
static int write_frame(const struct export_job *export, const char *place,
		       const struct nvs_checkpoint *plan, const struct torch *torch,
		       struct nvs_error *error)
{
	const void *first = torch ? torch->lead : export->options.optimizer_state;
	size_t nbytes = torch ? torch->lead_bytes : export->options.optimizer_state_bytes;
	struct sink sink = {0};
	int rc, fd = tree_open_file(&export->tree, place, O_RDWR, error);

	if (fd < 0)
		return fd;
	rc = nvs_file_from_fd(export->aio, fd, NVS_FILE_WRITE | NVS_FILE_BUFFERED, &sink.buffered,
			      error);
	close(fd);
	if (!rc)
		rc = sink_write_now(&sink, export->aio, first, nbytes, 0, error);
	if (!rc && torch)
		rc = torch_finish(torch, plan, &sink, place, export->aio, error);
	sink_close(&sink);
	return rc;
}

/* The number of steps, where DeepSpeed looks for it. */
static int make_state(uint64_t step, char **text, size_t *nbytes)
{
	FILE *out = open_memstream(text, nbytes);

	if (!out)
		return -ENOMEM;
	pickle_begin(out);
	fputs("}(", out);
	pickle_text(out, "zero_stage");
	pickle_number(out, 3);
	pickle_text(out, "optimizer_state_dict");
	fputs("}(", out);
	pickle_text(out, "state");
	fputs("}(", out);
	pickle_number(out, 0);
	fputs("}(", out);
	pickle_text(out, "step");
	pickle_number(out, step);
	fputs("uu", out);
	pickle_text(out, "param_groups");
	fputs("](}(", out);
	pickle_text(out, "params");
	fputs("]ueu", out);
	pickle_text(out, "param_groups");
	fputs("](}(", out);
	pickle_text(out, "params");
	fputs("]ueu", out);
	pickle_end(out);
	return fclose(out) ? -ENOMEM : 0;
}

static int write_state(const struct export_job *export, struct nvs_error *error)
{
	const bool own = !export->options.optimizer_state;
	struct nvs_checkpoint none = {0};
	struct torch torch = {0};
	char *pickle = NULL;
	size_t nbytes;
	int rc = own ? make_state(export->step, &pickle, &nbytes) : 0;

	if (rc)
		rc = error_set(error, rc, "no memory for " UNIVERSAL_STATE);
	else if (own)
		rc = torch_place_pickle(&torch, &none, pickle, nbytes, UNIVERSAL_STATE, error);
	if (!rc)
		rc = tree_create_file(
			&export->tree, UNIVERSAL_STATE,
			own ? torch.file_bytes : export->options.optimizer_state_bytes, error);
	if (!rc)
		rc = write_frame(export, UNIVERSAL_STATE, &none, own ? &torch : NULL, error);
	torch_free(&torch);
	free(pickle);
	return rc;
}

/* The first rank, when all elements are written. */
static int complete_tree(struct export_job *export, struct nvs_error *error)
{
	size_t n = export->params.n;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		const struct param *param = &export->params.all[i];
		struct nvs_checkpoint plan;
		struct torch torch;
		char place[PLACE_MAX];

		rc = param_lay_out(param, &plan, &torch, error);
		for (unsigned part = 0; part < export->params.rule->nparts && !rc; part++) {
			param_place(&export->params, param, part, place);
			torch.crcs[0] = export->sums[i * PARTS + part];
			rc = write_frame(export, place, &plan, &torch, error);
		}
		torch_free(&torch);
		checkpoint_free(&plan);
	}
	if (!rc)
		rc = write_state(export, error);
	/* Sync after all writes: the first sync makes much of the rest durable too. */
	if (!rc)
		rc = sync_elements(export, error);
	for (size_t i = 0; i < n && !rc; i++)
		rc = tree_sync(&export->tree, export->params.all[i].name, error);
	if (!rc)
		rc = tree_sync(&export->tree, UNIVERSAL_STATE, error);
	if (!rc)
		rc = tree_commit(&export->tree, error);
	if (!rc)
		rc = draft_write(export->aio, export->latest, export->tag, strlen(export->tag),
				 error);
	return rc ? rc : sync_directory(export->latest, error);
}

int nvs_checkpoint_export_universal(struct nvs_optimizer *optimizer,
				    const struct nvs_checkpoint_param *params, size_t n,
				    const char *path, const struct nvs_universal_options *options,
				    struct nvs_error *error)
{
	HOLD_CANCEL;
	struct export_job export = {.tree = {.top = -1, .zero = -1}};
	int rc = universal_options_in(&export.options, options, error);

	/* A rank that fails still meets the others, or they would wait for it. */
	rc = ranks_meet(&export.options, rc, 0, error);
	if (!rc) {
		rc = begin_export(&export, optimizer, params, n, path, error);
		rc = ranks_meet(&export.options, rc, params_sum(&export.params), error);
	}
	if (!rc)
		rc = cover_check(&export.params, &export.options, export.runs, error);
	if (!rc) {
		struct state_move move = {.fragments = export.params.fragments,
					  .nfragments = export.params.nfragments,
					  .submit = submit_write,
					  .release = open_files_release,
					  .arg = &export};

		rc = export.options.rank ? tree_open(&export.tree, export.path, true, error) : 0;

		open_files_begin(&export.files, export.aio, &export.tree, &export.params, O_RDWR,
				 NULL);
		if (!rc)
			rc = state_move_run(&move, export.optimizer, error);
		open_files_end(&export.files);
		rc = rc || !export.options.rank ? rc : sync_elements(&export, error);
		if (!rc)
			rc = check_step_since(optimizer, export.step, error);
		rc = ranks_meet(&export.options, rc, 0, error);
	}
	if (!rc)
		rc = combine_sums(&export, error);
	if (!rc) {
		rc = export.options.rank ? 0 : complete_tree(&export, error);
		rc = ranks_meet(&export.options, rc, 0, error);
	}
	tree_close(&export.tree);
	params_free(&export.params);
	free(export.runs);
	free(export.sums);
	free(export.data_at);
	free(export.latest);
	free(export.path);
	return rc;
}
