/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for AVX-512: vectors of sixteen. It needs only the foundation (F). Compiled with that
 * flag (see the Makefile), and called only if the processor has it.
 */
#include "optim/kernels/sets.h"

#ifdef __AVX512F__
#include <immintrin.h>

#define LANES 16

typedef __m512 vec;

static inline vec splat(float x)
{
	return _mm512_set1_ps(x);
}

static inline vec root(vec x)
{
	return _mm512_sqrt_ps(x);
}

static inline vec sign(vec x)
{
	vec one = splat(1), zero = splat(0);

	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero, _CMP_GT_OQ), one) -
	       _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ), one);
}

static inline vec load_f32(const void *from)
{
	return _mm512_loadu_ps(from);
}

static inline void store_f32(void *to, vec x)
{
	_mm512_storeu_ps(to, x);
}

static inline vec load_bf16(const void *from)
{
	__m512i upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from));

	return _mm512_castsi512_ps(_mm512_slli_epi32(upper, 16));
}

static inline void store_bf16(void *to, vec x)
{
	__m512i bits = _mm512_castps_si512(x);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
	__m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
	__m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
	__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
	__m512i upper = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);

	_mm256_storeu_si256(to, _mm512_cvtepi32_epi16(upper));
}

static inline vec load_f16(const void *from)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(from));
}

static inline void store_f16(void *to, vec x)
{
	_mm256_storeu_si256(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#define WIDE 8

typedef __m512d doubles;

static inline doubles widen(const float *from)
{
	return _mm512_cvtps_pd(_mm256_loadu_ps(from));
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
	return (ints)_mm512_set1_epi32((int)x);
}

static inline ints counting(void)
{
	return (ints){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

static inline ints load_u32(const void *from)
{
	return (ints)_mm512_loadu_si512(from);
}

static inline void store_u32(void *to, ints x)
{
	_mm512_storeu_si512(to, (__m512i)x);
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

static inline void store_low(void *to, ints x)
{
	store_u16(to, x);
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

#include "optim/kernels/body.h"
#include "optim/kernels/packed_body.h"

static const struct kernel set = {"avx512",    UPDATES,	    convert, add,
				  sum_squares, adam_packed, unpack,  pack};

const struct kernel *const kernel_avx512 = &set;
#else
const struct kernel *const kernel_avx512 = NULL;
#endif
