/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, and the stacks that they need. A thread inherits the signal mask of its creator, so
 * signals are blocked while it is created.
 */
#include "base/threads/thread.h"

#include <errno.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

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
		       "container, sysctl kernel.threads-max)";
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

#define SLICE_NS 100000u /* the minimum of the kernel */

void take_short_slices(void)
{
	/* The kernel's struct sched_attr; its header conflicts with libc's <sched.h>. */
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} now = {0};

	if (syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) ||
	    (now.policy != SCHED_OTHER && now.policy != SCHED_BATCH))
		return;
	now.runtime = SLICE_NS;
	syscall(SYS_sched_setattr, 0, &now, 0);
}
