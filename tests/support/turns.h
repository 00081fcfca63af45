/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the threads of a test in turns: one at a time, each until it blocks, in an order that a seed
 * decides. So the same calls from the same seed run in the same order. Threads switch only at
 * mutexes, conditions, pthread_join and sched_yield, which the linker redirects to turns.c
 * (--wrap). A wait with a timeout times out when no thread can run; if none has a timeout, the test
 * is deadlocked, and the process aborts.
 */
#ifndef TESTS_SUPPORT_TURNS_H
#define TESTS_SUPPORT_TURNS_H

#include <pthread.h>
#include <stdint.h>

/*
 * From now on, the calling thread and the threads that are created later take turns. Does nothing
 * under ThreadSanitizer, which would see no races between such threads.
 */
void turns_begin(uint64_t seed);
/* All threads created since turns_begin() must have been joined. */
void turns_end(void);

/* pthread_create for inject.c, which can make it fail. */
int turns_create(pthread_t *id, const pthread_attr_t *attr, void *(*main)(void *), void *arg);

#endif
