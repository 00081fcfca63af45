/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace is an array of spans and a table of threads. A recording thread claims the next span by
 * an atomic counter and stores `shown` last. The writer of the file skips spans without it, and
 * spans are never reused, so recorders and the writer need no lock.
 */
#ifndef TRACE_SPANS_H
#define TRACE_SPANS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "nvswap.h"

#define NAME_BYTES  31
#define THREADS_MAX 256 /* threads with a track each; all others share one */
#define WORKERS_MAX NVS_THREAD_COUNT_MAX

struct span {
	uint64_t from_ns, to_ns;
	union {
		struct {
			uint64_t offset;
			uint32_t nbytes;
			uint16_t worker, slot;
		} io;
		struct {
			uint64_t offset;
			uint64_t nbytes : 56, element_bytes : 8; /* element_bytes: of calls only */
		} tensor;
		unsigned thread; /* index in nvs_trace.threads */
	};
	char name[NAME_BYTES]; /* no NUL if all bytes are used */
	uint8_t shown;	       /* enum trace_kind plus one; 0: incomplete */
};

_Static_assert(sizeof(struct span) == 64, "documented at nvs_trace_open");

struct traced_thread {
	pid_t id; /* 0: free */
	bool named, called;
	char name[16];
};

struct nvs_trace {
	struct span *spans;
	uint64_t room;
	uint64_t claimed; /* includes spans that were dropped for lack of room */
	struct traced_thread threads[THREADS_MAX + 1]; /* [0] opened the trace */
};

#endif
