/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_timeout_ms counts only time in which the watching thread runs: a process that was stopped, or
 * whose cgroup was frozen, reports no drive that hangs.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "aio/internal.h"
#include "base/clock.h"
#include "support/fake/fake_engine.h"
#include "support/submit.h"
#include "support/support.h"
#include "support/tests.h"

#define PART		 4096u
#define AGES_MS		 1000000 /* a limit that passes only for aio_watch() */
#define STOPPED_LIMIT_MS 400

/* A read in flight, which the fake engine holds, and one that is queued behind it. */
struct rig {
	struct fake fake;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct transfer transfers[2], *all[2];
	char data[PART];
	unsigned hangs; /* messages about them */
};
static struct rig one_rig, *const rig = &one_rig;

static void hear(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg, (void)text;
	if (level == NVS_LOG_ERROR)
		__atomic_add_fetch(&rig->hangs, 1, __ATOMIC_RELAXED);
}

static unsigned hangs(void)
{
	return __atomic_load_n(&rig->hangs, __ATOMIC_RELAXED);
}

static void rig_open(uint32_t io_timeout_ms)
{
	const struct nvs_log log = {hear, rig};
	struct nvs_error error = {.size = sizeof(error)};

	*rig = (struct rig){0};
	fake_init(&rig->fake, NULL);
	rig->fake.dry = true;
	rig->aio = fake_aio_open(
		&rig->fake,
		FAKE_CONFIG(.block_size = PART, .queue_depth = 1, .io_timeout_ms = io_timeout_ms),
		&log);
	rig->file = fake_file_open(rig->aio, NVS_FILE_WRITE | NVS_FILE_BUFFERED);
	for (unsigned i = 0; i < 2; i++) {
		rig->transfers[i] = (struct transfer){
			.file = rig->file, .data = rig->data, .nbytes = PART, .offset = i * PART};
		rig->all[i] = &rig->transfers[i];
	}
	fake_hold(&rig->fake);
	SUCCEEDS(submit_all(rig->aio, rig->all, 2, &error), &error);
	assert_true(fake_await_ios(&rig->fake, 1));
}

static void rig_close(void)
{
	struct nvs_error error = {.size = sizeof(error)};
	int rc;

	if (!rig->aio)
		return;
	fake_release(&rig->fake, FAKE_ALL);
	/* They may still be overdue. */
	do {
		rc = nvs_aio_wait_all(rig->aio, -1, NULL, &error);
	} while (rc == -ETIMEDOUT);
	SUCCEEDS(rc, &error);
	nvs_file_close(rig->file);
	nvs_aio_close(rig->aio);
	fake_destroy(&rig->fake);
	*rig = (struct rig){0};
}
AFTER_SUCCESS(rig_close)

/* The test passes the time: the watch looks, the process is stopped, and the watch looks again. */
TEST(time_in_which_the_watch_does_not_run_does_not_count)
{
	const uint64_t quarter = AGES_MS * UINT64_C(250000);
	uint64_t now;

	rig_open(AGES_MS);
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

	rig_open(STOPPED_LIMIT_MS);
	EXPECT(write(tell, &byte, 1) == 1 && read(told, &byte, 1) == 1);
	resumed_ns = clock_ns();
	while (looked_ns(rig->aio) < resumed_ns)
		sched_yield();
	aio_await_told(rig->aio);
	EXPECT(!hangs());
	rig_close();
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
