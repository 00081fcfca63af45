/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting the library's threads.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that takes no signals: they are for the application's threads. 0 or a negative
 * errno. */
int thread_start(pthread_t *thread, void *(*main)(void *), void *arg);
/* Why a thread could not be started: its -EAGAIN is a limit, not a request to try again. */
const char *thread_strerror(int rc);

#endif
