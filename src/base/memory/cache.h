/* SPDX-License-Identifier: Apache-2.0 */
/* Loading of cache lines before they are used. */
#ifndef MEMORY_CACHE_H
#define MEMORY_CACHE_H

#include <stddef.h>
#include <stdint.h>

#define CACHE_LINE 64

/*
 * For functions that only prefetch. GCC takes such a function for one without effects, and deletes
 * the calls that are not inlined yet.
 */
#define ALWAYS_INLINE __attribute__((always_inline)) inline

/* Starts to load the lines of an object; the memory need not be readable. */
static ALWAYS_INLINE void load_lines(const void *data, size_t nbytes)
{
	uintptr_t end = (uintptr_t)data + nbytes;

	for (uintptr_t line = (uintptr_t)data / CACHE_LINE * CACHE_LINE; line < end;
	     line += CACHE_LINE)
		__builtin_prefetch((const void *)line);
}

#endif
