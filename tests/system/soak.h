/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of the test programs that `make soak` runs at length. */
#ifndef TESTS_SYSTEM_SOAK_H
#define TESTS_SYSTEM_SOAK_H

#include <stdbool.h>
#include <stdint.h>

struct soak_options {
	double minutes; /* 3 if not given */
	uint64_t seed;	/* of the time, if not given */
};

/* Parses `PROGRAM soak [--minutes N] [--seed N]`; returns false if it is anything else. */
bool soak_parse(int argc, char **argv, struct soak_options *options);

#endif
