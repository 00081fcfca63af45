/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of a kernel, written once for vectors of any width. The including file first
 * defines the vector and its loads and stores:
 *
 *	vec	LANES values of fp32, with operators + - * /
 *	splat	all lanes the same; root: square roots
 *	load_f32, load_bf16, load_f16, store_f32, store_bf16, store_f16
 *		LANES elements at any address
 *	doubles, widen
 *		WIDE values of double, and as many of fp32 from any address as such
 *
 * and names the result `set`. Each loop exists once for every combination of element types, so no
 * loop tests a type. A loop that ends within a vector computes the last elements on a copy.
 */
#include "optim/kernels/kernel.h"

#include <assert.h>
#include <string.h>

#define BYTES_MAX (LANES * sizeof(float)) /* of a vector's elements in the longest type */

/* Makes the compiler specialize the function for each caller's constants. */
#define SPECIALISED static inline __attribute__((always_inline))

SPECIALISED size_t size_of(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 ? sizeof(float) : sizeof(uint16_t);
}

SPECIALISED const void *element(const void *array, enum nvs_dtype dtype, size_t i)
{
	return (const unsigned char *)array + i * size_of(dtype);
}

SPECIALISED void *element_to_set(void *array, enum nvs_dtype dtype, size_t i)
{
	return (unsigned char *)array + i * size_of(dtype);
}

SPECIALISED vec load(const void *from, enum nvs_dtype dtype)
{
	return dtype == NVS_F32	   ? load_f32(from)
	       : dtype == NVS_BF16 ? load_bf16(from)
				   : load_f16(from);
}

SPECIALISED void store(void *to, enum nvs_dtype dtype, vec x)
{
	if (dtype == NVS_F32)
		store_f32(to, x);
	else if (dtype == NVS_BF16)
		store_bf16(to, x);
	else
		store_f16(to, x);
}

/* ---- Adam ---- */

/* struct adam in every lane. */
struct factors {
	vec beta1, beta2, one_minus_beta1, one_minus_beta2;
	vec eps, step_size, root_factor, decay, grad_factor;
	bool decays, decoupled;
};

SPECIALISED struct factors spread(const struct adam *adam)
{
	return (struct factors){
		.beta1 = splat(adam->beta1),
		.beta2 = splat(adam->beta2),
		.one_minus_beta1 = splat(adam->one_minus_beta1),
		.one_minus_beta2 = splat(adam->one_minus_beta2),
		.eps = splat(adam->eps),
		.step_size = splat(adam->step_size),
		.root_factor = splat(adam->root_factor),
		.decay = splat(adam->decay),
		.grad_factor = splat(adam->grad_factor),
		.decays = adam->decay != 0,
		.decoupled = adam->decoupled,
	};
}

/* One vector of each array; `weights` may be NULL. */
SPECIALISED void update(const struct factors *f, float *master, float *exp_avg, float *exp_avg_sq,
			const void *gradients, enum nvs_dtype gradients_dtype, void *weights,
			enum nvs_dtype weights_dtype)
{
	vec g = load(gradients, gradients_dtype) * f->grad_factor;
	vec w = load_f32(master);
	vec m = load_f32(exp_avg);
	vec v = load_f32(exp_avg_sq);

	if (f->decays && !f->decoupled)
		g = g + f->decay * w;
	m = m * f->beta1 + g * f->one_minus_beta1;
	v = v * f->beta2 + g * g * f->one_minus_beta2;
	if (f->decays && f->decoupled)
		w = w - f->decay * w;
	w = w - f->step_size * (m / (root(v) * f->root_factor + f->eps));

	store_f32(master, w);
	store_f32(exp_avg, m);
	store_f32(exp_avg_sq, v);
	if (weights)
		store(weights, weights_dtype, w);
}

SPECIALISED void update_rest(const struct factors *f, float *master, float *exp_avg,
			     float *exp_avg_sq, const void *gradients,
			     enum nvs_dtype gradients_dtype, void *weights,
			     enum nvs_dtype weights_dtype, size_t n)
{
	float w[LANES] = {0}, m[LANES] = {0}, v[LANES] = {0};
	unsigned char g[BYTES_MAX] = {0}, low[BYTES_MAX];

