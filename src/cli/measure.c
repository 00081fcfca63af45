/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters are differences, but for those of the aio, which begin afresh so that latencies are the
 * window's alone.
 */
#include "measure.h"

#include <inttypes.h>
#include <stdio.h>

#include "clock.h"

static uint64_t usage_us(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

void measure_begin(struct nvs_engine *engine, struct baseline *from)
{
	nvs_aio_reset_stats(nvs_engine_aio(engine));
	nvs_get_stats(engine, &from->stats);
	getrusage(RUSAGE_SELF, &from->usage);
	from->started_ns = now_ns();
}

static void process_figures(const struct rusage *was, struct bench_result *result)
{
	struct rusage is;

	getrusage(RUSAGE_SELF, &is);
	result->user_us = usage_us(is.ru_utime) - usage_us(was->ru_utime);
	result->system_us = usage_us(is.ru_stime) - usage_us(was->ru_stime);
	result->context_switches =
		(uint64_t)(is.ru_nvcsw - was->ru_nvcsw + is.ru_nivcsw - was->ru_nivcsw);
	result->major_faults = (uint64_t)(is.ru_majflt - was->ru_majflt);
	result->minor_faults = (uint64_t)(is.ru_minflt - was->ru_minflt);
}

void measure_end(struct nvs_engine *engine, const struct baseline *from,
		 struct bench_result *result)
{
	static const double percentiles[NPERCENTILES] = PERCENTILES;
	struct nvs_engine_stats stats;

	result->window_ns = now_ns() - from->started_ns;
	process_figures(&from->usage, result);
	nvs_get_stats(engine, &stats);
	result->bytes[NVS_READ] = stats.swapped_in - from->stats.swapped_in;
	result->bytes[NVS_WRITE] = stats.swapped_out - from->stats.swapped_out;
	result->transfers = stats.transfers - from->stats.transfers;
	result->evictions = stats.evictions - from->stats.evictions;
	result->pool_waits = stats.pool.waits - from->stats.pool.waits;
	result->aio = stats.aio;
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		nvs_aio_get_latency(nvs_engine_aio(engine), d, percentiles, NPERCENTILES,
				    result->latency_ns[d]);
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
