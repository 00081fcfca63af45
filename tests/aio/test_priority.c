/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Priorities of transfers: the order and number of the I/Os that one worker submits to the fake
 * engine, which completes them on command.
 */
#include "aio/aio_fixture.h"
#include "aio/internal.h"

#define PART 4096u

static void rig_open(uint32_t depth)
{
	RIG(.part = PART, .depth = depth, .buffered = true);
}

AFTER_SUCCESS(rig_close)

/* Submits `parts` parts at part `from`. */
static void submit(struct transfer *transfer, enum nvs_direction direction, unsigned from,
		   unsigned parts)
{
	*transfer = (struct transfer){.file = rig->file,
				      .direction = direction,
				      .data = rig->data,
				      .nbytes = parts * (uint64_t)PART,
				      .offset = from * (uint64_t)PART};
	aio_submit_list(rig->aio, rig->queues[0], transfer);
}

/* A queue of one I/O has one in flight: part `at`. */
static void rig_open_busy(enum nvs_direction direction, unsigned at)
{
	static struct transfer busy;

	rig_open(1);
	submit(&busy, direction, at, 1);
	assert_true(fake_await_ios(&rig->fake, 1));
}

/* Expects these parts, in the order of submission, after the first `seen` I/Os. */
static void expect_parts(unsigned seen, const unsigned *parts, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		assert_true(fake_await_ios(&rig->fake, seen + i + 1));
		assert_int_equal(rig->fake.ios[seen + i].offset, parts[i] * (uint64_t)PART);
		fake_release(&rig->fake, 1);
	}
}

TEST(promoted_transfers_are_served_in_the_order_of_the_waits)
{
	static struct transfer all[5];

	rig_open_busy(NVS_READ, 9);
	for (unsigned i = 0; i < 4; i++)
		submit(&all[i], NVS_READ, i, 1);
	aio_promote(rig->aio, &all[3]);
	aio_promote(rig->aio, &all[1]);
	aio_promote(rig->aio, &all[3]);
	/* The queue continues behind its last transfer. */
	submit(&all[4], NVS_READ, 4, 1);
	expect_parts(0, (unsigned[]){9, 3, 1, 0, 2, 4}, 6);
}

TEST(a_transfer_promoted_before_it_is_submitted_goes_first)
{
	static struct transfer usual, awaited;

	rig_open_busy(NVS_READ, 9);
	submit(&usual, NVS_READ, 0, 1);
	awaited = (struct transfer){
		.file = rig->file, .data = rig->data, .nbytes = PART, .offset = PART};
	aio_promote(rig->aio, &awaited);
	aio_submit_list(rig->aio, rig->queues[0], &awaited);
	expect_parts(0, (unsigned[]){9, 1, 0}, 3);
}

TEST(a_transfer_promoted_in_part_is_served_once)
{
	static struct transfer partly, other;

	rig_open(2);
	submit(&partly, NVS_READ, 0, 4);
	assert_true(fake_await_ios(&rig->fake, 2));
	submit(&other, NVS_READ, 8, 1);
	aio_promote(rig->aio, &partly);
	expect_parts(0, (unsigned[]){0, 1, 2, 3, 8}, 5);
	assert_int_equal(rig->fake.nios, 5);
	rig_close();
	assert_true(is_completed(&partly));
}

TEST(requests_that_a_call_waits_for_go_first)
{
	struct nvs_request *requests[5];
	size_t index;

	rig_open(1);
	for (unsigned i = 0; i < 5; i++) {
		requests[i] = start(i);
		assert_true(fake_await_ios(&rig->fake, 1));
	}
	/* A call that may not wait changes nothing. */
	assert_int_equal(nvs_aio_wait(rig->aio, &requests[2], 1, 0, &rig->error), -EAGAIN);
	assert_int_equal(nvs_aio_wait(rig->aio, &requests[4], 1, 1, &rig->error), -ETIMEDOUT);
	assert_int_equal(nvs_aio_wait_any(rig->aio, &requests[3], 1, 1, &index, &rig->error),
			 -ETIMEDOUT);
	expect_parts(0, (unsigned[]){0, 4, 3, 1, 2}, 5);
	SUCCEEDS(nvs_aio_wait(rig->aio, requests, 5, -1, &rig->error), &rig->error);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(nvs_request_close(requests[i]), 0);
}

TEST(requests_go_first_when_a_call_waits_for_all)
{
	static struct transfer others[2];

	rig_open_busy(NVS_READ, 9);
	for (unsigned i = 0; i < 2; i++) {
		submit(&others[i], NVS_READ, 5 + i, 1);
		SUCCEEDS(nvs_aio_pread(rig->aio, rig->file, rig->data, PART, i * (uint64_t)PART,
				       NULL, &rig->error),
			 &rig->error);
	}
	/* A call that may not wait changes nothing. */
	assert_int_equal(nvs_aio_wait_all(rig->aio, 0, NULL, &rig->error), -EAGAIN);
	expect_parts(0, (unsigned[]){9, 5}, 2);
	assert_true(fake_await_ios(&rig->fake, 3));
	assert_int_equal(nvs_aio_wait_all(rig->aio, 1, NULL, &rig->error), -ETIMEDOUT);
	expect_parts(2, (unsigned[]){0, 1, 6}, 3);
	SUCCEEDS(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error), &rig->error);
}

