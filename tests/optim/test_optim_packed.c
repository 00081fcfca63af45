/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State in fewer bytes, as docs/state-formats.md defines it: a split master against the fp32 one,
 * bf16 and 8-bit moments against their definitions and against steps in double, and every kernel
 * that this processor supports against the plain one. Seeds are printed.
 */
#include "config/config.h"
#include "optim/optimizer.h"
#include "support/support.h"
#include "support/tests.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define HALVES	      65536u
#define LONGEST	      HALVES
#define BLOCKS_MAX    (LONGEST / STATE_BLOCK)

static const enum nvs_dtype dtypes[] = {NVS_F32, NVS_BF16, NVS_F16};

static const struct format {
	const char *name;
	enum moments moments;
	bool split;
} formats[] = {
	{"fp32", MOMENTS_FP32, false},	      {"split", MOMENTS_FP32, true},
	{"bf16", MOMENTS_BF16, true},	      {"8bit", MOMENTS_8BIT, true},
	{"bf16, whole", MOMENTS_BF16, false}, {"8bit, whole", MOMENTS_8BIT, false},
};

static const struct optimizer_config plain_adam = {
	.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

/* ---- Random values ---- */

static uint64_t random_state;

/* About normal. */
static double next_normal(void)
{
	double sum = 0;

	for (unsigned i = 0; i < 12; i++)
		sum += random_value(&random_state) / 2;
	return sum;
}

/* ---- State ---- */

#define ROOM 2u /* elements: each array is off its alignment by one, and has one behind it */

struct state {
	struct state_run run;
	size_t n;
	uint32_t master[LONGEST + ROOM], exp_avg[LONGEST + ROOM], exp_avg_sq[LONGEST + ROOM];
	float scales[BLOCKS_MAX + ROOM], scales_sq[BLOCKS_MAX + ROOM];
	uint32_t weights_memory[LONGEST + ROOM]; /* of any type */
	void *weights;
};

struct values {
	float master[LONGEST], exp_avg[LONGEST], exp_avg_sq[LONGEST];
};

static void make_state_of(struct state *state, const struct format *format,
			  enum nvs_dtype weights_dtype, size_t n)
{
	size_t nbytes = (n + ROOM) * sizeof(uint32_t);
	size_t scales = (n / STATE_BLOCK + 1 + ROOM) * sizeof(float);

	assert_true(n <= LONGEST);
	memset(state->master, 0, nbytes);
	memset(state->exp_avg, 0, nbytes);
	memset(state->exp_avg_sq, 0, nbytes);
	memset(state->weights_memory, 0, nbytes);
	memset(state->scales, 0, scales < sizeof(state->scales) ? scales : sizeof(state->scales));
	memset(state->scales_sq, 0,
	       scales < sizeof(state->scales) ? scales : sizeof(state->scales));
	state->n = n;
	state->weights = (char *)state->weights_memory + nvs_dtype_size(weights_dtype);
	state->run = (struct state_run){
		.moments = format->moments,
		.split = format->split,
		.master = (char *)state->master + master_size(format->split),
		.exp_avg = (char *)state->exp_avg + moment_size(format->moments),
		.exp_avg_sq = (char *)state->exp_avg_sq + moment_size(format->moments),
		.exp_avg_scales = state->scales + 1,
		.exp_avg_sq_scales = state->scales_sq + 1,
	};
}

static void make_state(struct state *state, const struct format *format, size_t n)
{
	make_state_of(state, format, NVS_BF16, n);
}

static void assert_same_state(const struct state *a, const struct state *b)
{
	size_t nbytes = (a->n + ROOM) * sizeof(uint32_t);
	size_t scales = (a->n / STATE_BLOCK + ROOM) * sizeof(float);

	assert_int_equal(a->n, b->n);
	assert_memory_equal(a->master, b->master, nbytes);
	assert_memory_equal(a->exp_avg, b->exp_avg, nbytes);
	assert_memory_equal(a->exp_avg_sq, b->exp_avg_sq, nbytes);
	assert_memory_equal(a->scales, b->scales, scales);
	assert_memory_equal(a->scales_sq, b->scales_sq, scales);
	assert_memory_equal(a->weights_memory, b->weights_memory, nbytes);
}

static void pack(const struct kernel *kernel, struct state *state, const struct noise *noise,
		 const struct values *values, size_t n)
{
	kernel->pack(&state->run, noise, values->master, values->exp_avg, values->exp_avg_sq,
		     state->weights, NVS_BF16, n);
}

static void unpack(const struct kernel *kernel, const struct state *state, struct values *values,
		   size_t n)
{
	kernel->unpack(&state->run, state->weights, values->master, values->exp_avg,
		       values->exp_avg_sq, n);
}

static uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

static void check_bits(const struct kernel *kernel, const char *what, size_t i, float found,
		       float expected)
{
	if (bits_of(found) != bits_of(expected) && !(isnan(found) && isnan(expected)))
		fail_msg("%s: %s [%zu] is %a (%08x) and not %a (%08x)", kernel->name, what, i,
			 found, bits_of(found), expected, bits_of(expected));
}

static void check_values(const struct kernel *kernel, const struct values *found,
			 const struct values *expected, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		check_bits(kernel, "master", i, found->master[i], expected->master[i]);
		check_bits(kernel, "exp_avg", i, found->exp_avg[i], expected->exp_avg[i]);
		check_bits(kernel, "exp_avg_sq", i, found->exp_avg_sq[i], expected->exp_avg_sq[i]);
	}
}

