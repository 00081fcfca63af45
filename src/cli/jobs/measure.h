/* SPDX-License-Identifier: Apache-2.0 */
/* The measured window: what the process, its aio and its engine did between two points of a run. */
#ifndef CLI_JOBS_MEASURE_H
#define CLI_JOBS_MEASURE_H

#include <sys/resource.h>

#include "cli/jobs/bench.h"

/* The counters at the beginning of the window. */
struct baseline {
	uint64_t started_ns;
	struct rusage usage;
	struct nvs_engine_stats stats;
};

/* No transfer may be in flight. `engine` owns the aio; NULL: the aio has no engine. */
void measure_begin(struct nvs_aio *aio, struct nvs_engine *engine, struct baseline *from);
/*
 * Stores the figures of the window, except data_us and updates_us. Bytes and transfers are those of
 * tensors, or, without an engine, those of I/Os.
 */
void measure_end(struct nvs_aio *aio, struct nvs_engine *engine, const struct baseline *from,
		 struct bench_result *result);
/* The largest resident set of the process (VmHWM); 0: unknown. */
uint64_t peak_memory(void);

#endif
