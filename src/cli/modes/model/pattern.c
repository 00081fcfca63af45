/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight xorshift generators side by side, which compilers vectorize, reseeded for each block so
 * that any block can be generated alone. Fast and incompressible; not cryptographic.
 */
#include "cli/modes/model/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"

#define LANES	    8
#define BLOCK_BYTES PATTERN_BLOCK_BYTES

typedef uint64_t lanes __attribute__((vector_size(LANES * sizeof(uint64_t))));

static inline void step_lanes(lanes *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
}

void pattern_block(uint64_t seed, uint64_t subject, uint64_t generation, uint64_t block, void *data,
		   size_t nbytes)
{
	const uint64_t parts[] = {subject, generation, block};
	uint64_t mixed = spread(&seed);
	char *to = data;
	lanes x = {0};

	for (size_t i = 0; i < COUNT_OF(parts); i++) {
		mixed ^= parts[i];
		mixed = spread(&mixed);
	}
	for (size_t i = 0; i < LANES; i++)
		x[i] = spread(&mixed) | 1; /* xorshift never leaves 0 */
	for (; nbytes >= sizeof(x); nbytes -= sizeof(x), to += sizeof(x)) {
		step_lanes(&x);
		memcpy(to, &x, sizeof(x));
	}
	step_lanes(&x);
	memcpy(to, &x, nbytes);
}

void pattern_fill(const struct pattern *pattern, size_t tensor, uint32_t generation, void *data)
{
	uint64_t nbytes = pattern->model->tensors[tensor].nbytes;

	for (uint64_t at = 0; at < nbytes; at += BLOCK_BYTES)
		pattern_block(pattern->seed, tensor, generation, at / BLOCK_BYTES,
			      (char *)data + at, min_u64(nbytes - at, BLOCK_BYTES));
}

int pattern_compare(const struct pattern *pattern, size_t tensor, uint32_t generation,
		    const void *data, struct nvs_error *error)
{
	const struct model_tensor *about = &pattern->model->tensors[tensor];
	static _Thread_local unsigned char expected[BLOCK_BYTES] __attribute__((aligned(64)));

	for (uint64_t at = 0; at < about->nbytes; at += BLOCK_BYTES) {
		const unsigned char *found = (const unsigned char *)data + at;
		size_t nbytes = min_u64(about->nbytes - at, BLOCK_BYTES), i = 0;

		pattern_block(pattern->seed, tensor, generation, at / BLOCK_BYTES, expected,
			      nbytes);
		if (!memcmp(found, expected, nbytes))
			continue;
		while (found[i] == expected[i])
			i++;
		*error = (struct nvs_error){
			.size = sizeof(*error), .code = -EBADMSG, .offset = at + i};
		snprintf(error->subject, sizeof(error->subject), "%s", about->name);
		snprintf(error->text, sizeof(error->text),
			 "tensor %s: byte %llu of %llu is 0x%02x and should be 0x%02x", about->name,
			 (unsigned long long)at + i, (unsigned long long)about->nbytes, found[i],
			 expected[i]);
		return -EBADMSG;
	}
	return 0;
}