/* bf16 weights: the same bits, or both NaN. */
static void check_weights(const struct kernel *kernel, const void *found, const void *expected,
			  size_t n)
{
	for (size_t i = 0; i < n; i++)
		check_bits(kernel, "weight", i,
			   float_of((uint32_t)((const uint16_t *)found)[i] << 16),
			   float_of((uint32_t)((const uint16_t *)expected)[i] << 16));
}

/* ---- The split master ---- */

/* Lower halves on each side of each rounding. */
static const uint32_t lows[] = {0,	0x0001, 0x4000, 0x7ffe, 0x7fff, 0x8000,
				0x8001, 0x8002, 0xc000, 0xfffe, 0xffff};

static void check_split(const struct kernel *kernel, const struct format *format, uint32_t low)
{
	static struct state state;
	static struct values given, found;
	static uint16_t rounded[HALVES];

	make_state(&state, format, HALVES);
	for (uint32_t i = 0; i < HALVES; i++) {
		given.master[i] = float_of(i << 16 | low);
		given.exp_avg[i] = (float)(i % 3) - 1;
		given.exp_avg_sq[i] = (float)(i % 2);
	}
	pack(kernel, &state, NULL, &given, HALVES);
	kernel->convert(rounded, NVS_BF16, given.master, NVS_F32, 1, HALVES);
	check_weights(kernel, state.weights, rounded, HALVES);
	unpack(kernel, &state, &found, HALVES);
	/* With codes of 8 bits, the master that is rounded down from a tie is the one below it. */
	for (uint32_t i = 0; i < HALVES; i++)
		if (format->moments == MOMENTS_8BIT && low == 0x8000 && i % 2 == 0 &&
		    !isnan(given.master[i]))
			given.master[i] = float_of((i << 16 | low) - 1);
	check_values(kernel, &found, &given, HALVES);
}

TEST(test_a_split_master_comes_back_for_every_bf16_weight_and_rounding)
{
	const struct kernel *kernel;

	random_state = random_seed(__func__);
	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned f = 0; f < LENGTH(formats); f++) {
			if (!formats[f].split)
				continue;
			for (unsigned i = 0; i < LENGTH(lows); i++)
				check_split(kernel, &formats[f], lows[i]);
			for (unsigned i = 0; i < 5; i++)
				check_split(kernel, &formats[f],
					    random_next(&random_state) % HALVES);
		}
	}
}

TEST(test_steps_of_split_state_are_those_of_fp32_bit_for_bit)
{
	static struct state whole, split;
	static struct values values, found, expected;
	static float gradients[HALVES];
	const struct kernel *kernel;

	random_state = random_seed(__func__);
	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned round = 0; round < LENGTH(lows); round++) {
			make_state(&whole, &formats[0], HALVES);
			make_state(&split, &formats[1], HALVES);
			for (uint32_t i = 0; i < HALVES; i++) {
				values.master[i] = float_of(i << 16 | lows[(round + i) % 11]);
				values.exp_avg[i] = (float)random_value(&random_state);
				values.exp_avg_sq[i] = (float)fabs(random_value(&random_state));
			}
			pack(kernel, &whole, NULL, &values, HALVES);
			pack(kernel, &split, NULL, &values, HALVES);
			for (unsigned step = 1; step <= 4; step++) {
				/* The first step's rate is 0, so ties stay ties. */
				struct scalars adam = rule_at(NVS_RULE_ADAM)
							      ->scalars(&plain_adam,
									step > 1 ? 1e-3 : 0, step,
									1);

				adam.decay = step == 3 ? 1e-5f : 0;
				adam.decoupled = true;
				for (size_t i = 0; i < HALVES; i++)
					gradients[i] = (float)random_value(&random_state);
				kernel->adam_packed(&adam, &whole.run, NULL, gradients, NVS_F32,
						    whole.weights, NVS_BF16, HALVES);
				kernel->adam_packed(&adam, &split.run, NULL, gradients, NVS_F32,
						    split.weights, NVS_BF16, HALVES);
				unpack(kernel, &whole, &expected, HALVES);
				unpack(kernel, &split, &found, HALVES);
				check_values(kernel, &found, &expected, HALVES);
				check_weights(kernel, split.weights, whole.weights, HALVES);
			}
		}
	}
}

