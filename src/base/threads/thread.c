/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, and the stacks that they need. A thread inherits the signal mask of its creator, so signals
 * are blocked while it is created.
 */
#include "base/threads/thread.h"

#include <errno.h>
#include <link.h>
#include <signal.h>

#include "nvswap.h"

int thread_start(pthread_t *thread, void *(*main)(void *), void *arg)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(thread, NULL, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

const char *thread_strerror(int rc)
{
	if (rc == -EAGAIN)
		return "the limit on threads is reached (ulimit -u, the pids limit of the "
		       "container, "
		       "sysctl kernel.threads-max)";
	return nvs_strerror(rc);
}

/* Counts every module, even one that was loaded later and has its data elsewhere. */
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
