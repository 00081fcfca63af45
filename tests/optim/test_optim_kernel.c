/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a step: conversions against the element types' definitions, sums, and every
 * kernel that this processor supports against the plain one, bit by bit. Seeds are printed.
 */
#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/support.h"
#include "support/tests.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HALVES 65536u

static const enum nvs_dtype dtypes[] = {NVS_F32, NVS_BF16, NVS_F16};

static uint64_t random_state;

static double half_value(uint16_t half, enum nvs_dtype dtype)
{
	return element_get(dtype, &half, 0);
}

/* The same bits, or both NaN. */
static bool same(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static void check_same(const struct kernel *kernel, enum nvs_dtype dtype, size_t i, double found,
		       double expected)
{
	if (!same(found, expected))
		fail_msg("%s: %s [%zu] is %a and not %a", kernel->name, nvs_dtype_name(dtype), i,
			 found, expected);
}

TEST(test_the_plain_kernel_is_always_there_and_last)
{
	unsigned count = 0;

	while (kernel_at(count)) {
		printf("kernel %s\n", kernel_at(count)->name);
		count++;
	}
	assert_true(count >= 1);
	assert_null(kernel_at(count + 1));
	assert_string_equal(kernel_at(count - 1)->name, "plain");
	assert_ptr_equal(kernel_best(), kernel_at(0));
}

/* ---- Conversions ---- */

TEST(test_every_half_becomes_its_value_and_comes_back)
{
	static uint16_t halves[HALVES], back[HALVES];
	static float values[HALVES];
	const struct kernel *kernel;

	for (unsigned i = 0; i < HALVES; i++)
		halves[i] = (uint16_t)i;
	for (unsigned t = 1; t < LENGTH(dtypes); t++) {
		for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
			kernel->convert(values, NVS_F32, halves, dtypes[t], 1, HALVES);
			kernel->convert(back, dtypes[t], values, NVS_F32, 1, HALVES);
			for (unsigned i = 0; i < HALVES; i++) {
				double value = half_value(halves[i], dtypes[t]);

				check_same(kernel, dtypes[t], i, values[i], value);
				if (isnan(value))
					check_same(kernel, dtypes[t], i,
						   element_get(dtypes[t], back, i), value);
				else
					assert_int_equal(back[i], i);
			}
		}
	}
}

/* Each value of the type, the midpoint to the next one, and the neighbours of the midpoint. */
static size_t make_hard_to_round(float *hard, enum nvs_dtype dtype)
{
	size_t n = 0;

	for (unsigned i = 0; i < HALVES; i++) {
		double value = half_value((uint16_t)i, dtype);
		double next = half_value((uint16_t)(i + 1), dtype);
		float middle = (float)((value + next) / 2);

		/* Beyond the largest, rounding to infinity begins half a step behind it. */
		if (isinf(next) && isfinite(value))
			middle =
				(float)(value + (value - half_value((uint16_t)(i - 1), dtype)) / 2);
		hard[n++] = (float)value;
		hard[n++] = middle;
		hard[n++] = nextafterf(middle, INFINITY);
		hard[n++] = nextafterf(middle, -INFINITY);
	}
	return n;
}

TEST(test_narrowing_rounds_to_nearest_even)
{
	static float hard[4 * HALVES];
	static uint16_t found[4 * HALVES];
	const struct kernel *kernel;

	for (unsigned t = 1; t < LENGTH(dtypes); t++) {
		size_t n = make_hard_to_round(hard, dtypes[t]);

		for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
			kernel->convert(found, dtypes[t], hard, NVS_F32, 1, n);
			for (size_t i = 0; i < n; i++)
				check_same(kernel, dtypes[t], i, half_value(found[i], dtypes[t]),
					   element_rounded(dtypes[t], hard[i]));
		}
	}
}

#define SOME 77u

static void fill_values(void *array, enum nvs_dtype dtype, size_t n)
{
	for (size_t i = 0; i < n; i++)
		element_put(
			dtype, array, i,
			element_rounded(dtype, ldexp(random_value(&random_state),
						     (int)(random_next(&random_state) % 24) - 16)));
}

static void check_convert_and_add(const struct kernel *kernel, enum nvs_dtype to_dtype,
				  enum nvs_dtype from_dtype, size_t n)
{
	float from[SOME], to[SOME + 1], sum[SOME + 1];
	const float factor = 0.3f;

