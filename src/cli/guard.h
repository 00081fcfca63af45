/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has made is taken away when it is gone, in whatever way that ends: an error, a
 * signal, SIGKILL. A child that does nothing else sees to it.
 */
#ifndef CLI_GUARD_H
#define CLI_GUARD_H

#include <stdbool.h>
#include <sys/types.h>

#include "nvswap.h"

struct guard {
	pid_t pid;
	int alive; /* the writing end of a pipe that closes with the last process that has it */
};

/*
 * Posts one, a fork of the caller, which calls `take_away` with `arg` when the caller has gone or
 * dismisses it, and all that the caller has started since then, programs too, have ended. errno of
 * pipe and fork.
 */
int guard_post(struct guard *guard, void (*take_away)(const void *), const void *arg,
	       struct nvs_error *error);
/* Has it done now. False: the guard was killed, and it was not. */
bool guard_dismiss(struct guard *guard);

#endif
