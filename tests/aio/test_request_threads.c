/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests, and files of failed ones, that one thread waits for while another takes or closes them.
 * Threads take turns, in an order of each seed; under ThreadSanitizer they run at once.
 */
#include <stdatomic.h>

#include "aio/aio_fixture.h"
#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "support/inject.h"
#include "support/turns.h"

#define PAGE   4096u
#define SEEDS  20u
#define ROUNDS 40u
#define BATCH  32u
/* Requests of the first chunk. */
#define CHUNK 256u

static void rig_open(void)
{
	RIG(.part = PAGE, .depth = 8, .moves = true);
}

/* Nothing is in flight, and every request is free: as many as there are need no memory. */
static void all_requests_are_free(void)
{
	struct nvs_transfer transfers[CHUNK];

	for (unsigned i = 0; i < CHUNK; i++)
		transfers[i] = (struct nvs_transfer){.size = sizeof(transfers[i]),
						     .file = rig->file};
	assert_int_equal(rig->aio->requests->total, CHUNK);
	inject_fail(INJECT_MEMORY, 1, INJECT_ALWAYS, ENOMEM);
	DO(nvs_aio_submit(rig->aio, transfers, CHUNK, NULL, &rig->error));
	inject_stop(NULL);
	DO(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error));
}

static void check_and_close(void)
{
	if (rig->aio)
		all_requests_are_free();
	rig_close();
}
AFTER_SUCCESS(check_and_close)

/* ---- A wait of another thread ---- */

enum how { FOR_SEVERAL, FOR_ANY, FOR_ALL, BY_STATUS };

struct wait {
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
		wait->rc = nvs_aio_wait(rig->aio, wait->requests, wait->n, -1, &wait->error);
		break;
	case FOR_ANY:
		wait->rc = nvs_aio_wait_any(rig->aio, wait->requests, wait->n, -1, &wait->index,
					    &wait->error);
		break;
	case FOR_ALL:
		wait->rc = nvs_aio_wait_all(rig->aio, -1, NULL, &wait->error);
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

/* Waits until the call has named its first request. */
static void wait_begun(struct wait *wait)
{
	bool begun = false;

	while (!begun) {
		sched_yield();
		pthread_mutex_lock(&rig->aio->lock);
		begun = wait->requests[0]->naming;
		pthread_mutex_unlock(&rig->aio->lock);
	}
}

static void wait_end(struct wait *wait)
{
	pthread_join(wait->thread, NULL);
}

static void close_a_file_whose_transfer_failed(enum how how)
{
	struct nvs_file *file = fake_file_open(rig->aio, NVS_FILE_WRITE);
	struct wait wait = {.how = how, .n = 1};
	struct nvs_request **request = how == FOR_ALL ? NULL : &wait.requests[0];

	/* The file is empty. */
	DO(nvs_aio_pread(rig->aio, file, rig->data, PAGE, 0, request, &rig->error));
	wait_begin(&wait);
	nvs_file_close(file);
	wait_end(&wait);
	assert_int_equal(wait.rc, -ENODATA);
	if (!strstr(wait.error.text, "closed since"))
		assert_says(wait.error.text, "reading build/tmp/nvswap-test-");
	assert_int_equal(nvs_request_close(wait.requests[0]), 0);
	assert_int_equal(nvs_aio_wait_all(rig->aio, -1, NULL, NULL), how == FOR_ALL ? 0 : -ENODATA);
}

TEST(a_file_may_be_closed_while_its_failure_is_told)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		turns_begin(seed);
		rig_open();
		for (unsigned i = 0; i < ROUNDS; i++)
			close_a_file_whose_transfer_failed((enum how)(i % 4));
		check_and_close();
		turns_end();
	}
}

/* ---- Taking ---- */

