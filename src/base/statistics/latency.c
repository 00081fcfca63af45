/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts of latencies in buckets, and their statistics. Never allocates or locks: each writer has
 * its own counts, which are merged afterwards.
 */
#include "base/statistics/latency.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/numbers.h"

#define STEP_BITS 6
#define STEPS	  (1u << STEP_BITS)

_Static_assert(NVS_LATENCY_BUCKETS == STEPS * (64 - STEP_BITS + 1), "a bucket for every time");

static unsigned bucket_of(uint64_t ns)
{
	if (ns < STEPS)
		return (unsigned)ns;

	unsigned top = 63 - (unsigned)__builtin_clzll(ns);
	unsigned group = top - STEP_BITS + 1;

	return group * STEPS + (unsigned)(ns >> (top - STEP_BITS) & (STEPS - 1));
}

/* The shortest time that the bucket counts, of *width. */
static uint64_t bucket_begin(unsigned bucket, uint64_t *width)
{
	unsigned group = bucket / STEPS, step = bucket % STEPS;

	*width = group ? UINT64_C(1) << (group - 1) : 1;
	return group ? (STEPS + step) * *width : step;
}

uint64_t latency_bucket_ns(unsigned bucket)
{
	uint64_t width, begin = bucket_begin(bucket, &width);

	return begin + width / 2;
}

void latency_add(struct nvs_latency *latency, uint64_t ns)
{
	unsigned bucket = bucket_of(ns);

	assert(bucket < NVS_LATENCY_BUCKETS);
	latency->buckets[bucket]++;
	if (!latency->count || ns < latency->min_ns)
		latency->min_ns = ns;
	if (ns > latency->max_ns)
		latency->max_ns = ns;
	latency->count++;
	latency->sum_ns += (double)ns;
	latency->sum_squares += (double)ns * (double)ns;
}

/* What the field and those before it take. A smaller structure of a caller ends before it. */
#define THROUGH(field)                                                                             \
	(offsetof(struct nvs_latency, field) + sizeof(((struct nvs_latency *)0)->field))

static bool has_sums(const struct nvs_latency *latency)
{
	return latency && latency->size >= THROUGH(sum_squares) && latency->count;
}

static bool has_buckets(const struct nvs_latency *latency)
{
	return latency && latency->size >= THROUGH(buckets);
}

int nvs_latency_merge(struct nvs_latency *into, const struct nvs_latency *from)
{
	if (!has_buckets(into) || !has_buckets(from))
		return -EINVAL;
	latency_merge(into, from);
	return 0;
}

void latency_begin_sums(struct nvs_latency *latency)
{
	latency->size = offsetof(struct nvs_latency, buckets);
	latency->count = latency->min_ns = latency->max_ns = 0;
	latency->sum_ns = latency->sum_squares = 0;
}

void latency_merge_sums(struct nvs_latency *into, const struct nvs_latency *from)
{
	if (!from->count)
		return;
	if (!into->count || from->min_ns < into->min_ns)
		into->min_ns = from->min_ns;
	if (from->max_ns > into->max_ns)
		into->max_ns = from->max_ns;
	into->count += from->count;
	into->sum_ns += from->sum_ns;
	into->sum_squares += from->sum_squares;
}

void latency_merge(struct nvs_latency *into, const struct nvs_latency *from)
{
	if (!from->count)
		return;
	latency_merge_sums(into, from);
	for (unsigned i = 0; i < NVS_LATENCY_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
}

/* The number of counts that make up `percentile` per cent, rounded up: from 1 to `count`. */
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

uint64_t nvs_latency_percentile(const struct nvs_latency *latency, double percentile)
{
	if (!has_buckets(latency) || !latency->count)
		return 0;
	/* NaN counts as 0, too. */
	if (!(percentile > 0))
		return latency->min_ns;

	uint64_t rank = rank_of(latency->count, percentile), seen = 0;

	for (unsigned i = 0; i < NVS_LATENCY_BUCKETS; i++) {
		seen += latency->buckets[i];
		if (seen >= rank) {
			uint64_t width, begin = bucket_begin(i, &width);

			return min_u64(begin + (width - 1), latency->max_ns);
		}
	}
	return latency->max_ns;
}

double nvs_latency_mean(const struct nvs_latency *latency)
{
	return has_sums(latency) ? latency->sum_ns / (double)latency->count : 0;
}

double nvs_latency_stddev(const struct nvs_latency *latency)
{
	if (!has_sums(latency))
		return 0;

	double mean = nvs_latency_mean(latency);
	double variance = latency->sum_squares / (double)latency->count - mean * mean;

	return variance > 0 ? sqrt(variance) : 0;
}

uint64_t nvs_latency_within(const struct nvs_latency *latency, uint64_t ns)
{
	unsigned last = bucket_of(ns);
	uint64_t n = 0;

	for (unsigned i = 0; has_buckets(latency) && i <= last; i++)
		n += latency->buckets[i];
	return n;
}
