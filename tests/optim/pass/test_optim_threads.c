/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute threads: each runs a task once, all concurrently, bound to their cores, and asleep
 * between tasks. Runs from the root of the repository.
 */
#include "optim/pass/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/support.h"
#include "support/tests.h"

#define MANY	8
#define PATIENT 20000 /* ms; the limit for events that must happen */

static struct topo *open_topo(const char *xml_path)
{
	struct topo *topo = NULL;
	struct nvs_error error = {.size = sizeof(error)};

	SUCCEEDS(topo_open(&topo, xml_path, &error), &error);
	return topo;
}

static struct threads *open_threads(unsigned count)
{
	struct topo *topo = open_topo(NULL);
	struct threads *threads = NULL;
	struct nvs_error error = {.size = sizeof(error)};

	SUCCEEDS(threads_open(&threads, count, topo, -1, &error), &error);
	/* The threads do not need it once they have started. */
	topo_close(topo);
	return threads;
}

/* ---- Tasks ---- */

static void count_visit(void *arg, unsigned thread)
{
	((unsigned *)arg)[thread]++;
}

TEST(every_thread_runs_each_task_once)
{
	static const unsigned counts[] = {1, 2, 3, MANY};

	for (unsigned i = 0; i < COUNT(counts); i++) {
		struct threads *threads = open_threads(counts[i]);
		unsigned visits[MANY + 1] = {0};

		assert_int_equal(threads_count(threads), counts[i]);
		for (unsigned round = 1; round <= 300; round++) {
			/*
			 * Plain memory: threads_join() must order the accesses, which
			 * ThreadSanitizer checks.
			 */
			threads_run(threads, count_visit, visits);
			for (unsigned t = 0; t < MANY + 1; t++)
				assert_int_equal(visits[t], t < counts[i] ? round : 0);
		}
		threads_close(threads);
	}
}

/* A barrier at which threads wait for each other. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	unsigned wanted, here;
	atomic_uint through, late;
};

#define GATE(wanted_)                                                                              \
	{                                                                                          \
		.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER,             \
		.wanted = (wanted_)                                                                \
	}

static void arrive(void *arg, unsigned thread)
{
	uint64_t deadline = deadline_ns(PATIENT);
	struct gate *gate = arg;
	int rc = 0;

	(void)thread;
	pthread_mutex_lock(&gate->lock);
	gate->here++;
	pthread_cond_broadcast(&gate->opened);
	while (gate->here < gate->wanted && !rc)
		rc = cond_wait_until(&gate->opened, &gate->lock, deadline);
	pthread_mutex_unlock(&gate->lock);
	gate->late += rc != 0;
	gate->through++;
}

TEST(starting_does_not_wait_and_joining_does)
{
	struct threads *threads = open_threads(3);
	struct gate gate = GATE(4);

	threads_start(threads, arrive, &gate);
	/* No thread passes before the caller, who is the fourth. */
	assert_int_equal(gate.through, 0);
	arrive(&gate, 3);
	threads_join(threads);
	assert_int_equal(gate.late, 0);
	assert_int_equal(gate.through, 4);
	/* Without a task, it returns at once. */
	threads_join(threads);
	threads_close(threads);
}

/* ---- Properties of a thread ---- */

struct portrait {
	char name[16];
	sigset_t blocked;
	cpu_set_t cpus;
	size_t stack_bytes;
	pid_t tid;
	clockid_t cpu_clock;
};

static void portray(void *arg, unsigned thread)
{
	struct portrait *portrait = (struct portrait *)arg + thread;
	pthread_attr_t attr;

	pthread_getname_np(pthread_self(), portrait->name, sizeof(portrait->name));
	pthread_sigmask(SIG_SETMASK, NULL, &portrait->blocked);
	sched_getaffinity(0, sizeof(portrait->cpus), &portrait->cpus);
	pthread_getcpuclockid(pthread_self(), &portrait->cpu_clock);
	portrait->tid = (pid_t)syscall(SYS_gettid);
	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstacksize(&attr, &portrait->stack_bytes);
	pthread_attr_destroy(&attr);
}

TEST(threads_are_named_by_number_have_small_stacks_and_block_all_signals)
{
	struct threads *threads = open_threads(3);
	struct portrait portraits[3];
	sigset_t own;

	threads_run(threads, portray, portraits);
	assert_string_equal(portraits[0].name, "nvs-adam-0");
	assert_string_equal(portraits[2].name, "nvs-adam-2");
	pthread_sigmask(SIG_SETMASK, NULL, &own);
	assert_false(sigismember(&own, SIGTERM));
	for (unsigned i = 0; i < 3; i++) {
		/* A sanitizer adds its own stack. */
		assert_true(portraits[i].stack_bytes <= 1 << 20);
		assert_true(sigismember(&portraits[i].blocked, SIGTERM));
		assert_true(sigismember(&portraits[i].blocked, SIGINT));
		assert_true(sigismember(&portraits[i].blocked, SIGUSR1));
	}
	threads_close(threads);
}

