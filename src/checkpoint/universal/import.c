/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the state of parameters from a universal checkpoint, which DeepSpeed may have written. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/threads/cancel.h"
#include "checkpoint/torch/torch.h"
#include "checkpoint/universal/universal.h"

/* A part of a parameter in its file: where its data lies. */
struct file_part {
	uint64_t offset;
	uint32_t crc;
	bool has_crc;
};

struct import_job {
	struct nvs_aio *aio;
	struct params params;
	struct tree tree;
	struct open_files files;
	struct file_part *parts; /* the parts of parameter 0, of parameter 1 and so on */
	struct stamp *stamps;	 /* of their files */
	uint32_t *sums;		 /* of what was read */
};

static int damaged(const struct import_job *import, const struct param *param, unsigned part,
		   uint64_t offset, struct nvs_error *error)
{
	return error_about(error, -EBADMSG, param->name, 0, offset,
			   "%s/zero/%s/%s.pt: its bytes do not have the checksum that the file "
			   "states",
			   import->tree.path, param->name,
			   universal_part_name(import->params.rule, part));
}

/* Compares the storage that a parameter is a part of. */
static int check_storage(const struct import_job *import, const struct storage *storage, int fd,
			 const struct param *param, unsigned part, struct nvs_error *error)
{
	char *memory = huge_map(STORAGE_MEMORY, NULL);
	struct nvs_file *file = NULL;
	uint32_t crc = 0;
	int rc;

	if (!memory)
		return error_set(error, -ENOMEM, "no memory to read a storage of %s", param->name);
	rc = nvs_file_from_fd(import->aio, fd, 0, &file, error);
	if (!rc)
		rc = storage_sum(storage, import->aio, file, memory, &crc, error);
	nvs_file_close(file);
	munmap(memory, STORAGE_MEMORY);
	if (!rc && crc != storage->crc)
		rc = damaged(import, param, part, storage->offset, error);
	return rc;
}

/* What is read as a whole is compared with its checksum. */
static bool is_whole(const struct param *param)
{
	return param->numel && param->fragment.numel == param->numel;
}

/* DeepSpeed writes a tensor alone, or as "param" of a dictionary. */
static int find_part(struct import_job *import, size_t i, unsigned part, struct nvs_error *error)
{
	const struct param *param = &import->params.all[i];
	const char *tree = import->tree.path;
	struct nvs_checkpoint file = {0};
	char place[PLACE_MAX], path[PLACE_MAX + 8];
	const struct entry *entry = NULL;
	bool is_torch;
	int rc, fd;

	param_place(&import->params, param, part, place);
	snprintf(path, sizeof(path), "zero/%s", place);
	fd = tree_open_file(&import->tree, place, O_RDONLY, error);
	if (fd < 0)
		return fd;
	rc = torch_load_fd(&file, fd, path, &is_torch, error);
	if (!is_torch)
		rc = error_about(error, -EINVAL, param->name, 0, 0,
				 "%s: %s is no file of torch.save", tree, path);
	for (size_t j = 0; j < file.n && !rc && !entry; j++)
		if (!strcmp(file.entries[j].name, "tensor") ||
		    !strcmp(file.entries[j].name, "param"))
			entry = &file.entries[j];
	if (!rc && !entry)
		rc = error_about(error, -EINVAL, param->name, 0, 0,
				 "%s: the file of %s has no tensor \"param\"", tree, param->name);
	else if (!rc && (entry->dtype != NVS_F32 || entry->numel != param->numel))
		rc = error_about(error, -ESTALE, param->name, 0, 0,
				 "%s: parameter %s has %llu elements of %s there, and %llu of F32 "
				 "here",
				 tree, param->name, (unsigned long long)entry->numel,
				 nvs_dtype_name(entry->dtype), (unsigned long long)param->numel);
	/* A file with one dimension has the elements of a parameter of any shape. */
	else if (!rc && entry->ndim > 1)
		rc = entry_check_shape(entry, tree, param->name, param->shape, param->ndim, error);
	if (!rc) {
		assert(entry);
		import->parts[i * PARTS + part] = (struct file_part){
			.offset = entry->offset, .crc = entry->crc, .has_crc = entry->has_crc};
		import->stamps[i * PARTS + part] = file.stamps[0];
		if (is_whole(param) && entry_is_view(&file, entry))
			rc = check_storage(import, &file.storages[entry->storage], fd, param, part,
					   error);
	}
	checkpoint_free(&file);
	close(fd);
	return rc;
}

