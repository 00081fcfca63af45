/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rounds say of a point, and how surely. A drive stalls now and then, so what stands out says
 * little of a point: means are trimmed, their intervals are by Student's t from what is left as
 * Tukey and McLaughlin (1963) have it, with squares of winsorised values. What is known of the
 * drive's noise from other points counts as rounds of its own, so two rounds that happen to agree
 * are not believed, and need not be repeated many times either.
 */
#include "tune_search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is known from elsewhere counts for no more than so many rounds: points differ. */
#define KNOWN_FREEDOM_MAX 8.0
/* Values whose variance is more than so many times what is known speak for themselves. */
#define DISAGREE 4
/* One value in so many is left out at either end. */
#define TRIMMED 5u
/* So many deviations are worth more than what was taken for granted. */
#define DEVIATIONS_LEAST 8u
/* Of squares of what is spread as Gauss has it: their median, as a share of their mean; and a
 * median of n tells as much of the mean as so many do. */
#define MEDIAN_OF_SQUARES 0.455
#define TOLD_BY_MEDIAN	  0.37

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

struct middle middle_of(const double *values, unsigned n)
{
	double sorted[ROUNDS_KEPT];
	unsigned out = n / TRIMMED;
	struct middle middle = {.n = n - 2 * out, .of = n};
	double mean = 0, low, high;

	assert(n && n <= ROUNDS_KEPT);
	memcpy(sorted, values, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_value);
	for (unsigned i = out; i < n - out; i++)
		middle.mean += sorted[i] / middle.n;
	low = sorted[out];
	high = sorted[n - out - 1];
	for (unsigned i = 0; i < n; i++) {
		sorted[i] = fmin(fmax(sorted[i], low), high);
		mean += sorted[i] / n;
	}
	for (unsigned i = 0; i < n; i++)
		middle.squares += (sorted[i] - mean) * (sorted[i] - mean);
	return middle;
}

void noise_add(struct noise *noise, double deviation)
{
	double sorted[DEVIATIONS_KEPT];
	unsigned n;

	noise->squares[noise->n++ % DEVIATIONS_KEPT] = deviation * deviation;
	n = noise->n < DEVIATIONS_KEPT ? noise->n : DEVIATIONS_KEPT;
	if (n < DEVIATIONS_LEAST)
		return;
	memcpy(sorted, noise->squares, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_value);
	noise->variance = sorted[n / 2] / MEDIAN_OF_SQUARES;
	noise->freedom = TOLD_BY_MEDIAN * n;
}

void rounds_add(struct rounds *rounds, const struct tune_sample *sample)
{
	unsigned at = rounds->n % LATENCIES_KEPT;

	rounds->rates[rounds->n++ % ROUNDS_KEPT] = sample->bytes_per_s;
	rounds->rate = middle_of(rounds->rates, rounds->n < ROUNDS_KEPT ? rounds->n : ROUNDS_KEPT);
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

double half_width(const struct middle *middle, double known_variance, double known_freedom)
{
	double weight = known_freedom < KNOWN_FREEDOM_MAX ? known_freedom : KNOWN_FREEDOM_MAX;
	double own = middle->n > 1 ? middle->squares / (middle->n - 1) : 0, freedom;

	assert(middle->n && weight >= 1);
	/* So that the interval of many values is no wider for having some of them left out. */
	known_variance *= (double)middle->n / middle->of;
	if (own > DISAGREE * known_variance)
		weight *= DISAGREE * known_variance / own;
	freedom = middle->n - 1 + weight;
	return student(freedom) *
	       sqrt((middle->squares + weight * known_variance) / freedom / middle->n);
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
