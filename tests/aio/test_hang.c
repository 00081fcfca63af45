/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive that hangs: with io_timeout_ms every wait returns with the path and offset, no memory or
 * extent of an I/O in flight is reused, and transfers that complete late complete normally. The
 * limit counts only time in which the watching thread runs: a process that was stopped, or whose
 * cgroup was frozen, reports no drive that hangs.
 */
#include <signal.h>

#include "aio/aio_fixture.h"
#include "aio/internal.h"
#include "optim/optim_fixture.h"

#include "optim/optimizer.h"
#include "support/inject.h"

#define LIMIT_MS 20 /* a limit that passes in real time */
#define PART	 (64 * KIB)

#define FILE_PATH "build/tmp/nvswap-test-" /* begins the path of the rig's file */
#define HANGS	  "drive hangs"
#define WAITS	  "that drive hangs" /* the transfer itself has not begun */
#define AFTER_ALL "completed late"

/* ---- Log messages ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t heard;
	unsigned hangs, after_all;
	char last[1024]; /* last message about a transfer that hangs */
} hearing = {.lock = PTHREAD_MUTEX_INITIALIZER, .heard = PTHREAD_COND_INITIALIZER};

static void hear(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg;
	pthread_mutex_lock(&hearing.lock);
	if (strstr(text, HANGS)) {
		MUST(level == NVS_LOG_ERROR);
		hearing.hangs++;
		snprintf(hearing.last, sizeof(hearing.last), "%s", text);
	}
	hearing.after_all += strstr(text, AFTER_ALL) != NULL;
	pthread_cond_broadcast(&hearing.heard);
	pthread_mutex_unlock(&hearing.lock);
}

/* A log that counts from 0. */
static struct nvs_log hear_anew(void)
{
	hearing.hangs = hearing.after_all = 0;
	return (struct nvs_log){hear, NULL};
}

/*
 * Waits for messages about `n` transfers that hang, and until `after_all` of them have completed.
 */
static void await_messages(unsigned n, unsigned after_all)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc = 0;

	pthread_mutex_lock(&hearing.lock);
	while ((hearing.hangs < n || hearing.after_all < after_all) && !rc)
		rc = cond_wait_until(&hearing.heard, &hearing.lock, deadline);
	MUST(!rc && hearing.hangs == n);
	pthread_mutex_unlock(&hearing.lock);
}

static unsigned hangs_heard(void)
{
	unsigned n;

	pthread_mutex_lock(&hearing.lock);
	n = hearing.hangs;
	pthread_mutex_unlock(&hearing.lock);
	return n;
}

/* Waits until every transfer that hung has completed. */
static void await_after_all(void)
{
	unsigned n = hangs_heard();

	await_messages(n, n);
}

/* ---- Limits that pass at once ---- */

/* A thread that, during a call, looks for overdue transfers as if the limit had passed. */
struct ages {
	struct nvs_aio *aio;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool end;
};

static void *pass_ages(void *arg)
{
	struct ages *ages = arg;

	pthread_mutex_lock(&ages->lock);
	while (!ages->end) {
		aio_find_overdue(ages->aio, clock_ns() + AGES_NS);
		(void)cond_wait_until(&ages->ended, &ages->lock, deadline_ns(2));
	}
	pthread_mutex_unlock(&ages->lock);
	return NULL;
}

