/* SPDX-License-Identifier: Apache-2.0 */
#include "support/turns.h"

#include <sched.h>
#include <time.h>

#include "support/support.h"

#define THREADS_MAX 256u
/* On average, every LOCKS_A_TURN-th lock and unlock yields to another thread. */
#define LOCKS_A_TURN 16u

#define WRAPPED(name, parameters)                                                                  \
	int __real_##name parameters;                                                              \
	int __wrap_##name parameters;

int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*main)(void *),
			  void *arg);
WRAPPED(pthread_join, (pthread_t id, void **result))
WRAPPED(pthread_mutex_lock, (pthread_mutex_t * mutex))
WRAPPED(pthread_mutex_unlock, (pthread_mutex_t * mutex))
WRAPPED(pthread_cond_wait, (pthread_cond_t * cond, pthread_mutex_t *mutex))
WRAPPED(pthread_cond_timedwait,
	(pthread_cond_t * cond, pthread_mutex_t *mutex, const struct timespec *until))
WRAPPED(pthread_cond_clockwait, (pthread_cond_t * cond, pthread_mutex_t *mutex, clockid_t clock,
				 const struct timespec *until))
WRAPPED(pthread_cond_signal, (pthread_cond_t * cond))
WRAPPED(pthread_cond_broadcast, (pthread_cond_t * cond))
WRAPPED(sched_yield, (void))

enum thread_state { THREAD_NONE, READY, AT_MUTEX, AT_CONDITION, AT_JOIN, ENDED };

struct thread {
	enum thread_state state;
	const void *at; /* the mutex, condition or thread waited for */
	uint64_t order; /* order of the waits */
	bool limited;	/* the wait has a timeout */
	uint64_t until_ns;
	bool timed_out;
	pthread_cond_t turn;
	pthread_t id;
	void *(*main)(void *);
	void *arg;
};

/* Only the thread whose turn it is touches these, except for `running`, which `baton` protects. */
static struct thread threads[THREADS_MAX];
static uint64_t random_state, orders;
static pthread_mutex_t baton = PTHREAD_MUTEX_INITIALIZER;
static struct thread *running;
static _Thread_local struct thread *self; /* NULL: the thread takes no turns */

static uint64_t below(uint64_t n)
{
	random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (random_state >> 33) % n;
}

/* ---- Whose turn it is ---- */

static struct thread *next_thread(void)
{
	struct thread *next = NULL;
	uint64_t n = 0;

	for (unsigned i = 0; i < THREADS_MAX; i++)
		n += threads[i].state == READY;
	if (n) {
		n = below(n);
		for (next = threads; next->state != READY || n--;)
			next++;
		return next;
	}
	/* If no thread can run: the first whose timeout has passed. */
	for (unsigned i = 0; i < THREADS_MAX; i++) {
		struct thread *thread = &threads[i];

		if (thread->state == AT_CONDITION && thread->limited &&
		    (!next || thread->until_ns < next->until_ns))
			next = thread;
	}
	if (!next) {
		printf("\nit hangs: every thread waits for another\n");
		fflush(stdout);
		abort();
	}
	next->state = READY;
	next->timed_out = true;
	return next;
}

static void await_turn(void)
{
	while (running != self)
		__real_pthread_cond_wait(&self->turn, &baton);
}

/* Passes the turn to a thread that can run. A thread that ends waits for no further turn. */
static void pass_turn(void)
{
	struct thread *next = next_thread();

	if (next == self)
		return;
	__real_pthread_mutex_lock(&baton);
	running = next;
	__real_pthread_cond_signal(&next->turn);
	if (self->state != ENDED)
		await_turn();
	__real_pthread_mutex_unlock(&baton);
}

static void block(enum thread_state state, const void *at)
{
	self->state = state;
	self->at = at;
	self->order = ++orders;
	pass_turn();
}

static void make_ready(enum thread_state state, const void *at)
{
	for (unsigned i = 0; i < THREADS_MAX; i++)
		if (threads[i].state == state && threads[i].at == at)
			threads[i].state = READY;
}

static void lock(pthread_mutex_t *mutex)
{
	while (pthread_mutex_trylock(mutex))
		block(AT_MUTEX, mutex);
}

