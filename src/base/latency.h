/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a time comes into a struct nvs_latency; what is read from one is public.
 */
#ifndef BASE_LATENCY_H
#define BASE_LATENCY_H

#include "nvswap.h"

void latency_add(struct nvs_latency *latency, uint64_t ns);

#endif