static void ages_begin(struct ages *ages, struct nvs_aio *aio)
{
	*ages = (struct ages){
		.aio = aio, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
	MUST(!pthread_create(&ages->thread, NULL, pass_ages, ages));
}

static void ages_end(struct ages *ages)
{
	pthread_mutex_lock(&ages->lock);
	ages->end = true;
	pthread_cond_signal(&ages->ended);
	pthread_mutex_unlock(&ages->lock);
	pthread_join(ages->thread, NULL);
}

/* ---- Transfers ---- */

static void rig_open(uint32_t io_timeout_ms, uint32_t depth)
{
	RIG(.part = PART, .depth = depth, .io_timeout_ms = io_timeout_ms, .log = hear_anew());
}

/* Releases the I/Os and waits for the first n transfers, which must return `status`. */
static void rig_end(size_t n, int status)
{
	aio_await_told(rig->aio);
	fake_release(&rig->fake, FAKE_ALL);
	await_after_all();
	assert_int_equal(await_all(rig->aio, rig->all, n, -1, &rig->error), status);
}

/* The wait must fail with the path and offset of the transfer. */
static void expect_hung(unsigned which, int timeout_ms, uint64_t offset)
{
	rig->error = (struct nvs_error){.size = sizeof(rig->error)};
	assert_int_equal(await_all(rig->aio, &rig->all[which], 1, timeout_ms, &rig->error),
			 -ETIMEDOUT);
	assert_int_equal(rig->error.code, -ETIMEDOUT);
	assert_int_equal(rig->error.offset, offset);
	assert_non_null(strstr(rig->error.text, FILE_PATH));
	assert_non_null(strstr(rig->error.text, HANGS));
}

TEST(a_transfer_that_hangs_is_reported_once_and_completes_late)
{
	rig_open(LIMIT_MS, 1);
	assert_int_equal(submit_all(rig->aio, rig->all, 2, NULL), 0);
	expect_hung(0, -1, 0);
	/* The transfer queued behind it is overdue, too. */
	expect_hung(1, -1, PART);
	assert_says(rig->error.text, WAITS);
	expect_hung(1, 0, PART);
	expect_hung(0, AWAIT_MS, 0);
	assert_false(is_completed(rig->all[0]));
	await_messages(2, 0);
	assert_non_null(strstr(hearing.last, FILE_PATH));
	rig_end(2, 0);
	assert_int_equal(hangs_heard(), 2);
}

/* Of two files, as on two drives: the drive of the second has nothing to do. */
TEST(a_transfer_behind_a_drive_that_hangs_is_not_blamed_on_its_own_drive)
{
	struct nvs_error error = {.size = sizeof(error)};
	char *directory = place_make(PLACE_DISK), path[512];
	struct nvs_file *other;

	rig_open(AGES_MS, 1);
	snprintf(path, sizeof(path), "%s/other", directory);
	DO(nvs_file_open(rig->aio, path, NVS_FILE_WRITE | NVS_FILE_CREATE, &other, &error));
	rig->transfers[1].file = other;
	assert_int_equal(submit_all(rig->aio, rig->all, 2, NULL), 0);
	assert_true(fake_await_ios(&rig->fake, 1));
	aio_find_overdue(rig->aio, clock_ns() + AGES_NS);
	assert_int_equal(await_all(rig->aio, &rig->all[1], 1, -1, &error), -ETIMEDOUT);
	assert_int_equal(error.offset, PART);
	assert_says(error.text, path);
	assert_says(error.text, "has not begun");
	assert_says(error.text, FILE_PATH);
	assert_says(error.text, WAITS);
	expect_hung(0, -1, 0);
	assert_null(strstr(rig->error.text, WAITS));
	/* Then its own drive hangs too. */
	fake_release(&rig->fake, 1);
	assert_true(fake_await_ios(&rig->fake, 2));
	aio_find_overdue(rig->aio, clock_ns() + AGES_NS);
	assert_int_equal(await_all(rig->aio, &rig->all[1], 1, -1, &error), -ETIMEDOUT);
	assert_says(error.text, "has not completed");
	aio_await_told(rig->aio);
	assert_int_equal(hangs_heard(), 2);
	fake_release(&rig->fake, FAKE_ALL);
	await_after_all();
	assert_int_equal(await_all(rig->aio, rig->all, 2, -1, &error), 0);
	nvs_file_close(other);
	place_leave(directory);
}

/* The test passes the time to the check and waits for nothing. */
TEST(transfers_queued_on_a_busy_drive_are_not_overdue)
{
	uint64_t submitted;

	rig_open(AGES_MS, 1);
	assert_int_equal(submit_all(rig->aio, rig->all, 3, NULL), 0);
	submitted = clock_ns();
	assert_true(fake_await_ios(&rig->fake, 1));
	while (clock_ns() == submitted)
		;
	fake_release(&rig->fake, 1);
	assert_true(fake_await_ios(&rig->fake, 2));
	/* All three are as old as the limit, but the first has completed since. */
	aio_find_overdue(rig->aio, submitted + AGES_NS);
	assert_int_equal(await_all(rig->aio, &rig->all[0], 1, -1, NULL), 0);
	assert_int_equal(await_all(rig->aio, &rig->all[1], 1, 0, NULL), -EAGAIN);
	assert_int_equal(await_all(rig->aio, &rig->all[2], 1, 0, NULL), -EAGAIN);
	aio_await_told(rig->aio);
	assert_int_equal(hangs_heard(), 0);
	/* Nothing more completes. */
	aio_find_overdue(rig->aio, clock_ns() + AGES_NS);
	expect_hung(1, -1, PART);
	expect_hung(2, -1, 2 * PART);
	rig_end(3, 0);
}

TEST(one_transfer_that_hangs_ends_the_wait_for_all)
{
	uint64_t taken;

	rig_open(AGES_MS, 2);
	assert_int_equal(submit_all(rig->aio, rig->all, 1, NULL), 0);
	assert_true(fake_await_ios(&rig->fake, 1));
	taken = clock_ns();
	while (clock_ns() == taken)
		;
	assert_int_equal(submit_all(rig->aio, &rig->all[1], 1, NULL), 0);
	aio_find_overdue(rig->aio, taken + AGES_NS);
	aio_await_told(rig->aio);
	assert_int_equal(hangs_heard(), 1);
	for (unsigned i = 0; i < 2; i++) {
		struct transfer *both[] = {rig->all[i], rig->all[!i]};

		rig->error = (struct nvs_error){.size = sizeof(rig->error)};
		assert_int_equal(await_all(rig->aio, both, 2, AWAIT_MS, &rig->error), -ETIMEDOUT);
		assert_int_equal(rig->error.offset, 0);
		assert_non_null(strstr(rig->error.text, FILE_PATH));
	}
	rig_end(2, 0);
}

TEST(a_transfer_that_hangs_and_fails_reports_both)
{
	rig_open(AGES_MS, 2);
	for (unsigned i = 0; i < 2; i++) {
		rig->transfers[i].nbytes = 2 * PART;
		rig->transfers[i].offset = i * 2 * PART;
	}
	fake_fail_nth(&rig->fake, 0, 1, -ENOSPC);
	assert_int_equal(submit_all(rig->aio, rig->all, 1, NULL), 0);
	assert_true(fake_await_ios(&rig->fake, 2));
	fake_release(&rig->fake, 1);
	/* The worker takes this one after it has processed the failure. */
	assert_int_equal(submit_all(rig->aio, &rig->all[1], 1, NULL), 0);
	assert_true(fake_await_ios(&rig->fake, 3));
	aio_find_overdue(rig->aio, clock_ns() + AGES_NS);
	expect_hung(0, AWAIT_MS, rig->fake.ios[1].offset);
	rig_end(2, -ENOSPC);
	assert_int_equal(rig->error.offset, 0);
}

TEST(an_error_of_the_kernel_is_not_reported_as_in_flight)
{
	static const int results[] = {-ETIMEDOUT, -EAGAIN};

	for (size_t i = 0; i < LENGTH(results); i++) {
		rig_open(0, 1);
		fake_release(&rig->fake, FAKE_ALL);
		fake_fail_nth(&rig->fake, 0, 1000, results[i]);
		assert_int_equal(submit_all(rig->aio, rig->all, 1, NULL), 0);
		assert_int_equal(await_all(rig->aio, rig->all, 1, -1, &rig->error), -EIO);
		assert_true(is_completed(rig->all[0]));
		rig_close();
	}
}

/* ---- A watching thread that does not run ---- */

#define STOPPED_LIMIT_MS 400

/* A write in flight, which the fake engine holds, and one that is queued behind it. */
static void open_held(uint32_t io_timeout_ms)
{
	rig_open(io_timeout_ms, 1);
	assert_int_equal(submit_all(rig->aio, rig->all, 2, NULL), 0);
	assert_true(fake_await_ios(&rig->fake, 1));
}

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
	assert_int_equal(hangs_heard(), 0);
	aio_watch(rig->aio, now + 3 * quarter);
	aio_await_told(rig->aio);
	assert_int_equal(hangs_heard(), 2);
	rig_end(2, 0);
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
	EXPECT(!hangs_heard());
	fake_release(&rig->fake, FAKE_ALL);
	/* They may be overdue by now. */
	while (nvs_aio_wait_all(rig->aio, -1, NULL, NULL) == -ETIMEDOUT)
		;
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

/* ---- Tensors ---- */

struct bench {
	struct fixture f;
	struct nvs_tensor *t[4]; /* of a part each; the pool has room for two */
};
static struct bench one_bench, *const b = &one_bench;
static struct fixture *const f = &one_bench.f;

static void bench_close(void)
{
	rig_close();
	if (f->made)
		fixture_close(f);
}
AFTER_SUCCESS(bench_close)

static void bench_open(bool keep, uint32_t io_timeout_ms)
{
	*b = (struct bench){0};
	INIT(f, .place = PLACE_DISK, .pool_bytes = 2 * PART, .keep = keep, .simulated = true);
	f->config.aio.io_timeout_ms = io_timeout_ms;
	f->config.log = hear_anew();
	OK(f, fixture_reopen(f));
	tensors_add(f, "t", (uint64_t[]){PART, PART, PART, PART}, 4, b->t);
}

/* t0 has contents 1, on the drive; t1 contents 2, dirty in the pool. */
static struct nvs_engine *bench_open_filled(bool keep)
{
	bench_open(keep, AGES_MS);
	tensor_store(f, b->t[0], 1);
	tensor_write(f, b->t[1], 2);
	return f->engine;
}

static struct nvs_engine *bench_open_dirty(void)
{
	bench_open(false, AGES_MS);
	tensor_write(f, b->t[0], 1);
	tensor_write(f, b->t[1], 2);
	return f->engine;
}

/* Every tensor checked must have its number plus one as contents. */
static void check_tensors(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		tensor_compare(f, b->t[i], i + 1);
}

static void release_all(void)
{
	/* The messages about all overdue transfers have been logged. */
	events_await_idle(f->engine);
	sim_go(f->sim, SIM_READS);
	sim_go(f->sim, SIM_WRITES);
	await_after_all();
}

/* The call must fail with the tensor, path and offset. */
#define HUNG(call, tensor)                                                                         \
	do {                                                                                       \
		struct ages ages;                                                                  \
		int hung_rc;                                                                       \
		ages_begin(&ages, nvs_engine_aio(f->engine));                                      \
		hung_rc = (call);                                                                  \
		ages_end(&ages);                                                                   \
		expect_tensor_hung(hung_rc, tensor, __FILE__, __LINE__);                           \
	} while (0)
static void expect_tensor_hung(int rc, const char *tensor, const char *file, int line)
{
	char path[512];

	fixture_store_file(f, "data", path);
	_assert_int_equal(rc, -ETIMEDOUT, file, line);
	_assert_int_equal(f->error.code, -ETIMEDOUT, file, line);
	_assert_string_equal(f->error.subject, tensor, file, line);
	_assert_true(f->error.offset > 0, "an offset", file, line);
	assert_non_null(strstr(f->error.text, path));
	assert_non_null(strstr(f->error.text, HANGS));
	f->error = (struct nvs_error){.size = sizeof(f->error)};
}

TEST(a_write_that_hangs_is_reported_and_its_memory_is_not_reused)
{
	struct nvs_engine *engine;
	char path[512];

	engine = bench_open_dirty();
	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out(engine, b->t, 1, &f->error));
	HUNG(sole_wait(engine, b->t, 2, -1, &f->error), "t0");
	HUNG(sole_wait(engine, b->t, 1, 0, &f->error), "t0");
	STATE(f, b->t[0], NVS_WRITING, false, 0);
	/* The eviction of t1 hangs as well; then no tensor is left to evict. */
	HUNG(sole_pin(engine, &b->t[2], 2, -1, &f->error), "t0");
	HUNG(sole_pin(engine, &b->t[2], 2, AWAIT_MS, &f->error), "t0");
	HUNG(sole_pin(engine, b->t, 1, -1, &f->error), "t0");
	HUNG(nvs_engine_commit(engine, &f->error), "t0");
	assert_int_equal(stats_of(f).pool.used, 2 * PART);
	/* One message for each of the two writes. */
	events_await_idle(engine);
	assert_int_equal(hangs_heard(), 2);
	fixture_store_file(f, "data", path);
	assert_says(hearing.last, "t1: writing");
	assert_says(hearing.last, path);
	assert_says(hearing.last, "by sim");
	HUNG(nvs_engine_close(engine, &f->error), "t0");
	STATE(f, b->t[0], NVS_WRITING, false, 0);
	release_all();
	OK(f, sole_wait(engine, b->t, 4, -1, &f->error));
	tensor_write(f, b->t[2], 3);
	tensor_write(f, b->t[3], 4);
	check_tensors(4);
	assert_int_equal(hangs_heard(), 2);
}

