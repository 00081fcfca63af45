/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tensors of a benchmark hold: pseudo-random bytes that follow from seed, tensor and
 * generation, or the data of the model's file; and finding them again.
 */
#ifndef CLI_PATTERN_H
#define CLI_PATTERN_H

#include "model.h"

struct pattern {
	const struct model *model;
	uint64_t seed;
};

/*
 * Makes the contents of the tensor in `data`. Generations differ in every 64-byte line;
 * generation 0 of a model with data is the data. Errors are those of model_read.
 */
int pattern_fill(const struct pattern *pattern, size_t tensor, uint32_t generation, void *data,
		 struct nvs_error *error);
/*
 * Compares all of `data` with what pattern_fill would make. -EBADMSG: they differ, with the tensor,
 * the first byte that does, and both its values in *error.
 */
int pattern_compare(const struct pattern *pattern, size_t tensor, uint32_t generation,
		    const void *data, struct nvs_error *error);

#define PATTERN_BLOCK_BYTES 65536u
/* Bytes that follow from the four numbers, without a model. */
void pattern_block(uint64_t seed, uint64_t subject, uint64_t generation, uint64_t block, void *data,
		   size_t nbytes);

#endif
