/* SPDX-License-Identifier: Apache-2.0 */
/* Names alone decide which tensors belong to a series of layers, in any order of the file. */
#include "cli/modes/model/model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory/array.h"
#include "base/numbers.h"

/* Adds the tensor, and takes its name, which may be NULL without memory. */
static int add_tensor(struct model *model, size_t *room, struct model_tensor tensor)
{
	struct model_tensor *tensors = array_room(model->tensors, model->n, room,
						  sizeof(*model->tensors));

	if (tensors)
		model->tensors = tensors;
	if (!tensors || !tensor.name) {
		free(tensor.name);
		return -ENOMEM;
	}
	model->tensors[model->n++] = tensor;
	model->nbytes += tensor.nbytes;
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	return 0;
}

int model_load(struct model *model, const char *path, struct nvs_error *error)
{
	struct nvs_checkpoint_tensor from = {.size = sizeof(from)};
	struct nvs_checkpoint *checkpoint = NULL;
	size_t room = 0;
	int rc = nvs_checkpoint_open(&checkpoint, path, error);

	*model = (struct model){.path = path};
	for (size_t i = 0; !rc && !nvs_checkpoint_get(checkpoint, i, &from); i++) {
		/* A store has elements of whole bytes. */
		bool packed = !nvs_dtype_size(from.dtype);

		rc = add_tensor(model, &room,
				(struct model_tensor){.name = strdup(from.name),
						      .dtype = packed ? NVS_U8 : from.dtype,
						      .numel = packed ? from.nbytes : from.numel,
						      .nbytes = from.nbytes,
						      .rows = from.ndim > 1 ? from.shape[0] : 0});
		if (rc)
			error_set(error, rc, "no memory for the header of %s", path);
	}
	nvs_checkpoint_close(checkpoint);
	if (!rc && !model->n)
		rc = error_set(error, -EINVAL, "%s: holds no tensor", path);
	if (rc)
		model_free(model);
	return rc;
}

int model_make(struct model *model, uint64_t tensor_size, uint64_t n, uint64_t nbytes,
	       struct nvs_error *error)
{
	size_t room = 0;
	int rc = 0;

	assert(tensor_size && (n || nbytes));
	*model = (struct model){.path = NULL};
	while (!rc && (nbytes ? model->nbytes < nbytes : model->n < n)) {
		struct model_tensor tensor = {.dtype = NVS_U8, .nbytes = tensor_size};

		if (nbytes)
			tensor.nbytes = min_u64(tensor.nbytes, nbytes - model->nbytes);
		tensor.numel = tensor.nbytes;
		if (tensor.nbytes > MODEL_BYTES_MAX - model->nbytes) {
			rc = error_set(error, -EINVAL,
				       "the made-up tensors have more than the %llu bytes that are "
				       "allowed",
				       MODEL_BYTES_MAX);
		} else if (model->n == MODEL_TENSORS_MAX) {
			rc = error_set(error, -E2BIG,
				       "more than the %u made-up tensors that are allowed: give a "
				       "smaller size",
				       MODEL_TENSORS_MAX);
		} else {
			if (asprintf(&tensor.name, "tensor.%zu", model->n) < 0)
				tensor.name = NULL;
			rc = add_tensor(model, &room, tensor);
			if (rc)
				error_set(error, rc, "no memory for the names of %zu tensors",
					  model->n + 1);
		}
	}
	if (rc)
		model_free(model);
	return rc;
}

void model_free(struct model *model)
{
	for (size_t i = 0; i < model->n; i++)
		free(model->tensors[i].name);
	free(model->tensors);
	*model = (struct model){.path = NULL};
}

void model_limit(struct model *model, uint64_t nbytes)
{
	uint64_t kept = 0;
	size_t n = 0;

	while (n < model->n &&
	       (!n || (kept <= nbytes && model->tensors[n].nbytes <= nbytes - kept)))
		kept += model->tensors[n++].nbytes;
	for (size_t i = n; i < model->n; i++)
		free(model->tensors[i].name);
	model->n = n;
	model->nbytes = kept;
}

