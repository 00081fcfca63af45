/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a time is counted, and what the counts say. A zeroed histogram is an empty one. It never
 * allocates and never locks: one writer each, merged afterwards.
 */
#include "base/histogram.h"

#include <assert.h>
#include <math.h>

#define STEP_BITS 6

_Static_assert(HISTOGRAM_STEPS == 1 << STEP_BITS, "a group is a power of two");

static unsigned bucket_of(uint64_t ns)
{
	if (ns < HISTOGRAM_STEPS)
		return (unsigned)ns;

	unsigned top = 63 - (unsigned)__builtin_clzll(ns);
	unsigned group = top - STEP_BITS + 1;

	return group * HISTOGRAM_STEPS +
	       (unsigned)(ns >> (top - STEP_BITS) & (HISTOGRAM_STEPS - 1));
}

/* The longest time that is counted in the bucket. */
static uint64_t bucket_end(unsigned bucket)
{
	unsigned group = bucket / HISTOGRAM_STEPS, step = bucket % HISTOGRAM_STEPS;

	if (group == 0)
		return step;

	uint64_t begin = (uint64_t)(HISTOGRAM_STEPS + step) << (group - 1);

	return begin + (((uint64_t)1 << (group - 1)) - 1);
}

void histogram_add(struct histogram *histogram, uint64_t ns)
{
	unsigned bucket = bucket_of(ns);

	assert(bucket < HISTOGRAM_BUCKETS);
	histogram->buckets[bucket]++;
	if (!histogram->count || ns < histogram->min)
		histogram->min = ns;
	if (ns > histogram->max)
		histogram->max = ns;
	histogram->count++;
	histogram->sum += (double)ns;
	histogram->sum_squares += (double)ns * (double)ns;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
	if (!from->count)
		return;
	if (!into->count || from->min < into->min)
		into->min = from->min;
	if (from->max > into->max)
		into->max = from->max;
	into->count += from->count;
	into->sum += from->sum;
	into->sum_squares += from->sum_squares;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
}

/* How many of the counts are `percentile` per cent of them, rounded up: 1 to count. */
static uint64_t rank_of(uint64_t count, double percentile)
{
	/* 99.9 is not a binary fraction: without the slack 99.9 % of 1000 would be 1000. */
	double exact = percentile / 100 * (double)count * (1 - 1e-12);

	if (exact >= (double)count)
		return count;

	uint64_t rank = (uint64_t)exact;

	if ((double)rank < exact)
		rank++;
	return rank ? rank : 1;
}

uint64_t histogram_percentile(const struct histogram *histogram, double percentile)
{
	assert(percentile >= 0 && percentile <= 100);
	if (!histogram->count)
		return 0;
	if (percentile <= 0)
		return histogram->min;

	uint64_t rank = rank_of(histogram->count, percentile), seen = 0;

	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += histogram->buckets[i];
		if (seen >= rank) {
			uint64_t end = bucket_end(i);

			return end < histogram->max ? end : histogram->max;
		}
	}
	return histogram->max;
}

double histogram_mean(const struct histogram *histogram)
{
	return histogram->count ? histogram->sum / (double)histogram->count : 0;
}

double histogram_stddev(const struct histogram *histogram)
{
	if (!histogram->count)
		return 0;

	double mean = histogram_mean(histogram);
	double variance = histogram->sum_squares / (double)histogram->count - mean * mean;

	return variance > 0 ? sqrt(variance) : 0;
}
