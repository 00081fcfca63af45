/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of a kernel for packed state, included after body.h. A chunk of elements is unpacked
 * to fp32 in the first cache, updated there by `adam`, and packed again; so the number of loops is
 * the sum of the formats, and not their product with the types of gradients and weights.
 *
 * The including file has defined, beside what body.h needs:
 *
 *	ints	LANES values of uint32_t, with operators + - * & | ^ >> <<
 *	as_ints, as_vec
 *		the same bits as the other type
 *	every	all lanes the same; counting: 0, 1, 2 ...
 *	load_u32, load_u16, load_u8, store_u32, store_u16, store_u8
 *		LANES elements at any address; stored values fit
 *	larger, smaller
 *		of values below 2^31
 *
 * Loops work on whole vectors. A chunk that ends within one is first copied to where it has room.
 */
#include <math.h>

#define CHUNK 512u /* elements: whole blocks and vectors of every set */

_Static_assert(CHUNK % STATE_BLOCK == 0 && STATE_BLOCK % LANES == 0, "whole blocks and vectors");

#define SIGN	   0x80000000u
#define MAGNITUDE  0x7fffffffu
#define INF_BITS   0x7f800000u
#define MAX_FINITE 0x7f7fffffu

/* The fp32 values of a chunk, and 32 random bits for each. */
struct chunk {
	_Alignas(64) float master[CHUNK];
	_Alignas(64) float exp_avg[CHUNK];
	_Alignas(64) float exp_avg_sq[CHUNK];
	_Alignas(64) uint32_t noise[CHUNK];
	bool nearest; /* no noise: round to nearest */
};

/* 1 in every lane where a < b, else 0; both below 2^31. */
SPECIALISED ints is_below(ints a, ints b)
{
	return (a - b) >> 31;
}

/* ---- Noise ---- */

#define HALF_NOISE 0x40004000u /* makes the 8-bit codes round to nearest */

/* "triple32" by Chris Wellons, with two keys. */
SPECIALISED ints hash(ints index, uint32_t key0, uint32_t key1)
{
	ints x = index ^ every(key0);

	x = (x ^ x >> 17) * every(0xed5ad4bb);
	x = x + every(key1);
	x = (x ^ x >> 11) * every(0xac4c1b51);
	x = (x ^ x >> 15) * every(0x31848bab);
	return x ^ x >> 14;
}

static void make_noise(struct chunk *chunk, const struct noise *noise, size_t done, size_t n)
{
	uint64_t first = noise ? noise->first + done : 0;
	uint64_t key = noise ? noise_key(noise->key, first >> 32) : 0;

	chunk->nearest = !noise;
	for (size_t i = 0; i < n; i += LANES) {
		ints index = every((uint32_t)first + (uint32_t)i) + counting();

		store_u32(chunk->noise + i,
			  noise ? hash(index, (uint32_t)key, (uint32_t)(key >> 32))
				: every(HALF_NOISE));
	}
}

/* ---- The master as a weight and a remainder ---- */

/* The sign bit of exp_avg_sq: 1 where the weight was rounded up from a tie. */
SPECIALISED ints tie_at(const void *exp_avg_sq, enum moments moments, size_t i)
{
	if (moments == MOMENTS_FP32)
		return load_u32((const uint32_t *)exp_avg_sq + i) >> 31;
	if (moments == MOMENTS_BF16)
		return load_u16((const uint16_t *)exp_avg_sq + i) >> 15;
	return every(0);
}

SPECIALISED void set_tie(void *exp_avg_sq, enum moments moments, size_t i, ints tie)
{
	if (moments == MOMENTS_FP32) {
		uint32_t *at = (uint32_t *)exp_avg_sq + i;

		store_u32(at, (load_u32(at) & every(MAGNITUDE)) | tie << 31);
	} else if (moments == MOMENTS_BF16) {
		uint16_t *at = (uint16_t *)exp_avg_sq + i;

		store_u16(at, (load_u16(at) & every(0x7fff)) | tie << 15);
	}
}

