/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapping is of ordinary pages, so it is made longer by a huge one, and what lies before and
 * behind the part that is wanted is given back.
 */
#include "huge_map.h"

#include <stddef.h>
#include <sys/mman.h>

#define PAGE ((uint64_t)4096)

void *huge_map(uint64_t nbytes)
{
	uint64_t length = (nbytes + PAGE - 1) / PAGE * PAGE, before;
	char *mapped = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *data;

	if (mapped == MAP_FAILED)
		return NULL;
	before = (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
	data = mapped + before;
	if (before)
		munmap(mapped, before);
	munmap(data + length, HUGE_PAGE - before);
	/* A kernel without huge pages gives small ones. */
	madvise(data, length, MADV_HUGEPAGE);
	return data;
}