TEST(test_a_weight_that_the_caller_set_to_zero_is_no_nan_whatever_its_remainder)
{
	static struct state kept;
	static struct values values;
	const struct kernel *kernel;

	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned f = 0; f < LENGTH(formats); f++) {
			if (!formats[f].split)
				continue;
			make_state(&kept, &formats[f], HALVES);
			for (uint32_t i = 0; i < HALVES; i++)
				values.master[i] = float_of(0x3f800000 | i);
			kernel->pack(&kept.run, NULL, values.master, NULL, NULL, kept.weights,
				     NVS_BF16, HALVES);
			memset(kept.weights, 0, HALVES * sizeof(uint16_t));
			unpack(kernel, &kept, &values, HALVES);
			for (uint32_t i = 0; i < HALVES; i++)
				assert_true(fabsf(values.master[i]) <= 0x1p-133f);
		}
	}
}

/* ---- The same bits ---- */

/* State and gradients for comparisons; with NaN, inf, zeros and subnormals if `special`. */
static float any_value(bool special, double scale)
{
	static const float specials[] = {0.0f,	    -0.0f,	INFINITY, -INFINITY, NAN,
					 0x1p-149f, -0x1p-130f, 3e38f,	  -3.4e38f};

	if (special && random_next(&random_state) % 16 == 0)
		return specials[random_next(&random_state) % LENGTH(specials)];
	return (float)(scale * random_value(&random_state) * exp(4 * random_value(&random_state)));
}

static void fill_values(struct values *values, bool special, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		values->master[i] = any_value(special, 1);
		values->exp_avg[i] = any_value(special, 1e-3);
		values->exp_avg_sq[i] = fabsf(any_value(special, 1e-6));
	}
}

static void fill_gradients(const struct kernel *kernel, void *gradients, enum nvs_dtype dtype,
			   bool special, size_t n)
{
	static float values[LONGEST];

	for (size_t i = 0; i < n; i++)
		values[i] = any_value(special, 1e-3);
	kernel->convert(gradients, dtype, values, NVS_F32, 1, n);
}

static void step(const struct kernel *kernel, struct state *state, const struct noise *noise,
		 const struct scalars *adam, const void *gradients, enum nvs_dtype gradients_dtype,
		 const enum nvs_dtype *weights_dtype)
{
	kernel->adam_packed(adam, &state->run, noise, gradients, gradients_dtype,
			    weights_dtype ? state->weights : NULL,
			    weights_dtype ? *weights_dtype : NVS_F32, state->n);
}

static const struct kernel *plain_kernel(void)
{
	const struct kernel *plain = NULL;

	for (unsigned k = 0; kernel_at(k); k++)
		plain = kernel_at(k);
	return plain;
}

/* By value where there may be NaN, otherwise by every byte of the arrays and around them. */
static void check_state(const struct kernel *kernel, const struct state *found,
			const struct state *expected, const enum nvs_dtype *weights_dtype,
			bool special)
{
	static struct values a, b;
	const struct kernel *plain = plain_kernel();

	if (!special) {
		assert_same_state(found, expected);
		return;
	}
	unpack(plain, found, &a, found->n);
	unpack(plain, expected, &b, found->n);
	check_values(kernel, &a, &b, found->n);
	if (!weights_dtype)
		return;
	plain->convert(a.master, NVS_F32, found->weights, *weights_dtype, 1, found->n);
	plain->convert(b.master, NVS_F32, expected->weights, *weights_dtype, 1, found->n);
	for (size_t i = 0; i < found->n; i++)
		check_bits(kernel, "weight", i, a.master[i], b.master[i]);
}

static void compare_kernels(const struct format *format, enum nvs_dtype gradients_dtype,
			    const enum nvs_dtype *weights_dtype, bool special, size_t n)
{
	static struct state expected, found;
	static struct values values;
	static float gradients[LONGEST];
	const struct kernel *kernel, *plain = plain_kernel();
	const enum nvs_dtype dtype = weights_dtype ? *weights_dtype : NVS_F32;
	struct scalars adam = rule_at(NVS_RULE_ADAM)
				      ->scalars(&plain_adam, 1e-3,
						1 + random_next(&random_state) % 100, 0.125);
	struct noise noise = noise_of(random_next(&random_state), 1, 2,
				      random_next(&random_state) / 2 * STATE_BLOCK);

	adam.decay = random_next(&random_state) % 2 ? 0 : 0.01f;
	adam.decoupled = random_next(&random_state) % 2;
	fill_values(&values, special, n);
	fill_gradients(plain, gradients, gradients_dtype, special, n);
	make_state_of(&expected, format, dtype, n);
	plain->pack(&expected.run, NULL, values.master, values.exp_avg, values.exp_avg_sq,
		    expected.weights, dtype, n);
	step(plain, &expected, &noise, &adam, gradients, gradients_dtype, weights_dtype);
	for (unsigned k = 0; (kernel = kernel_at(k)) != plain; k++) {
		make_state_of(&found, format, dtype, n);
		kernel->pack(&found.run, NULL, values.master, values.exp_avg, values.exp_avg_sq,
			     found.weights, dtype, n);
		step(kernel, &found, &noise, &adam, gradients, gradients_dtype, weights_dtype);
		check_state(kernel, &found, &expected, weights_dtype, special);
	}
}

