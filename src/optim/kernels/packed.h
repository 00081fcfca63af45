/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state in fewer bytes: how the arrays of a run of elements are kept.
 * docs/state-formats.md defines every bit. Two properties are independent:
 *
 *	moments	exp_avg and exp_avg_sq in fp32, in bf16, or in 8 bits with a scale per block
 *	split	the fp32 master is the caller's bf16 weight and 16 bits more, the remainder
 *
 * All sets of functions compute the same bits from the same arrays, and an element's bits depend on
 * its own position, not on how a range is cut; the cuts must be between blocks if moments have 8
 * bits.
 */
#ifndef OPTIM_KERNELS_PACKED_H
#define OPTIM_KERNELS_PACKED_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Elements that share a scale. Blocks are counted from a group's first element; its last block may
 * be shorter. */
#define STATE_BLOCK 128u

enum moments {
	MOMENTS_FP32,
	MOMENTS_BF16,
	MOMENTS_8BIT,
};

/* The arrays of consecutive elements of one group. With MOMENTS_8BIT the first element begins a
 * block, and the last one ends a block or the group. */
struct state_run {
	enum moments moments;
	bool split;
	void *master;		  /* float; split: uint16_t, the remainder */
	void *exp_avg;		  /* float, uint16_t or uint8_t, by `moments` */
	void *exp_avg_sq;	  /* the same; of fp32 and bf16, split uses the sign bit */
	float *exp_avg_scales;	  /* MOMENTS_8BIT: one per block; otherwise not used */
	float *exp_avg_sq_scales; /* the same */
};

/* Bytes of an element of exp_avg, and of exp_avg_sq; scales are apart. */
static inline size_t moment_size(enum moments moments)
{
	return moments == MOMENTS_FP32 ? 4 : moments == MOMENTS_BF16 ? 2 : 1;
}

/* Bytes of an element of `master`. */
static inline size_t master_size(bool split)
{
	return split ? 2 : 4;
}

/* Scales of each moment for n elements. */
static inline size_t scales_count(enum moments moments, uint64_t n)
{
	return moments == MOMENTS_8BIT ? (size_t)((n + STATE_BLOCK - 1) / STATE_BLOCK) : 0;
}

/* The run's elements from `offset` on. */
static inline struct state_run state_run_from(const struct state_run *run, size_t offset)
{
	struct state_run from = *run;

	from.master = (char *)run->master + offset * master_size(run->split);
	from.exp_avg = (char *)run->exp_avg + offset * moment_size(run->moments);
	from.exp_avg_sq = (char *)run->exp_avg_sq + offset * moment_size(run->moments);
	if (run->moments == MOMENTS_8BIT) {
		assert(offset % STATE_BLOCK == 0);
		from.exp_avg_scales = run->exp_avg_scales + offset / STATE_BLOCK;
		from.exp_avg_sq_scales = run->exp_avg_sq_scales + offset / STATE_BLOCK;
	}
	return from;
}

/* The random bits of stochastic rounding: a function of the key and the element's index. */
struct noise {
	uint64_t key;
	uint64_t first; /* index in its group of the run's first element */
};

/* The output number `at` of SplitMix64 (Steele, Lea and Flood, 2014) with this seed. */
static inline uint64_t noise_key(uint64_t seed, uint64_t at)
{
	uint64_t x = seed + (at + 1) * UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* The noise of a group's elements from `first` on in step `step`. */
struct noise noise_of(uint64_t seed, uint64_t group, uint64_t step, uint64_t first);

#endif
