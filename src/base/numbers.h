/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic and counts that all layers use. */
#ifndef BASE_NUMBERS_H
#define BASE_NUMBERS_H

#include <assert.h>
#include <stdint.h>

/* Elements of an array. */
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The largest multiple of the unit that is not above n. */
static inline uint64_t align_down(uint64_t n, uint64_t unit)
{
	assert(unit);
	return n - n % unit;
}

/* The smallest multiple of the unit that is not below n; n + unit - 1 must fit into 64 bits. */
static inline uint64_t align_up(uint64_t n, uint64_t unit)
{
	assert(unit && n <= UINT64_MAX - (unit - 1));
	return align_down(n + unit - 1, unit);
}

#endif
