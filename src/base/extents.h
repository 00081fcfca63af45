/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free extents of an address space, for the pool's arena and the store alike: first fit at the
 * lowest address, in O(log n) of the number of free extents; what is freed joins its neighbours.
 * Any part of what was taken may be freed by itself. Not locked: the owner is.
 */
#ifndef BASE_EXTENTS_H
#define BASE_EXTENTS_H

#include <stdint.h>

struct extents;

/* An address space of `size` units, all free. NULL: no memory. */
struct extents *extents_open(uint64_t size);
void extents_close(struct extents *extents);

/* Makes sure that `n` more allocations and frees find the memory they need. 0 or -ENOMEM. */
int extents_prepare(struct extents *extents, uint64_t n);

/* Takes `length` > 0 units: their offset into *offset; -ENOSPC, or -ENOMEM. */
int extents_alloc(struct extents *extents, uint64_t length, uint64_t *offset);
/* Takes just these; -EEXIST where some are taken already, -ENOMEM. */
int extents_take(struct extents *extents, uint64_t offset, uint64_t length);
/* Gives back what was taken. -ENOMEM, the extent staying taken; never so after extents_prepare. */
int extents_free(struct extents *extents, uint64_t offset, uint64_t length);
/* Adds `length` free units at the end. 0 or -ENOMEM. */
int extents_grow(struct extents *extents, uint64_t length);

uint64_t extents_size(const struct extents *extents);
uint64_t extents_free_units(const struct extents *extents);
uint64_t extents_largest(const struct extents *extents); /* the longest free extent */
uint64_t extents_count(const struct extents *extents);	 /* of free extents */
/* Where the last free extent begins if it reaches the end of the space, else the size. */
uint64_t extents_tail(const struct extents *extents);

#endif
