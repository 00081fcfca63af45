/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: submitting described transfers; waiting for several, any or all; taking completed
 * requests; every misuse. The fake engine holds and fails I/Os.
 */
#include "aio/aio_fixture.h"
#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "support/inject.h"

#define PAGE  4096u
#define PAGES 64u

static void rig_open(void)
{
	RIG(.part = PAGE, .depth = 8, .io_timeout_ms = AGES_MS, .moves = true);
}

AFTER_SUCCESS(rig_close)

static struct nvs_transfer page_at(unsigned i)
{
	return (struct nvs_transfer){
		.size = sizeof(struct nvs_transfer),
		.file = rig->file,
		.direction = NVS_READ,
		.data = rig->data + (size_t)i * PAGE,
		.nbytes = PAGE,
		.offset = (uint64_t)i * PAGE,
	};
}

static void await_one(struct nvs_request *request)
{
	DO(nvs_aio_wait(rig->aio, &request, 1, -1, &rig->error));
}

/* ---- Submitting ---- */

TEST(what_pwrite_writes_pread_reads)
{
	struct nvs_request *request;

	rig_open();
	strcpy(rig->data, "some bytes");
	DO(nvs_aio_pwrite(rig->aio, rig->file, rig->data, 11, 5, &request, &rig->error));
	await_one(request);
	assert_int_equal(nvs_request_close(request), 0);
	memset(rig->data, 0, 11);
	DO(nvs_aio_pread(rig->aio, rig->file, rig->data, 11, 5, &request, &rig->error));
	await_one(request);
	assert_string_equal(rig->data, "some bytes");
	assert_int_equal(nvs_request_status(request, NULL), 0);
	assert_int_equal(nvs_request_close(request), 0);
}

TEST(a_transfer_is_not_needed_once_submitted)
{
	struct nvs_transfer transfers[2];
	struct nvs_request *requests[2];

	rig_open();
	fake_hold(&rig->fake);
	for (unsigned i = 0; i < 2; i++) {
		transfers[i] = page_at(i);
		transfers[i].user = &transfers[i];
	}
	DO(nvs_aio_submit(rig->aio, transfers, 2, requests, &rig->error));
	memset(transfers, 0xff, sizeof(transfers));
	fake_release(&rig->fake, FAKE_ALL);
	DO(nvs_aio_wait(rig->aio, requests, 2, -1, &rig->error));
	for (unsigned i = 0; i < 2; i++) {
		assert_ptr_equal(nvs_request_user(requests[i]), &transfers[i]);
		assert_int_equal(nvs_request_close(requests[i]), 0);
	}
}

TEST(waiting_for_all_closes_only_requests_without_an_array)
{
	struct nvs_request *request;
	int64_t blocks;

	rig_open();
	request = start(0);
	blocks = inject_held().blocks;
	for (unsigned i = 0; i < 1000; i++) {
		DO(nvs_aio_pread(rig->aio, rig->file, rig->data, PAGE, 0, NULL, &rig->error));
		DO(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error));
	}
	assert_int_equal(inject_held().blocks, blocks);
	assert_int_equal(nvs_request_status(request, &rig->error), 0);
	assert_int_equal(nvs_request_close(request), 0);
}

TEST(with_n_of_0_arrays_may_be_null)
{
	size_t index = 7;

	rig_open();
	assert_int_equal(nvs_aio_submit(rig->aio, NULL, 0, NULL, &rig->error), 0);
	assert_int_equal(nvs_aio_wait(rig->aio, NULL, 0, -1, &rig->error), 0);
	assert_int_equal(nvs_aio_wait_any(rig->aio, NULL, 0, -1, &index, &rig->error), -EINVAL);
	assert_int_equal(index, 0);
	assert_int_equal(nvs_aio_take(rig->aio, NULL, 0), 0);
}

