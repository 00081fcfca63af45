/* SPDX-License-Identifier: Apache-2.0 */
/* Exports the state of an optimizer to .safetensors files, and imports it from them. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "checkpoint/state/state_move.h"

#define STEPS_MAX ((UINT64_C(1) << 53) - 1)

/* The groups of an optimizer, each with its parts as tensors of a checkpoint. */
struct groups {
	struct nvs_optimizer *optimizer;
	struct nvs_aio *aio;
	struct piece *pieces; /* each a whole group */
	size_t n;
	uint64_t step;
	const struct entry **entries; /* the parts of group 0, of group 1 and so on */
	struct writing *writing;      /* NULL: importing */
	struct reading *reading;      /* NULL: exporting */
};

static int name_of(struct nvs_optimizer *optimizer, size_t i, char name[NVS_NAME_MAX + 16],
		   uint64_t *numel)
{
	struct nvs_group_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_group_info(optimizer, i / PARTS, &info, NULL);

	if (rc)
		return rc;
	snprintf(name, NVS_NAME_MAX + 16, "%s.%s", info.name, part_names[i % PARTS]);
	*numel = info.numel;
	return 0;
}

static int plan(struct writing *writing, struct nvs_optimizer *optimizer, size_t n,
		struct nvs_error *error)
{
	struct nvs_checkpoint *checkpoint = &writing->plan;
	char name[NVS_NAME_MAX + 16];
	uint64_t numel;
	int rc = 0;

	assert(checkpoint->entries);
	for (size_t i = 0; i <= n && !rc; i++) {
		struct entry *entry = &checkpoint->entries[i];

		if (i == n)
			rc = entry_make(entry, "step", NVS_U64, 1, NULL, 0);
		else
			rc = name_of(optimizer, i, name, &numel) ||
			     entry_make(entry, name, NVS_F32, numel, NULL, 0);
		if (rc)
			return error_set(error, -ENOMEM, "no memory for the names of tensors");
		checkpoint->nbytes += entry->nbytes;
		checkpoint->n++;
	}
	return 0;
}

static void end(struct groups *groups)
{
	free(groups->entries);
	free(groups->pieces);
	groups->entries = NULL;
	groups->pieces = NULL;
}

static int begin(struct groups *groups, struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (rc)
		return rc;
	groups->optimizer = optimizer;
	groups->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	groups->step = info.step;
	groups->entries = calloc(info.ngroups * PARTS, sizeof(*groups->entries));
	groups->pieces = calloc(info.ngroups, sizeof(*groups->pieces));
	if (!groups->entries || !groups->pieces) {
		end(groups);
		return error_set(error, -ENOMEM, "no memory for the names of tensors");
	}
	for (; groups->n < info.ngroups; groups->n++) {
		rc = nvs_optimizer_get_group_info(optimizer, groups->n, &group, NULL);
		assert(!rc);
		groups->pieces[groups->n] = (struct piece){.group = groups->n,
							   .numel = group.numel};
	}
	return 0;
}

/* An I/O writes to, or read from, its place in a file. */
static int submit(struct state_move *move, struct state_io *io, struct nvs_error *error)
{
	const struct groups *groups = move->arg;
	const struct entry *entry = groups->entries[io->piece * PARTS + io->part];
	uint64_t nbytes = io->numel * sizeof(float), at = io->at * sizeof(float);
	int rc;

	assert(at + nbytes <= entry->nbytes);
	if (groups->writing)
		return sink_write(&groups->writing->drafts[entry->file].sink, move->aio, io->data,
				  nbytes, entry->offset + at, io->requests, &io->n, error);
	rc = nvs_aio_pread(move->aio, groups->reading->files[entry->file], io->data, nbytes,
			   entry->offset + at, io->requests, error);
	io->n = !rc;
	return rc;
}

static int move_all(struct groups *groups, struct nvs_error *error)
{
	struct state_move move = {.pieces = groups->pieces,
				  .npieces = groups->n,
				  .importing = groups->reading != NULL,
				  .submit = submit,
				  .arg = groups};

	return state_move_run(&move, groups->optimizer, error);
}

static int export(struct groups *groups, struct nvs_error *error)
{
	struct writing *writing = groups->writing;
	size_t n = writing->plan.n - 1;
	const struct entry *entry = &writing->plan.entries[n];
	uint8_t bytes[sizeof(groups->step)];
	int rc;

	for (size_t i = 0; i < n; i++)
		groups->entries[i] = &writing->plan.entries[i];
	put_u64(bytes, groups->step);
	rc = sink_write_now(&writing->drafts[entry->file].sink, groups->aio, bytes, sizeof(bytes),
			    entry->offset, error);
	if (!rc)
		rc = move_all(groups, error);
	return rc ? rc : writing_commit(writing, error);
}

