/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading of cache lines ahead of their use.
 */
#ifndef BASE_CACHE_H
#define BASE_CACHE_H

#include <stddef.h>

#define CACHE_LINE 64

/*
 * For functions that only start to load lines. GCC takes them for functions without effects, and
 * drops the calls that it has not inlined before it looks.
 */
#define ALWAYS_INLINE __attribute__((always_inline)) inline

/* Starts to load memory, which need not be readable; it may be NULL. */
static ALWAYS_INLINE void load_lines(const void *data, size_t nbytes)
{
	for (size_t at = 0; at < nbytes; at += CACHE_LINE)
		__builtin_prefetch((const char *)data + at);
}

#endif
