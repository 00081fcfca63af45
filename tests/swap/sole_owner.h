/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests in which every tensor has one owner: the functions of pins without the pin. They take
 * each tensor's newest pin, or 0 if it has none. Tests of several owners name the pins themselves.
 */
#ifndef TESTS_SWAP_SOLE_OWNER_H
#define TESTS_SWAP_SOLE_OWNER_H

#include "nvswap.h"

int sole_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 int timeout_ms, struct nvs_error *error);
int sole_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, int timeout_ms,
	     struct nvs_error *error);
/* Makes one call for each run of tensors with the same pin, each with timeout_ms. */
int sole_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, struct nvs_error *error);
/* The same; if one tensor is not pinned, a single call, which fails. */
int sole_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 enum nvs_how how, struct nvs_error *error);

#endif
