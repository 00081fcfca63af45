/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histograms of latencies. All functions work on the caller's; no aio is involved.
 */
#ifndef NVSWAP_LATENCY_H
#define NVSWAP_LATENCY_H

#include <stdint.h>

#include "nvswap/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A histogram with 64 buckets per power of two: a percentile is exact to 1/64 of its value over
 * the whole range of nanoseconds. All zeros is an empty histogram.
 */
#define NVS_LATENCY_BUCKETS 3776
struct nvs_latency {
	uint64_t count, min_ns, max_ns;
	double sum_ns, sum_squares;
	uint64_t buckets[NVS_LATENCY_BUCKETS];
};

/* Adds `from` to `into`. */
NVS_API void nvs_latency_merge(struct nvs_latency *into, const struct nvs_latency *from);
/* The latency in ns that `percentile` per cent (clamped to 0 to 100) did not exceed. Like mean and
 * standard deviation, 0 if the histogram is empty. */
NVS_API uint64_t nvs_latency_percentile(const struct nvs_latency *latency, double percentile);
NVS_API double nvs_latency_mean(const struct nvs_latency *latency);
NVS_API double nvs_latency_stddev(const struct nvs_latency *latency);
/* How many I/Os took `ns` or less, to 1/64 of that time. */
NVS_API uint64_t nvs_latency_within(const struct nvs_latency *latency, uint64_t ns);

#ifdef __cplusplus
}
#endif

#endif
