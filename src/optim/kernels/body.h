/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of a kernel, written once for vectors of any width, included after vectors.h and
 * what the set defines by instructions of its own:
 *
 *	root	square roots; sign: 1, -1, or 0 of 0 and NaN
 *	load_f16, store_f16, load_u16, load_i16, load_u8, store_u16, store_u8
 *		LANES elements at any address; i16 extends the sign; stored integers fit
 *	larger	of two integers with signs; smaller: of two without
 *	if_nan	of two integers the first where x is NaN
 *
 * Each loop exists once for every combination of element types, so no loop tests a type. A loop that
 * ends within a vector computes the last elements on a copy.
 */
#include "optim/kernels/kernel.h"

#include <assert.h>
#include <string.h>

#define QUIET	  0x400000u		  /* of a NaN */
#define BYTES_MAX (LANES * sizeof(float)) /* of a vector's elements in the longest type */

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

SPECIALISED vec load_bf16(const void *from)
{
	return as_vec(load_u16(from) << 16);
}

/* To nearest; a NaN becomes quiet. */
SPECIALISED void store_bf16(void *to, vec x)
{
	ints bits = as_ints(x), rounded = bits + every(0x7fff) + (bits >> 16 & every(1));

	store_u16(to, if_nan(x, bits | every(QUIET), rounded) >> 16);
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

/* Calls a function with the type as a constant, for which it is specialized. */
#define BY_TYPE(dtype, function, ...)                                                              \
	((dtype) == NVS_F32    ? function(NVS_F32, __VA_ARGS__)                                    \
	 : (dtype) == NVS_BF16 ? function(NVS_BF16, __VA_ARGS__)                                   \
			       : function(NVS_F16, __VA_ARGS__))

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

SPECIALISED void update_typed(enum nvs_dtype weights_dtype, enum nvs_dtype gradients_dtype,
			      enum nvs_rule rule, const struct scalars *scalars,
			      float *restrict master, float *restrict first, float *restrict second,
			      const void *restrict gradients, void *restrict weights, size_t n)
{
	const struct arrays a = {master,	  first,   second,	 gradients,
				 gradients_dtype, weights, weights_dtype};
	const struct factors f = spread(scalars);
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		update(rule, &f, &a, i);
	if (LANES > 1 && i < n) {
		/* The last elements, less than a vector, on a copy. */
		const size_t left = n - i;
		float w[LANES] = {0}, m[LANES] = {0}, v[LANES] = {0};
		unsigned char g[BYTES_MAX] = {0}, low[BYTES_MAX];
		const struct arrays copy = {
			w, m, v, g, gradients_dtype, weights ? low : NULL, weights_dtype};

		memcpy(w, master + i, left * sizeof(*w));
		memcpy(m, first + i, left * sizeof(*m));
		if (second)
			memcpy(v, second + i, left * sizeof(*v));
		memcpy(g, element(gradients, gradients_dtype, i), left * size_of(gradients_dtype));
		update(rule, &f, &copy, 0);
		memcpy(master + i, w, left * sizeof(*w));
		memcpy(first + i, m, left * sizeof(*m));
		if (second)
			memcpy(second + i, v, left * sizeof(*v));
		if (weights)
			memcpy(element_to_set(weights, weights_dtype, i), low,
			       left * size_of(weights_dtype));
	}
}

SPECIALISED void update_from(enum nvs_dtype gradients_dtype, enum nvs_rule rule,
			     const struct scalars *scalars, float *master, float *first,
			     float *second, const void *gradients, void *weights,
			     enum nvs_dtype weights_dtype, size_t n)
{
	if (!weights)
		update_typed(NVS_F32, gradients_dtype, rule, scalars, master, first, second,
			     gradients, NULL, n);
	else
		BY_TYPE(weights_dtype, update_typed, gradients_dtype, rule, scalars, master, first,
			second, gradients, weights, n);
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
	BY_TYPE(gradients_dtype, update_from, rule, scalars, master, first, second, gradients,
		weights, weights_dtype, n);
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

SPECIALISED void combine_typed(enum nvs_dtype to_dtype, enum nvs_dtype from_dtype, void *to,
			       const void *from, enum operation operation, float factor, size_t n)
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

SPECIALISED void combine_from(enum nvs_dtype from_dtype, enum nvs_dtype to_dtype, void *to,
			      const void *from, enum operation operation, float factor, size_t n)
{
	BY_TYPE(to_dtype, combine_typed, from_dtype, to, from, operation, factor, n);
}

SPECIALISED void combine_all(void *to, enum nvs_dtype to_dtype, const void *from,
			     enum nvs_dtype from_dtype, enum operation operation, float factor,
			     size_t n)
{
	assert(known(to_dtype) && known(from_dtype));
	assert(is_aligned(to, to_dtype) && is_aligned(from, from_dtype));
	/* In place, an element is read before anything is written over it. */
	assert(to != from || !n || size_of(to_dtype) == size_of(from_dtype));
	BY_TYPE(from_dtype, combine_from, to_dtype, to, from, operation, factor, n);
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
	double sums[SUMS] = {0};
	float block[SUM_BLOCK + SUMS];

	assert(n <= SUM_BLOCK);
	convert(block, NVS_F32, from, dtype, 1, n);
	memset(block + n, 0, SUMS * sizeof(*block));
	for (size_t i = 0; i < n; i += SUMS)
		for (size_t k = 0; k < SUMS; k++)
			sums[k] += (double)block[i + k] * (double)block[i + k];
	return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
	       ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}
