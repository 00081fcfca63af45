/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mmap aligns to an ordinary page, so a mapping is made longer by one huge page, and the parts
 * before and behind the aligned one are unmapped.
 */
#include "base/memory/huge_map.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/files.h"
#include "base/numbers.h"

uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t round_to_pages(uint64_t nbytes)
{
	uint64_t page = page_bytes();

	return nbytes <= UINT64_MAX - page ? align_up(nbytes, page) : align_down(UINT64_MAX, page);
}

uint64_t huge_page_bytes(void)
{
	uint64_t nbytes = file_number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "", 0);

	return nbytes && nbytes % page_bytes() == 0 ? nbytes : page_bytes();
}

void *huge_map(uint64_t nbytes, bool *advised)
{
	uint64_t unit = huge_page_bytes(), length = round_to_pages(nbytes), before, behind;
	char *mapped, *data;
	bool taken;

	if (length > UINT64_MAX - unit) {
		errno = ENOMEM;
		return NULL;
	}
	mapped = mmap(NULL, length + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (mapped == MAP_FAILED)
		return NULL;
	before = align_up((uintptr_t)mapped, unit) - (uintptr_t)mapped;
	behind = unit - before;
	data = mapped + before;
	if (before)
		munmap(mapped, before);
	if (behind)
		munmap(data + length, behind);
	taken = !madvise(data, length, MADV_HUGEPAGE);
	if (advised)
		*advised = taken;
	return data;
}
