/* SPDX-License-Identifier: Apache-2.0 */
/* Counting into a struct nvs_latency, and the buckets that its public functions hide. */
#ifndef STATISTICS_LATENCY_H
#define STATISTICS_LATENCY_H

#include "nvswap.h"

/* These don't look at sizes: histograms of the library's own have none. */
void latency_add(struct nvs_latency *latency, uint64_t ns);
void latency_merge(struct nvs_latency *into, const struct nvs_latency *from);
/*
 * Counts, sums and extremes alone, for statistics that need no percentile: the buckets of `latency`
 * and `into` are not touched.
 */
void latency_begin_sums(struct nvs_latency *latency);
void latency_merge_sums(struct nvs_latency *into, const struct nvs_latency *from);
/* The middle of a bucket's times: fio's value of its bucket with the same index. */
uint64_t latency_bucket_ns(unsigned bucket);

#endif
