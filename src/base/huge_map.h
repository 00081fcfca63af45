/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anonymous memory for data, on transparent huge pages where the kernel has them. Page sizes are
 * the kernel's, since they differ between machines: 2 MiB on 4 KiB pages, 512 MiB on 64 KiB ones.
 */
#ifndef BASE_HUGE_MAP_H
#define BASE_HUGE_MAP_H

#include <stdbool.h>
#include <stdint.h>

uint64_t page_bytes(void);
/* Of a page that one entry of the page middle directory maps; page_bytes() where the kernel has no
 * huge pages. */
uint64_t huge_page_bytes(void);
uint64_t round_to_pages(uint64_t nbytes); /* up */

/*
 * At least so many bytes of zeros, in whole pages, that begin at the boundary of a huge page;
 * munmap of as many releases them. `advised` (or NULL): whether the kernel took the advice to use
 * huge pages. NULL: no memory.
 */
void *huge_map(uint64_t nbytes, bool *advised);

#endif
