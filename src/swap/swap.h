/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the swap engine gives to the layer above it, beside the public calls.
 */
#ifndef SWAP_SWAP_H
#define SWAP_SWAP_H

#include "nvswap.h"
#include "topo/topo.h"

struct engine_ops;
/* nvs_open with this table in place of the I/O engine that the configuration names: for tests. */
int engine_open_with(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, const struct engine_ops *ops, void *ops_arg,
		     struct nvs_error *error);

/* Has nvs_close leave a kept store as a crash would: as it was last committed. */
void engine_abandon(struct nvs_engine *engine);

/* The machine as the engine sees it, and the node of its pool (-1: none). */
const struct topo *engine_topo(const struct nvs_engine *engine);
int engine_node(const struct nvs_engine *engine);

/* Begins a use of a tensor and waits for its contents. On an error there is no use. */
int engine_use(struct nvs_engine *engine, struct nvs_tensor *tensor, struct nvs_error *error);
/* Ends a use, unless a failed read has done so: clean, and also while it is being read. */
void engine_let_go(struct nvs_engine *engine, struct nvs_tensor *tensor);
/* Waits until nothing of the tensors is in flight, whatever becomes of it: 0, or -ETIMEDOUT where
 * the drive hangs. */
int engine_landed(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  struct nvs_error *error);

/* Write-backs that have failed since the engine was opened, and, where there are any, why the last
 * did: for who must hear of those that a later attempt has made good. */
uint64_t engine_write_failures(struct nvs_engine *engine, struct nvs_error *last);

/* Whether the kept store holds a tensor of that name that has not been registered; its numel into
 * *numel. */
bool engine_has_stored(struct nvs_engine *engine, const char *name, uint64_t *numel);

#endif
