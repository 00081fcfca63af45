/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers, files and the aio itself in the hands of callers: closing early and in any order; and
 * pages of another length.
 */
#include <dlfcn.h>

#include "aio/aio_fixture.h"
#include "aio/internal.h"

#define PART 65536u

/* Replaces libc's function; the library under test is linked statically. */
static long page_size = 4096;

/* NOLINTNEXTLINE(readability-redundant-declaration) */
long sysconf(int name);
long sysconf(int name)
{
	long (*real)(int) = (long (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "sysconf");

	return name == _SC_PAGESIZE ? page_size : real(name);
}

AFTER_SUCCESS(rig_close)

/* ---- Closing ---- */

static void *close_file(void *arg)
{
	nvs_file_close(arg);
	return NULL;
}

/* Whether the close has begun: it waits, or the file has left the rings. */
static bool closes(void)
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
	pthread_t thread;

	RIG(.part = PART, .depth = 4);
	DO(submit_all(rig->aio, rig->all, 4, &rig->error));
	assert_true(fake_await_ios(&rig->fake, 4));
	assert_int_equal(pthread_create(&thread, NULL, close_file, rig->file), 0);
	while (!closes())
		sched_yield();
	for (unsigned i = 0; i < 4; i++)
		fake_release(&rig->fake, 1);
	pthread_join(thread, NULL);
	rig->file = NULL;
	for (unsigned i = 0; i < 4; i++)
		assert_true(is_completed(rig->all[i]));
}

TEST(a_file_may_be_closed_after_its_aio)
{
	RIG(.part = PART, .depth = 4);
	fake_release(&rig->fake, FAKE_ALL);
	for (unsigned i = 0; i < 3; i++)
		rig->transfers[i].state.next = &rig->transfers[i + 1];
	aio_submit_list(rig->aio, rig->queues[0], rig->all[0]);
	nvs_aio_close(rig->aio);
	rig->aio = NULL;
	for (unsigned i = 0; i < 4; i++)
		assert_true(is_completed(rig->all[i]));
	DO(nvs_file_sync(rig->file, &rig->error));
}

TEST(pages_are_as_long_as_the_kernel_says)
{
	page_size = PART;
	RIG(.part = PART, .depth = 4);
	fake_release(&rig->fake, FAKE_ALL);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data + 4096, PART), -EINVAL);
	assert_int_equal(nvs_aio_register_memory(rig->aio, rig->data, PART), 0);
	nvs_aio_unregister_memory(rig->aio, rig->data);
	if (nvs_file_direct(rig->file)) {
		rig->transfers[0].nbytes = 4096;
		DO(submit_all(rig->aio, rig->all, 2, &rig->error));
		DO(await_all(rig->aio, rig->all, 2, -1, &rig->error));
		/* A partial page is written through the page cache, a whole one directly. */
		assert_true(rig->fake.ios[0].sync);
		assert_false(rig->fake.ios[1].sync);
	}
	page_size = 4096;
}