static void unlock(pthread_mutex_t *mutex)
{
	MUST(!__real_pthread_mutex_unlock(mutex));
	make_ready(AT_MUTEX, mutex);
}

static int wait_at(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	self->limited = until;
	self->timed_out = false;
	if (until)
		self->until_ns = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
	unlock(mutex);
	block(AT_CONDITION, cond);
	lock(mutex);
	return self->timed_out ? ETIMEDOUT : 0;
}

/* ---- Threads ---- */

static void *thread_main(void *arg)
{
	void *result;

	self = arg;
	__real_pthread_mutex_lock(&baton);
	await_turn();
	__real_pthread_mutex_unlock(&baton);
	result = self->main(self->arg);
	self->state = ENDED;
	make_ready(AT_JOIN, self);
	pass_turn();
	return result;
}

int turns_create(pthread_t *id, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
	struct thread *thread;
	int rc;

	if (!self)
		return __real_pthread_create(id, attr, main, arg);
	for (thread = threads; thread->state != THREAD_NONE; thread++)
		MUST(thread + 1 < threads + THREADS_MAX);
	*thread = (struct thread){.state = READY, .main = main, .arg = arg};
	MUST(!pthread_cond_init(&thread->turn, NULL));
	rc = __real_pthread_create(&thread->id, attr, thread_main, thread);
	if (rc)
		thread->state = THREAD_NONE;
	*id = thread->id;
	return rc;
}

int __wrap_pthread_join(pthread_t id, void **result)
{
	struct thread *thread = threads;
	int rc;

	if (!self)
		return __real_pthread_join(id, result);
	while (thread->state == THREAD_NONE || !pthread_equal(thread->id, id))
		MUST(++thread < threads + THREADS_MAX);
	while (thread->state != ENDED)
		block(AT_JOIN, thread);
	rc = __real_pthread_join(id, result);
	pthread_cond_destroy(&thread->turn);
	thread->state = THREAD_NONE;
	return rc;
}

/* ---- Mutexes and conditions ---- */

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	if (!self)
		return __real_pthread_mutex_lock(mutex);
	if (!below(LOCKS_A_TURN))
		pass_turn();
	lock(mutex);
	return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	if (!self)
		return __real_pthread_mutex_unlock(mutex);
	unlock(mutex);
	if (!below(LOCKS_A_TURN))
		pass_turn();
	return 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	if (!self)
		return __real_pthread_cond_wait(cond, mutex);
	return wait_at(cond, mutex, NULL);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
				  const struct timespec *until)
{
	if (!self)
		return __real_pthread_cond_timedwait(cond, mutex, until);
	return wait_at(cond, mutex, until);
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
				  const struct timespec *until)
{
	if (!self)
		return __real_pthread_cond_clockwait(cond, mutex, clock, until);
	return wait_at(cond, mutex, until);
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
	struct thread *first = NULL;

	if (!self)
		return __real_pthread_cond_signal(cond);
	for (unsigned i = 0; i < THREADS_MAX; i++) {
		struct thread *thread = &threads[i];

		if (thread->state == AT_CONDITION && thread->at == cond &&
		    (!first || thread->order < first->order))
			first = thread;
	}
	if (first)
		first->state = READY;
	return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
	if (!self)
		return __real_pthread_cond_broadcast(cond);
	make_ready(AT_CONDITION, cond);
	return 0;
}

int __wrap_sched_yield(void)
{
	if (!self)
		return __real_sched_yield();
	pass_turn();
	return 0;
}

/* ---- For tests ---- */

void turns_begin(uint64_t seed)
{
	MUST(!self);
#ifndef __SANITIZE_THREAD__
	random_state = seed;
	self = running = &threads[0];
	*self = (struct thread){.state = READY, .id = pthread_self()};
	MUST(!pthread_cond_init(&self->turn, NULL));
#else
	(void)seed;
#endif
}

void turns_end(void)
{
	if (!self)
		return;
	for (unsigned i = 0; i < THREADS_MAX; i++)
		MUST(threads[i].state == THREAD_NONE || &threads[i] == self);
	pthread_cond_destroy(&self->turn);
	self->state = THREAD_NONE;
	self = running = NULL;
}