const struct model_tensor *model_largest(const struct model *model)
{
	const struct model_tensor *largest = &model->tensors[0];

	for (size_t i = 1; i < model->n; i++)
		if (model->tensors[i].nbytes > largest->nbytes)
			largest = &model->tensors[i];
	return largest;
}

uint64_t model_trained(const struct model *model, enum nvs_dtype dtype)
{
	uint64_t numel = 0;

	for (size_t i = 0; i < model->n; i++) {
		const struct model_tensor *tensor = &model->tensors[i];

		if (!model->path)
			numel += tensor->nbytes / nvs_dtype_size(dtype);
		else if (tensor->dtype <= NVS_F8_E5M2)
			numel += tensor->numel;
	}
	return numel;
}

/* ---- Layers ---- */

#define DIGITS_MAX 18 /* a number of that many digits fits in 64 bits */

/* A tensor and the first number in its name, between dots or at either end: "model.layers.12.norm"
 * is number 12 of the series "model.layers.". */
struct numbered {
	struct model_tensor *tensor;
	bool has_number;
	size_t prefix; /* length of the series' name */
	uint64_t number;
};

static struct numbered find_number(struct model_tensor *tensor)
{
	for (const char *at = tensor->name, *dot; at; at = dot ? dot + 1 : NULL) {
		size_t digits = strspn(at, "0123456789");

		dot = strchr(at, '.');
		if (digits && digits <= DIGITS_MAX && (!at[digits] || at + digits == dot))
			return (struct numbered){.tensor = tensor,
						 .has_number = true,
						 .prefix = (size_t)(at - tensor->name),
						 .number = strtoull(at, NULL, 10)};
	}
	return (struct numbered){.tensor = tensor};
}

/* Bytes of the name before the dot behind its first number; 0: there is no such dot. */
static size_t layer_prefix(struct model_tensor *tensor)
{
	struct numbered found = find_number(tensor);
	const char *dot = found.has_number ? strchr(tensor->name + found.prefix, '.') : NULL;

	return dot ? (size_t)(dot - tensor->name) : 0;
}

struct layer model_layer(const struct model *model, size_t first)
{
	struct layer layer = {.first = first};
	struct model_tensor *tensors = model->tensors;
	size_t prefix = layer_prefix(&tensors[first]), i = first;

	do {
		layer.n++;
		layer.nbytes += tensors[i].nbytes;
		layer.room += model_room(&tensors[i]);
	} while (++i < model->n && prefix &&
		 !strncmp(tensors[first].name, tensors[i].name, prefix + 1));
	return layer;
}

void model_layer_name(const struct model *model, const struct layer *layer, char *name,
		      size_t nbytes)
{
	struct model_tensor *first = &model->tensors[layer->first];
	size_t prefix = layer_prefix(first);

	snprintf(name, nbytes, "%.*s", (int)(prefix ? prefix : strlen(first->name)), first->name);
}

/* Those without a number come first. */
static int order_series(const struct numbered *left, const struct numbered *right)
{
	if (left->has_number != right->has_number)
		return left->has_number ? 1 : -1;
	if (left->prefix != right->prefix)
		return left->prefix < right->prefix ? -1 : 1;
	return memcmp(left->tensor->name, right->tensor->name, left->prefix);
}

static int by_series(const void *a, const void *b)
{
	const struct numbered *left = a, *right = b;
	int order = order_series(left, right);

	return order ? order : (left->number > right->number) - (left->number < right->number);
}

static uint64_t share_of(uint64_t n, double share)
{
	uint64_t kept = (uint64_t)round((double)n * share);

	return kept < 1 ? 1 : kept < n ? kept : n;
}

