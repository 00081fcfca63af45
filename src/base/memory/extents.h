/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free extents of an address space, for the pool's arena and the store: first fit at the lowest
 * address, in O(log n) of the number of free extents. Freed extents merge with their neighbours,
 * and any part of a taken extent may be freed separately. Not thread-safe: callers lock.
 */
#ifndef MEMORY_EXTENTS_H
#define MEMORY_EXTENTS_H

#include <stdint.h>

struct extents;

/* An address space of `size` units, all free. NULL: out of memory. */
struct extents *extents_open(uint64_t size);
void extents_close(struct extents *extents);

/* Reserves memory for `n` more allocations and frees. 0 or -ENOMEM. */
int extents_prepare(struct extents *extents, uint64_t n);

/* Takes `length` > 0 units and stores their offset. 0, -ENOSPC or -ENOMEM. */
int extents_alloc(struct extents *extents, uint64_t length, uint64_t *offset);
/* Takes exactly this extent. 0, -EEXIST if any of it is taken, or -ENOMEM. */
int extents_take(struct extents *extents, uint64_t offset, uint64_t length);
/* Frees a taken extent. 0, or -ENOMEM (never after extents_prepare()), and it stays taken. */
int extents_free(struct extents *extents, uint64_t offset, uint64_t length);
/* Adds `length` free units at the end. 0 or -ENOMEM. */
int extents_grow(struct extents *extents, uint64_t length);

uint64_t extents_size(const struct extents *extents);
uint64_t extents_free_units(const struct extents *extents);
uint64_t extents_largest(const struct extents *extents); /* the longest free extent */
/* Start of the free extent at the end of the space; the size if there is none. */
uint64_t extents_tail(const struct extents *extents);

#endif
