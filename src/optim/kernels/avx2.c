/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for AVX2 and F16C: vectors of eight. Compiled with these flags (see the Makefile), and
 * called only if the processor has both.
 */
#include "optim/kernels/kernel.h"

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

#define LANES 8

typedef __m256 vec;
typedef uint32_t ints __attribute__((vector_size(LANES * sizeof(uint32_t))));

#include "optim/kernels/vectors.h"

static inline vec root(vec x)
{
	return _mm256_sqrt_ps(x);
}

static inline vec sign(vec x)
{
	const vec one = splat(1), zero = {0};

	return _mm256_and_ps(_mm256_cmp_ps(x, zero, _CMP_GT_OQ), one) -
	       _mm256_and_ps(_mm256_cmp_ps(x, zero, _CMP_LT_OQ), one);
}

static inline vec load_f16(const void *from)
{
	return _mm256_cvtph_ps(_mm_loadu_si128(from));
}

static inline void store_f16(void *to, vec x)
{
	_mm_storeu_si128(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline ints load_u16(const void *from)
{
	return (ints)_mm256_cvtepu16_epi32(_mm_loadu_si128(from));
}

static inline ints load_i16(const void *from)
{
	return (ints)_mm256_cvtepi16_epi32(_mm_loadu_si128(from));
}

static inline __m128i to_halves(ints x)
{
	return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)x),
				_mm256_extracti128_si256((__m256i)x, 1));
}

static inline void store_u16(void *to, ints x)
{
	_mm_storeu_si128(to, to_halves(x));
}

static inline ints load_u8(const void *from)
{
	return (ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(from));
}

static inline void store_u8(void *to, ints x)
{
	_mm_storel_epi64(to, _mm_packus_epi16(to_halves(x), _mm_setzero_si128()));
}

static inline ints larger(ints a, ints b)
{
	return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

static inline ints smaller(ints a, ints b)
{
	return (ints)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

static inline ints if_nan(vec x, ints yes, ints no)
{
	__m256i nan = (__m256i)_mm256_cmp_ps(x, x, _CMP_UNORD_Q);

	return (ints)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, nan);
}

#include "optim/kernels/body.h"
#include "optim/kernels/packed_body.h"

static const struct kernel set = {"avx2",      UPDATES,	    convert, add,
				  sum_squares, adam_packed, unpack,  pack};

const struct kernel *const kernel_avx2 = &set;
#else
const struct kernel *const kernel_avx2 = NULL;
#endif