SPECIALISED void join_typed(float *master, const uint16_t *weights, const uint16_t *remainders,
			    const void *exp_avg_sq, enum moments moments, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints weight = load_u16(weights + i), low = load_u16(remainders + i);
		ints magnitude = weight & every(0x7fff);
		/* Rounding added one to the upper half, but never to that of a NaN, and never gave 0. */
		ints rounded_up = (low + tie_at(exp_avg_sq, moments, i) + every(0x7fff)) >> 16;
		ints may = is_below(every(0), magnitude) & is_below(magnitude, every(0x7f81));

		store_u32(master + i, ((weight - (rounded_up & may)) << 16) | low);
	}
}

static void join_masters(float *master, const uint16_t *weights, const struct state_run *run,
			 size_t n)
{
	if (run->moments == MOMENTS_FP32)
		join_typed(master, weights, run->master, run->exp_avg_sq, MOMENTS_FP32, n);
	else if (run->moments == MOMENTS_BF16)
		join_typed(master, weights, run->master, run->exp_avg_sq, MOMENTS_BF16, n);
	else
		join_typed(master, weights, run->master, NULL, MOMENTS_8BIT, n);
}

SPECIALISED void split_typed(uint16_t *weights, uint16_t *remainders, void *exp_avg_sq,
			     enum moments moments, const float *master, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints bits = load_u32(master + i);
		ints low = bits & every(0xffff), odd = bits >> 16 & every(1);
		ints is_nan = is_below(every(INF_BITS), bits & every(MAGNITUDE));
		ints rounded = (bits + ((every(0x7fff) + odd) & (is_nan - every(1)))) >> 16;
		ints tie = odd & is_below(low ^ every(0x8000), every(1)) & (is_nan ^ every(1));

		store_u16(weights + i, rounded | is_nan << 6);
		/* Codes of 8 bits have no sign bit: the next larger master isn't a tie. */
		store_u16(remainders + i, moments == MOMENTS_8BIT ? low + tie : low);
		set_tie(exp_avg_sq, moments, i, tie);
	}
}

static void split_masters(uint16_t *weights, const struct state_run *run, const float *master,
			  size_t n)
{
	if (run->moments == MOMENTS_FP32)
		split_typed(weights, run->master, run->exp_avg_sq, MOMENTS_FP32, master, n);
	else if (run->moments == MOMENTS_BF16)
		split_typed(weights, run->master, run->exp_avg_sq, MOMENTS_BF16, master, n);
	else
		split_typed(weights, run->master, NULL, MOMENTS_8BIT, master, n);
}

/* ---- Moments in bf16 ---- */

static void load_halves(float *to, const uint16_t *from, uint16_t mask, size_t n)
{
	for (size_t i = 0; i < n; i += LANES)
		store_u32(to + i, (load_u16(from + i) & every(mask)) << 16);
}

/* Finite values stay finite. `keep`: bits of `to` that stay as they are. */
SPECIALISED void save_halves_by(uint16_t *to, uint16_t keep, const float *from,
				const uint32_t *noise, unsigned shift, bool nearest, size_t n)
{
	for (size_t i = 0; i < n; i += LANES) {
		ints bits = load_u32(from + i), magnitude = bits & every(MAGNITUDE);
		ints added = nearest ? every(0x7fff) + (bits >> 16 & every(1))
				     : load_u32(noise + i) >> shift & every(0xffff);
		ints finite = smaller(magnitude + added, every(MAX_FINITE));
		ints quiet = is_below(every(INF_BITS), magnitude) << 22;
		ints is_special = every(0) - is_below(every(MAX_FINITE), magnitude);
		ints half = (finite & ~is_special) | ((magnitude | quiet) & is_special);
		ints kept = keep ? load_u16(to + i) & every(keep) : every(0);

		half = (half | (bits & every(SIGN))) >> 16;
		store_u16(to + i, (half & every(0xffffu & ~keep)) | kept);
	}
}

