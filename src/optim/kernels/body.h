/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of a kernel, written once for vectors of any width. The including file first
 * defines the vector and its loads and stores:
 *
 *	vec	LANES values of fp32, with operators + - * /
 *	splat	all lanes the same; root: square roots; sign: 1, -1, or 0 of 0 and NaN
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

/* ---- Updates ---- */

/* struct scalars in every lane. */
struct factors {
	vec beta1, beta2, one_minus_beta1, one_minus_beta2;
	vec eps, step_size, root_factor, decay, grad_factor;
	bool decays, decoupled, nesterov, has_momentum;
};

SPECIALISED struct factors spread(const struct scalars *scalars)
{
	return (struct factors){
		.beta1 = splat(scalars->beta1),
		.beta2 = splat(scalars->beta2),
		.one_minus_beta1 = splat(scalars->one_minus_beta1),
		.one_minus_beta2 = splat(scalars->one_minus_beta2),
		.eps = splat(scalars->eps),
		.step_size = splat(scalars->step_size),
		.root_factor = splat(scalars->root_factor),
		.decay = splat(scalars->decay),
		.grad_factor = splat(scalars->grad_factor),
		.decays = scalars->decay != 0,
		.decoupled = scalars->decoupled,
		.nesterov = scalars->nesterov,
		.has_momentum = scalars->beta1 != 0,
	};
}

/* The arrays of an update; `second` and `weights` may be NULL. */
struct arrays {
	float *master, *first, *second;
	const void *gradients;
	enum nvs_dtype gradients_dtype;
	void *weights;
	enum nvs_dtype weights_dtype;
};

/* One vector of each array, from element i on. */
SPECIALISED void update(enum nvs_rule rule, const struct factors *f, const struct arrays *a,
			size_t i)
{
	vec g = load(element(a->gradients, a->gradients_dtype, i), a->gradients_dtype) *
		f->grad_factor;
	vec w = load_f32(a->master + i);
	vec m = load_f32(a->first + i), v;

	if (f->decays && !f->decoupled)
		g = g + f->decay * w;
	switch (rule) {
	case NVS_RULE_ADAM:
		v = load_f32(a->second + i);
		m = m * f->beta1 + g * f->one_minus_beta1;
		v = v * f->beta2 + g * g * f->one_minus_beta2;
		if (f->decays && f->decoupled)
			w = w - f->decay * w;
		w = w - f->step_size * (m / (root(v) * f->root_factor + f->eps));
		store_f32(a->second + i, v);
		break;
	case NVS_RULE_SGD:
		if (f->has_momentum) {
			m = m * f->beta1 + g * f->one_minus_beta1;
			if (f->nesterov)
				g = g + f->beta1 * m;
			else
				g = m;
		}
		w = w - f->step_size * g;
		break;
	case NVS_RULE_ADAGRAD:
		m = m + g * g;
		w = w - f->step_size * g / (root(m) + f->eps);
		break;
	case NVS_RULE_LION:
		v = sign(m * f->beta1 + g * f->one_minus_beta1);
		m = m * f->beta2 + g * f->one_minus_beta2;
		if (f->decays)
			w = w - f->decay * w;
		w = w - f->step_size * v;
		break;
	default:
		__builtin_unreachable();
	}
	store_f32(a->master + i, w);
	store_f32(a->first + i, m);
	if (a->weights)
		store(element_to_set(a->weights, a->weights_dtype, i), a->weights_dtype, w);
}

/* The last n elements, less than a vector, on a copy. */
SPECIALISED void update_rest(enum nvs_rule rule, const struct factors *f, const struct arrays *a,
			     size_t i, size_t n)
{
	float w[LANES] = {0}, m[LANES] = {0}, v[LANES] = {0};
	unsigned char g[BYTES_MAX] = {0}, low[BYTES_MAX];
	const struct arrays copy = {
		w, m, v, g, a->gradients_dtype, a->weights ? low : NULL, a->weights_dtype};

	memcpy(w, a->master + i, n * sizeof(*w));
	memcpy(m, a->first + i, n * sizeof(*m));
	if (a->second)
		memcpy(v, a->second + i, n * sizeof(*v));
	memcpy(g, element(a->gradients, a->gradients_dtype, i), n * size_of(a->gradients_dtype));
	update(rule, f, &copy, 0);
	memcpy(a->master + i, w, n * sizeof(*w));
	memcpy(a->first + i, m, n * sizeof(*m));
	if (a->second)
		memcpy(a->second + i, v, n * sizeof(*v));
	if (a->weights)
		memcpy(element_to_set(a->weights, a->weights_dtype, i), low,
		       n * size_of(a->weights_dtype));
}

