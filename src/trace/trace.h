/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records a timeline into preallocated memory, without locks, and writes it as Chrome trace events.
 * Every function accepts a NULL trace and returns after one comparison.
 */
#ifndef TRACE_TRACE_H
#define TRACE_TRACE_H

#include "nvswap.h"

enum trace_kind {
	/* I/Os, by trace_io: one track for each place in a worker's queue. */
	TRACE_READ,
	TRACE_WRITE,
	/* By trace_thread, on the track of the calling thread. */
	TRACE_COMPUTE,
	TRACE_WAIT,
	/* Transfers of a tensor or tile, by trace_tensor: asynchronous events, because they
	   overlap. */
	TRACE_TENSOR_READ,
	TRACE_TENSOR_WRITE,
	TRACE_OPTIMIZER_STEP, /* trace_optimizer_step */
	TRACE_CALLER,	      /* nvs_trace_span */
	/* Calls on tensors, by trace_call, at the time when the engine served them. */
	TRACE_SWAP_IN,
	TRACE_LEASE,
	TRACE_RELEASE_CLEAN,
	TRACE_RELEASE_DIRTY,
	TRACE_PREFETCH,
	TRACE_WAITED,
	TRACE_SWAP_OUT,
	TRACE_SWAP_IN_TO,
	TRACE_SWAP_OUT_FROM,
	TRACE_READ_PART,
	TRACE_STEP_BEGIN,
	TRACE_STEP_END,
	TRACE_OPEN, /* an engine; `nbytes` is the size of its pool */
};

/* One I/O in place `slot` of the queue of worker `worker`; `offset` is in bytes in the file. */
void trace_io(struct nvs_trace *trace, bool write, unsigned worker, unsigned slot, uint64_t from_ns,
	      uint64_t to_ns, uint64_t offset, uint64_t nbytes);
/* TRACE_COMPUTE, TRACE_WAIT or TRACE_CALLER. The first 31 bytes of `name` are recorded. */
void trace_thread(struct nvs_trace *trace, enum trace_kind kind, const char *name, uint64_t from_ns,
		  uint64_t to_ns);
/* From submission to landing. The last 31 bytes of `name`, the tensor's, are recorded. */
void trace_tensor(struct nvs_trace *trace, bool write, const char *name, uint64_t from_ns,
		  uint64_t to_ns, uint64_t offset, uint64_t nbytes);
/* A step of an optimizer; `nbytes` is what it wrote to the drives. */
void trace_optimizer_step(struct nvs_trace *trace, uint64_t from_ns, uint64_t to_ns,
			  uint64_t nbytes);

/* The tensor of a call. */
struct trace_subject {
	const char *name; /* its last 31 bytes are recorded */
	uint64_t offset;  /* in the store; the same in every call on the tensor */
	uint64_t nbytes;
	unsigned element_bytes;
};
/*
 * A call on one tensor. A call on several is recorded once for each, with the same `at_ns`. The
 * subject of steps and of TRACE_OPEN has the name "" and the offset 0; `nbytes` of TRACE_STEP_END
 * are those written to the drives in the step.
 */
void trace_call(struct nvs_trace *trace, enum trace_kind call, uint64_t at_ns,
		const struct trace_subject *subject);

#endif
