/* SPDX-License-Identifier: Apache-2.0 */
/* Student's t, for confidence intervals of means of few values. */
#ifndef STATISTICS_STUDENT_H
#define STATISTICS_STUDENT_H

#include <stddef.h>

#include "base/numbers.h"

/* The 97.5 % quantile; less than one degree of freedom counts as one. */
static inline double student_975(double freedom)
{
	static const double below[] = {12.71, 12.71, 4.303, 3.182, 2.776,
				       2.571, 2.447, 2.365, 2.306, 2.262};
	size_t whole = (size_t)freedom;

	if (whole < COUNT_OF(below))
		return below[whole];
	return 1.96 + 2.4 / freedom + 2.8 / (freedom * freedom);
}

#endif
