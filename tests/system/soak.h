/* SPDX-License-Identifier: Apache-2.0 */
/* What `make soak` runs at length of a test program. */
#ifndef TESTS_SYSTEM_SOAK_H
#define TESTS_SYSTEM_SOAK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * `PROGRAM soak [--minutes N] [--seed N]`: rounds, each of the next seed, for that time (3 minutes if
 * not given) or until one fails. Returns the exit status, or -1 if the arguments are anything else.
 */
int soak(int argc, char **argv, bool (*round)(uint64_t seed));

#endif
