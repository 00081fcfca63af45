/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for AVX-512: vectors of sixteen. It needs only the foundation (F). Compiled with that
 * flag (see the Makefile), and called only if the processor has it.
 */
#include "optim/kernels/kernel.h"

#ifdef __AVX512F__
#include <immintrin.h>

#define LANES 16

typedef __m512 vec;
typedef uint32_t ints __attribute__((vector_size(LANES * sizeof(uint32_t))));

#include "optim/kernels/vectors.h"

static inline vec root(vec x)
{
	return _mm512_sqrt_ps(x);
}

static inline vec sign(vec x)
{
	const vec one = splat(1), zero = {0};

	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero, _CMP_GT_OQ), one) -
	       _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ), one);
}

static inline vec load_f16(const void *from)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(from));
}

static inline void store_f16(void *to, vec x)
{
	_mm256_storeu_si256(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline ints load_u16(const void *from)
{
	return (ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
}

static inline ints load_i16(const void *from)
{
	return (ints)_mm512_cvtepi16_epi32(_mm256_loadu_si256(from));
}

static inline void store_u16(void *to, ints x)
{
	_mm256_storeu_si256(to, _mm512_cvtepi32_epi16((__m512i)x));
}

static inline ints load_u8(const void *from)
{
	return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(from));
}

static inline void store_u8(void *to, ints x)
{
	_mm_storeu_si128(to, _mm512_cvtepi32_epi8((__m512i)x));
}

static inline ints larger(ints a, ints b)
{
	return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

static inline ints smaller(ints a, ints b)
{
	return (ints)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

static inline ints if_nan(vec x, ints yes, ints no)
{
	__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

	return (ints)_mm512_mask_mov_epi32((__m512i)no, nan, (__m512i)yes);
}

#include "optim/kernels/body.h"
#include "optim/kernels/packed_body.h"

static const struct kernel set = {"avx512",    UPDATES,	    convert, add,
				  sum_squares, adam_packed, unpack,  pack};

const struct kernel *const kernel_avx512 = &set;
#else
const struct kernel *const kernel_avx512 = NULL;
#endif
