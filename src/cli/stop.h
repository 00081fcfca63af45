/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to end: a signal or the parent process sets a flag, and the run ends where it next
 * checks it. And a guard, which cleans up however a process ends.
 */
#ifndef CLI_STOP_H
#define CLI_STOP_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "nvswap.h"

/* The result of stop_signal() when another job of the stage failed. */
#define STOP_OTHER_FAILED (-1)

/* From now on SIGINT, SIGTERM and SIGHUP set the flag; the second ends the process. */
void stop_catch_signals(void);
/* These three signals. */
void stop_signals(sigset_t *set);
/*
 * In a forked process: *requested counts as a signal, and the parent's end as SIGTERM. Returns
 * false if the parent has already ended.
 */
bool stop_follow(const atomic_int *requested, int parent_pid);
/* The signal, or *requested; 0: no request to end. */
int stop_signal(void);

/* A child process that removes what its parent made, even after SIGKILL. */
struct guard {
	pid_t pid;
	int alive; /* the writing end of the pipe */
};

/*
 * Forks a guard, which calls `clean_up` with `arg` when the caller has ended or dismisses it, and
 * every process that the caller started since has ended. errno of pipe and fork.
 */
int guard_post(struct guard *guard, void (*clean_up)(const void *), const void *arg,
	       struct nvs_error *error);
/* Cleans up now. False: the guard was killed before it could. */
bool guard_dismiss(struct guard *guard);

#endif