static void save_halves(uint16_t *to, uint16_t keep, const float *from, const struct chunk *chunk,
			unsigned shift, size_t n)
{
	if (chunk->nearest)
		save_halves_by(to, keep, from, NULL, 0, true, n);
	else
		save_halves_by(to, keep, from, chunk->noise, shift, false, n);
}

/* ---- Moments in 8 bits ---- */

#define FRACTION  15u  /* bits of a code that are rounded away */
#define LEVELS	  127u /* the largest code of exp_avg, without its sign bit */
#define LEVELS_SQ 255u /* of exp_avg_sq */

/* The fp32 value of a code; exact. */
SPECIALISED vec code_value(ints code)
{
	return as_vec(code | every(0x4b000000)) - splat(0x1p23f);
}

/* scale * (code / levels)^4 */
SPECIALISED void decode(float *to, const uint8_t *codes, float scale, bool is_signed, size_t n)
{
	const vec scales = splat(scale), unit = splat(1 / (float)(is_signed ? LEVELS : LEVELS_SQ));

	for (size_t i = 0; i < n; i += LANES) {
		ints code = load_u8(codes + i);
		vec root4 = code_value(is_signed ? code & every(LEVELS) : code) * unit;
		vec root2 = root4 * root4;
		ints bits = as_ints(root2 * root2 * scales);

		/* A divisor that was not 0 stays so when it underflows. */
		if (is_signed)
			bits = bits | (code & every(0x80)) << 24;
		else
			bits = larger(bits, smaller(code, every(1)));
		store_u32(to + i, bits);
	}
}

/* The largest magnitude as bits; above INF_BITS if one is NaN. */
SPECIALISED uint32_t largest(const float *from, size_t n)
{
	ints most = every(0);
	uint32_t lanes[LANES], result = 0;

	for (size_t i = 0; i < n; i += LANES)
		most = larger(most, load_u32(from + i) & every(MAGNITUDE));
	store_u32(lanes, most);
	for (unsigned i = 0; i < LANES; i++)
		result = lanes[i] > result ? lanes[i] : result;
	return result;
}

/* Returns the scale: the largest magnitude. */
SPECIALISED float encode(uint8_t *codes, const float *from, const uint32_t *noise, unsigned shift,
			 bool is_signed, size_t n)
{
	const uint32_t levels = is_signed ? LEVELS : LEVELS_SQ;
	uint32_t bits = largest(from, n);
	float scale, factor;

	/* exp_avg_sq = inf is kept as the largest finite value: its update is 0 in both cases. */
	if (bits > (is_signed ? MAX_FINITE : INF_BITS)) {
		memset(codes, 0, n);
		return NAN;
	}
	bits = bits > MAX_FINITE ? MAX_FINITE : bits;
	memcpy(&scale, &bits, sizeof(scale));
	/* Two units of the fraction more, so that the scale's own code is `levels` despite rounding. */
	factor = bits ? (float)((levels << FRACTION) + 2) / sqrtf(sqrtf(scale)) : 0;
	for (size_t i = 0; i < n; i += LANES) {
		ints x = load_u32(from + i);
		ints magnitude = smaller(x & every(MAGNITUDE), every(MAX_FINITE));
		vec scaled = root(root(as_vec(magnitude))) * splat(factor);
		/* Adding 2^23 rounds to a whole number in the low bits. */
		ints fixed = as_ints(scaled + splat(0x1p23f)) & every(0x7fffff);
		ints code = (fixed + (load_u32(noise + i) >> shift & every(0x7fff))) >> FRACTION;

		code = smaller(code, every(levels));
		/* A divisor that is not 0 must not become 0. */
		if (is_signed)
			code = code | (x & every(SIGN)) >> 24;
		else
			code = larger(code, smaller(magnitude, every(1)));
		store_u8(codes + i, code);
	}
	return scale;
}

