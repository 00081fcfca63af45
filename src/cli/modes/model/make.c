/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made-up tensors. Their sizes are drawn one after the other, so that a model with more of them
 * begins as one with fewer does.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

/* splitmix64: the next of a row of numbers that look random. */
static uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint64_t draw_size(const struct option_mix *mix, uint64_t *state)
{
	double at = (double)(draw(state) >> 11) / (double)(1ull << 53) * 100;
	unsigned i = 0;

	while (i < mix->n - 1 && at >= mix->percent[i])
		at -= mix->percent[i++];
	return mix->nbytes[i];
}

static int grow(struct model *model, size_t *room)
{
	size_t wanted = *room ? *room * 2 : 64;
	struct model_tensor *tensors = reallocarray(model->tensors, wanted, sizeof(*tensors));

	if (!tensors)
		return -ENOMEM;
	model->tensors = tensors;
	*room = wanted;
	return 0;
}

static int add_tensor(struct model *model, size_t *room, uint64_t nbytes)
{
	struct model_tensor tensor = {.dtype = NVS_U8, .numel = nbytes, .nbytes = nbytes};

	if (nbytes > MODEL_BYTES_MAX - model->nbytes)
		return -EINVAL;
	if (model->n == MODEL_TENSORS_MAX)
		return -E2BIG;
	if ((model->n == *room && grow(model, room)) ||
	    asprintf(&tensor.name, "tensor.%zu", model->n) < 0)
		return -ENOMEM;
	model->tensors[model->n++] = tensor;
	model->nbytes += nbytes;
	return 0;
}

static int fail(struct model *model, int rc, struct nvs_error *error)
{
	*error = (struct nvs_error){.code = rc};
	if (rc == -ENOMEM)
		snprintf(error->text, sizeof(error->text), "no memory for the names of %zu tensors",
			 model->n + 1);
	else if (rc == -E2BIG)
		snprintf(error->text, sizeof(error->text),
			 "more than %u made-up tensors, which are allowed: give a smaller size",
			 MODEL_TENSORS_MAX);
	else
		snprintf(error->text, sizeof(error->text),
			 "the made-up tensors are more bytes than the %llu that are allowed",
			 MODEL_BYTES_MAX);
	model_free(model);
	return rc;
}

int model_make(struct model *model, const struct option_mix *mix, uint64_t n, uint64_t nbytes,
	       uint64_t seed, struct nvs_error *error)
{
	uint64_t state = seed;
	size_t room = 0;
	int rc = 0;

	assert(mix->n && (n || nbytes));
	*model = (struct model){.fd = -1};
	while (!rc && (nbytes ? model->nbytes < nbytes : model->n < n))
		rc = add_tensor(model, &room, draw_size(mix, &state));
	if (rc)
		return fail(model, rc, error);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	return 0;
}