SPECIALISED void update_typed(enum nvs_rule rule, const struct scalars *scalars,
			      float *restrict master, float *restrict first, float *restrict second,
			      const void *restrict gradients, enum nvs_dtype gradients_dtype,
			      void *restrict weights, enum nvs_dtype weights_dtype, size_t n)
{
	const struct arrays arrays = {master,	       first,	second,	      gradients,
				      gradients_dtype, weights, weights_dtype};
	const struct factors f = spread(scalars);
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		update(rule, &f, &arrays, i);
	if (LANES > 1 && i < n)
		update_rest(rule, &f, &arrays, i, n - i);
}

SPECIALISED void update_from(enum nvs_rule rule, const struct scalars *scalars, float *master,
			     float *first, float *second, const void *gradients,
			     enum nvs_dtype gradients_dtype, void *weights,
			     enum nvs_dtype weights_dtype, size_t n)
{
	if (!weights)
		update_typed(rule, scalars, master, first, second, gradients, gradients_dtype, NULL,
			     NVS_F32, n);
	else if (weights_dtype == NVS_F32)
		update_typed(rule, scalars, master, first, second, gradients, gradients_dtype,
			     weights, NVS_F32, n);
	else if (weights_dtype == NVS_BF16)
		update_typed(rule, scalars, master, first, second, gradients, gradients_dtype,
			     weights, NVS_BF16, n);
	else
		update_typed(rule, scalars, master, first, second, gradients, gradients_dtype,
			     weights, NVS_F16, n);
}

static bool known(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 || dtype == NVS_BF16 || dtype == NVS_F16;
}

static bool is_aligned(const void *array, enum nvs_dtype dtype)
{
	return (uintptr_t)array % size_of(dtype) == 0;
}

SPECIALISED void update_all(enum nvs_rule rule, const struct scalars *scalars, float *master,
			    float *first, float *second, const void *gradients,
			    enum nvs_dtype gradients_dtype, void *weights,
			    enum nvs_dtype weights_dtype, size_t n)
{
	assert(known(gradients_dtype) && (!weights || known(weights_dtype)));
	assert(is_aligned(master, NVS_F32) && is_aligned(first, NVS_F32));
	assert(is_aligned(second, NVS_F32) && is_aligned(gradients, gradients_dtype));
	assert(!weights || is_aligned(weights, weights_dtype));
	if (gradients_dtype == NVS_F32)
		update_from(rule, scalars, master, first, second, gradients, NVS_F32, weights,
			    weights_dtype, n);
	else if (gradients_dtype == NVS_BF16)
		update_from(rule, scalars, master, first, second, gradients, NVS_BF16, weights,
			    weights_dtype, n);
	else
		update_from(rule, scalars, master, first, second, gradients, NVS_F16, weights,
			    weights_dtype, n);
}

#define UPDATE(name, rule)                                                                         \
	static void name(const struct scalars *scalars, float *master, float *first,               \
			 float *second, const void *gradients, enum nvs_dtype gradients_dtype,     \
			 void *weights, enum nvs_dtype weights_dtype, size_t n)                    \
	{                                                                                          \
		update_all(rule, scalars, master, first, second, gradients, gradients_dtype,       \
			   weights, weights_dtype, n);                                             \
	}

UPDATE(adam_all, NVS_RULE_ADAM)
UPDATE(sgd_all, NVS_RULE_SGD)
UPDATE(adagrad_all, NVS_RULE_ADAGRAD)
UPDATE(lion_all, NVS_RULE_LION)

#define UPDATES                                                                                    \
	{                                                                                          \
		[NVS_RULE_ADAM] = adam_all, [NVS_RULE_SGD] = sgd_all,                              \
		[NVS_RULE_ADAGRAD] = adagrad_all, [NVS_RULE_LION] = lion_all                       \
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
