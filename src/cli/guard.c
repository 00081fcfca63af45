/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard reads a pipe until every writing end is closed. Those are inherited through fork and
 * exec, so the guard acts only when no process is left that could make more.
 */
#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

int guard_post(struct guard *guard, void (*clean_up)(const void *), const void *arg,
	       struct nvs_error *error)
{
	int ends[2], rc = 0;
	sigset_t all, before;
	char none;

	if (pipe(ends))
		return error_set(error, -errno, "can't make a pipe: %s", nvs_strerror(-errno));
	/* `pkill nvswap` and a terminal's signals must not kill the guard. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	guard->pid = fork();
	if (!guard->pid) {
		close(ends[1]);
		setsid();
		/* Readers of the output wait until every process has closed it. */
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		while (read(ends[0], &none, 1) < 0 && errno == EINTR)
			;
		clean_up(arg);
		_exit(0);
	}
	if (guard->pid < 0) {
		rc = error_set(error, -errno, "can't make a process: %s", nvs_strerror(-errno));
		close(ends[1]);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(ends[0]);
	guard->alive = ends[1];
	return rc;
}

bool guard_dismiss(struct guard *guard)
{
	int status = -1;

	close(guard->alive);
	while (waitpid(guard->pid, &status, 0) < 0 && errno == EINTR)
		;
	return !status;
}
