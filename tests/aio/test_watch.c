/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_timeout_ms counts only time in which the watching thread runs: a process that was stopped, or
 * whose cgroup was frozen, reports no drive that hangs.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "aio/aio_fixture.h"
#include "aio/internal.h"

#define STOPPED_LIMIT_MS 400

static unsigned hung; /* messages about transfers that hang */

static void hear(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg, (void)text;
	if (level == NVS_LOG_ERROR)
		__atomic_add_fetch(&hung, 1, __ATOMIC_RELAXED);
}

static unsigned hangs(void)
{
	return __atomic_load_n(&hung, __ATOMIC_RELAXED);
}

/* A write in flight, which the fake engine holds, and one that is queued behind it. */
static void open_held(uint32_t io_timeout_ms)
{
	hung = 0;
	RIG(.part = 4096, .depth = 1, .io_timeout_ms = io_timeout_ms, .log = {hear, NULL});
	DO(submit_all(rig->aio, rig->all, 2, &rig->error));
	assert_true(fake_await_ios(&rig->fake, 1));
}

static void close_held(void)
{
	int rc;

	if (!rig->aio)
		return;
	fake_release(&rig->fake, FAKE_ALL);
	/* They may still be overdue. */
	do
		rc = nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error);
	while (rc == -ETIMEDOUT);
	DO(rc);
	rig_close();
}
AFTER_SUCCESS(close_held)

/* The test passes the time: the watch looks, the process is stopped, and the watch looks again. */
TEST(time_in_which_the_watch_does_not_run_does_not_count)
{
	const uint64_t quarter = AGES_NS / 4;
	uint64_t now;

	open_held(AGES_MS);
	now = clock_ns();
	aio_watch(rig->aio, now);
	/* Of the time of 10 limits, a quarter of one counts. */
	now += 40 * quarter;
	for (unsigned i = 0; i < 3; i++)
		aio_watch(rig->aio, now + i * quarter);
	aio_await_told(rig->aio);
	assert_int_equal(hangs(), 0);
	aio_watch(rig->aio, now + 3 * quarter);
	aio_await_told(rig->aio);
	assert_int_equal(hangs(), 2);
}

static uint64_t looked_ns(struct nvs_aio *aio)
{
	uint64_t looked;

	pthread_mutex_lock(&aio->lock);
	looked = aio->looked_ns;
	pthread_mutex_unlock(&aio->lock);
	return looked;
}

/* In the child: says when an I/O is in flight, and waits after the stop for the watch to look. */
static int be_stopped(int told, int tell)
{
	uint64_t resumed_ns;
	char byte = 0;

	open_held(STOPPED_LIMIT_MS);
	EXPECT(write(tell, &byte, 1) == 1 && read(told, &byte, 1) == 1);
	resumed_ns = clock_ns();
	while (looked_ns(rig->aio) < resumed_ns)
		sched_yield();
	aio_await_told(rig->aio);
	EXPECT(!hangs());
	close_held();
	return CHILD_OK;
}

TEST(a_stopped_process_reports_no_drive_that_hangs)
{
	const struct timespec stop = {.tv_nsec = 2 * STOPPED_LIMIT_MS * 1000000L};
	int there[2], back[2], status;
	char byte = 0;
	pid_t pid;

	assert_true(!pipe2(there, O_CLOEXEC) && !pipe2(back, O_CLOEXEC));
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(be_stopped(there[0], back[1]));
	assert_int_equal(read(back[0], &byte, 1), 1);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	/* The stop itself must last longer than the limit. */
	nanosleep(&stop, NULL);
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_int_equal(write(there[1], &byte, 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_OK);
	for (int i = 0; i < 2; i++)
		assert_true(!close(there[i]) && !close(back[i]));
}
