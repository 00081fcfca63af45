/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The swap engine's functions for the optimizer and for tests, beside the public ones.
 */
#ifndef SWAP_SWAP_H
#define SWAP_SWAP_H

#include "config/config.h"
#include "nvswap.h"
#include "topo/topo.h"

struct engine_ops;
/* For tests: nvs_engine_open with this I/O engine instead of the configured one. */
int engine_open_with(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, const struct engine_ops *ops, void *ops_arg,
		     struct nvs_error *error);

/* Makes nvs_engine_close skip the commit, which leaves a kept store as a crash would. */
void engine_abandon(struct nvs_engine *engine);

/* The machine's topology, and the NUMA node of the pool (-1: none). */
const struct topo *engine_topo(const struct nvs_engine *engine);
int engine_node(const struct nvs_engine *engine);

/* Pins tensors and waits for their contents. On an error none is pinned, and *pin is 0. */
int engine_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	       uint64_t *pin, struct nvs_error *error);
/* Ends a pin, clean, unless a failed read has done so; also while the tensor is being read. */
void engine_unpin(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin);
/*
 * Ends a pin, if the tensor has it, and discards contents in the pool that will not be read again,
 * unless the tensor has other pins or is in flight.
 */
void engine_discard(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t pin);
/* Waits until the tensors' transfers have landed, failed or not: 0, or -ETIMEDOUT if the drive
 * hangs. */
int engine_wait_landed(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       struct nvs_error *error);

/*
 * The number of write-backs that failed since the engine was opened, and the error of the last one;
 * includes failures that a later attempt repeated successfully.
 */
uint64_t engine_write_failures(struct nvs_engine *engine, struct nvs_error *last);

/* Whether the kept store holds an unregistered tensor of that name; stores its numel in *numel. */
bool engine_has_stored(struct nvs_engine *engine, const char *name, uint64_t *numel);

#endif
