/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers, files and the aio itself in the hands of callers: closing early and in any order, calls
 * from the log callback.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aio/aio.h"
#include "aio/internal.h"
#include "base/clock.h"
#include "config/config.h"
#include "support/fake/fake_engine.h"
#include "support/submit.h"
#include "support/support.h"
#include "support/tests.h"

#define PART	 (64u * 1024)
#define AWAIT_MS 20000
#define AGES_MS	 1000000 /* a limit that passes only for aio_look_for_overdue() */

#define ERROR ((struct nvs_error){.size = sizeof(struct nvs_error)})

/* Replaces libc's function; the library under test is linked statically. */
static long page_size = 4096;

/* NOLINTNEXTLINE(readability-redundant-declaration) */
long sysconf(int name);
long sysconf(int name)
{
	long (*real)(int) = (long (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "sysconf");

	return name == _SC_PAGESIZE ? page_size : real(name);
}

struct rig {
	struct fake fake;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_error error;
	struct nvs_log log;
	char *data;
	struct transfer transfers[4]; /* adjacent writes of a part each */
	struct transfer *all[4];
};

static void rig_open(struct rig *rig, uint32_t io_timeout_ms, const struct nvs_log *log)
{
	*rig = (struct rig){.error = ERROR};
	fake_init(&rig->fake, NULL);
	rig->fake.dry = true;
	rig->data = aligned_alloc(PART, 4 * PART);
	assert_non_null(rig->data);
	rig->aio = fake_aio_open(
		&rig->fake,
		FAKE_CONFIG(.block_size = PART, .queue_depth = 4, .io_timeout_ms = io_timeout_ms),
		log);
	rig->file = fake_file_open(rig->aio, NVS_FILE_WRITE);
	for (unsigned i = 0; i < COUNT(rig->transfers); i++) {
		rig->transfers[i] = (struct transfer){.file = rig->file,
						      .direction = NVS_WRITE,
						      .data = rig->data + i * (size_t)PART,
						      .nbytes = PART,
						      .offset = i * (uint64_t)PART};
		rig->all[i] = &rig->transfers[i];
	}
	fake_forget(&rig->fake);
	fake_hold(&rig->fake);
}

static void rig_close(struct rig *rig)
{
	fake_release(&rig->fake, FAKE_ALL);
	nvs_file_close(rig->file);
	nvs_aio_close(rig->aio);
	fake_destroy(&rig->fake);
	free(rig->data);
}

/* ---- Closing ---- */

static void *close_file(void *arg)
{
	struct rig *rig = arg;

	nvs_file_close(rig->file);
	return NULL;
}

/* Whether the close has begun: it waits, or the file has left the rings. */
static bool closes(struct rig *rig)
{
	bool closes;

	pthread_mutex_lock(&rig->aio->lock);
	closes = LIST_EMPTY(&rig->aio->open_files) || rig->file->closing;
	pthread_mutex_unlock(&rig->aio->lock);
	return closes;
}

/* The fake engine aborts if a descriptor leaves its slot while an I/O in flight names it. */
TEST(closing_a_file_waits_for_its_transfers)
{
	static struct rig rig;
	pthread_t thread;

	rig_open(&rig, 0, NULL);
	SUCCEEDS(submit_all(rig.aio, rig.all, 4, &rig.error), &rig.error);
	assert_true(fake_await_ios(&rig.fake, 4));
	assert_int_equal(pthread_create(&thread, NULL, close_file, &rig), 0);
	while (!closes(&rig))
		sched_yield();
	for (unsigned i = 0; i < 4; i++)
		fake_release(&rig.fake, 1);
	pthread_join(thread, NULL);
	rig.file = NULL;
	for (unsigned i = 0; i < 4; i++)
		assert_true(is_completed(rig.all[i]));
	rig_close(&rig);
}

TEST(a_file_may_be_closed_after_its_aio)
{
	struct completions *queue;
	static struct rig rig;

	rig_open(&rig, 0, NULL);
	fake_release(&rig.fake, FAKE_ALL);
	assert_int_equal(completions_open(&queue), 0);
	for (unsigned i = 0; i < 3; i++)
		rig.transfers[i].state.next = &rig.transfers[i + 1];
	aio_submit_list(rig.aio, queue, rig.all[0]);
	nvs_aio_close(rig.aio);
	rig.aio = NULL;
	(void)completions_take(queue);
	completions_close(queue);
	for (unsigned i = 0; i < 4; i++)
		assert_true(is_completed(rig.all[i]));
	SUCCEEDS(nvs_file_sync(rig.file, &rig.error), &rig.error);
	rig_close(&rig);
}

/* ---- The log ---- */

struct listener {
	struct nvs_aio *aio;
	pthread_mutex_t lock;
	pthread_cond_t heard;
	unsigned messages;
};

/* Deadlocks if the library logs with the aio's lock held. */
static void call_the_aio(void *arg, enum nvs_log_level level, const char *text)
{
	struct listener *listener = arg;
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	(void)level;
	(void)text;
	if (listener->aio)
		nvs_aio_get_stats(listener->aio, &stats);
	pthread_mutex_lock(&listener->lock);
	listener->messages++;
	pthread_cond_broadcast(&listener->heard);
	pthread_mutex_unlock(&listener->lock);
}

static void await_messages(struct listener *listener, unsigned n)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc = 0;

	pthread_mutex_lock(&listener->lock);
	while (listener->messages < n && !rc)
		rc = cond_wait_until(&listener->heard, &listener->lock, deadline);
	assert_int_equal(listener->messages, n);
	pthread_mutex_unlock(&listener->lock);
}

TEST(the_log_may_call_the_aio)
{
	struct listener listener = {.lock = PTHREAD_MUTEX_INITIALIZER,
				    .heard = PTHREAD_COND_INITIALIZER};
	const struct nvs_log log = {call_the_aio, &listener};
	static struct rig rig;

	rig_open(&rig, AGES_MS, &log);
	listener.aio = rig.aio;
	SUCCEEDS(submit_all(rig.aio, rig.all, 4, &rig.error), &rig.error);
	assert_true(fake_await_ios(&rig.fake, 4));
	aio_look_for_overdue(rig.aio, clock_ns() + AGES_MS * UINT64_C(1000000));
	await_messages(&listener, 4);
	fake_release(&rig.fake, FAKE_ALL);
	await_messages(&listener, 8);
	SUCCEEDS(await_all(rig.aio, rig.all, 4, -1, &rig.error), &rig.error);
	rig_close(&rig);
}

/* ---- The machine ---- */

TEST(pages_are_as_long_as_the_kernel_says)
{
	static struct rig rig;

	page_size = PART;
	rig_open(&rig, 0, NULL);
	fake_release(&rig.fake, FAKE_ALL);
	assert_int_equal(nvs_aio_register_memory(rig.aio, rig.data + 4096, PART), -EINVAL);
	assert_int_equal(nvs_aio_register_memory(rig.aio, rig.data, PART), 0);
	nvs_aio_unregister_memory(rig.aio, rig.data);
	if (nvs_file_direct(rig.file)) {
		rig.transfers[0].nbytes = 4096;
		SUCCEEDS(submit_all(rig.aio, rig.all, 2, &rig.error), &rig.error);
		SUCCEEDS(await_all(rig.aio, rig.all, 2, -1, &rig.error), &rig.error);
		/* A partial page is written through the page cache, a whole one directly. */
		assert_true(rig.fake.ios[0].sync);
		assert_false(rig.fake.ios[1].sync);
	}
	page_size = 4096;
	rig_close(&rig);
}