	fill_values(from, from_dtype, n);
	fill_values(sum, to_dtype, n + 1);
	memcpy(to, sum, sizeof(to));
	kernel->convert(to, to_dtype, from, from_dtype, factor, n);
	for (size_t i = 0; i < n; i++)
		check_same(kernel, to_dtype, i, element_get(to_dtype, to, i),
			   element_rounded(to_dtype,
					   (float)element_get(from_dtype, from, i) * factor));
	check_same(kernel, to_dtype, n, element_get(to_dtype, to, n),
		   element_get(to_dtype, sum, n));

	memcpy(to, sum, sizeof(to));
	kernel->add(to, to_dtype, from, from_dtype, n);
	for (size_t i = 0; i < n; i++)
		check_same(
			kernel, to_dtype, i, element_get(to_dtype, to, i),
			element_rounded(to_dtype, (float)element_get(to_dtype, sum, i) +
							  (float)element_get(from_dtype, from, i)));
	check_same(kernel, to_dtype, n, element_get(to_dtype, to, n),
		   element_get(to_dtype, sum, n));

	if (nvs_dtype_size(to_dtype) != nvs_dtype_size(from_dtype))
		return;
	kernel->convert(to, to_dtype, from, from_dtype, factor, n);
	kernel->convert(from, to_dtype, from, from_dtype, factor, n);
	assert_memory_equal(from, to, n * nvs_dtype_size(to_dtype));
}

TEST(test_convert_and_add_round_once_and_stay_within_n)
{
	const struct kernel *kernel;

	random_state = random_seed(__func__);
	for (unsigned k = 0; (kernel = kernel_at(k)); k++)
		for (unsigned to = 0; to < LENGTH(dtypes); to++)
			for (unsigned from = 0; from < LENGTH(dtypes); from++)
				for (size_t n = 0; n <= SOME; n++)
					check_convert_and_add(kernel, dtypes[to], dtypes[from], n);
}

static void check_sum(const struct kernel *kernel, enum nvs_dtype dtype, const void *from, size_t n)
{
	double s[8] = {0}, sum;

	for (size_t i = 0; i < n; i++)
		s[i % 8] += element_get(dtype, from, i) * element_get(dtype, from, i);
	sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
	check_same(kernel, dtype, n, kernel->sum_squares(from, dtype, n), sum);
}

TEST(test_sums_of_squares_are_added_in_the_order_promised)
{
	static const double specials[] = {INFINITY, -INFINITY, NAN};
	const struct kernel *kernel;
	float from[SUM_BLOCK];

	random_state = random_seed(__func__);
	for (unsigned k = 0; (kernel = kernel_at(k)); k++) {
		for (unsigned t = 0; t < LENGTH(dtypes); t++) {
			fill_values(from, dtypes[t], SUM_BLOCK);
			for (size_t n = 0; n <= SOME; n++)
				check_sum(kernel, dtypes[t], from, n);
			check_sum(kernel, dtypes[t], from, SUM_BLOCK - 1);
			check_sum(kernel, dtypes[t], from, SUM_BLOCK);
			for (unsigned i = 0; i < LENGTH(specials); i++) {
				element_put(dtypes[t], from, SOME + i,
					    element_rounded(dtypes[t], specials[i]));
				check_sum(kernel, dtypes[t], from, SOME + i + 1);
			}
		}
	}
}

/* ---- The same bits by every kernel ---- */

#define LONGEST 1003u

enum { MASTER, EXP_AVG, EXP_AVG_SQ, GRADIENTS, WEIGHTS, ARRAYS };

/* Each array is offset by one element from its alignment, with room behind it. */
typedef float arrays[ARRAYS][LONGEST + 2];

static float any_bits(void)
{
	static const float specials[] = {0.0f,	    -0.0f,	INFINITY,  -INFINITY, NAN,
					 0x1p-149f, -0x1p-130f, 0x1p-126f, 3e38f,     65520.0f};
	uint64_t random = random_next(&random_state);
	uint32_t bits = (uint32_t)(random >> 32);
	float x;

	if (random % 4 == 0)
		return specials[random / 4 % LENGTH(specials)];
	if (random % 4 == 1)
		return (float)random_value(&random_state);
	memcpy(&x, &bits, sizeof(x));
	return x;
}

