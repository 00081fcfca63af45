/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores and loads the contents of the tensors.
 */
#include "swap/contents_fixture.h"

const uint64_t tensor_lengths[TENSORS] = {1, 70001, LENGTH_MAX};

char whole[TENSORS][LENGTH_MAX];

void contents_store(struct fixture *f, struct nvs_tensor **t)
{
	const void *data[TENSORS];

	tensors_add(f, "t", tensor_lengths, TENSORS, t);
	for (size_t i = 0; i < TENSORS; i++) {
		data[i] = whole[i];
		fill(whole[i], tensor_lengths[i], i + 1);
	}
	OK(f, nvs_tensor_swap_out_from(f->engine, t, data, TENSORS, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, TENSORS, 0, -1, &f->error));
}

void contents_load(struct fixture *f, struct nvs_tensor **t)
{
	OK(f, sole_swap_in(f->engine, t, TENSORS, -1, &f->error));
	OK(f, sole_wait(f->engine, t, TENSORS, -1, &f->error));
	OK(f, sole_release(f->engine, t, TENSORS, NVS_CLEAN, &f->error));
}