TEST(an_invalid_transfer_submits_nothing)
{
	struct nvs_transfer good, bad[9], transfers[2];
	struct nvs_request *requests[2] = {(struct nvs_request *)rig, NULL};
	struct nvs_file *reading;
	struct nvs_aio *other;

	rig_open();
	good = page_at(0);
	for (unsigned i = 0; i < COUNT(bad); i++)
		bad[i] = good;
	bad[0].file = NULL;
	bad[1].data = NULL;
	bad[2].direction = (enum nvs_direction)2;
	bad[3].offset = UINT64_MAX;
	bad[4].size = 0;
	bad[5].size = 8;
	bad[6].size += 8;
	bad[7].offset = INT64_MAX - PAGE + 1;
	bad[8].nbytes = UINT64_MAX;
	for (unsigned i = 0; i < COUNT(bad); i++) {
		transfers[0] = i == 5 ? bad[5] : good;
		transfers[1] = bad[i];
		assert_int_equal(nvs_aio_submit(rig->aio, transfers, 2, requests, &rig->error),
				 -EINVAL);
		assert_true(rig->error.text[0]);
	}
	reading = fake_file_open(rig->aio, 0);
	transfers[0] = transfers[1] = good;
	transfers[1].file = reading;
	transfers[1].direction = NVS_WRITE;
	assert_int_equal(nvs_aio_submit(rig->aio, transfers, 2, requests, &rig->error), -EINVAL);
	assert_says(rig->error.text, "NVS_FILE_WRITE");
	nvs_file_close(reading);
	DO(aio_open_with(&other, FAKE_CONFIG(.block_size = PAGE, .queue_depth = 1), NULL, NULL,
			 NULL, &rig->error));
	assert_int_equal(nvs_aio_submit(other, &good, 1, requests, &rig->error), -EINVAL);
	assert_says(rig->error.text, "another aio");
	assert_says(rig->error.text, rig->file->members[0].path);
	nvs_aio_close(other);
	/* No request is left to the caller. */
	assert_int_equal(nvs_aio_pread(rig->aio, NULL, rig->data, 1, 0, &requests[0], NULL),
			 -EINVAL);
	assert_null(requests[0]);
	assert_int_equal(rig->fake.nios, 0);
}

TEST(transfers_of_another_version_are_read_by_their_size)
{
	const size_t smaller = offsetof(struct nvs_transfer, user);
	struct {
		struct nvs_transfer transfer;
		uint64_t unknown;
	} larger[2];
	struct nvs_request *requests[2];
	char smaller_ones[2 * sizeof(struct nvs_transfer)];

	rig_open();
	for (unsigned i = 0; i < 2; i++) {
		struct nvs_transfer transfer = page_at(i);

		transfer.size = smaller;
		memcpy(smaller_ones + i * smaller, &transfer, smaller);
		larger[i].transfer = transfer;
		larger[i].transfer.size = sizeof(larger[i]);
		larger[i].unknown = 0;
	}
	DO(nvs_aio_submit(rig->aio, (struct nvs_transfer *)(void *)smaller_ones, 2, requests,
			  &rig->error));
	DO(nvs_aio_submit(rig->aio, &larger[0].transfer, 2, NULL, &rig->error));
	DO(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error));
	assert_null(nvs_request_user(requests[1]));
	assert_int_equal(rig->fake.nios, 4);
	larger[1].unknown = 1;
	assert_int_equal(nvs_aio_submit(rig->aio, &larger[0].transfer, 2, NULL, &rig->error),
			 -E2BIG);
}

TEST(no_memory_is_allocated_for_as_many_requests_as_before)
{
	static struct nvs_request *requests[1000];

	rig_open();
	for (unsigned round = 0; round < 3; round++) {
		if (round)
			inject_fail(INJECT_MEMORY, 1, INJECT_ALWAYS, ENOMEM);
		for (unsigned i = 0; i < COUNT(requests); i++)
			requests[i] = start(i % PAGES);
		DO(nvs_aio_wait(rig->aio, requests, COUNT(requests), -1, &rig->error));
		for (unsigned i = 0; i < COUNT(requests); i++)
			assert_int_equal(nvs_request_close(requests[i]), 0);
		if (round)
			inject_stop(NULL);
	}
}

