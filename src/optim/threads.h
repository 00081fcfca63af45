/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads that compute: started once, each bound to a core near the drive, and asleep between
 * tasks. A task is one function that all of them run at the same time.
 */
#ifndef OPTIM_THREADS_H
#define OPTIM_THREADS_H

#include "topo/topo.h"

struct threads;

typedef void threads_fn(void *arg, unsigned thread); /* thread: 0 to count - 1 */

/*
 * Starts `count` threads; 0: one for each core of the node (of the machine where node is -1) that
 * the process may run on. Thread i is bound to core i modulo the cores; where it can't be bound it
 * runs unbound. 0; -ENOMEM, -EAGAIN: none is left running.
 */
int threads_open(struct threads **threads, unsigned count, const struct topo *topo, int node,
		 struct nvs_error *error);
/* No task may be running. NULL is fine. */
void threads_close(struct threads *threads);
unsigned threads_count(const struct threads *threads);

/* Has every thread run fn(arg, i) once, and returns at once. No task may be running. */
void threads_start(struct threads *threads, threads_fn *fn, void *arg);
/* Waits until all have returned from it; what they wrote can be read. */
void threads_join(struct threads *threads);
/* Both. */
void threads_run(struct threads *threads, threads_fn *fn, void *arg);

#endif
