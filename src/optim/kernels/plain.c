/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel in plain C: a vector is one element, and the compiler may vectorize with the target's
 * baseline instructions. fp16 is converted bit by bit.
 */
#include "optim/kernels/kernel.h"

#include <math.h>
#include <string.h>

#define LANES 1

typedef float vec;
typedef uint32_t ints;

#include "optim/kernels/vectors.h"

static inline vec root(vec x)
{
	return sqrtf(x);
}

static inline vec sign(vec x)
{
	return (float)((x > 0) - (x < 0));
}

static inline ints load_u16(const void *from)
{
	uint16_t half;

	memcpy(&half, from, sizeof(half));
	return half;
}

static inline ints load_i16(const void *from)
{
	return (ints)(int16_t)load_u16(from);
}

static inline void store_u16(void *to, ints x)
{
	uint16_t half = (uint16_t)x;

	memcpy(to, &half, sizeof(half));
}

/* ---- fp16: 5 bits of exponent, 10 of mantissa ---- */

#define F32_INF		  0x7f800000u
#define F32_QUIET	  0x00400000u
#define F16_INF		  0x7c00u
#define F16_QUIET	  0x0200u
#define MANTISSA_DIFFERS  13	       /* bits by which fp32's is longer */
#define BIAS_DIFFERS	  (112u << 23) /* of the exponents, in place */
#define F16_LEAST_NORMAL  0x0400u
#define F32_LEAST_NORMAL  0x38800000u /* of fp16: 2^-14 */
#define F32_ROUNDS_TO_INF 0x477ff000u /* in fp16: 65520 */

static inline vec load_f16(const void *from)
{
	uint32_t half = load_u16(from);
	uint32_t sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
	uint32_t moved = magnitude << MANTISSA_DIFFERS;
	uint32_t normal = moved + BIAS_DIFFERS;
	uint32_t subnormal = as_ints((float)(int32_t)magnitude * 0x1p-24f);
	uint32_t special = moved | F32_INF | (magnitude > F16_INF ? F32_QUIET : 0);

	return as_vec(sign | (magnitude >= F16_INF	     ? special
			      : magnitude < F16_LEAST_NORMAL ? subnormal
							     : normal));
}

static inline void store_f16(void *to, vec x)
{
	uint32_t bits = as_ints(x);
	uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
	uint32_t moved = magnitude >> MANTISSA_DIFFERS;
	uint32_t normal = (magnitude - BIAS_DIFFERS + 0xfff + (moved & 1)) >> MANTISSA_DIFFERS;
	/* In [0.5, 1) fp32 counts in steps of 2^-24, as subnormal fp16 does: adding rounds. */
	uint32_t subnormal = as_ints(as_vec(magnitude) + 0.5f) - as_ints(0.5f);
	uint32_t nan = F16_INF | F16_QUIET | (moved & 0x3ff);

	store_u16(to, sign | (magnitude > F32_INF	       ? nan
			      : magnitude >= F32_ROUNDS_TO_INF ? F16_INF
			      : magnitude < F32_LEAST_NORMAL   ? subnormal
							       : normal));
}

static inline ints load_u8(const void *from)
{
	return *(const uint8_t *)from;
}

static inline void store_u8(void *to, ints x)
{
	*(uint8_t *)to = (uint8_t)x;
}

static inline ints larger(ints a, ints b)
{
	return (int32_t)a > (int32_t)b ? a : b;
}

static inline ints smaller(ints a, ints b)
{
	return a < b ? a : b;
}

static inline ints if_nan(vec x, ints yes, ints no)
{
	return x != x ? yes : no;
}

#include "optim/kernels/body.h"
#include "optim/kernels/packed_body.h"

static const struct kernel set = {"plain",     UPDATES,	    convert, add,
				  sum_squares, adam_packed, unpack,  pack};

const struct kernel *const kernel_plain = &set;
