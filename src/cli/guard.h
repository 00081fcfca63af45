/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child process that removes what its parent made, however the parent ends: an error, a signal,
 * SIGKILL.
 */
#ifndef CLI_GUARD_H
#define CLI_GUARD_H

#include <stdbool.h>
#include <sys/types.h>

#include "nvswap.h"

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
