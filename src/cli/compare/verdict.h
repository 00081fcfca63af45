/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether one figure differs from another by more than the noise of both.
 */
#ifndef CLI_COMPARE_VERDICT_H
#define CLI_COMPARE_VERDICT_H

#include "cli/compare/results.h"

struct estimate {
	double value;
	struct noise noise;
};

enum verdict { CANT_TELL, SAME, BETTER, WORSE };

/* In per cent of the base. */
struct change {
	double percent;	   /* NAN: base or other has no value */
	double half_width; /* of the 95 % interval of percent; NAN: unknown */
	enum verdict verdict;
	bool beyond_threshold; /* worse or better, and by more than that */
};

/* The mean of several runs, and its noise. */
struct estimate estimate_of_runs(const double *values, unsigned n);
/* Half of the 95 % interval, as a share of the value; NAN: unknown. */
double estimate_half_width(const struct estimate *estimate);
/*
 * SAME: the interval lies within the threshold (per cent) of 0; BETTER, WORSE: it excludes 0;
 * CANT_TELL: neither, or the noise is unknown.
 */
struct change change_of(const struct estimate *base, const struct estimate *other,
			bool less_is_better, double threshold);

#endif
