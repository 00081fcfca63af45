/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models from headers, as the library reads them, and generated ones of tensors of one size, of which
 * the last one is shortened to the requested size.
 */
#include "cli/modes/model/model.h"

#include <assert.h>
#include <errno.h>
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
