/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans of time for a timeline, recorded without locks or allocation into memory that was set
 * aside, and written as Chrome trace events. Every function takes NULL for "nothing is traced", at
 * the cost of one comparison.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include "nvswap.h"

enum trace_kind {
	TRACE_READ, /* one I/O, on a track of its worker and its place in the queue */
	TRACE_WRITE,
	TRACE_COMPUTE,	    /* on the track of the thread that computes */
	TRACE_WAIT,	    /* on the track of the thread that waits */
	TRACE_TENSOR_READ,  /* a tensor's or tile's transfer, from submission to landing; */
	TRACE_TENSOR_WRITE, /* these overlap, so each is an asynchronous event */
	TRACE_CALLER,	    /* nvs_trace_span */
};

/* One I/O of worker `worker` in place `slot` of its queue; offset in the file, bytes. */
void trace_io(struct nvs_trace *trace, bool write, unsigned worker, unsigned slot, uint64_t from_ns,
	      uint64_t to_ns, uint64_t offset, uint64_t nbytes);
/* A computation or a wait of the calling thread; `name` up to 31 bytes. */
void trace_thread(struct nvs_trace *trace, enum trace_kind kind, const char *name, uint64_t from_ns,
		  uint64_t to_ns);
/* A transfer of the tensor `name` (the last 31 bytes of longer ones). */
void trace_tensor(struct nvs_trace *trace, bool write, const char *name, uint64_t from_ns,
		  uint64_t to_ns, uint64_t offset, uint64_t nbytes);

#endif
