/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rounds say of a point, and how surely. Drives stall now and then, so outliers say little:
 * means are trimmed, and their intervals are Student's t on winsorised squares (Tukey and
 * McLaughlin, 1963). The drive's noise, as known from other points, counts as additional rounds:
 * two rounds that agree by chance are not believed, and need not be repeated often either.
 */
#ifndef CLI_TUNE_SEARCH_STATISTICS_H
#define CLI_TUNE_SEARCH_STATISTICS_H

#define ROUNDS_KEPT	1024u
#define DEVIATIONS_KEPT 64u

/* A trimmed mean. */
struct middle {
	unsigned n, of; /* number of values kept, and of all values */
	double mean;	/* of the values kept */
	double squares; /* summed squared deviations of all values, winsorised */
};

/* The deviation of rounds from the mean of their point, relative to it. */
struct noise {
	double variance, freedom; /* variance of one round without stalls; its degrees of freedom */
	double squares[DEVIATIONS_KEPT];
	unsigned n;
};

/* Of 1 to ROUNDS_KEPT values. */
struct middle middle_of(const double *values, unsigned n);
double median(const double *values, unsigned n);
/* Adds one deviation, scaled up as if it were from the true mean. */
void noise_add(struct noise *noise, double deviation);
/* Half the 95 % confidence interval of the mean. The variance known from other points counts as
 * `known_freedom` values, 1 or more. */
double half_width(const struct middle *middle, double known_variance, double known_freedom);

#endif