	memcpy(w, master, n * sizeof(*w));
	memcpy(m, exp_avg, n * sizeof(*m));
	memcpy(v, exp_avg_sq, n * sizeof(*v));
	memcpy(g, gradients, n * size_of(gradients_dtype));
	update(f, w, m, v, g, gradients_dtype, weights ? low : NULL, weights_dtype);
	memcpy(master, w, n * sizeof(*w));
	memcpy(exp_avg, m, n * sizeof(*m));
	memcpy(exp_avg_sq, v, n * sizeof(*v));
	if (weights)
		memcpy(weights, low, n * size_of(weights_dtype));
}

SPECIALISED void adam_typed(const struct adam *adam, float *restrict master,
			    float *restrict exp_avg, float *restrict exp_avg_sq,
			    const void *restrict gradients, enum nvs_dtype gradients_dtype,
			    void *restrict weights, enum nvs_dtype weights_dtype, size_t n)
{
	const struct factors f = spread(adam);
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		update(&f, master + i, exp_avg + i, exp_avg_sq + i,
		       element(gradients, gradients_dtype, i), gradients_dtype,
		       weights ? element_to_set(weights, weights_dtype, i) : NULL, weights_dtype);
	if (LANES > 1 && i < n)
		update_rest(&f, master + i, exp_avg + i, exp_avg_sq + i,
			    element(gradients, gradients_dtype, i), gradients_dtype,
			    weights ? element_to_set(weights, weights_dtype, i) : NULL,
			    weights_dtype, n - i);
}

SPECIALISED void adam_from(const struct adam *adam, float *master, float *exp_avg,
			   float *exp_avg_sq, const void *gradients, enum nvs_dtype gradients_dtype,
			   void *weights, enum nvs_dtype weights_dtype, size_t n)
{
	if (!weights)
		adam_typed(adam, master, exp_avg, exp_avg_sq, gradients, gradients_dtype, NULL,
			   NVS_F32, n);
	else if (weights_dtype == NVS_F32)
		adam_typed(adam, master, exp_avg, exp_avg_sq, gradients, gradients_dtype, weights,
			   NVS_F32, n);
	else if (weights_dtype == NVS_BF16)
		adam_typed(adam, master, exp_avg, exp_avg_sq, gradients, gradients_dtype, weights,
			   NVS_BF16, n);
	else
		adam_typed(adam, master, exp_avg, exp_avg_sq, gradients, gradients_dtype, weights,
			   NVS_F16, n);
}

static bool known(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 || dtype == NVS_BF16 || dtype == NVS_F16;
}

static bool is_aligned(const void *array, enum nvs_dtype dtype)
{
	return (uintptr_t)array % size_of(dtype) == 0;
}

static void adam_all(const struct adam *adam, float *master, float *exp_avg, float *exp_avg_sq,
		     const void *gradients, enum nvs_dtype gradients_dtype, void *weights,
		     enum nvs_dtype weights_dtype, size_t n)
{
	assert(known(gradients_dtype) && (!weights || known(weights_dtype)));
	assert(is_aligned(master, NVS_F32) && is_aligned(exp_avg, NVS_F32));
	assert(is_aligned(exp_avg_sq, NVS_F32) && is_aligned(gradients, gradients_dtype));
	assert(!weights || is_aligned(weights, weights_dtype));
	if (gradients_dtype == NVS_F32)
		adam_from(adam, master, exp_avg, exp_avg_sq, gradients, NVS_F32, weights,
			  weights_dtype, n);
	else if (gradients_dtype == NVS_BF16)
		adam_from(adam, master, exp_avg, exp_avg_sq, gradients, NVS_BF16, weights,
			  weights_dtype, n);
	else
		adam_from(adam, master, exp_avg, exp_avg_sq, gradients, NVS_F16, weights,
			  weights_dtype, n);
}

/* ---- From array to array ---- */

enum operation { CONVERT, ADD };