TEST(a_request_that_a_call_waits_for_is_not_taken)
{
	struct nvs_request *taken[2];
	int fd;

	rig_open();
	fd = nvs_aio_eventfd(rig->aio);
	fake_hold(&rig->fake);

	struct wait wait = {.requests = {start(0), start(1)}, .n = 2};

	wait_begin(&wait);
	wait_begun(&wait);
	fake_release(&rig->fake, 1);
	await_completion(wait.requests[0]);
	assert_false(readable(fd));
	assert_int_equal(nvs_aio_take(rig->aio, taken, 2), 0);
	fake_release(&rig->fake, FAKE_ALL);
	wait_end(&wait);
	SUCCEEDS(wait.rc, &wait.error);
	assert_false(readable(fd));
	assert_int_equal(nvs_aio_take(rig->aio, taken, 2), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(nvs_request_close(wait.requests[i]), 0);
}

TEST(requests_beside_one_that_a_call_waits_for_are_taken)
{
	struct nvs_request *other, *taken[2];

	rig_open();
	fake_forget(&rig->fake);
	fake_hold(&rig->fake);

	struct wait wait = {.requests = {start(0), NULL}, .n = 2};

	other = start(0);
	wait.requests[1] = start(1);
	/* What a wait names goes before others that are not submitted yet. */
	assert_true(fake_await_ios(&rig->fake, 3));
	wait_begin(&wait);
	wait_begun(&wait);
	fake_release(&rig->fake, 2);
	await_completion(other);
	assert_true(readable(nvs_aio_eventfd(rig->aio)));
	assert_int_equal(nvs_aio_take(rig->aio, taken, 2), 1);
	assert_ptr_equal(taken[0], other);
	assert_false(readable(nvs_aio_eventfd(rig->aio)));
	assert_int_equal(nvs_request_close(other), 0);
	fake_release(&rig->fake, FAKE_ALL);
	wait_end(&wait);
	SUCCEEDS(wait.rc, &wait.error);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(nvs_request_close(wait.requests[i]), 0);
}

TEST(what_completed_during_a_wait_that_ended_before_is_taken)
{
	struct nvs_request *requests[2], *taken[2];
	size_t index;

	rig_open();
	fake_hold(&rig->fake);
	for (unsigned i = 0; i < 2; i++)
		requests[i] = start(i);
	fake_release(&rig->fake, 1);
	await_completion(requests[0]);
	assert_int_equal(nvs_aio_wait(rig->aio, requests, 2, 1, NULL), -ETIMEDOUT);
	assert_true(readable(nvs_aio_eventfd(rig->aio)));
	assert_int_equal(nvs_aio_take(rig->aio, taken, 2), 1);
	assert_ptr_equal(taken[0], requests[0]);
	fake_release(&rig->fake, FAKE_ALL);
	await_completion(requests[1]);
	DO(nvs_aio_wait_any(rig->aio, requests, 2, -1, &index, &rig->error));
	assert_int_equal(index, 0);
	assert_int_equal(nvs_aio_take(rig->aio, taken, 2), 1);
	assert_ptr_equal(taken[0], requests[1]);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(nvs_request_close(requests[i]), 0);
}

static atomic_bool stop;

static void *take_and_close(void *arg)
{
	(void)arg;
	while (!stop) {
		struct nvs_request *taken[BATCH];
		size_t n = nvs_aio_take(rig->aio, taken, BATCH);

		for (size_t i = 0; i < n; i++)
			nvs_request_close(taken[i]);
		sched_yield();
	}
	return NULL;
}

/* A request may be taken and closed before the wait for it begins. */
TEST(a_thread_takes_while_another_waits)
{
	unsigned waited = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		pthread_t taker;

		turns_begin(seed);
		rig_open();
		stop = false;
		assert_int_equal(pthread_create(&taker, NULL, take_and_close, NULL), 0);
		for (unsigned i = 0; i < ROUNDS; i++) {
			struct wait wait = {.how = i % 2 ? FOR_ANY : FOR_SEVERAL,
					    .requests = {start(0)},
					    .n = 1};

			wait_main(&wait);
			assert_true(wait.rc == 0 || wait.rc == -EINVAL);
			waited += !wait.rc;
			nvs_request_close(wait.requests[0]);
		}
		stop = true;
		pthread_join(taker, NULL);
		check_and_close();
		turns_end();
	}
	assert_true(waited);
}

/* ---- Closing requests ---- */

TEST(a_wait_for_a_request_that_is_closed_meanwhile_is_refused)
{
	struct nvs_request *later;

	rig_open();
	fake_hold(&rig->fake);

	struct wait wait = {.requests = {start(0), start(1)}, .n = 2};

	wait_begin(&wait);
	wait_begun(&wait);
	fake_release(&rig->fake, 1);
	await_completion(wait.requests[0]);
	assert_int_equal(nvs_request_close(wait.requests[0]), 0);
	assert_int_equal(nvs_request_close(wait.requests[0]), -EINVAL);
	assert_int_equal(nvs_request_status(wait.requests[0], NULL), -EINVAL);
	/* Its memory serves no later request while the wait goes on. */
	for (unsigned i = 0; i < CHUNK; i++) {
		DO(nvs_aio_pread(rig->aio, rig->file, rig->data, 0, 0, &later, &rig->error));
		assert_ptr_not_equal(later, wait.requests[0]);
		assert_int_equal(nvs_request_close(later), 0);
	}
	fake_release(&rig->fake, FAKE_ALL);
	wait_end(&wait);
	assert_int_equal(wait.rc, -EINVAL);
	assert_says(wait.error.text, "requests[0] was closed during the wait");
	assert_int_equal(nvs_request_close(wait.requests[1]), 0);
}

TEST(a_wait_for_any_that_is_closed_meanwhile_is_refused)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		turns_begin(seed);
		rig_open();
		for (unsigned i = 0; i < ROUNDS; i++) {
			struct wait wait = {.how = FOR_ANY, .requests = {start(0)}, .n = 1};

			wait_begin(&wait);
			while (nvs_request_close(wait.requests[0]))
				sched_yield();
			wait_end(&wait);
			assert_true(wait.rc == 0 || wait.rc == -EINVAL);
			assert_int_equal(wait.index, wait.rc ? 1 : 0);
		}
		check_and_close();
		turns_end();
	}
}

static void *submit_and_close(void *arg)
{
	struct nvs_transfer transfers[BATCH];
	struct nvs_request *requests[BATCH];

	(void)arg;
	for (unsigned i = 0; i < BATCH; i++)
		transfers[i] = (struct nvs_transfer){.size = sizeof(transfers[i]),
						     .file = rig->file};
	for (unsigned round = 0; round < 50 * ROUNDS; round++) {
		MUST(!nvs_aio_submit(rig->aio, transfers, BATCH, requests, NULL));
		for (unsigned i = 0; i < BATCH; i++)
			MUST(!nvs_request_close(requests[i]));
	}
	return NULL;
}

static void *wait_for_all_again(void *arg)
{
	while (!stop)
		nvs_aio_wait_all(rig->aio, 0, NULL, NULL);
	return arg;
}

/* Without turns: a request is closed without a lock. */
TEST(requests_are_closed_while_another_thread_sees_all)
{
	pthread_t closers[2], waiter;

	rig_open();
	stop = false;
	assert_int_equal(pthread_create(&waiter, NULL, wait_for_all_again, NULL), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&closers[i], NULL, submit_and_close, NULL), 0);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(closers[i], NULL);
	stop = true;
	pthread_join(waiter, NULL);
}

EACH_TEST(NULL, cleanup)
