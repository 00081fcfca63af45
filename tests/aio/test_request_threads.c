/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that one thread waits for while another closes them.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "support/fake_aio.h"
#include "support/inject.h"
#include "support/support.h"

#define PAGE   4096u
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

/* A request is closed without a lock. */
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
		test(requests_are_closed_while_another_thread_sees_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
