/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores, loads and frees the contents of the tensors.
 */
#include "swap/contents_fixture.h"

const uint64_t tensor_lengths[TENSORS] = {1, 70001, LENGTH_MAX};

void contents_store(struct contents *c, struct fixture *f, struct nvs_tensor **t)
{
	const void *data[TENSORS];

	tensors_add(f, "t", tensor_lengths, TENSORS, t);
	for (size_t i = 0; i < TENSORS; i++) {
		data[i] = c->whole[i] = malloc(tensor_lengths[i]);
		assert_non_null(c->whole[i]);
		fill(c->whole[i], tensor_lengths[i], i + 1);
	}
	OK(f, nvs_tensor_swap_out_from(f->engine, t, data, TENSORS, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, TENSORS, 0, -1, &f->error));
}

void contents_free(struct contents *c)
{
	for (size_t i = 0; i < TENSORS; i++)
		free(c->whole[i]);
}

void contents_load(struct fixture *f, struct nvs_tensor **t)
{
	OK(f, sole_swap_in(f->engine, t, TENSORS, -1, &f->error));
	OK(f, sole_wait(f->engine, t, TENSORS, -1, &f->error));
	OK(f, sole_release(f->engine, t, TENSORS, NVS_CLEAN, &f->error));
}
