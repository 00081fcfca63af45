/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of a kernel for packed state, included after body.h. A chunk of elements is
 * unpacked to fp32 in the first cache, updated there by `adam`, and packed again; so the number of
 * loops is the sum of the formats, and not their product with the types of gradients and weights.
 *
 * Loops work on whole vectors. What ends within a vector is first copied to where it has room.
 */
#include <math.h>

enum moment { EXP_AVG, EXP_AVG_SQ };

#define CHUNK 512u /* elements: whole blocks and vectors of every set */

_Static_assert(CHUNK % STATE_BLOCK == 0 && STATE_BLOCK % LANES == 0, "whole blocks and vectors");

#define SIGN	     0x80000000u
#define MAGNITUDE    0x7fffffffu
#define INFINITE     0x7f800000u
#define FINITE_MAX   0x7f7fffffu
#define HALF	     0xffffu	 /* the lower 16 bits */
#define FLOAT_COUNTS 0x4b000000u /* 2^23: from here on fp32 counts whole numbers in its low bits */

/* ---- Noise ---- */

/* 32 random bits per element; a hash of 32 bits by Chris Wellons, with two keys. */
static void make_noise(uint32_t *random, const struct noise *noise, size_t done, size_t n)
{
	uint64_t first = noise->first + done;
	uint64_t key = noise_key(noise->key, first >> 32);
	const ints key0 = every((uint32_t)key), key1 = every((uint32_t)(key >> 32));
	static const uint32_t lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
	ints index = every((uint32_t)first) + load_u32(lanes);

	for (size_t i = 0; i < n; i += LANES, index += every(LANES)) {
		ints x = index ^ key0;

		x = (x ^ x >> 16) * every(0x21f0aaad) + key1;
		x = (x ^ x >> 15) * every(0xd35a2d97);
		store_u32(random + i, x ^ x >> 15);
	}
}

/* ---- The master as a weight and a remainder ---- */

/*
 * exp_avg_sq of a chunk has a sign bit between unpacking and join_masters, and between
 * split_masters and packing: it is set where the remainder is above 2^15 - 1, which its 16 bits
 * would read as negative. NULL: there is no such bit.
 */
static void join_masters(float *restrict to, const uint16_t *restrict weights,
			 const uint16_t *restrict remainders, float *restrict exp_avg_sq, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints upper = load_u16(weights + i) << 16;
		ints sum = (upper & every(MAGNITUDE)) + load_i16(remainders + i);

		if (exp_avg_sq) {
			ints square = load_u32(exp_avg_sq + i);

			sum = sum + (square >> 31 << 16);
			store_u32(exp_avg_sq + i, square & every(MAGNITUDE));
		}
		/* A remainder left over from another weight must not turn 0 to NaN. */
		store_u32(to + i, larger(sum, every(0)) | (upper & every(SIGN)));
	}
}

static void split_masters(uint16_t *restrict weights, uint16_t *restrict remainders,
			  float *restrict exp_avg_sq, const float *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints bits = load_u32(from + i), magnitude = bits & every(MAGNITUDE);
		ints odd = bits >> 16 & every(1);
		/* A quiet NaN stays NaN. */
		ints rounded = smaller(magnitude + every(0x7fff) + odd, every(MAGNITUDE));
		ints remainder = magnitude - (rounded & every(~HALF));
		ints above = remainder << 16 & ~remainder & every(SIGN);

		if (exp_avg_sq)
			store_u32(exp_avg_sq + i,
				  (load_u32(exp_avg_sq + i) & every(MAGNITUDE)) | above);
		else /* The next smaller master has a remainder that fits. */
			remainder = remainder - (above >> 31);
		store_u16(weights + i, (rounded | (bits & every(SIGN))) >> 16);
		store_u16(remainders + i, remainder & every(HALF));
	}
}

/* ---- Moments in bf16 ---- */

static void unpack_halves(float *restrict to, const uint16_t *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i += LANES)
		store_u32(to + i, load_u16(from + i) << 16);
}

enum { NEAREST, LOWER, UPPER }; /* which half of the random bits rounds */

