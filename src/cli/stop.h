/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Being asked to end: a signal is noted, and the run ends where it next looks.
 */
#ifndef CLI_STOP_H
#define CLI_STOP_H

/* From here on SIGINT, SIGTERM and SIGHUP are noted; the second ends the process. */
void stop_catch_signals(void);
/* The signal that asked to end; 0: none has. */
int stop_signal(void);

#endif
