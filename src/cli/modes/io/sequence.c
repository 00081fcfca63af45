/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random order is a permutation that is computed and not kept: a Feistel network over the least
 * even number of bits that the blocks fit into, followed until it comes back among them.
 */
#include "io_sequence.h"

#include <assert.h>

#include "random.h"

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

/* The block that is the n-th of `blocks` in the order of this pass. */
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
	sequence->nth = sequence->of_run = 0;
	for (unsigned i = 0; i < ROUNDS; i++)
		sequence->keys[i] = spread(&sequence->seed);
}

bool io_sequence_at_start(const struct io_sequence *sequence)
{
	return !sequence->left || sequence->left == sequence->nbytes;
}

static uint64_t draw_length(struct io_sequence *sequence, enum nvs_direction direction)
{
	const struct option_mix *mix = &sequence->mix[direction];
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
	uint64_t align = sequence->align[step->direction];

	if (sequence->alike)
		return permuted(sequence, sequence->nth++, sequence->nbytes / step->nbytes) *
		       step->nbytes;
	return spread(&sequence->seed) % ((sequence->nbytes - step->nbytes) / align + 1) * align;
}

static uint64_t draw_offset(struct io_sequence *sequence, const struct io_step *step)
{
	uint64_t *at = &sequence->at[step->direction];
	uint64_t offset = *at ? *at + sequence->gap : 0;
	bool fits = offset + step->nbytes <= sequence->nbytes;

	if (sequence->random && (!sequence->of_run || !fits))
		offset = random_offset(sequence, step);
	else if (!fits)
		offset = 0;
	if (++sequence->of_run >= sequence->run)
		sequence->of_run = 0;
	*at = offset + step->nbytes;
	return offset;
}

void io_sequence_next(struct io_sequence *sequence, struct io_step *step)
{
	assert(sequence->nbytes && sequence->nbytes % sequence->grain == 0);
	if (!sequence->left)
		io_sequence_restart(sequence);
	step->direction = draw_direction(sequence);
	step->nbytes = draw_length(sequence, step->direction);
	step->offset = draw_offset(sequence, step);
	sequence->left -= step->nbytes;
	assert(step->offset + step->nbytes <= sequence->nbytes);
}
