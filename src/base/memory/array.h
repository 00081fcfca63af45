/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by one element at a time. */
#ifndef MEMORY_ARRAY_H
#define MEMORY_ARRAY_H

#include <stdlib.h>

/*
 * Makes room for one more behind the n of an array that has room for *room: the array, which may
 * have moved, or NULL without memory, and it is as it was. Free it with free(3).
 */
static inline void *array_room(void *items, size_t n, size_t *room, size_t item_bytes)
{
	size_t wanted = *room ? 2 * *room : 64;
	void *grown;

	if (n < *room)
		return items;
	grown = reallocarray(items, wanted, item_bytes);
	if (grown)
		*room = wanted;
	return grown;
}

#endif