TEST(without_memory_nothing_is_submitted)
{
	static struct nvs_transfer transfers[600];
	uint64_t completed;

	rig_open();
	for (unsigned i = 0; i < COUNT(transfers); i++)
		transfers[i] = page_at(i % PAGES);
	inject_fail(INJECT_MEMORY, 1, 1, ENOMEM);
	assert_int_equal(nvs_aio_submit(rig->aio, transfers, COUNT(transfers), NULL, &rig->error),
			 -ENOMEM);
	inject_stop(NULL);
	assert_int_equal(rig->fake.nios, 0);
	DO(nvs_aio_submit(rig->aio, transfers, COUNT(transfers), NULL, &rig->error));
	DO(nvs_aio_wait_all(rig->aio, -1, &completed, &rig->error));
	assert_int_equal(completed, COUNT(transfers));
}

/* ---- Waiting ---- */

TEST(a_wait_for_several_returns_the_first_failure_in_array_order)
{
	struct nvs_request *requests[3];

	rig_open();
	fake_hold(&rig->fake);
	rig->fake.newest_first = true;
	fake_fail_at(&rig->fake, PAGE, 1, -EIO);
	fake_fail_at(&rig->fake, 0, 1, -ENOSPC);
	for (unsigned i = 0; i < 3; i++)
		requests[i] = start(2 - i);
	assert_true(fake_await_ios(&rig->fake, 3));
	fake_release(&rig->fake, FAKE_ALL);
	assert_int_equal(nvs_aio_wait(rig->aio, requests, 3, -1, &rig->error), -EIO);
	assert_int_equal(rig->error.offset, PAGE);
	assert_int_equal(rig->error.cause, NVS_CAUSE_IO);
	assert_int_not_equal(rig->error.path_nbytes, 0);
	assert_int_equal(nvs_request_status(requests[0], NULL), 0);
	assert_int_equal(nvs_request_status(requests[2], &rig->error), -ENOSPC);
	assert_int_equal(rig->error.offset, 0);
	/* A completed request can be waited for again. */
	assert_int_equal(nvs_aio_wait(rig->aio, requests, 1, 0, NULL), 0);
}

TEST(a_wait_is_bounded_in_time_and_loses_nothing)
{
	struct nvs_request *requests[2];
	uint64_t completed = 9;
	size_t index;

	rig_open();
	fake_hold(&rig->fake);
	for (unsigned i = 0; i < 2; i++)
		requests[i] = start(i);
	assert_int_equal(nvs_request_status(requests[0], NULL), -EINPROGRESS);
	assert_int_equal(nvs_aio_wait(rig->aio, requests, 1, 0, NULL), -EAGAIN);
	assert_int_equal(nvs_aio_wait(rig->aio, requests, 2, 1, &rig->error), -ETIMEDOUT);
	assert_int_equal(rig->error.code, -ETIMEDOUT);
	assert_says(rig->error.text, "in flight");
	assert_int_equal(nvs_aio_wait_any(rig->aio, requests, 1, 0, &index, NULL), -EAGAIN);
	assert_int_equal(index, 1);
	assert_int_equal(nvs_aio_wait_all(rig->aio, 0, &completed, NULL), -EAGAIN);
	assert_int_equal(nvs_aio_wait_all(rig->aio, 1, &completed, &rig->error), -ETIMEDOUT);
	assert_int_equal(completed, 9);
	/* A wait for one ignores others in flight. */
	fake_release(&rig->fake, 1);
	await_one(requests[0]);
	assert_int_equal(nvs_aio_wait(rig->aio, requests, 2, 0, NULL), -EAGAIN);
	fake_release(&rig->fake, FAKE_ALL);
	await_one(requests[1]);
}

TEST(a_wait_for_any_returns_the_one_that_completed)
{
	struct nvs_request *requests[4];
	size_t index;

	rig_open();
	fake_hold(&rig->fake);
	fake_fail_at(&rig->fake, 2 * PAGE, 1, -EIO);
	for (unsigned i = 0; i < 4; i++)
		requests[i] = start(i);
	for (unsigned i = 0; i < 4; i++) {
		fake_release(&rig->fake, 1);
		assert_int_equal(nvs_aio_wait_any(rig->aio, requests, 4, -1, &index, &rig->error),
				 i == 2 ? -EIO : 0);
		assert_int_equal(index, i);
		assert_int_equal(nvs_request_close(requests[index]), 0);
		requests[index] = NULL;
	}
	assert_int_equal(nvs_aio_wait_any(rig->aio, requests, 4, -1, &index, NULL), -EINVAL);
	assert_int_equal(index, 4);
}

