/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting into a struct nvs_latency, and what its public functions don't tell of its buckets.
 */
#ifndef BASE_LATENCY_H
#define BASE_LATENCY_H

#include "nvswap.h"

void latency_add(struct nvs_latency *latency, uint64_t ns);
/* The middle of the times counted in a bucket: fio's value of its bucket of the same index. */
uint64_t latency_bucket_ns(unsigned bucket);

#endif
