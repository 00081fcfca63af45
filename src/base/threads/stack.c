/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of thread-local data. Counts every module, even one that was loaded later and has its
 * data elsewhere.
 */
#include "base/threads/stack.h"

#include <link.h>

static int add_module(struct dl_phdr_info *module, size_t nbytes, void *arg)
{
	size_t *total = arg;

	(void)nbytes;
	for (unsigned i = 0; i < module->dlpi_phnum; i++)
		if (module->dlpi_phdr[i].p_type == PT_TLS)
			*total += module->dlpi_phdr[i].p_memsz + module->dlpi_phdr[i].p_align;
	return 0;
}

size_t stack_size(size_t nbytes)
{
	size_t total = nbytes;

	dl_iterate_phdr(add_module, &total);
	return total;
}
