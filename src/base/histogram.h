/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies: counts by time, in groups of a power of two with 64 steps each, so that a percentile
 * is right within 1/64 of itself over the whole range of uint64_t nanoseconds.
 */
#ifndef BASE_HISTOGRAM_H
#define BASE_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define HISTOGRAM_STEPS	  64
#define HISTOGRAM_BUCKETS (HISTOGRAM_STEPS * (64 - 6 + 1))

struct histogram {
	uint64_t count, min, max;
	double sum, sum_squares;
	uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* The least time that `percentile` (0 to 100) per cent of the counts stay within; 0 where empty. */
uint64_t histogram_percentile(const struct histogram *histogram, double percentile);
double histogram_mean(const struct histogram *histogram);
double histogram_stddev(const struct histogram *histogram);

#endif
