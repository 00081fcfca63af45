/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rounds say of a point, and how surely: means, medians, and confidence intervals by Student's
 * t, in which what is known of the drive's noise from other points counts as rounds of its own. So
 * two rounds that happen to agree are not believed, and need not be repeated many times either.
 */
#include "tune_search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is known from elsewhere counts for no more than so many rounds: points differ. */
#define KNOWN_FREEDOM_MAX 8.0

void rounds_add(struct rounds *rounds, const struct tune_sample *sample)
{
	double from_mean = sample->bytes_per_s - rounds->mean;
	unsigned at = rounds->n++ % LATENCIES_KEPT;

	rounds->mean += from_mean / rounds->n;
	rounds->squares += from_mean * (sample->bytes_per_s - rounds->mean);
	rounds->cpu_ms_per_gib += (sample->cpu_ms_per_gib - rounds->cpu_ms_per_gib) / rounds->n;
	rounds->p50_ns[at] = sample->p50_ns;
	rounds->p99_ns[at] = sample->p99_ns;
}

/* What 97.5 % of the values of Student's t stay below. */
static double student(double freedom)
{
	static const double below[] = {12.71, 12.71, 4.303, 3.182, 2.776,
				       2.571, 2.447, 2.365, 2.306, 2.262};
	size_t whole = (size_t)freedom;

	if (whole < sizeof(below) / sizeof(*below))
		return below[whole];
	return 1.96 + 2.4 / freedom + 2.8 / (freedom * freedom);
}

double half_width(unsigned n, double squares, double known_squares, double known_freedom)
{
	double weight = known_freedom > KNOWN_FREEDOM_MAX ? KNOWN_FREEDOM_MAX : known_freedom;
	double freedom = n - 1 + weight, variance;

	assert(n);
	if (freedom < 1)
		return INFINITY;
	variance = squares;
	if (weight > 0)
		variance += known_squares / known_freedom * weight;
	return student(freedom) * sqrt(variance / freedom / n);
}

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

uint64_t median(const uint64_t *values, size_t n)
{
	uint64_t sorted[LATENCIES_KEPT];

	if (!n)
		return 0;
	n = n > LATENCIES_KEPT ? LATENCIES_KEPT : n;
	memcpy(sorted, values, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_size);
	return sorted[n / 2];
}