TEST(a_wait_for_all_counts_what_was_submitted_since_the_last)
{
	struct nvs_request *waited, *closed;
	uint64_t completed;

	rig_open();
	DO(nvs_aio_wait_all(rig->aio, 0, &completed, &rig->error));
	assert_int_equal(completed, 0);
	fake_fail_at(&rig->fake, 5 * PAGE, 1, -EIO);
	for (unsigned i = 0; i < 10; i++)
		DO(nvs_aio_pread(rig->aio, rig->file, rig->data + (size_t)i * PAGE, PAGE,
				 (uint64_t)i * PAGE, NULL, &rig->error));
	waited = start(10);
	closed = start(11);
	DO(nvs_aio_pread(rig->aio, rig->file, rig->data, 0, 0, NULL, &rig->error));
	await_one(waited);
	await_one(closed);
	assert_int_equal(nvs_request_close(closed), 0);
	assert_int_equal(nvs_aio_wait_all(rig->aio, -1, &completed, &rig->error), -EIO);
	assert_int_equal(completed, 13);
	assert_int_equal(rig->error.offset, 5 * PAGE);
	assert_int_equal(nvs_request_status(waited, NULL), 0);
	assert_int_equal(nvs_request_close(waited), 0);
	DO(nvs_aio_wait_all(rig->aio, -1, &completed, &rig->error));
	assert_int_equal(completed, 0);
	/* The closed requests have left the list of completed ones. */
	assert_true(TAILQ_EMPTY(&rig->aio->requests->ready));
}

TEST(a_request_named_wrongly_is_refused)
{
	struct nvs_request *request, *twice[2], *null[2];
	struct nvs_aio *other;
	size_t index;

	rig_open();
	DO(aio_open_with(&other, FAKE_CONFIG(.block_size = PAGE, .queue_depth = 1), NULL, NULL,
			 NULL, &rig->error));
	fake_hold(&rig->fake);
	request = start(0);
	assert_int_equal(nvs_request_close(request), -EINVAL);
	twice[0] = twice[1] = request;
	null[0] = request;
	null[1] = NULL;
	assert_int_equal(nvs_aio_wait(rig->aio, twice, 2, 0, &rig->error), -EINVAL);
	assert_int_equal(nvs_aio_wait(rig->aio, null, 2, 0, &rig->error), -EINVAL);
	assert_int_equal(nvs_aio_wait_any(rig->aio, twice, 2, 0, &index, &rig->error), -EINVAL);
	assert_int_equal(nvs_aio_wait_any(rig->aio, null, 2, 0, NULL, &rig->error), -EINVAL);
	assert_int_equal(nvs_aio_wait(other, &request, 1, 0, &rig->error), -EINVAL);
	fake_release(&rig->fake, FAKE_ALL);
	await_one(request);
	assert_int_equal(nvs_request_close(request), 0);
	assert_int_equal(nvs_request_close(request), -EINVAL);
	assert_int_equal(nvs_request_status(request, NULL), -EINVAL);
	assert_int_equal(nvs_aio_wait(rig->aio, &request, 1, 0, &rig->error), -EINVAL);
	assert_int_equal(nvs_aio_wait(NULL, &request, 1, 0, NULL), -EINVAL);
	assert_int_equal(nvs_aio_wait(rig->aio, NULL, 1, 0, NULL), -EINVAL);
	assert_int_equal(nvs_aio_wait_any(NULL, &request, 1, 0, &index, NULL), -EINVAL);
	assert_int_equal(nvs_aio_wait_all(NULL, 0, NULL, NULL), -EINVAL);
	assert_int_equal(nvs_request_status(NULL, NULL), -EINVAL);
	assert_int_equal(nvs_request_close(NULL), 0);
	assert_null(nvs_request_user(NULL));
	nvs_aio_close(other);
}

