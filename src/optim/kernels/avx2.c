/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for AVX2 and F16C: vectors of eight. Compiled with these flags (see the Makefile), and
 * called only if the processor has both.
 */
#include "optim/kernels/sets.h"

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

#define LANES 8

typedef __m256 vec;

static inline vec splat(float x)
{
	return _mm256_set1_ps(x);
}

static inline vec root(vec x)
{
	return _mm256_sqrt_ps(x);
}

static inline vec sign(vec x)
{
	vec one = splat(1), zero = splat(0);

	return _mm256_and_ps(_mm256_cmp_ps(x, zero, _CMP_GT_OQ), one) -
	       _mm256_and_ps(_mm256_cmp_ps(x, zero, _CMP_LT_OQ), one);
}

static inline vec load_f32(const void *from)
{
	return _mm256_loadu_ps(from);
}

static inline void store_f32(void *to, vec x)
{
	_mm256_storeu_ps(to, x);
}

static inline vec load_bf16(const void *from)
{
	__m256i upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));

	return _mm256_castsi256_ps(_mm256_slli_epi32(upper, 16));
}

static inline void store_bf16(void *to, vec x)
{
	__m256i bits = _mm256_castps_si256(x);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
	__m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
	__m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
	__m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);

	_mm_storeu_si128(to, _mm_packus_epi32(_mm256_castsi256_si128(upper),
					      _mm256_extracti128_si256(upper, 1)));
}

static inline vec load_f16(const void *from)
{
	return _mm256_cvtph_ps(_mm_loadu_si128(from));
}

static inline void store_f16(void *to, vec x)
{
	_mm_storeu_si128(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#define WIDE 4

typedef __m256d doubles;

static inline doubles widen(const float *from)
{
	return _mm256_cvtps_pd(_mm_loadu_ps(from));
}

/* ---- Integers ---- */

typedef uint32_t ints __attribute__((vector_size(LANES * sizeof(uint32_t))));

static inline ints as_ints(vec x)
{
	return (ints)x;
}

static inline vec as_vec(ints x)
{
	return (vec)x;
}

static inline ints every(uint32_t x)
{
	return (ints)_mm256_set1_epi32((int)x);
}

static inline ints counting(void)
{
	return (ints){0, 1, 2, 3, 4, 5, 6, 7};
}

static inline ints load_u32(const void *from)
{
	return (ints)_mm256_loadu_si256(from);
}

static inline void store_u32(void *to, ints x)
{
	_mm256_storeu_si256(to, (__m256i)x);
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

static inline void store_low(void *to, ints x)
{
	store_u16(to, x & 0xffff);
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

#include "optim/kernels/body.h"
#include "optim/kernels/packed_body.h"

static const struct kernel set = {"avx2",      UPDATES,	    convert, add,
				  sum_squares, adam_packed, unpack,  pack};

const struct kernel *const kernel_avx2 = &set;
#else
const struct kernel *const kernel_avx2 = NULL;
#endif