TEST(a_read_that_hangs_is_reported_and_others_are_served)
{
	struct nvs_engine *engine;

	engine = bench_open_filled(false);
	sim_hold(f->sim, SIM_READS);
	OK(f, sole_swap_in(engine, b->t, 1, -1, &f->error));
	HUNG(sole_wait(engine, b->t, 1, -1, &f->error), "t0");
	STATE(f, b->t[0], NVS_READING, false, 1);
	expect_error(f, sole_release(engine, b->t, 1, NVS_CLEAN, &f->error), -EBUSY, "read");
	tensor_compare(f, b->t[1], 2);
	/* The pool has room for one more tensor. */
	tensor_store(f, b->t[2], 3);
	HUNG(sole_pin(engine, &b->t[2], 2, -1, &f->error), "t0");
	release_all();
	OK(f, sole_wait(engine, b->t, 1, -1, &f->error));
	assert_true(filled(nvs_tensor_data(b->t[0]), PART, 1));
	OK(f, sole_release(engine, b->t, 1, NVS_CLEAN, &f->error));
	check_tensors(3);
}

TEST(transfers_complete_beside_one_that_hangs)
{
	enum { DEPTH = 16 };
	const struct setup setup = {.place = PLACE_TMPFS,
				    .pool_bytes = (DEPTH + 1) * PART,
				    .block_size = PART,
				    .queue_depth = DEPTH,
				    .simulated = true};
	struct nvs_tensor *hangs, *moves[2];

	*b = (struct bench){0};
	fixture_init(f, &setup);
	f->config.aio.io_timeout_ms = AGES_MS;
	OK(f, fixture_reopen(f));
	hangs = tensor_add(f, "hangs", (DEPTH - 1) * PART);
	moves[0] = tensor_add(f, "0", PART);
	moves[1] = tensor_add(f, "1", PART);
	tensor_store(f, hangs, 1);
	tensor_write(f, moves[0], 2);
	tensor_write(f, moves[1], 3);
	sim_hold(f->sim, SIM_READS);
	OK(f, sole_swap_in(f->engine, &hangs, 1, -1, &f->error));
	/* The queue has room for one I/O. */
	OK(f, nvs_tensor_swap_out(f->engine, moves, 2, &f->error));
	OK(f, sole_wait(f->engine, moves, 2, AWAIT_MS, &f->error));
	STATE(f, hangs, NVS_READING, false, 1);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, &hangs, 1, -1, &f->error));
	OK(f, sole_release(f->engine, &hangs, 1, NVS_CLEAN, &f->error));
	tensor_compare(f, moves[1], 3);
}