static void compare_lengths(const struct format *format, enum nvs_dtype gradients_dtype,
			    const enum nvs_dtype *weights_dtype, bool special)
{
	static const size_t lengths[] = {63, 64, 65, 127, 128, 129, 200, 256, 511, 512, 513, 1003};

	for (size_t n = 0; n <= 33; n++)
		compare_kernels(format, gradients_dtype, weights_dtype, special, n);
	for (unsigned i = 0; i < LENGTH(lengths); i++)
		compare_kernels(format, gradients_dtype, weights_dtype, special, lengths[i]);
}

TEST(test_all_kernels_give_the_same_bits_of_packed_state)
{
	random_state = random_seed(__func__);
	for (unsigned f = 0; f < LENGTH(formats); f++) {
		for (unsigned from = 0; from < LENGTH(dtypes); from++) {
			for (unsigned to = 0; to <= LENGTH(dtypes); to++) {
				const enum nvs_dtype *weights = to < LENGTH(dtypes) ? &dtypes[to]
										    : NULL;

				if (formats[f].split && (!weights || *weights != NVS_BF16))
					continue;
				compare_lengths(&formats[f], dtypes[from], weights, false);
				compare_lengths(&formats[f], dtypes[from], weights, true);
			}
		}
	}
}

/* The state of `n` elements after three steps, each in slices of up to `most` blocks. */
static void run_in_slices(struct state *state, const struct format *format, uint64_t noise_seed,
			  uint64_t group, uint64_t first, size_t n, size_t most)
{
	static struct values values;
	static float gradients[LONGEST];
	const struct kernel *kernel = kernel_best();

	random_state = 99;
	fill_values(&values, false, n);
	make_state(state, format, n);
	pack(kernel, state, NULL, &values, n);
	for (unsigned at = 1; at <= 3; at++) {
		struct scalars adam = rule_at(NVS_RULE_ADAM)->scalars(&plain_adam, 1e-3, at, 1);

		for (size_t i = 0; i < n; i++)
			gradients[i] = any_value(false, 1e-3);
		for (size_t done = 0, part; done < n; done += part) {
			struct state_run run = state_run_from(&state->run, done);
			struct noise noise = noise_of(noise_seed, group, at, first + done);

			part = most ? (1 + (done / STATE_BLOCK + at) % most) * STATE_BLOCK : n;
			if (part > n - done)
				part = n - done;
			kernel->adam_packed(&adam, &run, &noise, gradients + done, NVS_F32,
					    (uint16_t *)state->weights + done, NVS_BF16, part);
		}
	}
}

TEST(test_runs_repeat_however_a_range_is_cut)
{
	static struct state whole, cut;
	/* Across an index of 2^32, and where chunks don't begin with the slices. */
	const uint64_t firsts[] = {0, (UINT64_C(1) << 32) - 5 * STATE_BLOCK, 3 * STATE_BLOCK};

	for (unsigned f = 0; f < LENGTH(formats); f++) {
		for (unsigned i = 0; i < LENGTH(firsts); i++) {
			run_in_slices(&whole, &formats[f], 7, 1, firsts[i], 8237, 0);
			for (size_t most = 1; most < 9; most++) {
				run_in_slices(&cut, &formats[f], 7, 1, firsts[i], 8237, most);
				assert_same_state(&cut, &whole);
			}
		}
	}
}

TEST(test_noise_depends_on_seed_group_step_and_element)
{
	const struct noise base = noise_of(1, 2, 3, 0);
	static struct state states[2];

	assert_true(noise_of(1, 2, 3, 5).key == base.key);
	assert_true(noise_of(2, 2, 3, 0).key != base.key);
	assert_true(noise_of(1, 3, 3, 0).key != base.key);
	assert_true(noise_of(1, 2, 4, 0).key != base.key);
	assert_true(noise_of(2, 1, 3, 0).key != base.key);
	for (unsigned f = 2; f < LENGTH(formats); f++) {
		run_in_slices(&states[0], &formats[f], 7, 1, 0, 4096, 0);
		run_in_slices(&states[1], &formats[f], 7, 1, UINT64_C(1) << 32, 4096, 0);
		assert_memory_not_equal(states[0].exp_avg, states[1].exp_avg, 4096);
		run_in_slices(&states[1], &formats[f], 7, 2, 0, 4096, 0);
		assert_memory_not_equal(states[0].exp_avg, states[1].exp_avg, 4096);
		run_in_slices(&states[1], &formats[f], 8, 1, 0, 4096, 0);
		assert_memory_not_equal(states[0].exp_avg_sq, states[1].exp_avg_sq, 4096);
	}
}

