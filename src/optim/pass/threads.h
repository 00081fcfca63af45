/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute threads: started once, each bound to a core near the drive, asleep between tasks. A
 * task is one function that all of them run concurrently.
 */
#ifndef OPTIM_THREADS_H
#define OPTIM_THREADS_H

#include "topo/topo.h"

struct threads;

typedef void threads_fn(void *arg, unsigned thread); /* thread: 0 to count - 1 */

/*
 * Starts `count` threads; 0: one per core of the node (of the machine if node is -1) that the
 * process may run on. Thread i is bound to core i modulo the cores, or runs unbound if that fails,
 * or if `topo` is NULL.
 * -ENOMEM, -EAGAIN: no thread is left running.
 */
int threads_open(struct threads **threads, unsigned count, const struct topo *topo, int node,
		 struct nvs_error *error);
/* No task may be running. `threads` may be NULL. */
void threads_close(struct threads *threads);
unsigned threads_count(const struct threads *threads);
/* Whether the calling thread is one of these. `threads` may be NULL. */
bool threads_have_caller(const struct threads *threads);

/* Starts fn(arg, i) on every thread and returns at once. No task may be running. */
void threads_start(struct threads *threads, threads_fn *fn, void *arg);
/* Waits until all threads have returned; their writes are visible afterwards. */
void threads_join(struct threads *threads);
/* Starts and joins. */
void threads_run(struct threads *threads, threads_fn *fn, void *arg);

#endif