static int read_step(const struct import_job *import, uint64_t *step, struct nvs_error *error)
{
	static const char *const keys[] = {"optimizer_state_dict", "state", "0", "step", NULL};
	int rc, fd = tree_open_file(&import->tree, UNIVERSAL_STATE, O_RDONLY, error);

	if (fd < 0)
		return fd;
	rc = torch_read_count(fd, "zero/" UNIVERSAL_STATE, keys, step, error);
	close(fd);
	if (!rc && *step > STEPS_MAX)
		rc = error_about(error, -ERANGE, "step", 0, 0,
				 "%s counts %llu steps; allowed are up to 2^53 - 1",
				 import->tree.path, (unsigned long long)*step);
	return rc;
}

static int submit_read(struct state_move *move, struct state_io *io, struct nvs_error *error)
{
	struct import_job *import = move->arg;
	size_t owner = import->params.owners[io->fragment];
	int rc = open_files_take(&import->files, owner, io->part, &io->file, error);

	if (!rc)
		rc = nvs_aio_pread(move->aio, io->file->source, io->data, io->numel * sizeof(float),
				   import->parts[owner * PARTS + io->part].offset +
					   io->at * sizeof(float),
				   io->requests, error);
	io->n = !rc;
	return rc;
}

static void landed(struct state_move *move, const struct state_io *io)
{
	const struct import_job *import = move->arg;

	sum_add(import->sums, &import->params, io);
}

static int import_all(struct import_job *import, struct nvs_optimizer *optimizer,
		      struct nvs_error *error)
{
	const struct params *params = &import->params;
	struct state_move move = {.fragments = params->fragments,
				  .nfragments = params->nfragments,
				  .importing = true,
				  .submit = submit_read,
				  .landed = landed,
				  .release = open_files_release,
				  .arg = import};
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	uint64_t step = 0;
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (!rc)
		rc = read_step(import, &step, error);
	import->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	for (size_t i = 0; i < params->n && !rc; i++)
		for (unsigned part = 0;
		     part < params->rule->nparts && !rc && params->all[i].fragment.numel; part++)
			rc = find_part(import, i, part, error);
	open_files_begin(&import->files, import->aio, &import->tree, params, O_RDONLY,
			 import->stamps);
	if (!rc)
		rc = state_move_run(&move, optimizer, error);
	open_files_end(&import->files);
	for (size_t i = 0; i < params->n * PARTS && !rc; i++) {
		const struct param *param = &params->all[i / PARTS];
		const struct file_part *part = &import->parts[i];

		if (is_whole(param) && part->has_crc && import->sums[i] != part->crc)
			rc = damaged(import, param, (unsigned)(i % PARTS), part->offset, error);
	}
	if (!rc)
		rc = check_step_since(optimizer, info.step, error);
	return rc ? rc : nvs_optimizer_set_step(optimizer, step, error);
}

int nvs_checkpoint_import_universal(struct nvs_optimizer *optimizer,
				    const struct nvs_checkpoint_param *params, size_t n,
				    const char *path, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct import_job import = {.tree = {.top = -1, .zero = -1}};
	int rc = 0;

	if (!optimizer || !path)
		return error_set(error, -EINVAL, "%s is NULL", optimizer ? "path" : "optimizer");
	rc = params_read(&import.params, optimizer, params, n, error);
	if (!rc)
		rc = tree_open(&import.tree, path, false, error);
	if (!rc) {
		import.parts = calloc(n * PARTS, sizeof(*import.parts));
		import.stamps = calloc(n * PARTS, sizeof(*import.stamps));
		import.sums = calloc(n * PARTS, sizeof(*import.sums));
		rc = import.parts && import.stamps && import.sums
			     ? import_all(&import, optimizer, error)
			     : error_set(error, -ENOMEM, "no memory for %zu parameters", n);
	}
	tree_close(&import.tree);
	params_free(&import.params);
	free(import.parts);
	free(import.stamps);
	free(import.sums);
	return rc;
}