static void load_codes(float *to, const uint8_t *codes, const float *scales, bool is_signed,
		       size_t n)
{
	for (size_t at = 0; at < n; at += STATE_BLOCK) {
		size_t count = n - at < STATE_BLOCK ? n - at : STATE_BLOCK;

		if (is_signed)
			decode(to + at, codes + at, scales[at / STATE_BLOCK], true, count);
		else
			decode(to + at, codes + at, scales[at / STATE_BLOCK], false, count);
	}
}

static void save_codes(uint8_t *codes, float *scales, const float *from, const struct chunk *chunk,
		       unsigned shift, bool is_signed, size_t n)
{
	const uint32_t *noise = chunk->noise;

	for (size_t at = 0; at < n; at += STATE_BLOCK) {
		size_t count = n - at < STATE_BLOCK ? n - at : STATE_BLOCK;

		scales[at / STATE_BLOCK] =
			is_signed ? encode(codes + at, from + at, noise + at, shift, true, count)
				  : encode(codes + at, from + at, noise + at, shift, false, count);
	}
}

/* ---- Chunks ---- */

enum { MASTER = 1, EXP_AVG = 2, EXP_AVG_SQ = 4 };

/* n is whole vectors. */
static void load_chunk(struct chunk *chunk, const struct state_run *run, const void *weights,
		       unsigned parts, size_t n)
{
	if (parts & MASTER) {
		if (run->split)
			join_masters(chunk->master, weights, run, n);
		else
			memcpy(chunk->master, run->master, n * sizeof(float));
	}
	if (run->moments == MOMENTS_FP32) {
		if (parts & EXP_AVG)
			memcpy(chunk->exp_avg, run->exp_avg, n * sizeof(float));
		for (size_t i = 0; (parts & EXP_AVG_SQ) && i < n; i += LANES)
			store_u32(chunk->exp_avg_sq + i,
				  load_u32((const float *)run->exp_avg_sq + i) &
					  every(run->split ? MAGNITUDE : ~0u));
	} else if (run->moments == MOMENTS_BF16) {
		if (parts & EXP_AVG)
			load_halves(chunk->exp_avg, run->exp_avg, 0xffff, n);
		if (parts & EXP_AVG_SQ)
			load_halves(chunk->exp_avg_sq, run->exp_avg_sq,
				    run->split ? 0x7fff : 0xffff, n);
	} else {
		if (parts & EXP_AVG)
			load_codes(chunk->exp_avg, run->exp_avg, run->exp_avg_scales, true, n);
		if (parts & EXP_AVG_SQ)
			load_codes(chunk->exp_avg_sq, run->exp_avg_sq, run->exp_avg_sq_scales,
				   false, n);
	}
}

/* The master last: it sets the sign bits of exp_avg_sq. */
static void save_chunk(const struct chunk *chunk, const struct state_run *run, void *weights,
		       unsigned parts, size_t n)
{
	const uint16_t tie = run->split ? 0x8000 : 0;

	if (run->moments == MOMENTS_FP32) {
		if (parts & EXP_AVG)
			memcpy(run->exp_avg, chunk->exp_avg, n * sizeof(float));
		for (size_t i = 0; (parts & EXP_AVG_SQ) && i < n; i += LANES) {
			float *at = (float *)run->exp_avg_sq + i;
			ints bits = load_u32(chunk->exp_avg_sq + i);

			store_u32(at, run->split ? (bits & every(MAGNITUDE)) |
							   (load_u32(at) & every(SIGN))
						 : bits);
		}
	} else if (run->moments == MOMENTS_BF16) {
		if (parts & EXP_AVG)
			save_halves(run->exp_avg, 0, chunk->exp_avg, chunk, 0, n);
		if (parts & EXP_AVG_SQ)
			save_halves(run->exp_avg_sq, tie, chunk->exp_avg_sq, chunk, 16, n);
	} else {
		if (parts & EXP_AVG)
			save_codes(run->exp_avg, run->exp_avg_scales, chunk->exp_avg, chunk, 0,
				   true, n);
		if (parts & EXP_AVG_SQ)
			save_codes(run->exp_avg_sq, run->exp_avg_sq_scales, chunk->exp_avg_sq,
				   chunk, 16, false, n);
	}
	if (parts & MASTER) {
		if (run->split)
			split_masters(weights, run, chunk->master, n);
		else
			memcpy(run->master, chunk->master, n * sizeof(float));
	}
}

