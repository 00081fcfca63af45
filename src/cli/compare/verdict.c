/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Welch's interval of the ratio of two means, on logarithms, so that swapping base and other gives
 * the inverse.
 */
#include "cli/compare/verdict.h"

#include <math.h>

#include "base/statistics/student.h"

struct estimate estimate_of_runs(const double *values, unsigned n)
{
	struct estimate estimate = {.noise.freedom = n - 1.0};
	double squares = 0;

	for (unsigned i = 0; i < n; i++)
		estimate.value += values[i] / n;
	for (unsigned i = 0; i < n; i++)
		squares += (values[i] - estimate.value) * (values[i] - estimate.value);
	if (n > 1 && estimate.value > 0)
		estimate.noise.error = sqrt(squares / (n - 1.0) / n) / estimate.value;
	return estimate;
}

double estimate_half_width(const struct estimate *estimate)
{
	const struct noise *noise = &estimate->noise;

	return noise->freedom < 1 ? (double)NAN : student_975(noise->freedom) * noise->error;
}

/* Of the difference of the logarithms. */
static double half_width_of(const struct noise *base, const struct noise *other)
{
	double a = base->error * base->error, b = other->error * other->error;

	if (base->freedom < 1 || other->freedom < 1)
		return (double)NAN;
	if (a + b == 0)
		return 0;
	return sqrt(a + b) *
	       student_975((a + b) * (a + b) / (a * a / base->freedom + b * b / other->freedom));
}

struct change change_of(const struct estimate *base, const struct estimate *other,
			bool less_is_better, double threshold)
{
	struct change change = {.percent = (double)NAN, .half_width = (double)NAN};
	double ratio, half, low, high;

	if (!(base->value > 0 && other->value > 0))
		return change;
	ratio = log(other->value / base->value);
	half = half_width_of(&base->noise, &other->noise);
	low = 100 * expm1(ratio - half);
	high = 100 * expm1(ratio + half);
	change.percent = 100 * expm1(ratio);
	change.half_width = (high - low) / 2;
	if (low >= -threshold && high <= threshold)
		change.verdict = SAME;
	else if (low > 0 || high < 0)
		change.verdict = (low > 0) == less_is_better ? WORSE : BETTER;
	change.beyond_threshold = change.verdict >= BETTER && fabs(change.percent) > threshold;
	return change;
}
