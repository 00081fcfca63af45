/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log function that blocks delays nothing but other messages and the closing of what the messages
 * are about.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "aio/internal.h"
#include "base/clock.h"
#include "support/fake/fake_engine.h"
#include "support/support.h"
#include "support/tests.h"

#define PART	 4096u
#define LIMIT_MS 20 /* a limit that passes in real time */
#define AWAIT_MS 20000

struct rig {
	struct fake fake;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_error error;
	struct nvs_request *requests[2]; /* reads of a part each */
	char data[2 * PART];

	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned messages;
	bool blocks; /* the log function */
	bool returned;
};
static struct rig one_rig, *const rig = &one_rig;
#define DO(call) SUCCEEDS(call, &rig->error)

static void block(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg;

	(void)level;
	(void)text;
	pthread_mutex_lock(&rig->lock);
	rig->messages++;
	pthread_cond_broadcast(&rig->changed);
	while (rig->blocks)
		pthread_cond_wait(&rig->changed, &rig->lock);
	rig->returned = true;
	pthread_mutex_unlock(&rig->lock);
}

static void await_message(void)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc = 0;

	pthread_mutex_lock(&rig->lock);
	while (!rig->messages && !rc)
		rc = cond_wait_until(&rig->changed, &rig->lock, deadline);
	pthread_mutex_unlock(&rig->lock);
	assert_int_equal(rc, 0);
}

static void *unblock(void *arg)
{
	(void)arg;

	pthread_mutex_lock(&rig->lock);
	rig->blocks = false;
	pthread_cond_broadcast(&rig->changed);
	pthread_mutex_unlock(&rig->lock);
	return NULL;
}

static void rig_open(const struct engine_ops *ops, uint32_t io_timeout_ms)
{
	const struct aio_config *config = FAKE_CONFIG(.block_size = PART, .queue_depth = 2,
						      .io_timeout_ms = io_timeout_ms);
	const struct nvs_log log = {block, rig};

	*rig = (struct rig){.error = {.size = sizeof(rig->error)},
			    .lock = PTHREAD_MUTEX_INITIALIZER,
			    .changed = PTHREAD_COND_INITIALIZER,
			    .blocks = true};
	fake_init(&rig->fake, NULL);
	rig->fake.dry = true;
	DO(aio_open_with(&rig->aio, config, ops, &rig->fake, &log, &rig->error));
	rig->file = fake_file_open(rig->aio, NVS_FILE_WRITE | NVS_FILE_BUFFERED);
	fake_hold(&rig->fake);
}

static void start(unsigned i)
{
	DO(nvs_aio_pread(rig->aio, rig->file, rig->data + i * PART, PART, i * PART,
			 &rig->requests[i], &rig->error));
}

/* Waits for a read that was perhaps overdue. */
static void await(unsigned i)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc;

	do
		rc = nvs_aio_wait(rig->aio, &rig->requests[i], 1, AWAIT_MS, &rig->error);
	while (rc == -ETIMEDOUT && clock_ns() < deadline);
	DO(rc);
	nvs_request_close(rig->requests[i]);
}

static void rig_close(void)
{
	if (!rig->aio)
		return;
	assert_int_equal(nvs_aio_close(rig->aio), 0);
	fake_destroy(&rig->fake);
	rig->aio = NULL;
}
AFTER_SUCCESS(rig_close)

/* The log function is told that read 0 is overdue, and blocks. */
static void rig_open_blocked(void)
{
	rig_open(&engine_fake, LIMIT_MS);
	start(0);
	await_message();
}

TEST(a_read_completes_and_its_file_closes_while_the_log_function_blocks)
{
	rig_open_blocked();
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	nvs_file_close(rig->file);
	unblock(rig);
	rig_close();
	assert_int_equal(rig->messages, 2);
}

TEST(a_read_is_found_overdue_while_the_log_function_blocks)
{
	rig_open_blocked();
	start(1);
	assert_int_equal(nvs_aio_wait(rig->aio, &rig->requests[1], 1, AWAIT_MS, &rig->error),
			 -ETIMEDOUT);
	assert_says(rig->error.text, "the drive hangs");
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	await(1);
	unblock(rig);
	nvs_file_close(rig->file);
}

/* So the program may free what the function uses. */
TEST(an_aio_is_closed_when_the_log_function_has_returned)
{
	pthread_t thread;

	rig_open_blocked();
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	nvs_file_close(rig->file);
	assert_false(rig->returned);
	assert_int_equal(pthread_create(&thread, NULL, unblock, rig), 0);
	rig_close();
	assert_true(rig->returned);
	assert_int_equal(rig->messages, 2);
	pthread_join(thread, NULL);
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
	start(0);
	await_message();
	fake_release(&rig->fake, FAKE_ALL);
	await(0);
	nvs_file_close(rig->file);
	unblock(rig);
	rig_close();
	assert_int_equal(rig->messages, 1);
}

EACH_TEST(NULL, cleanup)
