/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log function that blocks delays nothing but other messages and the closing of what the messages
 * are about.
 */
#include "aio/aio_fixture.h"
#include "aio/internal.h"

#define LIMIT_MS 20 /* a limit that passes in real time */

static struct nvs_request *requests[2]; /* reads of a part each */

/* The log function. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned messages;
	bool blocks, calls, returned;
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void block(void *arg, enum nvs_log_level level, const char *text)
{
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	(void)arg;
	(void)level;
	(void)text;
	/* Deadlocks if the library logs with the aio's lock held. */
	if (heard.calls)
		nvs_aio_get_stats(rig->aio, &stats);
	pthread_mutex_lock(&heard.lock);
	heard.messages++;
	pthread_cond_broadcast(&heard.changed);
	while (heard.blocks)
		pthread_cond_wait(&heard.changed, &heard.lock);
	heard.returned = true;
	pthread_mutex_unlock(&heard.lock);
}

static void await_messages(unsigned n)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc = 0;

	pthread_mutex_lock(&heard.lock);
	while (heard.messages < n && !rc)
		rc = cond_wait_until(&heard.changed, &heard.lock, deadline);
	pthread_mutex_unlock(&heard.lock);
	assert_int_equal(heard.messages, n);
}

static void *unblock(void *arg)
{
	(void)arg;

	pthread_mutex_lock(&heard.lock);
	heard.blocks = false;
	pthread_cond_broadcast(&heard.changed);
	pthread_mutex_unlock(&heard.lock);
	return NULL;
}

static void rig_open(const struct engine_ops *ops, uint32_t io_timeout_ms)
{
	heard.messages = 0;
	heard.blocks = true;
	heard.returned = heard.calls = false;
	RIG(.part = 4096, .depth = 2, .io_timeout_ms = io_timeout_ms, .log = {block, NULL},
	    .ops = ops, .buffered = true);
	requests[0] = start(0);
}

/* Waits for a read that was perhaps overdue. */
static void await(unsigned i)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc;

	do
		rc = nvs_aio_wait(rig->aio, &requests[i], 1, AWAIT_MS, &rig->error);
	while (rc == -ETIMEDOUT && clock_ns() < deadline);
	DO(rc);
	nvs_request_close(requests[i]);
}

AFTER_SUCCESS(rig_close)

/* The log function is told that read 0 is overdue, and blocks. */
static void rig_open_blocked(void)
{
	rig_open(NULL, LIMIT_MS);
	await_messages(1);
}

TEST(a_read_completes_and_its_file_closes_while_the_log_function_blocks)
{
	rig_open_blocked();
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	nvs_file_close(rig->file);
	rig->file = NULL;
	unblock(NULL);
	rig_close();
	assert_int_equal(heard.messages, 2);
}

TEST(a_read_is_found_overdue_while_the_log_function_blocks)
{
	rig_open_blocked();
	requests[1] = start(1);
	assert_int_equal(nvs_aio_wait(rig->aio, &requests[1], 1, AWAIT_MS, &rig->error),
			 -ETIMEDOUT);
	assert_says(rig->error.text, "the drive hangs");
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	await(1);
	unblock(NULL);
}

/* So the program may free what the function uses. */
TEST(an_aio_is_closed_when_the_log_function_has_returned)
{
	pthread_t thread;

	rig_open_blocked();
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	assert_false(heard.returned);
	assert_int_equal(pthread_create(&thread, NULL, unblock, NULL), 0);
	rig_close();
	assert_true(heard.returned);
	assert_int_equal(heard.messages, 2);
	pthread_join(thread, NULL);
}

TEST(the_log_may_call_the_aio)
{
	rig_open(NULL, AGES_MS);
	heard.blocks = false;
	heard.calls = true;
	requests[1] = start(1);
	assert_true(fake_await_ios(&rig->fake, 2));
	aio_find_overdue(rig->aio, clock_ns() + AGES_NS);
	await_messages(2);
	fake_release(&rig->fake, FAKE_ALL);
	await_messages(4);
	await(0);
	await(1);
}

/* The fake engine, except that its first call to reap fails. */
static struct engine_ops fails_to_reap;
static unsigned failures;

static int fail_first(void *queue, struct io **ios, unsigned max, unsigned min)
{
	return failures++ ? engine_fake.reap(queue, ios, max, min) : -EBADF;
}

TEST(a_worker_goes_on_while_the_log_function_blocks)
{
	fails_to_reap = engine_fake;
	fails_to_reap.reap = fail_first;
	rig_open(&fails_to_reap, 0);
	await_messages(1);
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	unblock(NULL);
	rig_close();
	assert_int_equal(heard.messages, 1);
}

EACH_TEST(NULL, cleanup)