TEST(a_transfer_that_hangs_and_then_fails_has_failed)
{
	struct nvs_engine *engine;

	engine = bench_open_filled(false);
	sim_hold(f->sim, SIM_READS);
	sim_hold(f->sim, SIM_WRITES);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	sim_fail(f->sim, NVS_WRITE, 0, ENOSPC, 1);
	OK(f, sole_swap_in(engine, &b->t[0], 1, -1, &f->error));
	OK(f, nvs_tensor_swap_out(engine, &b->t[1], 1, &f->error));
	HUNG(sole_wait(engine, &b->t[0], 1, -1, &f->error), "t0");
	HUNG(sole_wait(engine, &b->t[1], 1, -1, &f->error), "t1");
	release_all();
	expect_error(f, sole_wait(engine, &b->t[0], 1, -1, &f->error), -EIO, "t0: reading");
	expect_error(f, sole_wait(engine, &b->t[1], 1, -1, &f->error), -ENOSPC, "t1: writing");
	STATE(f, b->t[0], NVS_ON_DRIVE, false, 0);
	STATE(f, b->t[1], NVS_RESIDENT, true, 0);
	check_tensors(2);
}

TEST(external_memory_stays_in_flight_until_the_io_completes)
{
	static char memory[2][PART];
	void *to = memory[1];
	const void *from = memory[0];
	struct nvs_engine *engine;

	bench_open(false, AGES_MS);
	engine = f->engine;
	fill(memory[0], PART, 7);
	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out_from(engine, b->t, &from, 1, &f->error));
	HUNG(sole_wait(engine, b->t, 1, -1, &f->error), "t0");
	expect_error(f, nvs_tensor_swap_in_to(engine, b->t, &to, 1, &f->error), -EBUSY, "t0");
	expect_error(f, nvs_engine_commit(engine, &f->error), -EBUSY, "t0");
	release_all();
	OK(f, sole_wait(engine, b->t, 1, -1, &f->error));
	OK(f, nvs_tensor_swap_in_to(engine, b->t, &to, 1, &f->error));
	OK(f, sole_wait(engine, b->t, 1, -1, &f->error));
	assert_true(filled(memory[1], PART, 7));
}

