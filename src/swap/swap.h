/* SPDX-License-Identifier: Apache-2.0 */
/* The swap engine's functions for the optimizer and for tests, beside the public ones. */
#ifndef SWAP_SWAP_H
#define SWAP_SWAP_H

#include "base/weights.h"
#include "config/config.h"
#include "nvswap.h"
#include "topo/topo.h"

struct engine_ops;
/* For tests: nvs_engine_open with this I/O engine instead of the configured one. */
int engine_open_with(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, const struct engine_ops *ops, void *ops_arg,
		     struct nvs_error *error);

/*
 * For nvs_engine_open_files: opens an engine of tensors in files, with the pool of the parameters'
 * block. `aio` may be NULL. Names differ, and nothing of `weights` is referred to afterwards.
 */
int engine_open_weights(struct nvs_engine **engine, const struct nvs_config *config,
			const struct weights *weights, struct nvs_aio *aio,
			struct nvs_error *error);

/* Makes engine_close() skip the commit, which leaves a kept store as a crash would. */
void engine_abandon(struct nvs_engine *engine);

/*
 * Marks the engine as an optimizer's, before anything else can call it. From then on public calls
 * that would change it are -EBUSY, and the optimizer makes them by the functions below.
 */
void engine_set_owned(struct nvs_engine *engine);

/* ---- nvs_engine_close and so on, also on an engine that belongs to an optimizer ---- */
int engine_close(struct nvs_engine *engine, struct nvs_error *error);
/* -EBUSY: other engines use the engine's own aio, so that it can't be closed. */
int engine_check_unshared(const struct nvs_engine *engine, struct nvs_error *error);
/* -EBUSY: the engine, of a kept store, can't commit what a caller still has pinned. */
int engine_check_pins(struct nvs_engine *engine, struct nvs_error *error);
int engine_commit(struct nvs_engine *engine, struct nvs_error *error);
int engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
		    struct nvs_error *error);
int batch_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
		   struct nvs_tensor **tensors, struct nvs_error *error);
int batch_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 struct nvs_error *error);
int batch_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *name,
		 struct nvs_error *error);
int batch_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, uint64_t *pin, struct nvs_error *error);
int batch_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  int timeout_ms, uint64_t *pin, struct nvs_error *error);
long batch_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    struct nvs_error *error);
int batch_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, uint64_t pin,
	       int timeout_ms, struct nvs_error *error);
int batch_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		  uint64_t pin, enum nvs_how how, struct nvs_error *error);
int batch_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   struct nvs_error *error);
int batch_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			const void *const *data, size_t n, struct nvs_error *error);
int batch_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
		     void *const *data, size_t n, struct nvs_error *error);

/* ---- Calls that the public interface does not have ---- */

/* The machine's topology, and the NUMA node of the pool (-1: none). */
const struct topo *engine_topo(const struct nvs_engine *engine, int *node);
/* The bytes of which a tensor takes whole multiples in the pool and in the store. */
uint64_t engine_unit(const struct nvs_engine *engine);

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
