/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histograms of latencies. All functions work on the caller's; no aio is involved.
 */
#ifndef NVSWAP_LATENCY_H
#define NVSWAP_LATENCY_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A histogram with 64 buckets per power of two: a percentile is exact to 1/64 of its value over
 * the whole range of nanoseconds. It is empty if all fields but the size are 0:
 *	struct nvs_latency latency = {.size = sizeof(latency)};
 */
#define NVS_LATENCY_BUCKETS 3776
struct nvs_latency {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	uint64_t count, min_ns, max_ns;
	double sum_ns, sum_squares;
	uint64_t buckets[NVS_LATENCY_BUCKETS];
};

/*
 * Adds `from` to `into`.
 * Errors:
 * -EINVAL  one is NULL, or its size does not cover its buckets
 */
NVS_API int nvs_latency_merge(struct nvs_latency *into, const struct nvs_latency *from);
/* The latency in ns that `percentile` per cent (clamped to 0 to 100) did not exceed. Like mean and
 * standard deviation, 0 if the histogram is empty, NULL, or its size is not set. */
NVS_API uint64_t nvs_latency_percentile(const struct nvs_latency *latency, double percentile);
NVS_API double nvs_latency_mean(const struct nvs_latency *latency);
NVS_API double nvs_latency_stddev(const struct nvs_latency *latency);
/* How many I/Os took `ns` or less, to 1/64 of that time; 0 as above. */
NVS_API uint64_t nvs_latency_within(const struct nvs_latency *latency, uint64_t ns);

#ifdef __cplusplus
}
#endif

#endif