TEST(calls_return_while_a_read_of_the_plan_hangs)
{
	static char memory[PART];
	const void *from = memory;
	struct nvs_engine *engine;

	bench_open(false, AGES_MS);
	engine = f->engine;
	for (uint64_t i = 0; i < 3; i++)
		tensor_store(f, b->t[i], i);
	OK(f, nvs_engine_step_begin(engine, &f->error));
	for (uint64_t i = 0; i < 3; i++)
		tensor_compare(f, b->t[i], i);
	OK(f, nvs_engine_step_end(engine, NULL, &f->error));
	OK(f, nvs_tensor_swap_out(engine, b->t, 3, &f->error));
	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_engine_step_begin(engine, &f->error));
	STATE(f, b->t[0], NVS_READING, false, 0);
	HUNG(nvs_tensor_forget(engine, b->t, 1, &f->error), "t0");
	HUNG(nvs_tensor_swap_out_from(engine, &b->t[1], &from, 1, &f->error), "t1");
	OK(f, nvs_engine_step_end(engine, NULL, &f->error));
	release_all();
	for (uint64_t i = 0; i < 3; i++)
		tensor_compare(f, b->t[i], i);
	OK(f, nvs_tensor_forget(engine, b->t, 1, &f->error));
}

TEST(a_close_that_hangs_closes_nothing_and_can_be_repeated)
{
	bench_open_filled(true);
	sim_hold(f->sim, SIM_WRITES);
	/* The close starts the write. */
	HUNG(nvs_engine_close(f->engine, &f->error), "t1");
	HUNG(nvs_engine_close(f->engine, &f->error), "t1");
	STATE(f, b->t[1], NVS_WRITING, false, 0);
	release_all();
	fixture_shut(f);
	OK(f, fixture_reopen(f));
	tensors_add(f, "t", (uint64_t[]){PART, PART}, 2, b->t);
	check_tensors(2);
}

