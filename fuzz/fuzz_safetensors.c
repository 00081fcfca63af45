/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind its first byte, the input is a file (if the byte is even), or a header to which the length
 * and the data it asks for are added. Accepted input is complete: tensors fill the data end to end,
 * and one byte more or less is refused; after a refused one, no file is open.
 */
#include <assert.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/modes/model/model.h"

static int file = -1; /* in memory, opened through `path` */
static char path[32];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void make_file(const void *head, size_t head_bytes, const uint8_t *data, size_t nbytes,
		      uint64_t behind)
{
	if (file < 0) {
		file = memfd_create("input", MFD_CLOEXEC);
		assert(file >= 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	}
	assert(!ftruncate(file, 0));
	assert(pwrite(file, head, head_bytes, 0) == (ssize_t)head_bytes);
	assert(pwrite(file, data, nbytes, (off_t)head_bytes) == (ssize_t)nbytes);
	assert(!ftruncate(file, (off_t)(head_bytes + nbytes + behind)));
}

static int load(struct model *model)
{
	struct nvs_error error = {.size = sizeof(error)};
	int rc = model_load(model, path, &error);

	if (rc) {
		assert(rc < 0 && error.code == rc);
		assert(*error.text && memchr(error.text, 0, sizeof(error.text)));
		assert(!model->nfiles && !model->tensors && !model->n);
	}
	return rc;
}

static void check_tensor(const struct model *model, size_t index)
{
	const struct model_tensor *tensor = &model->tensors[index];
	size_t length = strlen(tensor->name);

	assert(length && length <= NVS_NAME_MAX);
	assert(tensor->dtype < NVS_DTYPE_COUNT);
	assert((unsigned __int128)tensor->numel * nvs_dtype_size(tensor->dtype) == tensor->nbytes);
	for (size_t i = 0; i < index; i++) {
		const struct model_tensor *other = &model->tensors[i];

		assert(strcmp(other->name, tensor->name) != 0);
		assert(!model->nfiles ||
		       tensor->file_offset + tensor->nbytes <= other->file_offset ||
		       other->file_offset + other->nbytes <= tensor->file_offset);
	}
}

static void check_ends(const struct model *model, const struct model_tensor *tensor)
{
	uint8_t byte;

	if (!tensor->nbytes)
		return;
	assert(!model_read(model, tensor, 0, &byte, 1,
			   &(struct nvs_error){.size = sizeof(struct nvs_error)}));
	assert(!model_read(model, tensor, tensor->nbytes - 1, &byte, 1,
			   &(struct nvs_error){.size = sizeof(struct nvs_error)}));
}

static void check_accepted(const struct model *model)
{
	uint64_t sum = 0;

	assert(model->n && model->nbytes <= MODEL_BYTES_MAX);
	for (size_t i = 0; i < model->n; i++) {
		check_tensor(model, i);
		sum += model->tensors[i].nbytes;
		if (model->nfiles)
			check_ends(model, &model->tensors[i]);
	}
	assert(sum == model->nbytes);
}

/* Loads a header with `bytes` of data behind it. */
static int load_header(struct model *model, const uint8_t *json, size_t nbytes, uint64_t behind)
{
	uint64_t length = htole64(nbytes);

	make_file(&length, sizeof(length), json, nbytes, behind);
	return load(model);
}

static void try_header(const uint8_t *json, size_t nbytes)
{
	struct model shapes, model;
	uint64_t data_bytes = 0;
	bool known;

	/* With a 0 among its first eight bytes, the file is not JSON for the reader. */
	if (nbytes < 8 || memchr(json, 0, 8))
		return;
	make_file(NULL, 0, json, nbytes, 0);
	known = !load(&shapes);
	if (known) {
		check_accepted(&shapes);
		data_bytes = shapes.nbytes;
		model_free(&shapes);
	}
	if (load_header(&model, json, nbytes, data_bytes))
		return;
	assert(known && model.nfiles == 1 && model.nbytes == data_bytes);
	check_accepted(&model);
	model_free(&model);
	assert(load_header(&model, json, nbytes, data_bytes + 1));
	assert(!data_bytes || load_header(&model, json, nbytes, data_bytes - 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct model model;

	if (!nbytes)
		return 0;
	if (data[0] % 2) {
		try_header(data + 1, nbytes - 1);
		return 0;
	}
	make_file(NULL, 0, data + 1, nbytes - 1, 0);
	if (!load(&model)) {
		check_accepted(&model);
		model_free(&model);
	}
	return 0;
}
