/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the library's threads, their time slices, and the size of small stacks. */
#ifndef THREADS_THREAD_H
#define THREADS_THREAD_H

#include <pthread.h>
#include <stddef.h>

/*
 * Starts a thread with all signals blocked: they are for the application's threads. 0 or a negative
 * errno.
 */
int thread_start(pthread_t *thread, void *(*main)(void *), void *arg);
/* The reason why a thread could not be started: -EAGAIN is a limit, not a request to retry. */
const char *thread_strerror(int rc);
/*
 * The stack size to pass to pthread_attr_setstacksize so that `nbytes` remain for the thread: the
 * thread-local data of the program and its libraries take the top of the stack.
 */
size_t stack_size(size_t nbytes);
/*
 * Short time slices for the calling thread: other threads that wake up run soon, and so does it.
 * Its share of the processor does not change. Needs Linux 6.12; otherwise, or without permission,
 * nothing changes.
 */
void take_short_slices(void);

#endif
