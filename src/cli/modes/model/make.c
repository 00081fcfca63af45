/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated tensors of one size: a smaller model is a prefix of a larger one, except for its last
 * tensor, which is shortened to the requested size.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory/array.h"
#include "cli/modes/model/model.h"

static int add_tensor(struct model *model, size_t *room, uint64_t nbytes)
{
	struct model_tensor tensor = {.dtype = NVS_U8, .numel = nbytes, .nbytes = nbytes};
	struct model_tensor *tensors;

	if (nbytes > MODEL_BYTES_MAX - model->nbytes)
		return -EINVAL;
	if (model->n == MODEL_TENSORS_MAX)
		return -E2BIG;
	tensors = array_room(model->tensors, model->n, room, sizeof(*tensors));
	if (tensors)
		model->tensors = tensors;
	if (!tensors || asprintf(&tensor.name, "tensor.%zu", model->n) < 0)
		return -ENOMEM;
	model->tensors[model->n++] = tensor;
	model->nbytes += nbytes;
	return 0;
}

static int fail(struct model *model, int rc, struct nvs_error *error)
{
	if (rc == -ENOMEM)
		error_set(error, rc, "no memory for the names of %zu tensors", model->n + 1);
	else if (rc == -E2BIG)
		error_set(error, rc,
			  "more than the %u made-up tensors that are allowed: give a "
			  "smaller size",
			  MODEL_TENSORS_MAX);
	else
		error_set(error, rc,
			  "the made-up tensors have more than the %llu bytes that are "
			  "allowed",
			  MODEL_BYTES_MAX);
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
		uint64_t left = nbytes - model->nbytes;

		rc = add_tensor(model, &room, nbytes && left < tensor_size ? left : tensor_size);
	}
	if (rc)
		return fail(model, rc, error);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	return 0;
}
