/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: the engine learns the order in which tensors are swapped in.
 *
 *	struct nvs_step_io io = {.size = sizeof(io)};
 *
 *	rc = nvs_engine_step_begin(engine, &error);
 *	... // swap in, compute and release all tensors, in the same order each time
 *	if (!rc)
 *		rc = nvs_engine_step_end(engine, &io, &error);
 *	printf("%.0f %% of the I/O was hidden\n", 100.0 * (double)io.hidden_ns / (double)io.io_ns);
 */
#ifndef NVSWAP_STEP_H
#define NVSWAP_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The I/O of a step, and how much of it overlapped with the caller's work. */
struct nvs_step_io {
	size_t size;	     /* of this structure in bytes; the caller sets it, see nvs_error */
	uint64_t wall_ns;    /* from the beginning to the end of the step */
	uint64_t io_ns;	     /* time with at least one transfer in flight */
	uint64_t compute_ns; /* the caller's work: wall - stall; optimizer: the mean time that a
				thread spent in updates */
	uint64_t hidden_ns;  /* the overlap: io + compute - wall */
	uint64_t read_bytes, written_bytes;
	uint64_t hits, misses;	   /* tensors or tiles that were in the pool, or not, when needed */
	uint64_t stalls, stall_ns; /* waits for the drive or for room, and their time */
	uint64_t drive_written_bytes; /* written to the drives meanwhile: see nvs_engine_stats */
};

/*
 * Begins a training step that uses its tensors in the same order as the step before. The first step
 * records the order of nvs_tensor_swap_in and nvs_tensor_pin calls, the plan. From the second step
 * on the engine follows it (DeepSpeed's stage 3 keys; distances are elements swapped in between two
 * uses):
 * - it reads ahead within stage3_prefetch_bucket_size, stage3_max_live_parameters and, if the pool
 *   does not hold all of the step, half of the pool;
 * - it keeps tensors that are needed again within stage3_max_reuse_distance, those smaller than
 *   stage3_param_persistence_threshold if half of the pool holds these, and max_in_cpu elements
 *   beside them;
 * - it evicts the tensor that is needed last;
 * - it writes back dirty tensors that will be evicted while no call waits for the drive.
 * A step that departs from the plan is served correctly, and the next step follows the new order.
 * nvs_tensor_prefetch is unaffected. One step at a time.
 * Errors:
 * -EINVAL  `engine` is NULL
 * -EBUSY   a step has begun already
 */
NVS_API int nvs_engine_step_begin(struct nvs_engine *engine, struct nvs_error *error);
/*
 * Ends a training step. Transfers in flight stay in flight. `io` may be NULL.
 * Errors:
 * -EINVAL  `engine` is NULL, or the size of `io` is not set
 * -EBUSY   no step has begun
 */
NVS_API int nvs_engine_step_end(struct nvs_engine *engine, struct nvs_step_io *io,
				struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
