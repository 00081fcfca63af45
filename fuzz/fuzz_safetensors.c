/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind its first byte, the input is a file (if the byte is even), or a header to which the length
 * and the data it asks for are added. Accepted input is complete: tensors fill the data end to end,
 * and one byte more or less is refused.
 */
#include <assert.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocations.h"
#include "base/json/read.h"
#include "checkpoint/checkpoint.h"

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

/* NULL: refused. */
static struct nvs_checkpoint *load(void)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_checkpoint *checkpoint;
	int rc = nvs_checkpoint_open(&checkpoint, path, &error);

	if (rc) {
		assert(rc < 0 && error.code == rc);
		assert(*error.text && memchr(error.text, 0, sizeof(error.text)));
		assert(!checkpoint);
	}
	return checkpoint;
}

static void check_tensor(const struct nvs_checkpoint *checkpoint, size_t index, bool has_data)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)}, other = tensor;
	size_t length;
	uint8_t byte;

	assert(!nvs_checkpoint_get(checkpoint, index, &tensor));
	length = strlen(tensor.name);
	assert(length && length <= NVS_NAME_MAX);
	assert(tensor.dtype < NVS_DTYPE_COUNT);
	assert((unsigned __int128)tensor.numel * nvs_dtype_bits(tensor.dtype) ==
	       (unsigned __int128)tensor.nbytes * 8);
	assert(has_data == !!tensor.path);
	assert(!has_data || !tensor.nbytes ||
	       (pread(file, &byte, 1, (off_t)tensor.offset) == 1 &&
		pread(file, &byte, 1, (off_t)(tensor.offset + tensor.nbytes - 1)) == 1));
	for (size_t i = 0; i < index; i++) {
		assert(!nvs_checkpoint_get(checkpoint, i, &other));
		assert(strcmp(other.name, tensor.name) != 0);
		assert(!has_data || tensor.offset + tensor.nbytes <= other.offset ||
		       other.offset + other.nbytes <= tensor.offset);
	}
}

/* Returns the bytes of all tensors, and closes the checkpoint. */
static uint64_t check_accepted(struct nvs_checkpoint *checkpoint)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	uint64_t sum = 0;

	for (size_t i = 0; !nvs_checkpoint_get(checkpoint, i, &tensor); i++) {
		check_tensor(checkpoint, i, !!tensor.path);
		sum += tensor.nbytes;
	}
	assert(sum <= 1ull << 59);
	nvs_checkpoint_close(checkpoint);
	return sum;
}

/* Loads a header with `bytes` of data behind it. */
static struct nvs_checkpoint *load_header(const uint8_t *json, size_t nbytes, uint64_t behind)
{
	uint64_t length = htole64(nbytes);

	make_file(&length, sizeof(length), json, nbytes, behind);
	return load();
}

static void try_header(const uint8_t *json, size_t nbytes)
{
	struct nvs_checkpoint_tensor first = {.size = sizeof(first)};
	struct nvs_checkpoint *shapes, *model;
	uint64_t data_bytes = 0;

	/* With a 0 among its first eight bytes, the file is not JSON for the reader. */
	if (nbytes < 8 || memchr(json, 0, 8))
		return;
	make_file(NULL, 0, json, nbytes, 0);
	shapes = load();
	if (shapes)
		data_bytes = check_accepted(shapes);
	model = load_header(json, nbytes, data_bytes);
	if (!model)
		return;
	/* A file may have no tensors that are listed; a header alone may not. */
	if (!nvs_checkpoint_count(model)) {
		nvs_checkpoint_close(model);
		return;
	}
	assert(shapes && !nvs_checkpoint_get(model, 0, &first) && first.path);
	assert(check_accepted(model) == data_bytes);
	assert(!load_header(json, nbytes, data_bytes + 1));
	assert(!data_bytes || !load_header(json, nbytes, data_bytes - 1));
}

/* A header is read up to three times. */
size_t allocated_most(size_t nbytes)
{
	return 3 * HEADER_BYTES(nbytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct nvs_checkpoint *checkpoint;

	if (!nbytes)
		return 0;
	if (data[0] % 2) {
		try_header(data + 1, nbytes - 1);
		return 0;
	}
	make_file(NULL, 0, data + 1, nbytes - 1, 0);
	checkpoint = load();
	if (checkpoint)
		check_accepted(checkpoint);
	return 0;
}