/* Room for the state of a chunk that ends within a vector. */
struct staged {
	struct state_run run;
	float master[CHUNK], exp_avg[CHUNK], exp_avg_sq[CHUNK];
	uint16_t weights[CHUNK];
};

static size_t to_vectors(size_t n)
{
	return (n + LANES - 1) / LANES * LANES;
}

static void copy_state(const struct state_run *to, const struct state_run *from, size_t n)
{
	memcpy(to->master, from->master, n * master_size(from->split));
	memcpy(to->exp_avg, from->exp_avg, n * moment_size(from->moments));
	memcpy(to->exp_avg_sq, from->exp_avg_sq, n * moment_size(from->moments));
}

static void stage(struct staged *staged, const struct state_run *run, const void *weights, size_t n)
{
	memset(staged, 0, sizeof(*staged));
	staged->run = *run;
	staged->run.master = staged->master;
	staged->run.exp_avg = staged->exp_avg;
	staged->run.exp_avg_sq = staged->exp_avg_sq;
	copy_state(&staged->run, run, n);
	if (weights && run->split)
		memcpy(staged->weights, weights, n * sizeof(uint16_t));
}

/* Elements from `done` on that make a chunk: chunks end where the index is a multiple of CHUNK, so
 * the upper half of the index is the same in a chunk. */