TEST(a_close_whose_sync_times_out_fails_and_closes)
{
	int rc;

	bench_open(true, 0);
	tensor_write(f, b->t[0], 1);
	inject_fail(INJECT_SYNC, 1, 1, ETIMEDOUT);
	rc = nvs_engine_close(f->engine, &f->error);
	inject_stop(NULL);
	expect_error(f, rc, -EIO, "durable");
	f->engine = NULL;
	OK(f, fixture_reopen(f));
}

/* For a log callback that stalls until the overdue transfer is reported and has landed. */
static struct transfer *hanging;

static void hold_up(void *arg, enum nvs_log_level level, const char *text)
{
	uint64_t offset, limit;

	(void)arg;
	(void)level;
	if (!strstr(text, "stays in the pool"))
		return;
	while (!aio_is_overdue(nvs_engine_aio(f->engine), hanging, &offset))
		sched_yield();
	sim_go(f->sim, SIM_READS);
	/* Give up if this worker is the one that must land the transfer. */
	limit = clock_ns() + UINT64_C(100000000);
	while (aio_is_overdue(nvs_engine_aio(f->engine), hanging, &offset) && clock_ns() < limit)
		sched_yield();
}

/* Repeats the wait: on a machine that stalls, the write can exceed this short limit. */
static void store_after_all(struct nvs_tensor *tensor, uint64_t seed)
{
	int rc;

	tensor_write(f, tensor, seed);
	OK(f, nvs_tensor_swap_out(f->engine, &tensor, 1, &f->error));
	do
		rc = sole_wait(f->engine, &tensor, 1, -1, &f->error);
	while (rc == -ETIMEDOUT);
	OK(f, rc);
}