TEST(test_bf16_moments_are_rounded_to_nearest_without_noise_and_stay_with_it)
{
	static struct state kept;
	static struct values given, found;
	static uint16_t nearest[HALVES];
	const struct noise noise = noise_of(1, 1, 1, 0);
	const struct kernel *kernel;

	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned i = 0; i < LENGTH(lows); i++) {
			make_state(&kept, &formats[2], HALVES);
			for (uint32_t h = 0; h < HALVES; h++) {
				given.exp_avg[h] = float_of(h << 16 | lows[i]);
				given.exp_avg_sq[h] = fabsf(given.exp_avg[h]);
			}
			pack(kernel, &kept, NULL, &given, HALVES);
			unpack(kernel, &kept, &found, HALVES);
			kernel->convert(nearest, NVS_BF16, given.exp_avg, NVS_F32, 1, HALVES);
			for (uint32_t h = 0; h < HALVES; h++) {
				float value = float_of((uint32_t)nearest[h] << 16);

				check_bits(kernel, "exp_avg", h, found.exp_avg[h], value);
				check_bits(kernel, "exp_avg_sq", h, found.exp_avg_sq[h],
					   fabsf(value));
			}
			/* What bf16 has stays as it is. */
			given = found;
			pack(kernel, &kept, &noise, &given, HALVES);
			unpack(kernel, &kept, &found, HALVES);
			check_values(kernel, &found, &given, HALVES);
		}
	}
}

/* ---- Stochastic rounding ---- */

#define DRAWS (4u * LONGEST)

/*
 * Sums of rounding errors, and of their products with the next element's, the other moment's and
 * the next step's. Units: distance of the neighbours.
 */
struct errors {
	double sum, sum_sq, next, moment, step;
};

/* Of a value that is `fraction` above a neighbour, as unpacked. */
static double error_of(const struct format *format, bool squares, double found, double fraction)
{
	/* bf16 near 1 counts in 2^-7; codes count fourth roots, here from 63. */
	if (format->moments == MOMENTS_BF16)
		return (found - 1) * 128 - fraction;
	return pow(fabs(found), 0.25) * (squares ? 255 : 127) - 63 - fraction;
}

static void check_mean(const char *what, double sum, double deviation)
{
	/* One in 10^9 is further off. */
	if (!(fabs(sum) <= 6.1 * deviation * sqrt(DRAWS)))
		fail_msg("%s: mean %g where %g is one standard deviation", what, sum / DRAWS,
			 deviation / sqrt(DRAWS));
}

static void check_unbiased(const struct format *format, double fraction)
{
	static struct state state;
	static struct values given, found;
	static double before[LONGEST];
	const struct kernel *kernel = kernel_best();
	const bool codes = format->moments == MOMENTS_8BIT;
	double m = codes ? pow((63 + fraction) / 127, 4) : 1 + fraction / 128;
	double v = codes ? pow((63 + fraction) / 255, 4) : 1 + fraction / 128;
	double deviation = sqrt(fraction * (1 - fraction));
	struct errors of_m = {0}, of_v = {0};

	make_state(&state, format, LONGEST);
	memset(before, 0, sizeof(before));
	for (unsigned at = 0; at < DRAWS / LONGEST; at++) {
		struct noise noise = noise_of(5, 0, at, 0);
		double last = 0;

		for (size_t i = 0; i < LONGEST; i++) {
			bool scale = codes && i % STATE_BLOCK == 0;

			given.exp_avg[i] = scale ? -1 : (float)m;
			given.exp_avg_sq[i] = scale ? 1 : (float)v;
		}
		pack(kernel, &state, &noise, &given, LONGEST);
		unpack(kernel, &state, &found, LONGEST);
		for (size_t i = 0; i < LONGEST; i++) {
			double e, e_v;

			if (codes && i % STATE_BLOCK == 0)
				continue;
			e = error_of(format, false, found.exp_avg[i], fraction);
			e_v = error_of(format, true, found.exp_avg_sq[i], fraction);
			assert_true(fabs(e) < 1 && fabs(e_v) < 1);
			of_m.sum += e;
			of_m.sum_sq += e * e;
			of_m.next += e * last;
			of_m.moment += e * e_v;
			of_m.step += e * before[i];
			of_v.sum += e_v;
			last = before[i] = e;
		}
	}
	check_mean("exp_avg", of_m.sum, deviation);
	check_mean("exp_avg_sq", of_v.sum, deviation);
	check_mean("of neighbours", of_m.next, deviation * deviation);
	check_mean("of both moments", of_m.moment, deviation * deviation);
	check_mean("of steps", of_m.step, deviation * deviation);
}

TEST(test_stochastic_rounding_is_unbiased_and_independent)
{
	static const double fractions[] = {0.001953125, 0.125, 0.3125, 0.5, 0.75, 0.99609375};

	for (unsigned f = 2; f < 4; f++)
		for (unsigned i = 0; i < LENGTH(fractions); i++)
			check_unbiased(&formats[f], fractions[i]);
}

/* ---- Codes of 8 bits ---- */

