/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls are no cancellation points: a thread that is cancelled amid one would leave locks held,
 * files open and states half changed. Each public function that may block, open a file, wake a
 * thread or call a function of the caller's begins with HOLD_CANCEL. The library's own threads need
 * none: no caller has their pthread_t.
 */
#ifndef THREADS_CANCEL_H
#define THREADS_CANCEL_H

#include <pthread.h>

static inline int cancel_disable(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancel_restore(const int *before)
{
	pthread_setcancelstate(*before, NULL);
}

/* A declaration: until its block ends, the calling thread is not cancelled. */
#define HOLD_CANCEL                                                                                \
	__attribute__((cleanup(cancel_restore), unused)) int cancel_before = cancel_disable()

#endif
