/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests that read and write ranges of tensors: three tensors of awkward lengths on
 * the drive, and what each must have.
 */
#ifndef TESTS_SWAP_CONTENTS_FIXTURE_H
#define TESTS_SWAP_CONTENTS_FIXTURE_H

#include "swap/swap_fixture.h"

#define TENSORS	   3
#define LENGTH_MAX 700001

extern const uint64_t tensor_lengths[TENSORS];

/* What each must have. */
extern char whole[TENSORS][LENGTH_MAX];

/* Registers them as t0, t1 and t2, and swaps them out from `whole`. */
void contents_store(struct fixture *fixture, struct nvs_tensor **tensors);
/* Swaps them in, and releases them into the pool. */
void contents_load(struct fixture *fixture, struct nvs_tensor **tensors);

#endif
