/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests, and files of failed ones, that one thread waits for while another closes them.
 * Threads take turns, in an order of each seed; under ThreadSanitizer they run at once.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "support/fake_aio.h"
#include "support/inject.h"
#include "support/support.h"
#include "support/turns.h"

#define PAGE   4096u
#define SEEDS  20u
#define ROUNDS 40u
#define BATCH  32u
/* Requests of the first chunk. */
#define CHUNK 256u

struct rig {
	struct fake fake;
	struct nvs_aio *aio;
	struct nvs_file *file; /* of two pages */
	struct nvs_error error;
	char data[2 * PAGE];
};

static void rig_open(struct rig *rig)
{
	*rig = (struct rig){.error.size = sizeof(rig->error)};
	fake_init(&rig->fake, NULL);
	rig->aio = fake_aio_open(&rig->fake, FAKE_CONFIG(.block_size = PAGE, .queue_depth = 8),
				 NULL);
	rig->file = fake_file_open(rig->aio, NVS_FILE_WRITE);
	SUCCEEDS(nvs_aio_pwrite(rig->aio, rig->file, rig->data, sizeof(rig->data), 0, NULL,
				&rig->error),
		 &rig->error);
	SUCCEEDS(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error), &rig->error);
}

/* Nothing is in flight, and every request is free: as many as there are need no memory. */
static void all_requests_are_free(struct rig *rig)
{
	struct nvs_transfer transfers[CHUNK];

	for (unsigned i = 0; i < CHUNK; i++)
		transfers[i] = (struct nvs_transfer){.size = sizeof(transfers[i]),
						     .file = rig->file};
	assert_int_equal(rig->aio->requests->total, CHUNK);
	inject_fail(INJECT_MEMORY, 1, INJECT_ALWAYS, ENOMEM);
	SUCCEEDS(nvs_aio_submit(rig->aio, transfers, CHUNK, NULL, &rig->error), &rig->error);
	inject_stop(NULL);
	SUCCEEDS(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error), &rig->error);
}

static void rig_close(struct rig *rig)
{
	all_requests_are_free(rig);
	nvs_file_close(rig->file);
	nvs_aio_close(rig->aio);
	fake_destroy(&rig->fake);
}

/* ---- A wait of another thread ---- */

enum how { FOR_SEVERAL, FOR_ANY, FOR_ALL, BY_STATUS };

struct wait {
	struct nvs_aio *aio;
	enum how how;
	struct nvs_request *requests[2];
	size_t n, index;
	int rc;
	struct nvs_error error;
	pthread_t thread;
};

static void *wait_main(void *arg)
{
	struct wait *wait = arg;

	wait->error.size = sizeof(wait->error);
	wait->index = 9;
	switch (wait->how) {
	case FOR_SEVERAL:
		wait->rc = nvs_aio_wait(wait->aio, wait->requests, wait->n, -1, &wait->error);
		break;
	case FOR_ANY:
		wait->rc = nvs_aio_wait_any(wait->aio, wait->requests, wait->n, -1, &wait->index,
					    &wait->error);
		break;
	case FOR_ALL:
		wait->rc = nvs_aio_wait_all(wait->aio, -1, NULL, &wait->error);
		break;
	case BY_STATUS:
		while ((wait->rc = nvs_request_status(wait->requests[0], &wait->error)) ==
		       -EINPROGRESS)
			sched_yield();
		break;
	}
	return NULL;
}

static void wait_begin(struct wait *wait)
{
	assert_int_equal(pthread_create(&wait->thread, NULL, wait_main, wait), 0);
}

static void wait_end(struct wait *wait)
{
	pthread_join(wait->thread, NULL);
}

/* ---- Closing a file ---- */

static void close_a_file_whose_transfer_failed(struct rig *rig, enum how how)
{
	struct nvs_file *file = fake_file_open(rig->aio, NVS_FILE_WRITE);
	struct wait wait = {.aio = rig->aio, .how = how, .n = 1};
	struct nvs_request **request = how == FOR_ALL ? NULL : &wait.requests[0];

	/* The file is empty. */
	SUCCEEDS(nvs_aio_pread(rig->aio, file, rig->data, PAGE, 0, request, &rig->error),
		 &rig->error);
	wait_begin(&wait);
	nvs_file_close(file);
	wait_end(&wait);
	assert_int_equal(wait.rc, -ENODATA);
	if (!strstr(wait.error.text, "closed since"))
		assert_says(wait.error.text, "reading build/tmp/nvswap-test-");
	assert_int_equal(nvs_request_close(wait.requests[0]), 0);
	assert_int_equal(nvs_aio_wait_all(rig->aio, -1, NULL, NULL), how == FOR_ALL ? 0 : -ENODATA);
}

static void a_file_may_be_closed_while_its_failure_is_told(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct rig rig;

		turns_begin(seed);
		rig_open(&rig);
		for (unsigned i = 0; i < ROUNDS; i++)
			close_a_file_whose_transfer_failed(&rig, (enum how)(i % 4));
		rig_close(&rig);
		turns_end();
	}
}

/* ---- Closing requests ---- */

struct closer {
	struct rig *rig;
	pthread_t thread;
	int rc;
};

static void *submit_and_close(void *arg)
{
	struct closer *closer = arg;
	struct nvs_transfer transfers[BATCH];
	struct nvs_request *requests[BATCH];

	for (unsigned i = 0; i < BATCH; i++)
		transfers[i] = (struct nvs_transfer){.size = sizeof(transfers[i]),
						     .file = closer->rig->file};
	for (unsigned round = 0; round < 50 * ROUNDS && !closer->rc; round++) {
		closer->rc = nvs_aio_submit(closer->rig->aio, transfers, BATCH, requests, NULL);
		for (unsigned i = 0; i < BATCH && !closer->rc; i++)
			closer->rc = nvs_request_close(requests[i]);
	}
	return NULL;
}

struct waiter {
	struct nvs_aio *aio;
	atomic_bool stop;
	pthread_t thread;
};

static void *wait_for_all_again(void *arg)
{
	struct waiter *waiter = arg;

	while (!waiter->stop)
		nvs_aio_wait_all(waiter->aio, 0, NULL, NULL);
	return NULL;
}

/* Without turns: a request is closed without a lock. */
static void requests_are_closed_while_another_thread_sees_all(void **state)
{
	struct closer closers[2];
	struct waiter waiter = {0};
	struct rig rig;

	(void)state;
	rig_open(&rig);
	waiter.aio = rig.aio;
	assert_int_equal(pthread_create(&waiter.thread, NULL, wait_for_all_again, &waiter), 0);
	for (unsigned i = 0; i < 2; i++) {
		closers[i] = (struct closer){.rig = &rig};
		assert_int_equal(
			pthread_create(&closers[i].thread, NULL, submit_and_close, &closers[i]), 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(closers[i].thread, NULL);
		assert_int_equal(closers[i].rc, 0);
	}
	waiter.stop = true;
	pthread_join(waiter.thread, NULL);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_file_may_be_closed_while_its_failure_is_told),
		test(requests_are_closed_while_another_thread_sees_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
