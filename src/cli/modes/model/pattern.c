/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight xorshift generators side by side, which compilers vectorize, reseeded for each block so
 * that any block can be generated alone. Fast and incompressible; not cryptographic.
 */
#include "cli/modes/model/pattern.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "cli/modes/model/random.h"

#define LANES	    8
#define BLOCK_BYTES PATTERN_BLOCK_BYTES

typedef uint64_t lanes __attribute__((vector_size(LANES * sizeof(uint64_t))));

static void seed_lanes(lanes *state, uint64_t seed, uint64_t tensor, uint64_t generation,
		       uint64_t block)
{
	const uint64_t parts[] = {tensor, generation, block};
	uint64_t mixed = spread(&seed);

	for (size_t i = 0; i < COUNT_OF(parts); i++) {
		mixed ^= parts[i];
		mixed = spread(&mixed);
	}
	for (size_t i = 0; i < LANES; i++)
		(*state)[i] = spread(&mixed) | 1; /* xorshift never leaves 0 */
}

/* Generates the block's first `nbytes` bytes, or with `add` XORs them into `data`. */
static void make_block(lanes *state, char *data, size_t nbytes, bool add)
{
	lanes x = *state, there;

	for (; nbytes >= sizeof(x); nbytes -= sizeof(x), data += sizeof(x)) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		there = (lanes){0};
		if (add)
			memcpy(&there, data, sizeof(there));
		there ^= x;
		memcpy(data, &there, sizeof(there));
	}
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	there = (lanes){0};
	if (add)
		memcpy(&there, data, nbytes);
	there ^= x;
	memcpy(data, &there, nbytes);
}

void pattern_block(uint64_t seed, uint64_t subject, uint64_t generation, uint64_t block, void *data,
		   size_t nbytes)
{
	lanes state = {0};

	seed_lanes(&state, seed, subject, generation, block);
	make_block(&state, data, nbytes, false);
}

/* Generates one block of the tensor's contents. */
static int make(const struct pattern *pattern, size_t tensor, uint32_t generation, uint64_t offset,
		char *data, size_t nbytes, struct nvs_error *error)
{
	const struct model *model = pattern->model;
	lanes state = {0};
	int rc;

	assert(offset % BLOCK_BYTES == 0 && nbytes <= BLOCK_BYTES);
	if (model->nfiles) {
		rc = model_read(model, &model->tensors[tensor], offset, data, nbytes, error);
		if (rc || !generation)
			return rc;
	}
	seed_lanes(&state, pattern->seed, tensor, generation, offset / BLOCK_BYTES);
	make_block(&state, data, nbytes, model->nfiles);
	return 0;
}

int pattern_fill(const struct pattern *pattern, size_t tensor, uint32_t generation, void *data,
		 struct nvs_error *error)
{
	uint64_t nbytes = pattern->model->tensors[tensor].nbytes;
	int rc = 0;

	for (uint64_t at = 0; at < nbytes && !rc; at += BLOCK_BYTES)
		rc = make(pattern, tensor, generation, at, (char *)data + at,
			  nbytes - at < BLOCK_BYTES ? nbytes - at : BLOCK_BYTES, error);
	return rc;
}

static int say_difference(const struct model_tensor *tensor, uint64_t at, const char *found,
			  const char *expected, struct nvs_error *error)
{
	size_t i = 0;

	while (found[i] == expected[i])
		i++;
	at += i;
	*error = (struct nvs_error){.size = sizeof(*error), .code = -EBADMSG, .offset = at};
	snprintf(error->subject, sizeof(error->subject), "%s", tensor->name);
	snprintf(error->text, sizeof(error->text),
		 "tensor %s: byte %llu of %llu is 0x%02x and should be 0x%02x", tensor->name,
		 (unsigned long long)at, (unsigned long long)tensor->nbytes,
		 (unsigned char)found[i], (unsigned char)expected[i]);
	return -EBADMSG;
}

int pattern_compare(const struct pattern *pattern, size_t tensor, uint32_t generation,
		    const void *data, struct nvs_error *error)
{
	const struct model_tensor *about = &pattern->model->tensors[tensor];
	static _Thread_local char expected[BLOCK_BYTES] __attribute__((aligned(64)));
	int rc;

	for (uint64_t at = 0; at < about->nbytes; at += BLOCK_BYTES) {
		const char *found = (const char *)data + at;
		size_t nbytes = about->nbytes - at < BLOCK_BYTES ? about->nbytes - at : BLOCK_BYTES;

		rc = make(pattern, tensor, generation, at, expected, nbytes, error);
		if (rc)
			return rc;
		if (memcmp(found, expected, nbytes) != 0)
			return say_difference(about, at, found, expected, error);
	}
	return 0;
}