SPECIALISED void pack_halves(uint16_t *restrict to, const float *restrict from, uint32_t sign,
			     const uint32_t *restrict random, unsigned half, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints bits = load_u32(from + i), magnitude = bits & every(MAGNITUDE), rounding;

		if (half == NEAREST)
			rounding = every(0x7fff) + (bits >> 16 & every(1));
		else if (half == LOWER)
			rounding = load_u32(random + i) & every(HALF);
		else
			rounding = load_u32(random + i) >> 16;
		/* A quiet NaN stays NaN. */
		magnitude = smaller(magnitude + rounding, every(MAGNITUDE));
		store_u16(to + i, (magnitude | (bits & every(sign))) >> 16);
	}
}

/* ---- Moments in 8 bits ---- */

#define LEVELS	  127u /* the largest code of exp_avg, without its sign bit */
#define LEVELS_SQ 255u /* of exp_avg_sq */
#define CODE_SIGN 0x80u
#define FRACTION  15u /* bits of a code that are rounded away */

/* scale * (code / levels)^4, with exp_avg's sign */
SPECIALISED void decode(float *restrict to, const uint8_t *restrict codes, float scale,
			uint32_t levels, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints code = load_u8(codes + i);
		vec number = as_vec((code & every(levels)) | every(FLOAT_COUNTS)) -
			     as_vec(every(FLOAT_COUNTS));
		vec root4 = number * splat(1 / (float)levels);
		vec root2 = root4 * root4;
		ints bits = as_ints(root2 * root2 * splat(scale));

		if (levels == LEVELS)
			bits = bits | (code & every(CODE_SIGN)) << 24;
		else /* A divisor that was not 0 stays so if it underflows. */
			bits = larger(bits, smaller(code, every(1)));
		store_u32(to + i, bits);
	}
}

/* The largest magnitude's bits; above INFINITE if one is NaN. */
SPECIALISED uint32_t find_largest(const float *from, size_t n)
{
	ints most = every(0);
	uint32_t lanes[LANES], bits = 0;

	for (size_t i = 0; i < n; i += LANES)
		most = larger(most, load_u32(from + i) & every(MAGNITUDE));
	store_u32(lanes, most);
	for (unsigned i = 0; i < LANES; i++)
		bits = lanes[i] > bits ? lanes[i] : bits;
	return bits;
}

/* Returns the scale. */
SPECIALISED float encode(uint8_t *restrict codes, const float *restrict from, uint32_t levels,
			 const uint32_t *random, unsigned shift, size_t n)
{
	uint32_t bits = find_largest(from, n);
	float scale, factor;

	/* inf of exp_avg_sq becomes the block's, as an update by it is 0; else the block is NaN. */
	if (bits > FINITE_MAX) {
		bool is_inf = levels == LEVELS_SQ && bits == INFINITE;

		memset(codes, is_inf ? LEVELS_SQ : 0, n);
		return is_inf ? INFINITY : NAN;
	}
	memcpy(&scale, &bits, sizeof(scale));
	/* Two more, so that the largest value's code is `levels` despite rounding. */
	factor = bits ? (float)((levels << FRACTION) + 2) / sqrtf(sqrtf(scale)) : 0;
	for (size_t i = 0; i < n; i += LANES) {
		ints value = load_u32(from + i);
		ints magnitude = value & every(MAGNITUDE);
		/* Adding 2^23 rounds to a whole number in the low bits. */
		vec counted = root(root(as_vec(magnitude))) * splat(factor) +
			      as_vec(every(FLOAT_COUNTS));
		ints rounding = random ? load_u32(random + i) >> shift & every((1u << FRACTION) - 1)
				       : every(1u << (FRACTION - 1));
		ints code = ((as_ints(counted) & every(~FLOAT_COUNTS)) + rounding) >> FRACTION;

		code = smaller(code, every(levels));
		if (levels == LEVELS)
			code = code | (value & every(SIGN)) >> 24;
		else /* A divisor that is not 0 must not become 0. */
			code = larger(code, smaller(magnitude, every(1)));
		store_u8(codes + i, code);
	}
	return scale;
}

SPECIALISED void decode_blocks(float *to, const uint8_t *codes, const float *scales,
			       uint32_t levels, size_t n)
{
	for (size_t at = 0; at < n; at += STATE_BLOCK)
		decode(to + at, codes + at, scales[at / STATE_BLOCK], levels,
		       n - at < STATE_BLOCK ? n - at : STATE_BLOCK);
}

