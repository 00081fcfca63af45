/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters are differences between both ends of the window. Those of the aio are reset instead, so
 * that latencies are of the window alone.
 */
#include "cli/jobs/jobs.h"

#include <inttypes.h>

#include "base/clock.h"

static uint64_t usage_us(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

void measure_begin(struct nvs_aio *aio, struct nvs_engine *engine, struct baseline *from)
{
	nvs_aio_reset_stats(aio);
	from->stats.size = sizeof(from->stats);
	if (engine)
		nvs_engine_get_stats(engine, &from->stats);
	getrusage(RUSAGE_SELF, &from->usage);
	from->started_ns = clock_ns();
}

void measure_end(struct nvs_aio *aio, struct nvs_engine *engine, const struct baseline *from,
		 struct bench_result *result)
{
	struct rusage is;

	result->window_ns = clock_ns() - from->started_ns;
	getrusage(RUSAGE_SELF, &is);
	result->user_us = usage_us(is.ru_utime) - usage_us(from->usage.ru_utime);
	result->system_us = usage_us(is.ru_stime) - usage_us(from->usage.ru_stime);
	result->context_switches = (uint64_t)(is.ru_nvcsw - from->usage.ru_nvcsw + is.ru_nivcsw -
					      from->usage.ru_nivcsw);
	result->major_faults = (uint64_t)(is.ru_majflt - from->usage.ru_majflt);
	result->minor_faults = (uint64_t)(is.ru_minflt - from->usage.ru_minflt);
	result->aio.size = sizeof(result->aio);
	nvs_aio_get_stats(aio, &result->aio);
	if (engine) {
		const struct nvs_engine_stats *was = &from->stats;
		struct nvs_engine_stats stats = {.size = sizeof(stats)};

		nvs_engine_get_stats(engine, &stats);
		result->bytes[NVS_READ] = stats.swapped_in - was->swapped_in;
		result->bytes[NVS_WRITE] = stats.swapped_out - was->swapped_out;
		result->transfers = stats.transfers - was->transfers;
		result->evictions = stats.evictions - was->evictions;
		result->pool_waits = stats.pool.waits - was->pool.waits;
	}
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		if (!engine) {
			result->bytes[d] = result->aio.io[d].bytes;
			result->transfers += result->aio.io[d].ios;
		}
		for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++) {
			result->latency[d][kind].size = sizeof(struct nvs_latency);
			nvs_aio_get_latency(aio, d, kind, &result->latency[d][kind]);
		}
	}
	result->measured = true;
}

uint64_t peak_memory(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[128];
	uint64_t kib = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "VmHWM: %" SCNu64, &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024;
}