TEST(an_overdue_request_ends_every_wait)
{
	struct nvs_request *request, *taken;
	size_t index;
	int fd;

	rig_open();
	fd = nvs_aio_eventfd(rig->aio);
	fake_hold(&rig->fake);
	request = start(3);
	assert_true(fake_await_ios(&rig->fake, 1));
	assert_false(readable(fd));
	aio_find_overdue(rig->aio, clock_ns() + 2 * AGES_NS);
	assert_true(readable(fd));
	assert_int_equal(nvs_aio_take(rig->aio, &taken, 1), 0);
	assert_false(readable(fd));
	assert_int_equal(nvs_request_status(request, &rig->error), -ETIMEDOUT);
	assert_int_equal(rig->error.offset, 3 * PAGE);
	assert_int_equal(nvs_aio_wait(rig->aio, &request, 1, -1, &rig->error), -ETIMEDOUT);
	assert_int_equal(nvs_aio_wait_any(rig->aio, &request, 1, -1, &index, &rig->error),
			 -ETIMEDOUT);
	assert_int_equal(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error), -ETIMEDOUT);
	assert_says(rig->error.text, "the drive hangs");
	fake_release(&rig->fake, FAKE_ALL);
	/* Only its completion makes the descriptor readable again. */
	assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1), 1);
	await_one(request);
}

TEST(a_failure_of_a_file_closed_since_is_still_told)
{
	struct nvs_request *request;

	rig_open();
	fake_fail_at(&rig->fake, 0, 1, -EIO);
	request = start(0);
	assert_int_equal(nvs_aio_wait(rig->aio, &request, 1, -1, NULL), -EIO);
	nvs_file_close(rig->file);
	rig->file = NULL;
	assert_int_equal(nvs_request_status(request, &rig->error), -EIO);
	assert_int_equal(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error), -EIO);
	assert_says(rig->error.text, "closed since");
}

/* ---- Taking completed requests ---- */

TEST(the_eventfd_is_readable_while_there_is_something_to_take)
{
	struct nvs_request *requests[3], *taken[3];
	int fd;

	rig_open();
	fake_hold(&rig->fake);
	for (unsigned i = 0; i < 3; i++)
		requests[i] = start(i);
	fd = nvs_aio_eventfd(rig->aio);
	assert_true(fd >= 0);
	assert_int_equal(nvs_aio_eventfd(rig->aio), fd);
	assert_false(readable(fd));
	assert_int_equal(nvs_aio_take(rig->aio, taken, 3), 0);
	fake_release(&rig->fake, 1);
	assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1), 1);
	assert_int_equal(nvs_aio_take(rig->aio, taken, 3), 1);
	assert_ptr_equal(taken[0], requests[0]);
	assert_false(readable(fd));
	fake_release(&rig->fake, FAKE_ALL);
	/* A request that was waited for is not taken again. */
	await_one(requests[2]);
	await_one(requests[1]);
	assert_false(readable(fd));
	assert_int_equal(nvs_aio_take(rig->aio, taken, 3), 0);
	assert_int_equal(nvs_aio_eventfd(NULL), -EINVAL);
	assert_int_equal(nvs_aio_take(NULL, taken, 3), 0);
	assert_int_equal(nvs_aio_take(rig->aio, NULL, 3), 0);
}

TEST(requests_are_taken_in_the_order_of_completion)
{
	struct nvs_request *taken[8];
	struct nvs_transfer transfers[8];
	size_t n = 0;

	rig_open();
	for (unsigned i = 0; i < 8; i++) {
		transfers[i] = page_at(i);
		transfers[i].user = rig->data + i;
	}
	fake_hold(&rig->fake);
	DO(nvs_aio_submit(rig->aio, transfers, 8, NULL, &rig->error));
	for (unsigned i = 0; i < 8; i++) {
		fake_release(&rig->fake, 1);
		while (!nvs_aio_take(rig->aio, taken, 1))
			poll(&(struct pollfd){.fd = nvs_aio_eventfd(rig->aio), .events = POLLIN}, 1,
			     -1);
		assert_ptr_equal(nvs_request_user(taken[0]), rig->data + n++);
		assert_int_equal(nvs_request_close(taken[0]), 0);
	}
}

TEST(an_eventfd_that_fails_is_an_error)
{
	rig_open();
	inject_fail(INJECT_QUEUE, 1, 1, EMFILE);
	assert_int_equal(nvs_aio_eventfd(rig->aio), -EMFILE);
	inject_stop(NULL);
	assert_true(nvs_aio_eventfd(rig->aio) >= 0);
}

EACH_TEST(NULL, cleanup)