SPECIALISED void encode_blocks(uint8_t *codes, float *scales, const float *from, uint32_t levels,
			       const uint32_t *random, unsigned shift, size_t n)
{
	for (size_t at = 0; at < n; at += STATE_BLOCK)
		scales[at / STATE_BLOCK] = encode(codes + at, from + at, levels,
						  random ? random + at : NULL, shift,
						  n - at < STATE_BLOCK ? n - at : STATE_BLOCK);
}

/* ---- The parts of a chunk ---- */

/* `exp_avg_sq` as for join_masters. */
static void unpack_master(float *to, const struct state_run *run, const uint16_t *weights,
			  float *exp_avg_sq, size_t n)
{
	if (!run->split)
		memcpy(to, run->master, n * sizeof(*to));
	else
		join_masters(to, weights, run->master,
			     run->moments == MOMENTS_8BIT ? NULL : exp_avg_sq, n);
}

static void pack_master(const struct state_run *run, const float *from, uint16_t *weights,
			float *exp_avg_sq, size_t n)
{
	if (!run->split)
		memcpy(run->master, from, n * sizeof(*from));
	else
		split_masters(weights, run->master,
			      run->moments == MOMENTS_8BIT ? NULL : exp_avg_sq, from, n);
}

/* exp_avg_sq has the sign bit that split uses. */
static void unpack_moment(float *to, const struct state_run *run, enum moment moment, size_t n)
{
	const void *from = moment == EXP_AVG ? run->exp_avg : run->exp_avg_sq;

	if (run->moments == MOMENTS_FP32)
		memcpy(to, from, n * sizeof(*to));
	else if (run->moments == MOMENTS_BF16)
		unpack_halves(to, from, n);
	else if (moment == EXP_AVG)
		decode_blocks(to, from, run->exp_avg_scales, LEVELS, n);
	else
		decode_blocks(to, from, run->exp_avg_sq_scales, LEVELS_SQ, n);
}

/* Each moment has a half of the random bits; NULL: to nearest. */
static void pack_moment(const struct state_run *run, enum moment moment, const float *from,
			const uint32_t *random, size_t n)
{
	void *to = moment == EXP_AVG ? run->exp_avg : run->exp_avg_sq;

	if (run->moments == MOMENTS_FP32)
		memcpy(to, from, n * sizeof(*from));
	else if (run->moments == MOMENTS_BF16 && !random)
		pack_halves(to, from, moment == EXP_AVG || run->split ? SIGN : 0, NULL, NEAREST, n);
	else if (run->moments == MOMENTS_BF16 && moment == EXP_AVG)
		pack_halves(to, from, SIGN, random, LOWER, n);
	else if (run->moments == MOMENTS_BF16)
		pack_halves(to, from, run->split ? SIGN : 0, random, UPPER, n);
	else if (moment == EXP_AVG)
		encode_blocks(to, run->exp_avg_scales, from, LEVELS, random, 0, n);
	else
		encode_blocks(to, run->exp_avg_sq_scales, from, LEVELS_SQ, random, 16, n);
}

/* The signs of what is kept instead of those of the values. */
static void keep_signs(float *values, const struct state_run *run, size_t n)
{
	_Alignas(64) float before[CHUNK];

	unpack_moment(before, run, EXP_AVG_SQ, n);
	for (size_t i = 0; i < n; i += LANES)
		store_u32(values + i, (load_u32(values + i) & every(MAGNITUDE)) |
					      (load_u32(before + i) & every(SIGN)));
}

/* ---- Chunks ---- */

static size_t to_vectors(size_t n)
{
	return (n + LANES - 1) / LANES * LANES;
}

/* Chunks end where the index is a multiple of CHUNK, so its upper half is the same in a chunk. */
static size_t next_chunk(const struct noise *noise, size_t done, size_t n)
{
	size_t room = CHUNK - (noise ? (size_t)(noise->first + done) % CHUNK : 0);

	return n - done < room ? n - done : room;
}

/* Room for a chunk that ends within a vector. */
struct staged {
	struct state_run run;
	_Alignas(64) float master[CHUNK];
	float exp_avg[CHUNK], exp_avg_sq[CHUNK];
	uint16_t weights[CHUNK];
};