TEST(write_backs_leave_room_for_awaited_reads_and_go_on)
{
	static struct transfer writes, read;

	rig_open(9);
	submit(&read, NVS_READ, 100, 1);
	aio_promote(rig->aio, &read);
	assert_true(fake_await_ios(&rig->fake, 1));
	/* While the read is in flight, writes get a third of the queue. */
	submit(&writes, NVS_WRITE, 0, 80);
	assert_true(fake_await_ios(&rig->fake, 4));
	/*
	 * The read completes, and another is likely: the next four queues of writes keep to their
	 * third.
	 */
	fake_release(&rig->fake, 1);
	assert_int_equal(completions_wait(rig->queues[0], COMPLETIONS_THREAD, 1, UINT64_MAX), 0);
	assert_ptr_equal(completions_take(rig->queues[0]), &read);
	for (unsigned i = 1; i < 4 * 9; i++) {
		fake_release(&rig->fake, 1);
		assert_true(fake_await_ios(&rig->fake, 4 + i));
	}
	assert_int_equal(fake_in_flight_max(&rig->fake), 4);
	/* After that, writes fill the queue. */
	fake_release(&rig->fake, 1);
	assert_true(fake_await_ios(&rig->fake, 4 + 4 * 9 + 6));
	assert_int_equal(fake_in_flight_max(&rig->fake), 9);
}

TEST(write_backs_have_their_turn_among_awaited_reads)
{
	static struct transfer reads, ahead, writes;

	rig_open_busy(NVS_READ, 99);
	submit(&ahead, NVS_READ, 50, 1);
	submit(&writes, NVS_WRITE, 10, 2);
	submit(&reads, NVS_READ, 0, 4);
	aio_promote(rig->aio, &reads);
	expect_parts(0, (unsigned[]){99, 0, 10, 1, 11, 2, 3, 50}, 8);
}

TEST(writes_fill_the_queue_while_no_read_waits)
{
	static struct transfer writes, read;

	rig_open(8);
	submit(&read, NVS_READ, 100, 1);
	submit(&writes, NVS_WRITE, 0, 80);
	assert_true(fake_await_ios(&rig->fake, 8));
}

TEST(awaited_reads_and_writes_alternate)
{
	static struct transfer reads, writes;

	rig_open_busy(NVS_READ, 99);
	submit(&reads, NVS_READ, 0, 3);
	submit(&writes, NVS_WRITE, 10, 3);
	aio_promote(rig->aio, &reads);
	aio_promote(rig->aio, &writes);
	expect_parts(0, (unsigned[]){99, 0, 10, 1, 11, 2, 12}, 7);
}

TEST(reads_ahead_precede_write_backs_which_have_a_turn_in_four)
{
	static struct transfer reads, writes;

	rig_open_busy(NVS_WRITE, 99);
	submit(&writes, NVS_WRITE, 20, 4);
	submit(&reads, NVS_READ, 0, 7);
	expect_parts(0, (unsigned[]){99, 0, 1, 2, 20, 3, 4, 5, 21, 6, 22, 23}, 12);
}

/* The kernel merges only I/Os that are neighbours in a batch. */
TEST(ios_of_one_list_are_neighbours_in_a_batch)
{
	static const unsigned expected[] = {10, 11, 12, 13, 20, 21, 22, 23};
	static struct transfer busy, awaited, writes;

	rig_open(8);
	submit(&busy, NVS_READ, 90, 8);
	assert_true(fake_await_ios(&rig->fake, 8));
	submit(&awaited, NVS_WRITE, 10, 8);
	submit(&writes, NVS_WRITE, 20, 8);
	aio_promote(rig->aio, &awaited);
	fake_release(&rig->fake, 8);
	assert_true(fake_await_ios(&rig->fake, 16));
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(rig->fake.ios[8 + i].offset, expected[i] * (uint64_t)PART);
}

/* Waits for that many completions while more is queued, and for one at the end. */
static void expect_wait(uint32_t block_size, unsigned least)
{
	struct transfer more;

	RIG(.part = block_size, .depth = 32, .buffered = true);
	submit(&more, NVS_WRITE, 0, 40 * (block_size / PART));
	assert_true(fake_await_ios(&rig->fake, 32));
	assert_true(fake_await_waiting(&rig->fake, 1));
	assert_int_equal(rig->fake.least, least);
	fake_release(&rig->fake, least);
	assert_true(fake_await_ios(&rig->fake, 32 + least));
	fake_release(&rig->fake, 8);
	assert_true(fake_await_ios(&rig->fake, 40));
	assert_true(fake_await_waiting(&rig->fake, 1));
	assert_int_equal(rig->fake.least, 1);
	rig_close();
}

TEST(a_full_queue_waits_for_an_eighth_of_it_or_a_quarter_of_large_ios)
{
	expect_wait(PART, 4);
	expect_wait(64 * PART, 8);
}