int nvs_checkpoint_export_optimizer(struct nvs_optimizer *optimizer, const char *path,
				    const struct nvs_checkpoint_options *options,
				    struct nvs_error *error)
{
	struct writing writing = {0};
	struct groups groups = {.writing = &writing};
	struct nvs_checkpoint_options chosen;
	int rc = path ? options_in(&chosen, options, error)
		      : error_set(error, -EINVAL, "path is NULL");

	if (!rc)
		rc = begin(&groups, optimizer, error);
	if (rc)
		return rc;
	writing.plan.entries = calloc(groups.n * PARTS + 1, sizeof(struct entry));
	if (!writing.plan.entries)
		rc = error_set(error, -ENOMEM, "no memory for the names of tensors");
	if (!rc)
		rc = plan(&writing, optimizer, groups.n * PARTS, error);
	if (!rc)
		rc = writing_begin(&writing, groups.aio, path, &chosen, error);
	if (!rc)
		rc = export(&groups, error);
	writing_end(&writing);
	end(&groups);
	return rc;
}

static int find_part(struct groups *groups, size_t i, struct nvs_error *error)
{
	char name[NVS_NAME_MAX + 16];
	const struct entry *entry;
	uint64_t numel;
	int rc = name_of(groups->optimizer, i, name, &numel);

	assert(groups->entries);
	if (rc)
		return error_set(error, rc, "no such group");
	entry = checkpoint_find(groups->reading->checkpoint, name);
	groups->entries[i] = entry;
	if (!entry)
		return error_about(error, -ENOENT, name, 0, 0, "the checkpoint has no tensor %s",
				   name);
	if (entry->dtype != NVS_F32 || entry->numel != numel)
		return error_about(error, -ESTALE, name, 0, 0,
				   "%s: the checkpoint has %llu elements of %s, the optimizer has "
				   "%llu of F32",
				   name, (unsigned long long)entry->numel,
				   nvs_dtype_name(entry->dtype), (unsigned long long)numel);
	return 0;
}

static int read_step(struct groups *groups, uint64_t *step, struct nvs_error *error)
{
	const struct entry *entry = checkpoint_find(groups->reading->checkpoint, "step");
	struct nvs_request *request;
	uint8_t bytes[sizeof(*step)];
	int rc;

	if (!entry)
		return error_about(error, -ENOENT, "step", 0, 0,
				   "the checkpoint has no tensor step");
	if (entry->dtype != NVS_U64 || entry->numel != 1)
		return error_about(error, -ESTALE, "step", 0, 0,
				   "the tensor step must be one element of U64");
	rc = nvs_aio_pread(groups->aio, groups->reading->files[entry->file], bytes, sizeof(bytes),
			   entry->offset, &request, error);
	if (!rc)
		rc = requests_finish(groups->aio, &request, 1, error);
	if (rc)
		return rc;
	*step = get_u64(bytes);
	if (*step > STEPS_MAX)
		return error_about(error, -ERANGE, "step", 0, 0,
				   "the checkpoint counts %llu steps; allowed are up to 2^53 - 1",
				   (unsigned long long)*step);
	return 0;
}

static int import(struct groups *groups, const struct nvs_checkpoint *checkpoint,
		  struct nvs_error *error)
{
	uint64_t step = 0;
	int rc = reading_begin(groups->reading, groups->aio, checkpoint, error);

	for (size_t i = 0; i < groups->n * PARTS && !rc; i++)
		rc = find_part(groups, i, error);
	if (!rc)
		rc = read_step(groups, &step, error);
	if (!rc)
		rc = move_all(groups, error);
	return rc ? rc : nvs_optimizer_set_step(groups->optimizer, step, error);
}

int nvs_checkpoint_import_optimizer(struct nvs_optimizer *optimizer,
				    const struct nvs_checkpoint *checkpoint,
				    struct nvs_error *error)
{
	struct reading reading = {0};
	struct groups groups = {.reading = &reading};
	int rc;

	if (!checkpoint)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	if (checkpoint->of_torch)
		return error_set(
			error, -ENOTSUP,
			"%s: the state of an optimizer is imported from .safetensors files",
			checkpoint->paths[0]);
	rc = begin(&groups, optimizer, error);
	if (rc)
		return rc;
	rc = import(&groups, checkpoint, error);
	reading_end(&reading);
	end(&groups);
	return rc;
}