int model_scale(struct model *model, double share)
{
	struct numbered *all = calloc(model->n, sizeof(*all));
	size_t n = 0;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < model->n; i++)
		all[i] = find_number(&model->tensors[i]);
	qsort(all, model->n, sizeof(*all), by_series);
	for (size_t first = 0, end; first < model->n; first = end) {
		uint64_t from = all[first].number, kept;

		for (end = first + 1; end < model->n && !order_series(&all[first], &all[end]);)
			end++;
		kept = share_of(all[end - 1].number - from + 1, share);
		for (size_t i = first; i < end; i++) {
			struct model_tensor *tensor = all[i].tensor;

			if (!all[i].has_number && tensor->rows) {
				uint64_t rows = share_of(tensor->rows, share);

				tensor->numel = tensor->numel / tensor->rows * rows;
				tensor->nbytes = tensor->nbytes / tensor->rows * rows;
				tensor->rows = rows;
			} else if (all[i].number - from >= kept) {
				free(tensor->name);
				tensor->name = NULL;
			}
		}
	}
	free(all);
	model->nbytes = 0;
	for (size_t i = 0; i < model->n; i++)
		if (model->tensors[i].name) {
			model->nbytes += model->tensors[i].nbytes;
			model->tensors[n++] = model->tensors[i];
		}
	model->n = n;
	return 0;
}

/* ---- Contents ---- */

#define LANES 8

/* Xorshift generators side by side, which compilers vectorize; not cryptographic. */
typedef uint64_t lanes __attribute__((vector_size(LANES * sizeof(uint64_t))));

static inline void step_lanes(lanes *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
}

void pattern_block(uint64_t seed, uint64_t subject, uint64_t generation, uint64_t block, void *data,
		   size_t nbytes)
{
	const uint64_t parts[] = {subject, generation, block};
	uint64_t mixed = spread(&seed);
	char *to = data;
	lanes x = {0};

	for (size_t i = 0; i < COUNT_OF(parts); i++) {
		mixed ^= parts[i];
		mixed = spread(&mixed);
	}
	for (size_t i = 0; i < LANES; i++)
		x[i] = spread(&mixed) | 1; /* xorshift never leaves 0 */
	for (; nbytes >= sizeof(x); nbytes -= sizeof(x), to += sizeof(x)) {
		step_lanes(&x);
		memcpy(to, &x, sizeof(x));
	}
	step_lanes(&x);
	memcpy(to, &x, nbytes);
}

void pattern_fill(const struct pattern *pattern, size_t tensor, uint32_t generation, void *data)
{
	uint64_t nbytes = pattern->model->tensors[tensor].nbytes;

	for (uint64_t at = 0; at < nbytes; at += PATTERN_BLOCK_BYTES)
		pattern_block(pattern->seed, tensor, generation, at / PATTERN_BLOCK_BYTES,
			      (char *)data + at, min_u64(nbytes - at, PATTERN_BLOCK_BYTES));
}

int pattern_compare(const struct pattern *pattern, size_t tensor, uint32_t generation,
		    const void *data, struct nvs_error *error)
{
	const struct model_tensor *about = &pattern->model->tensors[tensor];
	static _Thread_local unsigned char expected[PATTERN_BLOCK_BYTES]
		__attribute__((aligned(64)));

	for (uint64_t at = 0; at < about->nbytes; at += PATTERN_BLOCK_BYTES) {
		const unsigned char *found = (const unsigned char *)data + at;
		size_t nbytes = min_u64(about->nbytes - at, PATTERN_BLOCK_BYTES), i = 0;

		pattern_block(pattern->seed, tensor, generation, at / PATTERN_BLOCK_BYTES, expected,
			      nbytes);
		if (!memcmp(found, expected, nbytes))
			continue;
		while (found[i] == expected[i])
			i++;
		*error = (struct nvs_error){
			.size = sizeof(*error), .code = -EBADMSG, .offset = at + i};
		snprintf(error->subject, sizeof(error->subject), "%s", about->name);
		snprintf(error->text, sizeof(error->text),
			 "tensor %s: byte %llu of %llu is 0x%02x and should be 0x%02x", about->name,
			 (unsigned long long)at + i, (unsigned long long)about->nbytes, found[i],
			 expected[i]);
		return -EBADMSG;
	}
	return 0;
}