/* A race, which ThreadSanitizer finds in most runs and nothing else does. */
TEST(no_check_for_overdue_transfers_runs_after_a_close)
{
	bench_open(false, LIMIT_MS);
	fixture_shut(f);
	f->config.log = (struct nvs_log){hold_up, NULL};
	f->config.aio.thread_count = 2;
	for (int i = 0; i < 100; i++) {
		int rc;

		OK(f, fixture_reopen(f));
		tensors_add(f, "t", (uint64_t[]){PART, PART, PART}, 3, b->t);
		store_after_all(b->t[0], 1);
		hanging = &b->t[0]->rest->transfer;
		sim_hold(f->sim, SIM_READS);
		OK(f, sole_swap_in(f->engine, b->t, 1, -1, &f->error));
		/* Once this is written, one worker has the read and the other is idle. */
		store_after_all(b->t[2], 3);
		tensor_write(f, b->t[1], 2);
		sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
		OK(f, nvs_tensor_swap_out(f->engine, &b->t[1], 1, &f->error));
		do
			rc = nvs_engine_close(f->engine, &f->error);
		while (rc == -ETIMEDOUT);
		OK(f, rc);
		f->engine = NULL;
	}
}

TEST(a_caller_that_polls_for_room_gets_the_write_error)
{
	struct nvs_engine *engine;
	int rc;

	engine = bench_open_dirty();
	sim_fail(f->sim, NVS_WRITE, 0, ENOSPC, 1000);
	rc = sole_pin(engine, &b->t[2], 2, 0, &f->error);
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(sole_wait(engine, b->t, 2, -1, NULL), -ENOSPC);
	/* Each lease retries the write-backs and reports the previous failure. */
	for (int i = 0; i < 3; i++) {
		expect_error(f, sole_pin(engine, &b->t[2], 2, 0, &f->error), -ENOSPC,
			     "could not be written back");
		assert_int_equal(sole_wait(engine, b->t, 2, -1, NULL), -ENOSPC);
	}
	STATE(f, b->t[0], NVS_RESIDENT, true, 0);
	sim_no_faults(f->sim);
	assert_int_equal(sole_pin(engine, &b->t[2], 2, 0, NULL), -ENOSPC);
	OK(f, sole_wait(engine, b->t, 2, -1, &f->error));
	OK(f, sole_pin(engine, &b->t[2], 2, 0, &f->error));
	OK(f, sole_release(engine, &b->t[2], 2, NVS_CLEAN, &f->error));
	check_tensors(2);
}

/* ---- The optimizer ---- */

static struct optim one_optimizer, *const o = &one_optimizer;

static const struct group groups[] = {{"a", 20000, NVS_BF16}, {"b", 13000, NVS_F32}};

static void trainer_open(bool keep, bool pipeline, double ratio)
{
	optim_init(o, groups, LENGTH(groups));
	o->config.log = hear_anew();
	o->config.aio.io_timeout_ms = AGES_MS;
	o->config.keep = keep;
	o->config.offload[NVS_OFFLOAD_OPTIMIZER].ratio = ratio;
	o->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read =
		o->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write = pipeline;
	optim_simulate(o);
	DONE(o, optim_open(o));
}

