/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors that a benchmark swaps: those of a .safetensors file, with their data; those that a
 * JSON file in the form of its header names, without; or made-up ones of one size.
 */
#ifndef CLI_MODEL_H
#define CLI_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

#define MODEL_HEADER_MAX  (100u << 20) /* as the safetensors library has it */
#define MODEL_TENSORS_MAX (16u << 20)
/* So that bytes can be rounded up and counted in any element type without a thought. */
#define MODEL_BYTES_MAX (1ull << 59)

struct model_tensor {
	char *name;
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t file_offset; /* of its data; where the model has data */
};

struct model {
	const char *path; /* NULL: made up */
	int fd;		  /* of the file with the data; -1: there is none */
	struct model_tensor *tensors;
	size_t n;
	uint64_t nbytes;
	size_t n_whole; /* before model_limit */
	uint64_t nbytes_whole;
};

/*
 * Reads a model's header and checks all of it. A file is a .safetensors by its name, else by its
 * contents. `path` stays the caller's. -EINVAL and errno of opening and reading, with the file and
 * the tensor in *error; *model needs no model_free then.
 */
int model_load(struct model *model, const char *path, struct nvs_error *error);
/*
 * Tensors of dtype U8, their sizes drawn by the shares of the mix, which has one at least: `n`, or,
 * where `nbytes` is not 0, as many as it takes to have so many bytes. -ENOMEM; -EINVAL above
 * MODEL_BYTES_MAX, -E2BIG above MODEL_TENSORS_MAX.
 */
int model_make(struct model *model, const struct option_mix *mix, uint64_t n, uint64_t nbytes,
	       uint64_t seed, struct nvs_error *error);
void model_free(struct model *model);

/* Keeps whole tensors from the first on, at least one, while they are `nbytes` or less together. */
void model_limit(struct model *model, uint64_t nbytes);
uint64_t model_largest(const struct model *model); /* bytes of the longest tensor */
/* What a tensor takes of the pool, at most: whole pages. */
static inline uint64_t model_room(const struct model_tensor *tensor)
{
	return (tensor->nbytes + 4095) & ~(uint64_t)4095;
}

/*
 * Reads a part of a tensor's data from the model's file. -ENODATA where the file has become shorter
 * since it was opened, -EIO and other errno of reading.
 */
int model_read(const struct model *model, const struct model_tensor *tensor, uint64_t offset,
	       void *data, size_t nbytes, struct nvs_error *error);

#endif
