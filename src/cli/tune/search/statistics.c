/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/tune/search/search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/statistics/student.h"

/* Points differ, so noise known from others counts as this many rounds at most. */
#define KNOWN_FREEDOM_MAX 8.0
/* Values whose variance is this many times the known one are judged by themselves. */
#define DISAGREE 4
/* One value in this many is trimmed at either end. */
#define TRIMMED 5u
/* Deviations required before they replace the assumed noise. */
#define DEVIATIONS_LEAST 8u
/* Of squared normal deviates: the median as a share of the mean, and how many values of n a median
 * is worth when it estimates that mean. */
#define MEDIAN_OF_SQUARES 0.455
#define TOLD_BY_MEDIAN	  0.37

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void sort(double sorted[ROUNDS_KEPT], const double *values, unsigned n)
{
	assert(n && n <= ROUNDS_KEPT);
	memcpy(sorted, values, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_value);
}

struct middle middle_of(const double *values, unsigned n)
{
	double sorted[ROUNDS_KEPT];
	unsigned out = n / TRIMMED;
	struct middle middle = {.n = n - 2 * out, .of = n};
	double mean = 0, low, high;

	sort(sorted, values, n);
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

double median(const double *values, unsigned n)
{
	double sorted[ROUNDS_KEPT];

	sort(sorted, values, n);
	return sorted[n / 2];
}

void noise_add(struct noise *noise, double deviation)
{
	unsigned n;

	noise->squares[noise->n++ % DEVIATIONS_KEPT] = deviation * deviation;
	n = noise->n < DEVIATIONS_KEPT ? noise->n : DEVIATIONS_KEPT;
	if (n < DEVIATIONS_LEAST)
		return;
	noise->variance = median(noise->squares, n) / MEDIAN_OF_SQUARES;
	noise->freedom = TOLD_BY_MEDIAN * n;
}

double half_width(const struct middle *middle, double known_variance, double known_freedom)
{
	double weight = fmin(known_freedom, KNOWN_FREEDOM_MAX);
	double own = middle->n > 1 ? middle->squares / (middle->n - 1) : 0, freedom;

	assert(middle->n && weight >= 1);
	/* Trimming must not widen the interval. */
	known_variance *= (double)middle->n / middle->of;
	if (own > DISAGREE * known_variance)
		weight *= DISAGREE * known_variance / own;
	freedom = middle->n - 1 + weight;
	return student_975(freedom) *
	       sqrt((middle->squares + weight * known_variance) / freedom / middle->n);
}