static void copy_state(const struct state_run *to, const struct state_run *from, size_t n)
{
	memcpy(to->master, from->master, n * master_size(from->split));
	memcpy(to->exp_avg, from->exp_avg, n * moment_size(from->moments));
	memcpy(to->exp_avg_sq, from->exp_avg_sq, n * moment_size(from->moments));
}

/* `weights` only with split. */
static void stage(struct staged *staged, const struct state_run *run, const uint16_t *weights,
		  size_t n)
{
	memset(staged, 0, sizeof(*staged));
	staged->run = *run;
	staged->run.master = staged->master;
	staged->run.exp_avg = staged->exp_avg;
	staged->run.exp_avg_sq = staged->exp_avg_sq;
	copy_state(&staged->run, run, n);
	if (weights)
		memcpy(staged->weights, weights, n * sizeof(*weights));
}

static void unstage(const struct state_run *run, uint16_t *weights, const struct staged *staged,
		    size_t n)
{
	copy_state(run, &staged->run, n);
	if (weights)
		memcpy(weights, staged->weights, n * sizeof(*weights));
}

static void check_run(const struct state_run *run, const struct noise *noise, const void *weights,
		      enum nvs_dtype weights_dtype)
{
	assert(run->moments <= MOMENTS_8BIT);
	assert(run->moments != MOMENTS_8BIT || !noise || noise->first % STATE_BLOCK == 0);
	assert(!weights || known(weights_dtype));
	assert(!run->split || !weights || weights_dtype == NVS_BF16);
	(void)run, (void)noise, (void)weights, (void)weights_dtype;
}

/* What is kept in fp32 is updated in place. */
static void adam_chunk(const struct scalars *scalars, const struct state_run *run,
		       const uint32_t *random, const void *gradients,
		       enum nvs_dtype gradients_dtype, void *weights, enum nvs_dtype weights_dtype,
		       uint16_t *upper, size_t n)
{
	_Alignas(64) float masters[CHUNK], averages[CHUNK], squares[CHUNK];
	const bool packs = run->moments != MOMENTS_FP32;
	float *master = run->split ? masters : run->master;
	float *exp_avg = packs ? averages : run->exp_avg;
	float *exp_avg_sq = packs ? squares : run->exp_avg_sq;
	const size_t whole = to_vectors(n);

	if (packs) {
		unpack_moment(exp_avg, run, EXP_AVG, whole);
		unpack_moment(exp_avg_sq, run, EXP_AVG_SQ, whole);
	}
	if (run->split)
		unpack_master(master, run, upper, exp_avg_sq, whole);
	/* Codes beyond the end must not become the largest of their block. */
	if (packs && whole != n) {
		memset(exp_avg + n, 0, (whole - n) * sizeof(float));
		memset(exp_avg_sq + n, 0, (whole - n) * sizeof(float));
	}
	adam_all(scalars, master, exp_avg, exp_avg_sq, gradients, gradients_dtype,
		 run->split ? NULL : weights, weights_dtype, n);
	if (run->split)
		pack_master(run, master, upper, exp_avg_sq, whole);
	if (packs) {
		pack_moment(run, EXP_AVG, exp_avg, random, whole);
		pack_moment(run, EXP_AVG_SQ, exp_avg_sq, random, whole);
	}
}

static void adam_packed(const struct scalars *scalars, const struct state_run *state,
			const struct noise *noise, const void *gradients,
			enum nvs_dtype gradients_dtype, void *weights, enum nvs_dtype weights_dtype,
			size_t n)
{
	_Alignas(64) uint32_t random[CHUNK];

	check_run(state, noise, weights, weights_dtype);
	assert(!state->split || weights);
	assert(state->moments == MOMENTS_FP32 || noise);
	for (size_t done = 0, part; done < n; done += part) {
		struct state_run run = state_run_from(state, done);
		const void *from = element(gradients, gradients_dtype, done);
		void *to = weights ? element_to_set(weights, weights_dtype, done) : NULL;
		uint16_t *upper = state->split ? to : NULL;
		struct staged staged;

		part = next_chunk(noise, done, n);
		if (state->moments != MOMENTS_FP32)
			make_noise(random, noise, done, to_vectors(part));
		if (part % LANES == 0) {
			adam_chunk(scalars, &run, random, from, gradients_dtype, to, weights_dtype,
				   upper, part);
			continue;
		}
		stage(&staged, &run, upper, part);
		adam_chunk(scalars, &staged.run, random, from, gradients_dtype, to, weights_dtype,
			   staged.weights, part);
		unstage(&run, upper, &staged, part);
	}
}

