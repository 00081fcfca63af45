/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free extents as a treap ordered by offset; each node stores the longest extent of its subtree.
 * Nodes live in one array and link by index, and only extents_prepare() allocates, so that a caller
 * can allocate ahead of a critical section. Callers lock.
 */
#include "base/memory/extents.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/numbers.h"

/* Index 0 is a sentinel: its `longest` of 0 saves a test for the end of the tree. */
#define NONE 0u

struct node {
	uint64_t offset, length;
	uint64_t longest; /* in this node's subtree */
	uint32_t left, right;
	uint32_t priority; /* at least its children's */
};

struct extents {
	struct node *nodes;
	uint32_t capacity, root;
	uint32_t spare;	      /* head of the free list of nodes, linked by `left` */
	uint64_t spare_count; /* nodes in the free list and from `touched` on */
	uint32_t touched;     /* the first node never used */
	uint32_t random;
	uint64_t size, free_units;
};

#define CAPACITY_MAX UINT32_MAX
#define CAPACITY_MIN 64u

int extents_prepare(struct extents *extents, uint64_t n)
{
	if (n <= extents->spare_count)
		return 0;
	if (n - extents->spare_count > CAPACITY_MAX - extents->capacity)
		return -ENOMEM;

	uint64_t capacity = extents->capacity + (n - extents->spare_count);

	capacity = max_u64(capacity, min_u64(2 * (uint64_t)extents->capacity, CAPACITY_MAX));
	capacity = max_u64(capacity, CAPACITY_MIN);

	struct node *nodes = realloc(extents->nodes, capacity * sizeof(*nodes));

	if (!nodes)
		return -ENOMEM;
	extents->nodes = nodes;
	extents->spare_count += capacity - extents->capacity;
	extents->capacity = (uint32_t)capacity;
	return 0;
}

/* xorshift32: treap priorities only need to be independent of the offsets. */
static uint32_t next_random(struct extents *extents)
{
	uint32_t x = extents->random;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return extents->random = x;
}

static void refresh(struct node *nodes, uint32_t at)
{
	struct node *node = &nodes[at];

	node->longest = max_u64(node->length,
				max_u64(nodes[node->left].longest, nodes[node->right].longest));
}

/* Joins two trees; all of `low` lies before all of `high`. */
static uint32_t merge_trees(struct node *nodes, uint32_t low, uint32_t high)
{
	if (low == NONE)
		return high;
	if (high == NONE)
		return low;
	if (nodes[low].priority >= nodes[high].priority) {
		nodes[low].right = merge_trees(nodes, nodes[low].right, high);
		refresh(nodes, low);
		return low;
	}
	nodes[high].left = merge_trees(nodes, low, nodes[high].left);
	refresh(nodes, high);
	return high;
}

/* Splits a tree into extents before `offset` and those at or after it. */
static void split_tree(struct node *nodes, uint32_t at, uint64_t offset, uint32_t *low,
		       uint32_t *high)
{
	if (at == NONE) {
		*low = *high = NONE;
	} else if (nodes[at].offset < offset) {
		split_tree(nodes, nodes[at].right, offset, &nodes[at].right, high);
		refresh(nodes, at);
		*low = at;
	} else {
		split_tree(nodes, nodes[at].left, offset, low, &nodes[at].left);
		refresh(nodes, at);
		*high = at;
	}
}

/* The tree with this extent. */
static uint32_t insert_node(struct node *nodes, uint32_t root, uint32_t at)
{
	uint64_t offset = nodes[at].offset;

	if (root == NONE || nodes[at].priority > nodes[root].priority) {
		split_tree(nodes, root, offset, &nodes[at].left, &nodes[at].right);
		root = at;
	} else if (offset < nodes[root].offset) {
		nodes[root].left = insert_node(nodes, nodes[root].left, at);
	} else {
		nodes[root].right = insert_node(nodes, nodes[root].right, at);
	}
	refresh(nodes, root);
	return root;
}

static void add_free(struct extents *extents, uint64_t offset, uint64_t length)
{
	uint32_t at = extents->spare;

	if (at != NONE)
		extents->spare = extents->nodes[at].left;
	else
		at = extents->touched++;
	assert(at != NONE && at < extents->capacity);
	extents->spare_count--;
	extents->nodes[at] = (struct node){.offset = offset,
					   .length = length,
					   .longest = length,
					   .priority = next_random(extents)};

	extents->root = insert_node(extents->nodes, extents->root, at);
}

/* The tree without the extent at `offset`. */
static uint32_t remove_node(struct node *nodes, uint32_t at, uint64_t offset)
{
	assert(at != NONE);
	if (offset == nodes[at].offset)
		return merge_trees(nodes, nodes[at].left, nodes[at].right);
	if (offset < nodes[at].offset)
		nodes[at].left = remove_node(nodes, nodes[at].left, offset);
	else
		nodes[at].right = remove_node(nodes, nodes[at].right, offset);
	refresh(nodes, at);
	return at;
}