static size_t next_chunk(const struct noise *noise, size_t done, size_t n)
{
	size_t room = CHUNK - (noise ? (size_t)(noise->first + done) % CHUNK : 0);

	return n - done < room ? n - done : room;
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

static void adam_chunk(const struct adam *adam, struct chunk *chunk, const struct state_run *run,
		       const void *gradients, enum nvs_dtype gradients_dtype, void *weights,
		       enum nvs_dtype weights_dtype, size_t n)
{
	const bool packs = run->moments != MOMENTS_FP32;
	/* What is kept in fp32 is updated in place. */
	const unsigned parts = (run->split ? MASTER | EXP_AVG_SQ : 0) |
			       (packs ? EXP_AVG | EXP_AVG_SQ : 0);

	load_chunk(chunk, run, weights, parts, to_vectors(n));
	adam_all(adam, parts & MASTER ? chunk->master : run->master,
		 parts & EXP_AVG ? chunk->exp_avg : run->exp_avg,
		 parts & EXP_AVG_SQ ? chunk->exp_avg_sq : run->exp_avg_sq, gradients,
		 gradients_dtype, run->split ? NULL : weights, weights_dtype, n);
	save_chunk(chunk, run, weights, parts, to_vectors(n));
}

static void adam_packed(const struct adam *adam, const struct state_run *state,
			const struct noise *noise, const void *gradients,
			enum nvs_dtype gradients_dtype, void *weights, enum nvs_dtype weights_dtype,
			size_t n)
{
	struct chunk chunk;

	check_run(state, noise, weights, weights_dtype);
	assert(!state->split || weights);
	if (state->moments == MOMENTS_FP32 && !state->split) {
		adam_all(adam, state->master, state->exp_avg, state->exp_avg_sq, gradients,
			 gradients_dtype, weights, weights_dtype, n);
		return;
	}
	for (size_t done = 0, part; done < n; done += part) {
		part = next_chunk(noise, done, n);

		struct state_run run = state_run_from(state, done);
		const void *from = element(gradients, gradients_dtype, done);
		void *to = weights ? element_to_set(weights, weights_dtype, done) : NULL;

		if (state->moments != MOMENTS_FP32)
			make_noise(&chunk, noise, done, to_vectors(part));
		if (part % LANES == 0) {
			adam_chunk(adam, &chunk, &run, from, gradients_dtype, to, weights_dtype,
				   part);
		} else {
			struct staged staged;

			stage(&staged, &run, to, part);
			adam_chunk(adam, &chunk, &staged.run, from, gradients_dtype,
				   run.split ? staged.weights : to, weights_dtype, part);
			copy_state(&run, &staged.run, part);
			if (run.split)
				memcpy(to, staged.weights, part * sizeof(uint16_t));
		}
	}
}

static void unpack(const struct state_run *state, const void *weights, float *master,
		   float *exp_avg, float *exp_avg_sq, size_t n)
{
	const unsigned parts = (master ? MASTER : 0) | (exp_avg ? EXP_AVG : 0) |
			       (exp_avg_sq ? EXP_AVG_SQ : 0);
	struct chunk chunk;

	check_run(state, NULL, weights, NVS_BF16);
	assert(!state->split || !master || weights);
	for (size_t done = 0, part; done < n; done += part) {
		part = next_chunk(NULL, done, n);

		struct state_run run = state_run_from(state, done);
		const uint16_t *from = state->split && weights ? (const uint16_t *)weights + done
							       : NULL;
		struct staged staged;

		if (part % LANES != 0) {
			stage(&staged, &run, from, part);
			run = staged.run;
			from = staged.weights;
		}
		load_chunk(&chunk, &run, from, parts, to_vectors(part));
		if (master)
			memcpy(master + done, chunk.master, part * sizeof(float));
		if (exp_avg)
			memcpy(exp_avg + done, chunk.exp_avg, part * sizeof(float));
		if (exp_avg_sq)
			memcpy(exp_avg_sq + done, chunk.exp_avg_sq, part * sizeof(float));
	}
}

/* Copies an array's part to a chunk, with zeros up to the end of its vector. */
static void fill_part(float *to, const float *from, size_t n)
{
	memset(to + n / LANES * LANES, 0, (to_vectors(n) - n / LANES * LANES) * sizeof(float));
	memcpy(to, from, n * sizeof(float));
}

static void pack(const struct state_run *state, const struct noise *noise, const float *master,
		 const float *exp_avg, const float *exp_avg_sq, void *weights,
		 enum nvs_dtype weights_dtype, size_t n)
{
	const unsigned parts = (master ? MASTER : 0) | (exp_avg ? EXP_AVG : 0) |
			       (exp_avg_sq ? EXP_AVG_SQ : 0);
	struct chunk chunk;

	check_run(state, noise, weights, weights_dtype);
	assert(!state->split || !master || weights);
	for (size_t done = 0, part; done < n; done += part) {
		part = next_chunk(noise, done, n);

		struct state_run run = state_run_from(state, done);
		uint16_t *to = state->split && weights ? (uint16_t *)weights + done : NULL;
		struct staged staged;

		make_noise(&chunk, noise, done, to_vectors(part));
		if (master)
			fill_part(chunk.master, master + done, part);
		if (exp_avg)
			fill_part(chunk.exp_avg, exp_avg + done, part);
		if (exp_avg_sq)
			fill_part(chunk.exp_avg_sq, exp_avg_sq + done, part);
		if (part % LANES == 0) {
			save_chunk(&chunk, &run, to, parts, part);
			continue;
		}
		stage(&staged, &run, to, part);
		save_chunk(&chunk, &staged.run, staged.weights, parts, to_vectors(part));
		copy_state(&run, &staged.run, part);
		if (to)
			memcpy(to, staged.weights, part * sizeof(uint16_t));
	}
	if (weights && master && !state->split)
		convert(weights, weights_dtype, master, NVS_F32, 1, n);
}
