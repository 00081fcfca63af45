/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Being asked to end: a signal is noted, or another process tells it, and the run ends where it
 * next looks.
 */
#ifndef CLI_STOP_H
#define CLI_STOP_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

/* What stop_signal() returns where no signal is the reason: another job of the stage failed. */
#define STOP_OTHER_FAILED (-1)

/* From here on SIGINT, SIGTERM and SIGHUP are noted; the second ends the process. */
void stop_catch_signals(void);
/* The set of these. */
void stop_signals(sigset_t *set);
/*
 * In a process that was forked since: *told counts as a signal of its own, and the end of the
 * parent as another one. False: the parent is no more.
 */
bool stop_follow(const atomic_int *told, int parent_pid);
/* The signal that asked to end, or what was told; 0: none has. */
int stop_signal(void);

#endif
