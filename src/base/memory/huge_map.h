/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anonymous memory for data, on transparent huge pages where the kernel has them. Page sizes are
 * the kernel's, since they differ between machines: 2 MiB on 4 KiB pages, 512 MiB on 64 KiB ones.
 */
#ifndef MEMORY_HUGE_MAP_H
#define MEMORY_HUGE_MAP_H

#include <stdbool.h>
#include <stdint.h>

uint64_t page_bytes(void);
/*
 * Bytes mapped by one entry of the page middle directory; page_bytes() if the kernel has no huge
 * pages.
 */
uint64_t huge_page_bytes(void);
/* Rounds up; the largest number of whole pages if there is no more. */
uint64_t round_to_pages(uint64_t nbytes);

/*
 * Maps at least that many zero bytes, in whole pages, aligned to a huge page; munmap releases them.
 * *advised (or NULL): whether the kernel accepted the advice to use huge pages. NULL: no memory.
 */
void *huge_map(uint64_t nbytes, bool *advised);

#endif
