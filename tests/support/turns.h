/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the threads of a test in turns: one at a time, each until it blocks, and a seed decides
 * which is next. So a test that does the same calls again from the same seed sees the same order of
 * everything. Threads change at mutexes, conditions, pthread_join and sched_yield, which the linker
 * redirects to turns.c (--wrap), and at no other place. A wait with a limit ends by its limit when
 * no thread can run; when none waits with a limit either, the test hangs for good, and the process
 * is aborted at once.
 */
#ifndef TESTS_SUPPORT_TURNS_H
#define TESTS_SUPPORT_TURNS_H

#include <pthread.h>
#include <stdint.h>

/* From here on the calling thread, and those that are created from now on, take turns.
 * ThreadSanitizer would see no races between such threads, so under it this does nothing. */
void turns_begin(uint64_t seed);
/* All threads that were created since must have been joined. */
void turns_end(void);

/* pthread_create for inject.c, which can make it fail. */
int turns_create(pthread_t *id, const pthread_attr_t *attr, void *(*main)(void *), void *arg);

#endif
