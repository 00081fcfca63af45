/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A signal that is ignored stays ignored, as nohup wants it. System calls go on, so that nothing
 * below has to know of signals.
 */
#include "stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
	caught = number;
}

void stop_catch_signals(void)
{
	/* The second signal ends the process as if there were no handler. */
	struct sigaction action = {.sa_handler = on_signal,
				   .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
	const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction was;

	caught = 0;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (!sigaction(numbers[i], NULL, &was) && was.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
}

int stop_signal(void)
{
	return caught;
}
