/* SPDX-License-Identifier: Apache-2.0 */
/* Ignored signals stay ignored, for nohup. A terminal signals parent and children, so the parent
 * passes signals on by a flag, which must not count as the second signal. That kills the parent. */
#include "cli/commands.h"

#include <stddef.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/numbers.h"

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

/* The handler runs in any thread. */
static atomic_int caught;
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "signal handlers may use it");
static const atomic_int *parents_request;

static void on_signal(int number)
{
	caught = number;
}

static void on_parents_end(int number)
{
	(void)number;
	if (stop_signal())
		_exit(128 + SIGTERM);
	caught = SIGTERM;
}

void stop_catch_signals(sigset_t *waiting)
{
	/* The second signal ends the process as if there were no handler. */
	struct sigaction action = {.sa_handler = on_signal,
				   .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
	struct sigaction was;
	sigset_t set;

	caught = 0;
	sigemptyset(&set);
	for (size_t i = 0; i < COUNT_OF(numbers); i++) {
		sigaddset(&set, numbers[i]);
		if (!sigaction(numbers[i], NULL, &was) && was.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
	if (waiting)
		sigprocmask(SIG_BLOCK, &set, waiting);
}

bool stop_follow(const atomic_int *requested, int parent_pid)
{
	struct sigaction action = {.sa_handler = on_parents_end, .sa_flags = SA_RESTART};

	parents_request = requested;
	sigaction(SIGUSR1, &action, NULL);
	prctl(PR_SET_PDEATHSIG, SIGUSR1);
	return getppid() == parent_pid;
}

int stop_signal(void)
{
	int number = caught;

	return number || !parents_request ? number : atomic_load(parents_request);
}
