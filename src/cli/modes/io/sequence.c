/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random order is a computed permutation without a map: a Feistel network over the smallest even
 * number of bits that holds the block numbers, iterated until the result is one.
 */
#include "cli/modes/io/sequence.h"

#include <assert.h>

#include "cli/modes/model/random.h"

#define ROUNDS 4

static uint64_t feistel(const uint64_t keys[ROUNDS], unsigned half_bits, uint64_t x)
{
	uint64_t mask = ((uint64_t)1 << half_bits) - 1;
	uint64_t left = x >> half_bits, right = x & mask;

	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t mixed = keys[i] ^ right, next = left ^ (spread(&mixed) & mask);

		left = right;
		right = next;
	}
	return left << half_bits | right;
}

/* The n-th block in the order of this pass. */
static uint64_t permuted(const struct io_sequence *sequence, uint64_t n, uint64_t blocks)
{
	unsigned half_bits = 0;

	assert(n < blocks);
	while ((blocks - 1) >> (2 * half_bits))
		half_bits++;
	do
		n = feistel(sequence->keys, half_bits, n);
	while (n >= blocks);
	return n;
}

void io_sequence_restart(struct io_sequence *sequence)
{
	sequence->left = sequence->nbytes;
	sequence->at[NVS_READ] = sequence->at[NVS_WRITE] = 0;
	sequence->nth = 0;
	for (unsigned i = 0; i < ROUNDS; i++)
		sequence->keys[i] = spread(&sequence->seed);
}

static uint64_t draw_length(struct io_sequence *sequence)
{
	const struct option_mix *mix = sequence->mix;
	double at = mix->n > 1 ? spread_percent(&sequence->seed) : 0;
	unsigned i = 0;

	while (i + 1 < mix->n && at >= mix->percent[i])
		at -= mix->percent[i++];
	return mix->nbytes[i] < sequence->left ? mix->nbytes[i] : sequence->left;
}

static enum nvs_direction draw_direction(struct io_sequence *sequence)
{
	if (sequence->read_percent == 0 || sequence->read_percent == 100)
		return sequence->read_percent ? NVS_READ : NVS_WRITE;
	return spread_percent(&sequence->seed) < sequence->read_percent ? NVS_READ : NVS_WRITE;
}

static uint64_t random_offset(struct io_sequence *sequence, const struct io_step *step)
{
	uint64_t grain = sequence->grain;

	if (sequence->mix->n == 1)
		return permuted(sequence, sequence->nth++, sequence->nbytes / step->nbytes) *
		       step->nbytes;
	return spread(&sequence->seed) % ((sequence->nbytes - step->nbytes) / grain + 1) * grain;
}

static uint64_t draw_offset(struct io_sequence *sequence, const struct io_step *step)
{
	uint64_t *at = &sequence->at[step->direction], offset = *at;

	if (sequence->random)
		return random_offset(sequence, step);
	if (offset + step->nbytes > sequence->nbytes)
		offset = 0;
	*at = offset + step->nbytes;
	return offset;
}

void io_sequence_next(struct io_sequence *sequence, struct io_step *step)
{
	assert(sequence->nbytes && sequence->nbytes % sequence->grain == 0);
	if (!sequence->left)
		io_sequence_restart(sequence);
	step->direction = draw_direction(sequence);
	step->nbytes = draw_length(sequence);
	step->offset = draw_offset(sequence, step);
	sequence->left -= step->nbytes;
	assert(step->offset + step->nbytes <= sequence->nbytes);
}