static void unpack(const struct state_run *state, const void *weights, float *master,
		   float *exp_avg, float *exp_avg_sq, size_t n)
{
	_Alignas(64) float values[CHUNK], squares[CHUNK];

	check_run(state, NULL, weights, NVS_BF16);
	assert(!state->split || !master || weights);
	for (size_t done = 0, part; done < n; done += part) {
		struct state_run run = state_run_from(state, done);
		const uint16_t *from = state->split && weights ? (const uint16_t *)weights + done
							       : NULL;
		struct staged staged;
		size_t whole;

		part = next_chunk(NULL, done, n);
		whole = to_vectors(part);
		if (whole != part) {
			stage(&staged, &run, from, part);
			run = staged.run;
			from = staged.weights;
		}
		if (exp_avg) {
			unpack_moment(values, &run, EXP_AVG, whole);
			memcpy(exp_avg + done, values, part * sizeof(float));
		}
		if (exp_avg_sq || (master && state->split))
			unpack_moment(squares, &run, EXP_AVG_SQ, whole);
		if (master) {
			unpack_master(values, &run, from, squares, whole);
			memcpy(master + done, values, part * sizeof(float));
		} else if (exp_avg_sq && state->split) {
			for (size_t i = 0; i < whole; i += LANES)
				store_u32(squares + i, load_u32(squares + i) & every(MAGNITUDE));
		}
		if (exp_avg_sq)
			memcpy(exp_avg_sq + done, squares, part * sizeof(float));
	}
}

/* A part of an array with quiet NaNs, and zeros up to the end of its vector. */
static void fill_values(float *values, const float *from, size_t n)
{
	memcpy(values, from, n * sizeof(float));
	memset(values + n, 0, (to_vectors(n) - n) * sizeof(float));
	for (size_t i = 0; i < n; i += LANES) {
		vec x = load_f32(values + i);

		store_u32(values + i, if_nan(x, as_ints(x) | every(QUIET), as_ints(x)));
	}
}

static void pack(const struct state_run *state, const struct noise *noise, const float *master,
		 const float *exp_avg, const float *exp_avg_sq, void *weights,
		 enum nvs_dtype weights_dtype, size_t n)
{
	_Alignas(64) float values[CHUNK], squares[CHUNK];
	_Alignas(64) uint32_t random[CHUNK];
	/* Signs of exp_avg_sq are the master's. */
	const bool marks = state->split && state->moments != MOMENTS_8BIT;

	check_run(state, noise, weights, weights_dtype);
	assert(!state->split || !master || weights);
	for (size_t done = 0, part; done < n; done += part) {
		struct state_run run = state_run_from(state, done), at;
		uint16_t *to = state->split && weights ? (uint16_t *)weights + done : NULL;
		struct staged staged;
		size_t whole;

		part = next_chunk(noise, done, n);
		whole = to_vectors(part);
		at = run;
		if (whole != part) {
			stage(&staged, &run, to, part);
			at = staged.run;
		}
		if (noise)
			make_noise(random, noise, done, whole);
		if (exp_avg) {
			fill_values(values, exp_avg + done, part);
			pack_moment(&at, EXP_AVG, values, noise ? random : NULL, whole);
		}
		if (exp_avg_sq) {
			fill_values(squares, exp_avg_sq + done, part);
			if (marks)
				keep_signs(squares, &at, whole);
		} else if (marks && master) {
			unpack_moment(squares, &at, EXP_AVG_SQ, whole);
		}
		if (master) {
			fill_values(values, master + done, part);
			pack_master(&at, values, whole != part ? staged.weights : to, squares,
				    whole);
		}
		if (exp_avg_sq || (marks && master))
			pack_moment(&at, EXP_AVG_SQ, squares, noise ? random : NULL, whole);
		if (whole != part)
			unstage(&run, to, &staged, part);
	}
	if (weights && master && !state->split)
		convert(weights, weights_dtype, master, NVS_F32, 1, n);
}