SPECIALISED void combine(void *to, enum nvs_dtype to_dtype, const void *from,
			 enum nvs_dtype from_dtype, enum operation operation, vec factor)
{
	vec x = load(from, from_dtype);

	store(to, to_dtype, operation == ADD ? load(to, to_dtype) + x : x * factor);
}

SPECIALISED void combine_typed(void *to, enum nvs_dtype to_dtype, const void *from,
			       enum nvs_dtype from_dtype, enum operation operation, float factor,
			       size_t n)
{
	const vec factors = splat(factor);
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		combine(element_to_set(to, to_dtype, i), to_dtype, element(from, from_dtype, i),
			from_dtype, operation, factors);
	if (LANES > 1 && i < n) {
		unsigned char from_rest[BYTES_MAX] = {0}, to_rest[BYTES_MAX] = {0};

		memcpy(from_rest, element(from, from_dtype, i), (n - i) * size_of(from_dtype));
		if (operation == ADD)
			memcpy(to_rest, element(to, to_dtype, i), (n - i) * size_of(to_dtype));
		combine(to_rest, to_dtype, from_rest, from_dtype, operation, factors);
		memcpy(element_to_set(to, to_dtype, i), to_rest, (n - i) * size_of(to_dtype));
	}
}

SPECIALISED void combine_from(void *to, enum nvs_dtype to_dtype, const void *from,
			      enum nvs_dtype from_dtype, enum operation operation, float factor,
			      size_t n)
{
	if (to_dtype == NVS_F32)
		combine_typed(to, NVS_F32, from, from_dtype, operation, factor, n);
	else if (to_dtype == NVS_BF16)
		combine_typed(to, NVS_BF16, from, from_dtype, operation, factor, n);
	else
		combine_typed(to, NVS_F16, from, from_dtype, operation, factor, n);
}

SPECIALISED void combine_all(void *to, enum nvs_dtype to_dtype, const void *from,
			     enum nvs_dtype from_dtype, enum operation operation, float factor,
			     size_t n)
{
	assert(known(to_dtype) && known(from_dtype));
	assert(is_aligned(to, to_dtype) && is_aligned(from, from_dtype));
	/* In place, an element is read before anything is written over it. */
	assert(to != from || !n || size_of(to_dtype) == size_of(from_dtype));
	if (from_dtype == NVS_F32)
		combine_from(to, to_dtype, from, NVS_F32, operation, factor, n);
	else if (from_dtype == NVS_BF16)
		combine_from(to, to_dtype, from, NVS_BF16, operation, factor, n);
	else
		combine_from(to, to_dtype, from, NVS_F16, operation, factor, n);
}

static void convert(void *to, enum nvs_dtype to_dtype, const void *from, enum nvs_dtype from_dtype,
		    float factor, size_t n)
{
	combine_all(to, to_dtype, from, from_dtype, CONVERT, factor, n);
}

static void add(void *to, enum nvs_dtype to_dtype, const void *from, enum nvs_dtype from_dtype,
		size_t n)
{
	combine_all(to, to_dtype, from, from_dtype, ADD, 1, n);
}

/* ---- Sums ---- */

#define SUMS 8u
static double sum_squares(const void *from, enum nvs_dtype dtype, size_t n)
{
	union {
		double at[SUMS];
		doubles wide[SUMS / WIDE];
	} sums = {.at = {0}};
	float block[SUM_BLOCK];
	size_t end = (n + SUMS - 1) / SUMS * SUMS;

	assert(n <= SUM_BLOCK && end <= SUM_BLOCK);
	convert(block, NVS_F32, from, dtype, 1, n);
	for (size_t i = n; i < end; i++)
		block[i] = 0;
	for (size_t i = 0; i < end; i += SUMS) {
		for (size_t k = 0; k < SUMS / WIDE; k++) {
			doubles x = widen(block + i + k * WIDE);

			sums.wide[k] += x * x;
		}
	}
	return ((sums.at[0] + sums.at[4]) + (sums.at[2] + sums.at[6])) +
	       ((sums.at[1] + sums.at[5]) + (sums.at[3] + sums.at[7]));
}
