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

#include "optim/kernels/body.h"

static const struct kernel set = {"avx2", adam_all, convert, add, sum_squares};

const struct kernel *const kernel_avx2 = &set;
#else
const struct kernel *const kernel_avx2 = NULL;
#endif