static void step_once(const struct kernel *kernel, const struct rule *rule,
		      const struct scalars *scalars, arrays a, enum nvs_dtype gradients_dtype,
		      const enum nvs_dtype *weights_dtype, size_t n)
{
	unsigned char *gradients = (unsigned char *)a[GRADIENTS];
	unsigned char *weights = (unsigned char *)a[WEIGHTS];

	kernel->update[rule->id](scalars, a[MASTER] + 1, a[EXP_AVG] + 1,
				 rule->nparts > 2 ? a[EXP_AVG_SQ] + 1 : NULL,
				 gradients + nvs_dtype_size(gradients_dtype), gradients_dtype,
				 weights_dtype ? weights + nvs_dtype_size(*weights_dtype) : NULL,
				 weights_dtype ? *weights_dtype : NVS_F32, n);
}

static void check_arrays(const struct kernel *kernel, arrays found, arrays expected,
			 const enum nvs_dtype *weights_dtype, size_t n)
{
	size_t each = LENGTH(found[0]);

	for (unsigned k = 0; k <= EXP_AVG_SQ; k++)
		for (size_t i = 0; i < n + 2; i++)
			check_same(kernel, NVS_F32, i, found[k][i], expected[k][i]);
	assert_memory_equal(found[GRADIENTS], expected[GRADIENTS], sizeof(found[GRADIENTS]));
	if (!weights_dtype)
		assert_memory_equal(found[WEIGHTS], expected[WEIGHTS], each * sizeof(float));
	for (size_t i = 0; weights_dtype && i < n + 2; i++)
		check_same(kernel, *weights_dtype, i,
			   element_get(*weights_dtype, found[WEIGHTS], i),
			   element_get(*weights_dtype, expected[WEIGHTS], i));
}

static void compare_kernels(const struct rule *rule, enum nvs_dtype gradients_dtype,
			    const enum nvs_dtype *weights_dtype, size_t n)
{
	static arrays start, expected, found;
	struct optimizer_config config = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-4};
	struct scalars scalars;

	const struct kernel *kernel, *plain = NULL;

	config.momentum = random_next(&random_state) % 3 ? 0.9 : 0;
	config.nesterov = random_next(&random_state) % 2;
	scalars = rule->scalars(&config, 1e-3, 1 + random_next(&random_state) % 100, 0.125);
	scalars.decay = random_next(&random_state) % 2 ? 0 : 0.01f;
	if (rule->id == NVS_RULE_ADAM)
		scalars.decoupled = random_next(&random_state) % 2;
	for (unsigned k = 0; k < ARRAYS; k++)
		for (size_t i = 0; i < LENGTH(start[k]); i++)
			start[k][i] = i < n + 2 ? any_bits() : 0;
	for (unsigned k = 0; kernel_at(k); k++)
		plain = kernel_at(k);
	memcpy(expected, start, sizeof(start));
	step_once(plain, rule, &scalars, expected, gradients_dtype, weights_dtype, n);
	for (unsigned k = 0; k < ARRAYS - 2; k++) {
		check_same(plain, NVS_F32, 0, expected[k][0], start[k][0]);
		check_same(plain, NVS_F32, n + 1, expected[k][n + 1], start[k][n + 1]);
	}
	for (unsigned k = 0; (kernel = kernel_at(k)) != plain; k++) {
		memcpy(found, start, sizeof(start));
		step_once(kernel, rule, &scalars, found, gradients_dtype, weights_dtype, n);
		check_arrays(kernel, found, expected, weights_dtype, n);
	}
}

TEST(test_all_kernels_give_the_same_bits_at_any_length_and_address)
{
	random_state = random_seed(__func__);
	for (unsigned i = 0; i < RULES * LENGTH(dtypes) * (LENGTH(dtypes) + 1); i++) {
		const struct rule *rule = rule_at((enum nvs_rule)(i % RULES));
		enum nvs_dtype from = dtypes[i / RULES % LENGTH(dtypes)];
		unsigned to = i / RULES / LENGTH(dtypes);
		const enum nvs_dtype *weights = to < LENGTH(dtypes) ? &dtypes[to] : NULL;

		for (size_t n = 0; n <= 70; n++)
			compare_kernels(rule, from, weights, n);
		compare_kernels(rule, from, weights, 257);
		compare_kernels(rule, from, weights, LONGEST);
	}
}
