/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to end: a signal or the parent process sets a flag, and the run ends where it next
 * checks it.
 */
#ifndef CLI_STOP_H
#define CLI_STOP_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

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

#endif
