/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks on a list, each with a head before what the caller sees. Never returns NULL.
 */
#include "config/json_memory.h"

#include <assert.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

#define CARVE_BYTES ((size_t)16 << 10)

struct json_memory_block {
	alignas(max_align_t) struct json_memory_block *next;
	struct json_memory_block *previous;
	size_t nbytes; /* with this head */
};

void json_memory_open(struct json_memory *memory, size_t max)
{
	memory->blocks = NULL;
	memory->used = 0;
	memory->max = max;
	memory->room = NULL;
	memory->room_nbytes = 0;
}

void json_memory_close(struct json_memory *memory)
{
	struct json_memory_block *block = memory->blocks;

	while (block) {
		struct json_memory_block *next = block->next;

		assert(memory->used >= block->nbytes);
		memory->used -= block->nbytes;
		free(block);
		block = next;
	}
	assert(!memory->used);
	memory->blocks = NULL;
}

/* The block with its head for `nbytes` in place of `block` (NULL: a new one), not on the list. */
static struct json_memory_block *take(struct json_memory *memory, struct json_memory_block *block,
				      size_t nbytes)
{
	struct json_memory_block *fresh = NULL;
	size_t old = block ? block->nbytes : 0, whole = nbytes + sizeof(*block);

	assert(memory->used >= old);
	if (whole > nbytes && whole <= memory->max && memory->used - old <= memory->max - whole)
		fresh = realloc(block, whole);
	if (!fresh)
		longjmp(memory->exhausted, 1);
	memory->used = memory->used - old + whole;
	fresh->nbytes = whole;
	return fresh;
}

void *json_memory_alloc(void *context, size_t nbytes)
{
	struct json_memory *memory = context;
	struct json_memory_block *block = take(memory, NULL, nbytes);

	block->previous = NULL;
	block->next = memory->blocks;
	if (block->next)
		block->next->previous = block;
	memory->blocks = block;
	return block + 1;
}

void *json_memory_resize(void *context, void *data, size_t nbytes)
{
	struct json_memory *memory = context;
	struct json_memory_block *block;

	if (!data)
		return json_memory_alloc(memory, nbytes);
	block = take(memory, (struct json_memory_block *)data - 1, nbytes);
	if (block->next)
		block->next->previous = block;
	if (block->previous)
		block->previous->next = block;
	else
		memory->blocks = block;
	return block + 1;
}

void json_memory_release(void *context, void *data)
{
	struct json_memory *memory = context;
	struct json_memory_block *block;

	if (!data)
		return;
	block = (struct json_memory_block *)data - 1;
	if (block->next)
		block->next->previous = block->previous;
	if (block->previous)
		block->previous->next = block->next;
	else
		memory->blocks = block->next;
	memory->used -= block->nbytes;
	free(block);
}

void *json_memory_carve(struct json_memory *memory, size_t nbytes)
{
	size_t rounded = (nbytes + alignof(max_align_t) - 1) / alignof(max_align_t) *
			 alignof(max_align_t);
	void *piece;

	assert(rounded >= nbytes);
	if (rounded > CARVE_BYTES / 4)
		return json_memory_alloc(memory, rounded);
	if (rounded > memory->room_nbytes) {
		memory->room = json_memory_alloc(memory, CARVE_BYTES);
		memory->room_nbytes = CARVE_BYTES;
	}
	piece = memory->room;
	memory->room += rounded;
	memory->room_nbytes -= rounded;
	return piece;
}
