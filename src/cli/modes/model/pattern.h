/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of a benchmark's tensors: pseudo-random bytes determined by seed, tensor and generation,
 * the same on every machine.
 */
#ifndef CLI_MODES_MODEL_PATTERN_H
#define CLI_MODES_MODEL_PATTERN_H

#include "cli/modes/model/model.h"

struct pattern {
	const struct model *model;
	uint64_t seed;
};

/* Generates the tensor's contents into `data`. Generations differ in every 64-byte line. */
void pattern_fill(const struct pattern *pattern, size_t tensor, uint32_t generation, void *data);
/*
 * Compares `data` with what pattern_fill generates. -EBADMSG: they differ; *error has the tensor,
 * the first differing byte and both values.
 */
int pattern_compare(const struct pattern *pattern, size_t tensor, uint32_t generation,
		    const void *data, struct nvs_error *error);

#define PATTERN_BLOCK_BYTES 65536u
/* Bytes determined by the four numbers, without a model. */
void pattern_block(uint64_t seed, uint64_t subject, uint64_t generation, uint64_t block, void *data,
		   size_t nbytes);

/* splitmix64: the next number of a state. */
static inline uint64_t spread(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

#endif
