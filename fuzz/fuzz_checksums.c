/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind its first byte, which says how many tensors the model has, the input is a file of
 * checksums. What is accepted has a checksum of each tensor with bytes, and is the same when it is
 * written anew.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocations.h"
#include "base/json/read.h"
#include "checkpoint/checkpoint.h"

#define TENSORS	    3u
#define MODEL_BYTES 1000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* A model of up to three tensors, of which the last one is empty. */
static struct nvs_checkpoint make_model(size_t n)
{
	static const char *const names[TENSORS] = {"a", "layers.0.weight", "c"};
	struct nvs_checkpoint model = {.paths = calloc(1, sizeof(*model.paths)),
				       .stamps = calloc(1, sizeof(*model.stamps)),
				       .nfiles = 1,
				       .entries = calloc(TENSORS, sizeof(*model.entries)),
				       .n = n};

	assert(n <= TENSORS && model.paths && model.stamps && model.entries);
	model.paths[0] = strdup("model.safetensors");
	model.stamps[0].nbytes = MODEL_BYTES;
	for (size_t i = 0; i < n; i++) {
		assert(!entry_make(&model.entries[i], names[i], NVS_U8, i < 2 ? 100 : 0, NULL, 1));
		model.entries[i].nbytes = i < 2 ? 100 : 0;
	}
	assert(!checkpoint_sort(&model, "model.safetensors", NULL));
	return model;
}

static int load(struct nvs_checkpoint *model, const void *text, size_t nbytes)
{
	static int file = -1;
	struct nvs_error error = {.size = sizeof(error)};
	int rc;

	if (file < 0)
		file = memfd_create("input", MFD_CLOEXEC);
	assert(file >= 0 && !ftruncate(file, 0));
	assert(pwrite(file, text, nbytes, 0) == (ssize_t)nbytes);
	rc = checksums_read(model, 0, "model.safetensors.checksums", file, nbytes, &error);
	assert(!rc || rc == -EINVAL || rc == -ESTALE);
	if (rc) {
		assert(error.code == rc);
		assert(*error.text && memchr(error.text, 0, sizeof(error.text)));
	}
	return rc;
}

static void check_accepted(const struct nvs_checkpoint *model)
{
	struct nvs_checkpoint again = make_model(model->n);
	char text[512], *end = text;

	end += sprintf(end, "{\"format\":\"nvswap checksums 1\",\"bytes\":%u,\"xxh3\":{",
		       MODEL_BYTES);
	for (size_t i = 0; i < model->n; i++) {
		const struct entry *entry = &model->entries[i];

		assert(entry->has_xxh3 || !entry->nbytes);
		end += sprintf(end, "%s\"%s\":\"%016" PRIx64 "\"", i ? "," : "", entry->name,
			       entry->xxh3);
	}
	end += sprintf(end, "}}");
	assert(!load(&again, text, (size_t)(end - text)));
	for (size_t i = 0; i < model->n; i++)
		assert(again.entries[i].xxh3 == model->entries[i].xxh3);
	checkpoint_free(&again);
}

/* Two models, and a file that is written anew, beside the input. */
size_t allocated_most(size_t nbytes)
{
	return HEADER_BYTES(nbytes) + HEADER_BYTES(512) + 4096;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct nvs_checkpoint model;

	if (!nbytes)
		return 0;
	model = make_model(data[0] % (TENSORS + 1));
	if (!load(&model, data + 1, nbytes - 1))
		check_accepted(&model);
	checkpoint_free(&model);
	return 0;
}