static void drop_free(struct extents *extents, uint32_t at)
{
	extents->root = remove_node(extents->nodes, extents->root, extents->nodes[at].offset);
	extents->nodes[at].left = extents->spare;
	extents->spare = at;
	extents->spare_count++;
}

/* The last free extent that begins at or before `offset`, and the first after it. */
static void neighbours(const struct extents *extents, uint64_t offset, uint32_t *before,
		       uint32_t *after)
{
	uint32_t at = extents->root;

	*before = *after = NONE;
	while (at != NONE) {
		if (extents->nodes[at].offset <= offset) {
			*before = at;
			at = extents->nodes[at].right;
		} else {
			*after = at;
			at = extents->nodes[at].left;
		}
	}
}

/* The free extent of at least `length` at the lowest offset. */
static uint32_t first_fit(const struct extents *extents, uint64_t length)
{
	const struct node *nodes = extents->nodes;
	uint32_t at = extents->root;

	if (nodes[at].longest < length)
		return NONE;
	for (;;) {
		if (nodes[nodes[at].left].longest >= length)
			at = nodes[at].left;
		else if (nodes[at].length >= length)
			return at;
		else
			at = nodes[at].right;
		assert(at != NONE);
	}
}

struct extents *extents_open(uint64_t size)
{
	struct extents *extents = calloc(1, sizeof(*extents));

	if (!extents)
		return NULL;
	if (extents_prepare(extents, 1)) {
		free(extents);
		return NULL;
	}
	/* The sentinel. */
	extents->nodes[NONE] = (struct node){.length = 0};
	extents->spare_count--;
	extents->touched = 1;
	extents->random = 0x9e3779b9u;
	extents->size = extents->free_units = size;
	if (size)
		add_free(extents, 0, size);
	return extents;
}

void extents_close(struct extents *extents)
{
	if (!extents)
		return;
	free(extents->nodes);
	free(extents);
}

int extents_alloc(struct extents *extents, uint64_t length, uint64_t *offset)
{
	assert(length > 0);

	uint32_t at = first_fit(extents, length);

	if (at == NONE)
		return -ENOSPC;
	*offset = extents->nodes[at].offset;
	return extents_take(extents, *offset, length);
}

int extents_take(struct extents *extents, uint64_t offset, uint64_t length)
{
	uint32_t at, after;

	assert(length > 0);
	neighbours(extents, offset, &at, &after);
	if (at == NONE)
		return -EEXIST;

	uint64_t begin = extents->nodes[at].offset, had = extents->nodes[at].length;
	uint64_t ahead = offset - begin;

	if (ahead >= had || had - ahead < length)
		return -EEXIST;
	if (ahead && had - ahead > length && extents_prepare(extents, 1))
		return -ENOMEM;
	drop_free(extents, at);
	if (ahead)
		add_free(extents, begin, ahead);
	if (had - ahead > length)
		add_free(extents, offset + length, had - ahead - length);
	extents->free_units -= length;
	return 0;
}

int extents_free(struct extents *extents, uint64_t offset, uint64_t length)
{
	const struct node *nodes = extents->nodes;
	uint64_t begin = offset, end = offset + length;
	uint32_t before, after;

	assert(length > 0 && offset <= extents->size && length <= extents->size - offset);
	neighbours(extents, offset, &before, &after);

	/* A double free fails one of these. */
	assert(before == NONE || nodes[before].offset + nodes[before].length <= offset);
	assert(after == NONE || end <= nodes[after].offset);

	bool joins_before = before != NONE && nodes[before].offset + nodes[before].length == offset;
	bool joins_after = after != NONE && end == nodes[after].offset;

	if (joins_before) {
		begin = nodes[before].offset;
		drop_free(extents, before);
	}
	if (joins_after) {
		end += nodes[after].length;
		drop_free(extents, after);
	}
	if (!joins_before && !joins_after && extents_prepare(extents, 1))
		return -ENOMEM;
	add_free(extents, begin, end - begin);
	extents->free_units += length;
	return 0;
}

int extents_grow(struct extents *extents, uint64_t length)
{
	assert(length > 0 && length <= UINT64_MAX - extents->size);
	if (extents_prepare(extents, 1))
		return -ENOMEM;
	extents->size += length;
	return extents_free(extents, extents->size - length, length);
}

uint64_t extents_size(const struct extents *extents)
{
	return extents->size;
}

uint64_t extents_free_units(const struct extents *extents)
{
	return extents->free_units;
}

uint64_t extents_largest(const struct extents *extents)
{
	return extents->nodes[extents->root].longest;
}

uint64_t extents_tail(const struct extents *extents)
{
	const struct node *nodes = extents->nodes;
	uint32_t at = extents->root;

	while (nodes[at].right != NONE)
		at = nodes[at].right;

	bool reaches_end = at != NONE && nodes[at].offset + nodes[at].length == extents->size;

	return reaches_end ? nodes[at].offset : extents->size;
}
