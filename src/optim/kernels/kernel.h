/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a step, over arrays in memory: Adam's update, conversions between element
 * types, and sums of squares. There is one set of functions per instruction set, chosen at run
 * time. All sets compute the same bits: additions, multiplications, divisions and roots come one at
 * a time in the same order, each rounded by IEEE 754, without fused operations.
 */
#ifndef OPTIM_KERNELS_KERNEL_H
#define OPTIM_KERNELS_KERNEL_H

#include "config/config.h"
#include "nvswap.h"
#include "optim/kernels/packed.h"

#define RULES 4u /* enum nvs_rule */

/*
 * The constants of an update, the same for all elements of a step. A rule sets those that it has.
 */
struct scalars {
	float beta1, beta2;
	float one_minus_beta1, one_minus_beta2; /* computed in double, then rounded */
	float eps;
	float step_size;   /* lr / (1 - beta1^step), or lr without bias correction */
	float root_factor; /* 1 / sqrt(1 - beta2^step), or 1 */
	float decay;	   /* Adam: weight_decay; times the weight, added to the gradient.
			      AdamW: lr * weight_decay; times the weight, subtracted. 0: none */
	bool decoupled;	   /* AdamW, Lion */
	bool nesterov;	   /* SGD, whose momentum is beta1 */
	float grad_factor; /* gradients are multiplied by it first: unscaling and clipping */
};

#define SUM_BLOCK 1024u /* the largest n of sum_squares */

/*
 * Element types are NVS_F32, NVS_BF16 and NVS_F16. Arrays are aligned to their elements; n may be
 * 0. Rounding is to nearest, ties to even; NaN stays NaN.
 */
struct kernel {
	const char *name; /* "avx512", "avx2", "plain" */
	/*
	 * The updates, by rule, of n elements: the master weights w and the rule's states, in their
	 * order; NULL for one that it does not have. g = gradient * grad_factor. `weights` receives
	 * w in its type; it may be NULL.
	 *
	 * Adam, of m = exp_avg and v = exp_avg_sq: unless decoupled g += decay * w;
	 * m = m*beta1 + g*(1-beta1); v = v*beta2 + g*g*(1-beta2); if decoupled w -= decay * w;
	 * w -= step_size * (m / (sqrt(v) * root_factor + eps)).
	 *
	 * SGD, of m = momentum_buffer: g += decay * w; with momentum m = m*beta1 +
	 * g*one_minus_beta1, and then g = nesterov ? g + beta1*m : m; w -= step_size * g.
	 *
	 * Adagrad, of s = sum: g += decay * w; s += g*g; w -= step_size * g / (sqrt(s) + eps).
	 *
	 * Lion, of m = exp_avg: u = m*beta1 + g*one_minus_beta1; m = m*beta2 + g*one_minus_beta2;
	 * w -= decay * w; w -= step_size * sign(u), where the sign of 0 and of NaN is 0.
	 */
	void (*update[RULES])(const struct scalars *scalars, float *master, float *first,
			      float *second, const void *gradients, enum nvs_dtype gradients_dtype,
			      void *weights, enum nvs_dtype weights_dtype, size_t n);
	/* to[i] = from[i] * factor in fp32, rounded to the type of `to`. The arrays may be the same
	 * if the types have the same size; otherwise they must not overlap. */
	void (*convert)(void *to, enum nvs_dtype to_dtype, const void *from,
			enum nvs_dtype from_dtype, float factor, size_t n);
	/* to[i] += from[i], the sum in fp32 and rounded to the type of `to`. */
	void (*add)(void *to, enum nvs_dtype to_dtype, const void *from, enum nvs_dtype from_dtype,
		    size_t n);
	/* The sum of squares, in double, of n <= SUM_BLOCK elements: eight sums over elements with
	 * the same index modulo 8, added up as ((0+4)+(2+6)) + ((1+5)+(3+7)). inf or nan if an
	 * element is. */
	double (*sum_squares)(const void *from, enum nvs_dtype dtype, size_t n);
	/*
	 * Adam's update of state kept as `state` says. With `split`, weights are bf16
	 * and not NULL, and read too. Moments of fewer bits than fp32 are rounded stochastically by
	 * `noise`, which is NULL only if there are none.
	 */
	void (*adam_packed)(const struct scalars *scalars, const struct state_run *state,
			    const struct noise *noise, const void *gradients,
			    enum nvs_dtype gradients_dtype, void *weights,
			    enum nvs_dtype weights_dtype, size_t n);
	/* The state as fp32 values. An array that is NULL is left out. `weights` are bf16 and read
	 * only for a split master. */
	void (*unpack)(const struct state_run *state, const void *weights, float *master,
		       float *exp_avg, float *exp_avg_sq, size_t n);
	/*
	 * Keeps fp32 values as state, moments rounded as by adam_packed; noise NULL: to nearest. An
	 * array that is NULL stays as it is. `weights` receives the master in its type; with
	 * `split` it is bf16, and NULL only if `master` is. exp_avg_sq is kept without its sign,
	 * unless all is fp32; with `split`, `master` writes the sign bits of state->exp_avg_sq.
	 */
	void (*pack)(const struct state_run *state, const struct noise *noise, const float *master,
		     const float *exp_avg, const float *exp_avg_sq, void *weights,
		     enum nvs_dtype weights_dtype, size_t n);
};

/* The sets, one of each file. NULL: not for this target; another may need instructions that the
 * processor lacks. */
extern const struct kernel *const kernel_avx512, *const kernel_avx2, *const kernel_plain;
/* The fastest set that this processor supports. Never NULL. */
const struct kernel *kernel_best(void);
/* For tests and benchmarks: the supported sets, fastest first, "plain" last, then NULL.
 * kernel_at(0) is kernel_best(). */
const struct kernel *kernel_at(unsigned i);

#endif