static void check_codes(const struct kernel *kernel, const struct state *state,
			const struct values *given, const struct values *found, size_t n)
{
	const uint8_t *codes = state->run.exp_avg, *codes_sq = state->run.exp_avg_sq;

	for (size_t i = 0; i < n; i++) {
		size_t block = i / STATE_BLOCK, end = (block + 1) * STATE_BLOCK;
		double scale = 0, scale_sq = 0, m, v;

		for (size_t j = block * STATE_BLOCK; j < end && j < n; j++) {
			scale = fmax(scale, fabsf(given->exp_avg[j]));
			scale_sq = fmax(scale_sq, given->exp_avg_sq[j]);
		}
		/* The definition; the arithmetic rounds five times. */
		assert_true(state->run.exp_avg_scales[block] == (float)scale);
		assert_true(state->run.exp_avg_sq_scales[block] == (float)scale_sq);
		m = scale * pow((codes[i] & 127) / 127.0, 4) * (codes[i] & 128 ? -1 : 1);
		v = scale_sq * pow(codes_sq[i] / 255.0, 4);
		assert_true(fabs(found->exp_avg[i] - m) <= 1e-6 * fabs(m) + 0x1p-149);
		assert_true(fabs(found->exp_avg_sq[i] - v) <= 1e-6 * v + 0x1p-149);
		/* The nearest code; of exp_avg_sq not 0 unless the value is. */
		m = scale > 0 ? pow(fabsf(given->exp_avg[i]) / scale, 0.25) * 127 : 0;
		v = scale_sq > 0 ? pow(given->exp_avg_sq[i] / scale_sq, 0.25) * 255 : 0;
		if (!(fabs(m - (codes[i] & 127)) <= 0.501))
			fail_msg("%s: code %u for %g", kernel->name, codes[i], m);
		if (!(fabs(v - codes_sq[i]) <= 0.501 || (v > 0 && v < 1 && codes_sq[i] == 1)))
			fail_msg("%s: code %u for %g of exp_avg_sq", kernel->name, codes_sq[i], v);
		assert_true((given->exp_avg_sq[i] > 0) == (found->exp_avg_sq[i] > 0));
	}
}

TEST(test_codes_are_the_nearest_of_their_definition_and_come_back)
{
	static struct state kept, again;
	static struct values given, found;
	const size_t n = 40 * STATE_BLOCK + 77;
	const struct kernel *kernel;

	random_state = random_seed(__func__);
	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (size_t i = 0; i < n; i++) {
			/* Blocks of magnitudes from 2^-80 up; one in ten elements is zero. */
			double unit = ldexp(1, (int)(i / STATE_BLOCK) * 4 - 80);
			bool zero = random_next(&random_state) % 10 == 0;

			given.master[i] = 1;
			given.exp_avg[i] = zero ? 0 : (float)(unit * next_normal());
			given.exp_avg_sq[i] = zero ? 0 : (float)(unit * exp(6 * next_normal()));
		}
		make_state(&kept, &formats[3], n);
		pack(kernel, &kept, NULL, &given, n);
		unpack(kernel, &kept, &found, n);
		check_codes(kernel, &kept, &given, &found, n);
		make_state(&again, &formats[3], n);
		pack(kernel, &again, NULL, &found, n);
		assert_same_state(&again, &kept);
	}
}

TEST(test_parts_of_packed_state_are_set_alone)
{
	static struct state kept, all;
	static struct values first, second, mixed, found;
	const size_t n = 3 * STATE_BLOCK + 5;
	const struct kernel *kernel;

	random_state = random_seed(__func__);
	fill_values(&first, false, n);
	fill_values(&second, false, n);
	/* Masters on ties, whose direction is in exp_avg_sq. */
	for (size_t i = 0; i < n; i++) {
		first.master[i] = float_of((bits_of(first.master[i]) & ~0xffffu) | 0x8000);
		second.master[i] = float_of((bits_of(second.master[i]) & ~0xffffu) | 0x8000);
	}
	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned f = 0; f < LENGTH(formats); f++) {
			for (unsigned parts = 0; parts < 8; parts++) {
				mixed = first;
				if (parts & 1)
					memcpy(mixed.master, second.master, sizeof(mixed.master));
				if (parts & 2)
					memcpy(mixed.exp_avg, second.exp_avg,
					       sizeof(mixed.exp_avg));
				if (parts & 4)
					memcpy(mixed.exp_avg_sq, second.exp_avg_sq,
					       sizeof(mixed.exp_avg_sq));
				make_state(&kept, &formats[f], n);
				make_state(&all, &formats[f], n);
				pack(kernel, &kept, NULL, &first, n);
				pack(kernel, &all, NULL, &mixed, n);
				kernel->pack(&kept.run, NULL, parts & 1 ? second.master : NULL,
					     parts & 2 ? second.exp_avg : NULL,
					     parts & 4 ? second.exp_avg_sq : NULL, kept.weights,
					     NVS_BF16, n);
				assert_same_state(&kept, &all);
				unpack(kernel, &all, &mixed, n);
				memset(&found, 0, sizeof(found));
				kernel->unpack(&kept.run, kept.weights,
					       parts & 1 ? found.master : NULL,
					       parts & 2 ? found.exp_avg : NULL,
					       parts & 4 ? found.exp_avg_sq : NULL, n);
				for (size_t i = 0; i < n; i++) {
					check_bits(kernel, "master", i, found.master[i],
						   parts & 1 ? mixed.master[i] : 0);
					check_bits(kernel, "exp_avg", i, found.exp_avg[i],
						   parts & 2 ? mixed.exp_avg[i] : 0);
					check_bits(kernel, "exp_avg_sq", i, found.exp_avg_sq[i],
						   parts & 4 ? mixed.exp_avg_sq[i] : 0);
				}
			}
		}
	}
}

