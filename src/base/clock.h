/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time, and waiting on a condition until a deadline. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t clock)
{
	struct timespec is;

	clock_gettime(clock, &is);
	return (uint64_t)is.tv_sec * 1000000000u + (uint64_t)is.tv_nsec;
}

static inline uint64_t clock_ns(void)
{
	return clock_read_ns(CLOCK_MONOTONIC);
}

/* Processor time of the calling thread. */
static inline uint64_t thread_cpu_ns(void)
{
	return clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
}

/*
 * The deadline of a wait of timeout_ms that begins now; UINT64_MAX for -1, 0 for 0 (do not wait).
 */
static inline uint64_t deadline_ns(int timeout_ms)
{
	if (timeout_ms < 0)
		return UINT64_MAX;
	return timeout_ms ? clock_ns() + (uint64_t)timeout_ms * 1000000u : 0;
}

/* Like pthread_cond_wait, until the deadline: 0; -EAGAIN if it was not to wait at all, else
 * -ETIMEDOUT. */
static inline int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline)
{
	if (!deadline)
		return -EAGAIN;
	if (deadline == UINT64_MAX) {
		pthread_cond_wait(cond, lock);
		return 0;
	}

	struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000u),
				 .tv_nsec = (long)(deadline % 1000000000u)};

	return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &until) ? -ETIMEDOUT : 0;
}

#endif