static uint64_t cpu_ns(clockid_t clock)
{
	struct timespec used;

	assert_int_equal(clock_gettime(clock, &used), 0);
	return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

TEST(threads_sleep_between_tasks)
{
	struct threads *threads = open_threads(2);
	struct portrait portraits[2];
	uint64_t deadline = deadline_ns(PATIENT), before[2], until;

	threads_run(threads, portray, portraits);
	for (unsigned i = 0; i < 2; i++)
		while (!thread_sleeps(portraits[i].tid)) {
			assert_true(clock_ns() < deadline);
			sched_yield();
		}
	for (unsigned i = 0; i < 2; i++)
		before[i] = cpu_ns(portraits[i].cpu_clock);
	/* Work of the caller, during which the threads are idle. */
	until = cpu_ns(CLOCK_THREAD_CPUTIME_ID) + 20000000;
	while (cpu_ns(CLOCK_THREAD_CPUTIME_ID) < until)
		;
	for (unsigned i = 0; i < 2; i++)
		assert_true(cpu_ns(portraits[i].cpu_clock) - before[i] < 1000000);
	threads_close(threads);
}

TEST(without_a_count_there_is_one_for_each_core)
{
	struct topo *here = open_topo(NULL), *other = open_topo("tests/topo/two_sockets.xml");
	struct threads *threads = NULL;
	struct nvs_error error = {.size = sizeof(error)};

	SUCCEEDS(threads_open(&threads, 0, here, -1, &error), &error);
	assert_int_equal(threads_count(threads), topo_cores(here, -1));
	threads_close(threads);
	/* The topology is of another machine, so the threads run unbound. */
	SUCCEEDS(threads_open(&threads, 0, other, 1, &error), &error);
	assert_int_equal(threads_count(threads), 4);
	threads_close(threads);
	SUCCEEDS(threads_open(&threads, 0, other, -1, &error), &error);
	assert_int_equal(threads_count(threads), 8);
	threads_close(threads);
	/* A node outside the process's affinity mask is replaced by the permitted ones. */
	SUCCEEDS(threads_open(&threads, 0, other, 7, &error), &error);
	assert_int_equal(threads_count(threads), 8);
	threads_close(threads);
	topo_close(other);
	topo_close(here);
}

TEST(thread_i_is_on_core_i_modulo_the_cores)
{
	struct topo *topo = open_topo(NULL);
	unsigned cores = topo_cores(topo, -1), count = 2 * cores;
	struct portrait *portraits = calloc(count, sizeof(*portraits));
	struct threads *threads = open_threads(count);
	cpu_set_t given, both;

	assert_non_null(portraits);
	threads_run(threads, portray, portraits);
	threads_close(threads);
	topo_close(topo);
	sched_getaffinity(0, sizeof(given), &given);
	if (cores == 1 || sched_setaffinity(0, sizeof(given), &given)) {
		free(portraits);
		SKIP("there is one core, or threads cannot be bound here");
	}
	for (unsigned i = 0; i < cores; i++) {
		CPU_AND(&both, &given, &portraits[i].cpus);
		assert_true(CPU_EQUAL(&both, &portraits[i].cpus));
		assert_true(CPU_EQUAL(&portraits[i].cpus, &portraits[i + cores].cpus));
		for (unsigned j = i + 1; j < cores; j++) {
			CPU_AND(&both, &portraits[i].cpus, &portraits[j].cpus);
			assert_int_equal(CPU_COUNT(&both), 0);
		}
	}
	free(portraits);
}

/* ---- Threads that cannot be started ---- */

#define TASKS "/proc/self/task"

/* A joined thread can stay in /proc for a moment. */
static bool tasks_become(unsigned n)
{
	uint64_t deadline = deadline_ns(PATIENT);

	while (entries_of(TASKS) != n)
		if (clock_ns() > deadline)
			return false;
		else
			sched_yield();
	return true;
}

/* Limits that allow none of eight threads, then some, then all. */
static int open_under_limits(void *arg)
{
	unsigned failures = 0, before = entries_of(TASKS);
	struct topo *topo = NULL;
	int rc = -EAGAIN;

	(void)arg;
	if (topo_open(&topo, NULL, NULL) || (geteuid() == 0 && (setgid(65534) || setuid(65534))))
		return CHILD_SKIPPED;
	for (rlim_t limit = 1; rc && limit < 4096; limit++) {
		struct rlimit few = {.rlim_cur = limit, .rlim_max = 4096};
		struct threads *threads = NULL;
		struct nvs_error error = {.size = sizeof(error)};

		if (setrlimit(RLIMIT_NPROC, &few))
			return CHILD_SKIPPED;
		rc = threads_open(&threads, MANY, topo, -1, &error);
		if (rc) {
			EXPECT(rc == -EAGAIN && error.code == -EAGAIN && !threads);
			EXPECT(strstr(error.text, "optimizer_threads") &&
			       strstr(error.text, " of 8 compute threads"));
			failures++;
		}
		threads_close(threads);
		EXPECT(tasks_become(before));
	}
	topo_close(topo);
	EXPECT(!rc);
	return failures ? CHILD_OK : CHILD_SKIPPED;
}

TEST(if_a_thread_cannot_start_none_is_left)
{
	int status = in_child(open_under_limits, NULL);

	if (status == CHILD_SKIPPED)
		SKIP("the number of threads can't be limited here");
	assert_int_equal(status, CHILD_OK);
}

TEST(closing_ends_the_threads_with_or_without_a_task)
{
	unsigned before = entries_of(TASKS), visits[MANY] = {0};

	threads_close(NULL);
	for (unsigned i = 0; i < 20; i++) {
		struct threads *threads = open_threads(MANY);

		if (i % 2)
			threads_run(threads, count_visit, visits);
		threads_close(threads);
	}
	assert_true(tasks_become(before));
	assert_int_equal(visits[MANY - 1], 10);
}

EACH_TEST(NULL, cleanup)