/* ---- Steps against double precision ---- */

#define ELEMENTS (3u * STATE_BLOCK + 33u)
#define STEPS	 1000u

/* The gradients of a run. */
enum gradients {
	OF_NOISE,
	OF_ZERO,
	ENDING, /* moments decay to nothing */
	SPARSE, /* some elements of each block have none */
	WITH_SPIKE,
	SPREAD_WIDE, /* 1e-3 to 1e-9 within a block: second moments 10^12 apart */
	TINY,
};

static double gradient_of(enum gradients kind, unsigned step, unsigned i)
{
	double noise;

	if (kind == OF_ZERO || (kind == ENDING && step > 20) || (kind == SPARSE && i % 5))
		return 0;
	if (kind == WITH_SPIKE && step == 50 && i == STATE_BLOCK + 5)
		return 1e4;
	noise = 1e-4 * exp((double)(i % 7) / 3) * (next_normal() + (i % 3 ? 0.3 : -0.3));
	if (kind == SPREAD_WIDE)
		noise *= pow(10, -(double)(i % 7));
	return kind == TINY ? noise * 1e-12 : noise;
}

/* A weight and its moments in double, and how far it has gone. */
struct reference {
	double w, m, v, way;
};

static void step_reference(struct reference *r, const struct optimizer_config *config, unsigned at,
			   double g)
{
	double update, before = r->w;

	r->m = config->beta1 * r->m + (1 - config->beta1) * g;
	r->v = config->beta2 * r->v + (1 - config->beta2) * g * g;
	update = r->m / (1 - pow(config->beta1, at)) /
		 (sqrt(r->v / (1 - pow(config->beta2, at))) + config->eps);
	r->w -= config->lr * (update + config->weight_decay * r->w);
	r->way += fabs(r->w - before);
}

/* How far weights are from those in double after all steps, as a part of their way. */
struct off {
	double mean, most;
	double longest; /* step of a weight, in units of lr */
};

static struct off follow(const struct format *format, const struct optimizer_config *config,
			 enum gradients kind)
{
	static struct state state;
	static struct values values, before;
	static struct reference references[ELEMENTS];
	const struct kernel *kernel = kernel_best();
	struct off off = {0};

	make_state(&state, format, ELEMENTS);
	memset(&values, 0, sizeof(values));
	for (unsigned i = 0; i < ELEMENTS; i++) {
		values.master[i] = (float)random_value(&random_state);
		references[i] = (struct reference){.w = values.master[i]};
	}
	pack(kernel, &state, NULL, &values, ELEMENTS);
	for (unsigned at = 1; at <= STEPS; at++) {
		struct scalars adam = rule_at(NVS_RULE_ADAM)->scalars(config, config->lr, at, 1);
		struct noise noise = noise_of(3, 0, at, 0);
		float gradients[ELEMENTS];

		for (unsigned i = 0; i < ELEMENTS; i++) {
			gradients[i] = (float)gradient_of(kind, at, i);
			step_reference(&references[i], config, at, gradients[i]);
		}
		step(kernel, &state, &noise, &adam, gradients, NVS_F32, &dtypes[1]);
		before = values;
		unpack(kernel, &state, &values, ELEMENTS);
		for (unsigned i = 0; i < ELEMENTS; i++)
			off.longest = fmax(off.longest,
					   fabsf(values.master[i] - before.master[i]) / config->lr);
	}
	for (unsigned i = 0; i < ELEMENTS; i++) {
		double error = fabs(values.master[i] - references[i].w);
		/* Masters in fp32 round once or twice a step. */
		double part = fmax(error - STEPS * 0x1p-24, 0) /
			      fmax(references[i].way, config->lr);

		assert_true(isfinite(values.master[i]));
		off.mean += part / ELEMENTS;
		off.most = fmax(off.most, part);
	}
	return off;
}

