/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues: their promises to the owner of transfers, on the fake engine, which completes
 * I/Os on command.
 */
#include "aio/aio_fixture.h"
#include "aio/internal.h"

#define PART  4096u
#define DEPTH 4u

static void rig_open(uint32_t io_timeout_ms)
{
	RIG(.part = PART, .depth = DEPTH, .io_timeout_ms = io_timeout_ms);
}

AFTER_SUCCESS(rig_close)

/* Submits transfers `from` to `to` - 1 in one call. */
static void submit(unsigned queue, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++)
		rig->transfers[i].state.next = i + 1 < to ? &rig->transfers[i + 1] : NULL;
	aio_submit_list(rig->aio, rig->queues[queue], &rig->transfers[from]);
}

/* Takes these transfers and no others, in this order. */
static void expect_each(unsigned queue, const unsigned *which, unsigned n)
{
	unsigned got = 0;

	while (got < n) {
		struct transfer *list;

		assert_int_equal(completions_wait(rig->queues[queue], COMPLETIONS_THREAD, 1,
						  deadline_ns(AWAIT_MS)),
				 0);
		list = completions_take(rig->queues[queue]);
		for (; list; list = list->state.next) {
			assert_true(got < n);
			assert_ptr_equal(list, &rig->transfers[which[got++]]);
		}
	}
	assert_null(completions_take(rig->queues[queue]));
}

/* The same for transfers `from` to `to` - 1. */
static void expect(unsigned queue, unsigned from, unsigned to)
{
	unsigned which[COUNT(rig->transfers)], n = 0;

	while (from < to)
		which[n++] = from++;
	expect_each(queue, which, n);
}

TEST(completed_transfers_are_taken_once_in_the_order_of_completion)
{
	rig_open(0);
	submit(0, 0, 8);
	assert_null(completions_take(rig->queues[0]));
	for (unsigned i = 0; i < 8; i++) {
		assert_true(fake_await_ios(&rig->fake, i + DEPTH < 8 ? i + DEPTH : 8));
		fake_release(&rig->fake, 1);
		expect(0, i, i + 1);
	}
}

TEST(workers_do_not_wait_for_an_owner_that_takes_nothing)
{
	rig_open(0);
	submit(0, 0, 8);
	fake_release(&rig->fake, FAKE_ALL);
	assert_true(fake_await_ios(&rig->fake, 8));
	expect(0, 0, 8);
}

TEST(owners_that_share_an_aio_get_their_own_transfers)
{
	rig_open(0);
	submit(0, 0, 1);
	submit(1, 1, 3);
	submit(0, 3, 4);
	submit(1, 4, 8);
	fake_release(&rig->fake, FAKE_ALL);
	expect_each(1, (unsigned[]){1, 2, 4, 5, 6, 7}, 6);
	expect_each(0, (unsigned[]){0, 3}, 2);
}

TEST(a_failed_transfer_is_taken_like_others)
{
	rig_open(0);
	fake_fail_nth(&rig->fake, 0, 1, -EIO);
	submit(0, 0, 2);
	fake_release(&rig->fake, FAKE_ALL);
	expect(0, 0, 2);
	assert_int_equal(rig->transfers[0].status, -EIO);
	assert_int_equal(rig->transfers[1].status, 0);
}

TEST(a_wake_is_for_one_waiter_and_a_completion_for_any)
{
	rig_open(0);
	assert_int_equal(completions_wait(rig->queues[0], COMPLETIONS_CALLER, 1, 0), -EAGAIN);
	completions_wake(rig->queues[0], COMPLETIONS_THREAD);
	assert_int_equal(completions_wait(rig->queues[0], COMPLETIONS_CALLER, 1, 0), -EAGAIN);
	/* It was not lost before the wait, and ends one. */
	assert_int_equal(completions_wait(rig->queues[0], COMPLETIONS_THREAD, 1, UINT64_MAX), 0);
	assert_int_equal(completions_wait(rig->queues[0], COMPLETIONS_THREAD, 1, 0), -EAGAIN);
	submit(0, 0, 1);
	fake_release(&rig->fake, FAKE_ALL);
	assert_int_equal(
		completions_wait(rig->queues[0], COMPLETIONS_CALLER, 1, deadline_ns(AWAIT_MS)), 0);
	assert_int_equal(completions_wait(rig->queues[0], COMPLETIONS_THREAD, 1, 0), 0);
	expect(0, 0, 1);
}

TEST(a_wait_for_several_ends_when_as_many_can_be_taken)
{
	struct completions *queue;

	rig_open(0);
	queue = rig->queues[0];
	submit(0, 0, 3);
	fake_release(&rig->fake, 2);
	assert_int_equal(completions_wait(queue, COMPLETIONS_CALLER, 2, deadline_ns(AWAIT_MS)), 0);
	assert_int_equal(completions_wait(queue, COMPLETIONS_CALLER, 3, 0), -EAGAIN);
	assert_int_equal(completions_wait(queue, COMPLETIONS_CALLER, 3, 1), -ETIMEDOUT);
	/* The next wait is for one again, and a wake ends any. */
	assert_int_equal(completions_wait(queue, COMPLETIONS_CALLER, 1, 0), 0);
	completions_wake(queue, COMPLETIONS_CALLER);
	assert_int_equal(completions_wait(queue, COMPLETIONS_CALLER, 3, UINT64_MAX), 0);
	fake_release(&rig->fake, FAKE_ALL);
	assert_int_equal(completions_wait(queue, COMPLETIONS_CALLER, 3, deadline_ns(AWAIT_MS)), 0);
	expect(0, 0, 3);
}

TEST(an_overdue_transfer_wakes_its_owner_and_no_other)
{
	uint64_t offset;

	rig_open(AGES_MS);
	submit(0, 0, 1);
	assert_true(fake_await_ios(&rig->fake, 1));
	aio_find_overdue(rig->aio, clock_ns() + AGES_NS);
	assert_int_equal(
		completions_wait(rig->queues[0], COMPLETIONS_THREAD, 1, deadline_ns(AWAIT_MS)), 0);
	assert_true(completions_take_overdue(rig->queues[0]));
	assert_true(aio_is_overdue(rig->aio, &rig->transfers[0], &offset));
	assert_int_equal(offset, 0);
	assert_false(completions_take_overdue(rig->queues[0]));
	assert_null(completions_take(rig->queues[0]));
	assert_int_equal(completions_wait(rig->queues[1], COMPLETIONS_THREAD, 1, 0), -EAGAIN);
	fake_release(&rig->fake, FAKE_ALL);
	expect(0, 0, 1);
}

/* The owner frees the queue while the worker that appended to it may still hold its lock. */
TEST(a_queue_may_be_closed_once_all_is_taken)
{
	rig_open(0);
	fake_release(&rig->fake, FAKE_ALL);
	for (unsigned i = 0; i < 200; i++) {
		submit(0, 0, 1);
		expect(0, 0, 1);
		completions_close(rig->queues[0]);
		assert_int_equal(completions_open(&rig->queues[0]), 0);
	}
}
