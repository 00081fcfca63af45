/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that all run one function at a time. A task is a number that increases under the lock: a
 * thread that has seen a lower number runs it, and the last one to return wakes the waiting caller.
 * Relies on pthreads, and on the topology only while threads start; never spins.
 */
#include "optim/pass/threads.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/threads/thread.h"

/* Enough for a caller's update function, and below the 2 MiB at which the kernel may back a stack
 * with a huge page. */
#define STACK_BYTES (256 * 1024)

struct threads {
	pthread_mutex_t lock;
	pthread_cond_t begun; /* a task has begun, or the threads must end */
	pthread_cond_t done;  /* all threads have returned from the task */
	threads_fn *fn;
	void *arg;
	uint64_t task;	  /* the task's number, from 1 */
	unsigned running; /* threads that have not returned from it */
	bool closing;
	unsigned count;	   /* threads started */
	unsigned numbered; /* of them, those that have taken their numbers */
	pthread_t pthreads[];
};

/* Of a thread that threads_open has started. */
static _Thread_local const struct threads *own;

static void *thread_main(void *arg)
{
	struct threads *threads = arg;
	const struct sched_param param = {0};
	uint64_t seen = 0;
	unsigned index;

	own = threads;
	/* I/O workers, which wake only to submit I/Os and sleep again, go first. */
	pthread_setschedparam(pthread_self(), SCHED_BATCH, &param);
	take_short_slices();
	pthread_mutex_lock(&threads->lock);
	index = threads->numbered++;
	for (;;) {
		while (threads->task == seen && !threads->closing)
			pthread_cond_wait(&threads->begun, &threads->lock);
		if (threads->closing)
			break;
		seen = threads->task;

		/* Neither changes before the task has ended. */
		pthread_mutex_unlock(&threads->lock);
		threads->fn(threads->arg, index);
		pthread_mutex_lock(&threads->lock);
		/* No task begins before every thread has returned from this one. */
		assert(threads->task == seen && threads->running);
		if (--threads->running == 0)
			pthread_cond_broadcast(&threads->done);
	}
	pthread_mutex_unlock(&threads->lock);
	return NULL;
}

/* Cores of a node, or of all nodes with node -1, that threads are bound to in turn. */
struct core_set {
	const struct topo *topo;
	int node;
	unsigned cores;
};

static void name_and_bind(void *arg, unsigned thread)
{
	const struct core_set *set = arg;
	char name[16];

	snprintf(name, sizeof(name), set->topo ? "nvs-adam-%u" : "nvs-landing-%u", thread);
	pthread_setname_np(pthread_self(), name);
	if (set->cores)
		(void)topo_bind_thread_to_core(set->topo, set->node, thread % set->cores);
}

int threads_open(struct threads **out, unsigned count, const struct topo *topo, int node,
		 struct nvs_error *error)
{
	struct core_set set = {topo, node, topo ? topo_cores(topo, node) : 0};
	struct threads *threads;
	int rc = 0;

	/* All cores if the process may run on none of the node's. */
	if (topo && !set.cores && node >= 0)
		set = (struct core_set){topo, -1, topo_cores(topo, -1)};
	if (!count)
		count = set.cores ? set.cores : 1;
	threads = calloc(1, sizeof(*threads) + count * sizeof(threads->pthreads[0]));
	if (!threads)
		return error_set(error, -ENOMEM, "no memory for %u threads", count);
	pthread_mutex_init(&threads->lock, NULL);
	pthread_cond_init(&threads->begun, NULL);
	pthread_cond_init(&threads->done, NULL);

	pthread_attr_t attr;
	sigset_t all, before;

	/* Starts up to `count` threads; an error ends that. */
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, stack_size(STACK_BYTES));
	/* Signals are handled by the caller's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!rc && threads->count < count) {
		rc = pthread_create(&threads->pthreads[threads->count], &attr, thread_main,
				    threads);
		threads->count += !rc;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	rc = -rc;
	if (rc) {
		error_about(error, rc, "nvswap.optimizer_threads", 0, 0,
			    "only %u of %u compute threads could be started: %s. Raise the limit "
			    "on threads (ulimit -u, the container's pids limit), or lower "
			    "nvswap.optimizer_threads",
			    threads->count, count, strerror(-rc));
		threads_close(threads);
		return rc;
	}
	threads_run(threads, name_and_bind, &set);
	*out = threads;
	return 0;
}

void threads_close(struct threads *threads)
{
	if (!threads)
		return;
	pthread_mutex_lock(&threads->lock);
	assert(!threads->running);
	threads->closing = true;
	pthread_cond_broadcast(&threads->begun);
	pthread_mutex_unlock(&threads->lock);
	for (unsigned i = 0; i < threads->count; i++)
		pthread_join(threads->pthreads[i], NULL);
	pthread_cond_destroy(&threads->begun);
	pthread_cond_destroy(&threads->done);
	pthread_mutex_destroy(&threads->lock);
	free(threads);
}

unsigned threads_count(const struct threads *threads)
{
	return threads->count;
}

bool threads_have_caller(const struct threads *threads)
{
	return threads && own == threads;
}

void threads_start(struct threads *threads, threads_fn *fn, void *arg)
{
	pthread_mutex_lock(&threads->lock);
	assert(fn && !threads->running && !threads->closing);
	threads->fn = fn;
	threads->arg = arg;
	threads->running = threads->count;
	threads->task++;
	pthread_cond_broadcast(&threads->begun);
	pthread_mutex_unlock(&threads->lock);
}

void threads_join(struct threads *threads)
{
	pthread_mutex_lock(&threads->lock);
	while (threads->running)
		pthread_cond_wait(&threads->done, &threads->lock);
	pthread_mutex_unlock(&threads->lock);
}

void threads_run(struct threads *threads, threads_fn *fn, void *arg)
{
	threads_start(threads, fn, arg);
	threads_join(threads);
}
