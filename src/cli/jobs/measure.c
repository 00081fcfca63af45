/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters are differences between both ends of the window. Those of the aio are reset instead, so
 * that latencies are of the window alone.
 */
#include "cli/jobs/measure.h"

#include <inttypes.h>
#include <stdio.h>

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

static void tensor_figures(struct nvs_engine *engine, const struct nvs_engine_stats *was,
			   struct bench_result *result)
{
	struct nvs_engine_stats is = {.size = sizeof(is)};

	nvs_engine_get_stats(engine, &is);
	result->bytes[NVS_READ] = is.swapped_in - was->swapped_in;
	result->bytes[NVS_WRITE] = is.swapped_out - was->swapped_out;
	result->transfers = is.transfers - was->transfers;
	result->evictions = is.evictions - was->evictions;
	result->pool_waits = is.pool.waits - was->pool.waits;
}

static void block_figures(struct bench_result *result)
{
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		result->bytes[d] = result->aio.io[d].bytes;
		result->transfers += result->aio.io[d].ios;
	}
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
	if (engine)
		tensor_figures(engine, &from->stats, result);
	else
		block_figures(result);
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++) {
			result->latency[d][kind].size = sizeof(struct nvs_latency);
			nvs_aio_get_latency(aio, d, kind, &result->latency[d][kind]);
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