TEST(test_steps_of_packed_state_follow_double_precision)
{
	/* Bounds of the mean and the most that an element is off. */
	static const double bounds[4][2] = {{1e-3, 1e-2}, {1e-3, 1e-2}, {0.02, 0.1}, {0.06, 0.3}};
	static const struct {
		const char *name;
		enum gradients gradients;
		double decay, eps;
		double mean, most;    /* of no gradients */
		double mean_of_codes; /* a block's smallest moments get lost beside its largest */
	} runs[] = {
		{"noise", OF_NOISE, 0, 1e-8, 0, 0, 0},
		{"no gradients", OF_ZERO, 0, 1e-8, 0, 0, 0},
		{"decay alone", OF_ZERO, 0.1, 1e-8, 1e-3, 1e-2, 0},
		{"noise and decay", OF_NOISE, 0.1, 1e-8, 0, 0, 0},
		{"ending", ENDING, 0, 1e-8, 0, 0, 0},
		{"sparse", SPARSE, 0, 1e-8, 0, 0, 0},
		{"tiny", TINY, 0, 1e-28, 0, 0, 0},
		{"spread", SPREAD_WIDE, 0, 1e-8, 0, 0, 0.3},
		{"a spike", WITH_SPIKE, 0, 1e-8, 0, 0, 0.4},
	};

	random_state = random_seed(__func__);
	for (unsigned i = 0; i < 4 * LENGTH(runs); i++) {
		const struct format *format = &formats[i / LENGTH(runs)];
		unsigned run = i % LENGTH(runs);
		struct optimizer_config config = plain_adam;
		double mean = bounds[i / LENGTH(runs)][0], most = bounds[i / LENGTH(runs)][1];
		struct off off;

		config.bias_correction = config.adam_w_mode = true;
		config.weight_decay = runs[run].decay;
		config.eps = runs[run].eps;
		if (runs[run].gradients == OF_ZERO) {
			mean = runs[run].mean;
			most = runs[run].most;
		}
		if (format->moments == MOMENTS_8BIT && runs[run].mean_of_codes > 0) {
			mean = runs[run].mean_of_codes;
			most = 1;
		}
		off = follow(format, &config, runs[run].gradients);
		/* A step is at most what one gradient after none can do: (1 - beta1) /
		 * sqrt(1 - beta2) = 3.2. */
		if (!(off.mean <= mean && off.most <= most && off.longest <= 3.5))
			fail_msg("%s, %s: off by %g of the way where %g is allowed, at most %g "
				 "where %g is; the longest step is %g times lr",
				 format->name, runs[run].name, off.mean, mean, off.most, most,
				 off.longest);
	}
}

static void check_bad_gradient(const struct kernel *kernel, const struct format *format, float bad,
			       size_t at)
{
	static struct state state, good;
	static struct values values, expected;
	static float gradients[ELEMENTS];
	const struct noise noise = noise_of(1, 1, 1, 0);
	const struct scalars adam = rule_at(NVS_RULE_ADAM)->scalars(&plain_adam, 1e-3, 1, 1);
	const bool codes = format->moments == MOMENTS_8BIT;

	fill_values(&values, false, ELEMENTS);
	fill_gradients(kernel, gradients, NVS_F32, false, ELEMENTS);
	make_state(&state, format, ELEMENTS);
	make_state(&good, format, ELEMENTS);
	pack(kernel, &state, NULL, &values, ELEMENTS);
	pack(kernel, &good, NULL, &values, ELEMENTS);
	step(kernel, &good, &noise, &adam, gradients, NVS_F32, &dtypes[1]);
	gradients[at] = bad;
	step(kernel, &state, &noise, &adam, gradients, NVS_F32, &dtypes[1]);
	unpack(kernel, &state, &values, ELEMENTS);
	unpack(kernel, &good, &expected, ELEMENTS);
	for (size_t i = 0; i < ELEMENTS; i++) {
		if (i == at)
			continue;
		check_bits(kernel, "master", i, values.master[i], expected.master[i]);
		if (codes && i / STATE_BLOCK == at / STATE_BLOCK)
			continue;
		check_bits(kernel, "exp_avg", i, values.exp_avg[i], expected.exp_avg[i]);
		check_bits(kernel, "exp_avg_sq", i, values.exp_avg_sq[i], expected.exp_avg_sq[i]);
	}
	gradients[at] = 0;
	step(kernel, &state, &noise, &adam, gradients, NVS_F32, &dtypes[1]);
	unpack(kernel, &state, &values, ELEMENTS);
	if (isfinite(bad)) {
		/* By a second moment of inf, a weight stays as it is. */
		assert_true(isfinite(values.exp_avg[at]) && isinf(values.exp_avg_sq[at]));
		assert_true(isinf(values.exp_avg_sq[at - 1]) == codes);
		if (codes)
			check_bits(kernel, "master", at - 1, values.master[at - 1],
				   expected.master[at - 1]);
	} else {
		assert_true(isnan(values.master[at]));
		assert_false(isfinite(values.exp_avg[at]) || isfinite(values.exp_avg_sq[at]));
		assert_true(isnan(values.exp_avg[at - 1]) == codes);
	}
	assert_true(isfinite(values.master[at]) == isfinite(bad));
}

TEST(test_a_gradient_that_is_no_number_spreads_to_its_block_of_codes_and_no_further)
{
	const struct kernel *kernel;

	random_state = random_seed(__func__);
	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned f = 0; f < LENGTH(formats); f++) {
			const float bad[] = {NAN, -INFINITY, 1e30f};

			for (unsigned i = 0; i < LENGTH(bad); i++) {
				check_bad_gradient(kernel, &formats[f], bad[i], STATE_BLOCK + 3);
				check_bad_gradient(kernel, &formats[f], bad[i], ELEMENTS - 2);
			}
		}
	}
}
