/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard waits for the end of a pipe of which it has the reading end alone. The other is passed
 * on through fork and exec, so that nothing can be made behind the guard's back.
 */
#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void stand(int ended, void (*take_away)(const void *), const void *arg)
{
	char none;

	setsid();
	/* Others may wait for the end of the output. */
	close(STDIN_FILENO);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	while (read(ended, &none, 1) < 0 && errno == EINTR)
		;
	take_away(arg);
	_exit(0);
}

static int fail(struct nvs_error *error, const char *what)
{
	*error = (struct nvs_error){.code = -errno};
	snprintf(error->text, sizeof(error->text), "%s can't be had: %s", what,
		 nvs_strerror(-errno));
	return error->code;
}

int guard_post(struct guard *guard, void (*take_away)(const void *), const void *arg,
	       struct nvs_error *error)
{
	int ends[2], rc = 0;
	sigset_t all, before;

	if (pipe(ends))
		return fail(error, "a pipe");
	/* For good in the guard, and from its beginning: who ends the parent may mean all that is
	 * called nvswap, or that is of a terminal. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	guard->pid = fork();
	if (!guard->pid) {
		close(ends[1]);
		stand(ends[0], take_away, arg);
	}
	if (guard->pid < 0) {
		rc = fail(error, "a process");
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
