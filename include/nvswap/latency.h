/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histograms of latencies. All functions work on the caller's; no aio is involved.
 *
 *	struct nvs_latency reads = {.size = sizeof(reads)}, all = {.size = sizeof(all)};
 *
 *	rc = nvs_aio_get_latency(aio, NVS_READ, NVS_LAT, &reads);
 *	if (!rc)
 *		rc = nvs_latency_merge(&all, &reads);
 *	printf("mean %.0f ns, deviation %.0f ns, 99 %% below %llu ns, %llu below 1 ms\n",
 *	       nvs_latency_mean(&all), nvs_latency_stddev(&all),
 *	       (unsigned long long)nvs_latency_percentile(&all, 99),
 *	       (unsigned long long)nvs_latency_within(&all, 1000000));
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
 * Adds a histogram to another: `from` to `into`.
 * Errors:
 * -EINVAL  one is NULL, or its size does not cover its buckets
 */
NVS_API int nvs_latency_merge(struct nvs_latency *into, const struct nvs_latency *from);
/*
 * Return a percentile, the mean and the standard deviation of a histogram in ns: 0 if it is empty
 * or NULL, or its size is not set. `percentile` per cent of the latencies, clamped to 0 to 100, did
 * not exceed the percentile.
 */
NVS_API uint64_t nvs_latency_percentile(const struct nvs_latency *latency, double percentile);
NVS_API double nvs_latency_mean(const struct nvs_latency *latency);
NVS_API double nvs_latency_stddev(const struct nvs_latency *latency);
/* Returns how many I/Os of a histogram took `ns` or less, to 1/64 of that time; 0 if it is empty or
 * NULL, or its size is not set. */
NVS_API uint64_t nvs_latency_within(const struct nvs_latency *latency, uint64_t ns);

#ifdef __cplusplus
}
#endif

#endif
