/* SPDX-License-Identifier: Apache-2.0 */
/* A thread inherits the signal mask of its creator, so signals are blocked while it is created. */
#include "base/threads/thread.h"

#include <errno.h>
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
