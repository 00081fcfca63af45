/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measuring window: what the process, its aio and its engine did between two points of a run.
 */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include <sys/resource.h>

#include "bench.h"

/* What stood on the counters when the measuring began. */
struct baseline {
	uint64_t started_ns;
	struct rusage usage;
	struct nvs_engine_stats stats;
};

/* Nothing may be in flight. The engine is that of the aio; NULL: it has none. */
void measure_begin(struct nvs_aio *aio, struct nvs_engine *engine, struct baseline *from);
/*
 * Fills in what came since; result->data_us and updates_us stay the caller's. Bytes and transfers
 * are those of tensors with an engine, and the I/Os' without.
 */
void measure_end(struct nvs_aio *aio, struct nvs_engine *engine, const struct baseline *from,
		 struct bench_result *result);
/* The most memory that the process has had at a time (VmHWM); 0 where the system does not tell. */
uint64_t peak_memory(void);

#endif