/* The call must return and report that the drive hangs. */
#define STUCK(call)                                                                                \
	do {                                                                                       \
		struct ages ages;                                                                  \
		int stuck_rc;                                                                      \
		ages_begin(&ages, nvs_engine_aio(nvs_optimizer_engine(o->optimizer)));             \
		stuck_rc = (call);                                                                 \
		ages_end(&ages);                                                                   \
		REFUSED(o, stuck_rc, -ETIMEDOUT, HANGS);                                           \
	} while (0)

static void trainer_release(void)
{
	sim_go(o->sim, SIM_READS);
	sim_go(o->sim, SIM_WRITES);
	await_after_all();
}

/* State and weights after three steps without a fault. */
static void undisturbed(struct snapshot *snapshot)
{
	trainer_open(false, true, 1);
	optim_run(o, 1, 3);
	snapshot_take(o, snapshot);
	optim_close(o);
}

static void step_hangs_and_is_finished(bool pipeline, enum nvs_direction direction,
				       const struct snapshot *expected)
{
	float element;

	trainer_open(false, pipeline, 1);
	optim_run(o, 1, 1);
	optim_lend(o, 2, 1);
	sim_hold(o->sim, 1u << direction);
	STUCK(optim_step(o, 2));
	/* A repeated call hangs again, and so does every other call that needs the drive. */
	STUCK(optim_step(o, 2));
	sim_hold(o->sim, SIM_READS);
	STUCK(nvs_optimizer_get_weights(o->optimizer, &o->error));
	STUCK(nvs_optimizer_get(o->optimizer, 0, NVS_MASTER, 19999, 1, &element, &o->error));
	STUCK(nvs_optimizer_close(o->optimizer, &o->error));
	trainer_release();
	DONE(o, optim_step(o, 2));
	optim_run(o, 3, 3);
	IS_AS(o, expected);
	optim_close(o);
}

TEST(a_step_that_hangs_returns_and_is_finished_later)
{
	struct snapshot expected;

	undisturbed(&expected);
	for (int pipeline = 0; pipeline < 2; pipeline++)
		for (int direction = 0; direction < 2; direction++)
			step_hangs_and_is_finished(pipeline, (enum nvs_direction)direction,
						   &expected);
	snapshot_free(&expected);
}

/* Half of the state is in host memory; a commit writes it from there. */
TEST(a_commit_that_hangs_returns_and_succeeds_later)
{
	struct snapshot expected;

	undisturbed(&expected);
	trainer_open(true, true, 0.5);
	optim_run(o, 1, 2);
	sim_hold(o->sim, SIM_WRITES);
	STUCK(nvs_optimizer_commit(o->optimizer, &o->error));
	optim_lend(o, 3, 1);
	STUCK(optim_step(o, 3));
	STUCK(nvs_optimizer_commit(o->optimizer, &o->error));
	STUCK(nvs_optimizer_close(o->optimizer, &o->error));
	trainer_release();
	DONE(o, optim_step(o, 3));
	DONE(o, nvs_optimizer_commit(o->optimizer, &o->error));
	optim_shut(o);
	optim_first_weights(o);
	DONE(o, optim_open(o));
	DONE(o, nvs_optimizer_get_weights(o->optimizer, &o->error));
	IS_AS(o, &expected);
	optim_close(o);
	snapshot_free(&expected);
}

/* The failed open leaks what is in flight until the process ends, so it runs in a child. */
TEST(opening_an_optimizer_on_a_drive_that_hangs_returns)
{
	int status;
	pid_t child;

	trainer_open(true, true, 0.5);
	optim_run(o, 1, 1);
	optim_shut(o);
	child = fork();
	if (!child) {
		o->config.aio.io_timeout_ms = LIMIT_MS;
		sim_hold(o->sim, SIM_READS);
		MUST(optim_open(o) == -ETIMEDOUT);
		MUST(strstr(o->error.text, HANGS));
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	DONE(o, optim_open(o));
	optim_close(o);
}
