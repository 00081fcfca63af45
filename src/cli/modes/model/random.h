/* SPDX-License-Identifier: Apache-2.0 */
/* Pseudo-random numbers from a seed, and a hash, the same on every machine. */
#ifndef CLI_MODES_MODEL_RANDOM_H
#define CLI_MODES_MODEL_RANDOM_H

#include <stdint.h>

/* splitmix64: the next number of a state. */
static inline uint64_t spread(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* A hash that compilers vectorize in a loop. */
static inline uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x85ebca6bu;
	x ^= x >> 13;
	x *= 0xc2b2ae35u;
	return x ^ x >> 16;
}

#endif
