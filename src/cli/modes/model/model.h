/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a benchmark swaps: those of a model's files, of a JSON file in the form of a
 * .safetensors header, or generated ones. Their contents are generated. */
#ifndef CLI_MODES_MODEL_MODEL_H
#define CLI_MODES_MODEL_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "cli/options/options.h"

#define MODEL_TENSORS_MAX (16u << 20)
/* Below this limit, rounding up and counting elements of any type cannot overflow. */
#define MODEL_BYTES_MAX (1ull << 59)

struct model_tensor {
	char *name;
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t rows; /* the first dimension, if there are two or more; else 0 */
};

struct model {
	const char *path; /* NULL: generated */
	struct model_tensor *tensors;
	size_t n;
	uint64_t nbytes;
	size_t n_whole; /* number of tensors before model_limit and model_scale */
	uint64_t nbytes_whole;
};

/* Reads and checks a model's headers, as nvs_checkpoint_open. `path` stays the caller's. -EINVAL
 * and errno of opening and reading, with file and tensor in *error, and no model to free. */
int model_load(struct model *model, const char *path, struct nvs_error *error);
/* Generates `n` tensors of dtype U8 and that size, or, if `nbytes` is not 0, as many as have that
 * many bytes together. -ENOMEM; -EINVAL above MODEL_BYTES_MAX, -E2BIG above MODEL_TENSORS_MAX. */
int model_make(struct model *model, uint64_t tensor_size, uint64_t n, uint64_t nbytes,
	       struct nvs_error *error);
void model_free(struct model *model);

/* Keeps the first tensors with at most `nbytes` together, at least one. */
void model_limit(struct model *model, uint64_t nbytes);
/* Shrinks the model and keeps its proportions: of each series of layers, the first ones complete;
 * of tensors outside any series, the first rows; those of one dimension complete. At least one
 * layer and one row remain. -ENOMEM. */
int model_scale(struct model *model, double share);
const struct model_tensor *model_largest(const struct model *model);
/* Bytes that a tensor takes in the pool: whole pages. */
static inline uint64_t model_pages(uint64_t nbytes)
{
	return (nbytes + 4095) & ~(uint64_t)4095;
}
static inline uint64_t model_room(const struct model_tensor *tensor)
{
	return model_pages(tensor->nbytes);
}

/* Elements that rw=step trains. Generated tensors count as `dtype`, integers of a file not at
 * all. */
uint64_t model_trained(const struct model *model, enum nvs_dtype dtype);

/* A layer: neighbours whose names agree through the first number between dots ("model.layers.12.",
 * "h.3."). Every other tensor is its own layer. */
struct layer {
	size_t first, n; /* first tensor and number of tensors */
	uint64_t nbytes;
	uint64_t room; /* maximum number of bytes that it takes in the pool */
};

struct layer model_layer(const struct model *model, size_t first);
/* Writes the layer's name for reports, without the last dot; truncated if `name` is too short. */
void model_layer_name(const struct model *model, const struct layer *layer, char *name,
		      size_t nbytes);

/* ---- Contents: random bytes of a seed, tensor and generation, on any machine ---- */

struct pattern {
	const struct model *model;
	uint64_t seed;
};

/* Generates the tensor's contents into `data`. Generations differ in every 64-byte line. */
void pattern_fill(const struct pattern *pattern, size_t tensor, uint32_t generation, void *data);
/* Compares `data` with what pattern_fill generates. -EBADMSG: they differ; *error has the tensor,
 * the first differing byte and both values. */
int pattern_compare(const struct pattern *pattern, size_t tensor, uint32_t generation,
		    const void *data, struct nvs_error *error);

#define PATTERN_BLOCK_BYTES 65536u
/* Bytes determined by the four numbers, without a model. */
void pattern_block(uint64_t seed, uint64_t subject, uint64_t generation, uint64_t block, void *data,
		   size_t nbytes);

/* splitmix64: the next number of a state. */
static inline uint64_t spread(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

#endif
