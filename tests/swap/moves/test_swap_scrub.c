/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrub: it finds what the drive has lost before a call asks for it, mistakes no change for
 * damage, and leaves the drive to whoever else needs it.
 */
#include "store/member/member.h"
#include "swap/swap_fixture.h"

ONE_ENGINE

#define NBYTES	(300 * KIB)
#define WAIT_MS 20000

static void scrub_now(void)
{
	engine_lock(f->engine);
	f->engine->scrub.next_ns = 0;
	pthread_cond_signal(&f->engine->scrub.wake);
	engine_unlock(f->engine);
}

/* Waits until that many rounds have ended since the engine was opened. */
static void await_rounds(uint64_t rounds)
{
	for (unsigned ms = 0; stats_of(f).scrub_rounds < rounds; ms++) {
		assert_true(ms < WAIT_MS);
		usleep(1000);
	}
}

/* A whole round that begins after this call; returns how many bytes it read. */
static uint64_t scrub_all(void)
{
	struct nvs_engine_stats before;

	await_rounds(1);
	before = stats_of(f);
	scrub_now();
	await_rounds(before.scrub_rounds + 1);
	events_await_idle(f->engine);
	return stats_of(f).scrub_bytes - before.scrub_bytes;
}

static void open_scrubbed(const struct setup *setup)
{
	fixture_init(f, setup);
	f->config.scrub = true;
	OK(f, fixture_reopen(f));
}

#define OPEN_SCRUBBED(f, ...) open_scrubbed(&(const struct setup){__VA_ARGS__})

/* ---- What it finds ---- */

TEST(damage_is_found_in_all_that_is_on_the_drive_alone)
{
	static const uint64_t nbytes[4] = {5000, NBYTES, 1, 70000};
	struct nvs_tensor *t[4];
	char offset[64];

	OPEN_SCRUBBED(f, .place = PLACE_DISK, .verify = true);
	tensors_add(f, "t", nbytes, 4, t);
	tensors_store(f, t, 4, 0);
	assert_int_equal(scrub_all(), 5000 + NBYTES + 1 + 70000);
	assert_int_equal(stats_of(f).scrub_errors, 0);
	assert_string_equal(f->log, "");

	tensor_flip(f, t[1], NBYTES - 1);
	tensor_flip(f, t[2], 0);
	scrub_all();
	assert_int_equal(stats_of(f).scrub_errors, 2);
	assert_non_null(strstr(f->log, "scrub: t1: reading /"));
	assert_non_null(strstr(f->log, "scrub: t2: reading /"));
	snprintf(offset, sizeof(offset), "at offset %" PRIu64 " ",
		 LABEL_AREA_BYTES + info_of(f, t[1]).store_offset);
	assert_non_null(strstr(f->log, offset));
	OK(f, sole_swap_in(f->engine, &t[1], 1, -1, &f->error));
	FAILS(f, -EBADMSG, "t1: reading /", sole_wait, &t[1], 1, -1);
	tensor_compare(f, t[3], 3);
	/* What is in the pool is not read. */
	tensors_pin(f, t, 1);
	assert_int_equal(scrub_all(), NBYTES + 1);
}

TEST(an_unreadable_tensor_counts_as_damaged)
{
	struct nvs_tensor *t;

	OPEN_SCRUBBED(f, .place = PLACE_DISK, .simulated = true, .verify = true);
	t = tensor_add(f, "t", NBYTES);
	tensor_store(f, t, 1);
	sim_fail(f->sim, NVS_READ, 1, EIO, 1);
	scrub_all();
	assert_int_equal(stats_of(f).scrub_errors, 1);
	assert_non_null(strstr(f->log, "scrub: t: reading /"));
	/* The sector can be read again. */
	scrub_all();
	assert_int_equal(stats_of(f).scrub_errors, 1);
	tensor_compare(f, t, 1);
}

/* `verify` is off, so no other read of this run compares. */
TEST(what_it_found_is_not_handed_out)
{
	struct nvs_tensor *t;

	INIT(f, .place = PLACE_DISK, .keep = true);
	f->config.scrub = true;
	f->config.verify = VERIFY_OFF;
	OK(f, fixture_reopen(f));
	t = tensor_add(f, "t", NBYTES);
	tensor_store(f, t, 1);
	await_rounds(1);
	tensor_flip(f, t, 7);
	scrub_all();
	assert_int_equal(stats_of(f).scrub_errors, 1);
	OK(f, sole_swap_in(f->engine, &t, 1, -1, &f->error));
	FAILS(f, -EBADMSG, "t: reading /", sole_wait, &t, 1, -1);
}

/* No tensor has been registered. */
TEST(the_first_round_reads_a_kept_store)
{
	struct nvs_tensor *t;
	uint64_t offset;

	OPEN_SCRUBBED(f, .place = PLACE_DISK, .keep = true);
	t = tensor_add(f, "t", NBYTES);
	tensor_store(f, t, 1);
	offset = info_of(f, t).store_offset;
	fixture_read_only(f);
	await_rounds(1);
	assert_int_equal(stats_of(f).scrub_bytes, NBYTES);
	assert_int_equal(stats_of(f).scrub_errors, 0);
	fixture_shut(f);
	store_flip(f, offset + 100000);
	OK(f, fixture_reopen(f));
	await_rounds(1);
	assert_int_equal(stats_of(f).scrub_errors, 1);
}

/* ---- Beside calls ---- */

/* The scrub has begun to read the tensor, and gets no further before sim_go(). */
static struct nvs_tensor *begin_held(bool keep)
{
	struct nvs_tensor *t;

	OPEN_SCRUBBED(f, .place = PLACE_DISK, .simulated = true, .verify = true, .keep = keep);
	t = tensor_add(f, "t", NBYTES);
	tensor_store(f, t, 1);
	await_rounds(1);
	sim_hold(f->sim, SIM_READS);
	scrub_now();
	assert_true(sim_await_in_flight(f->sim, 1));
	return t;
}

static void end_held(void)
{
	uint64_t rounds = stats_of(f).scrub_rounds;

	sim_go(f->sim, SIM_READS);
	await_rounds(rounds + 1);
	events_await_idle(f->engine);
	assert_int_equal(stats_of(f).scrub_errors, 0);
	assert_string_equal(f->log, "");
}

TEST(a_tensor_written_meanwhile_is_not_called_damaged)
{
	for (int keep = 0; keep < 2; keep++) {
		struct nvs_tensor *t = begin_held(keep);

		tensor_store(f, t, 2);
		end_held();
		tensor_compare(f, t, 2);
		fixture_close(f);
	}
}

/* Its extent has the contents of another by the time the read ends. */
TEST(a_tensor_forgotten_meanwhile_is_not_called_damaged)
{
	struct nvs_tensor *t = begin_held(false);
	uint64_t offset = info_of(f, t).store_offset;

	OK(f, nvs_tensor_forget(f->engine, &t, 1, &f->error));
	t = tensor_add(f, "u", NBYTES);
	assert_int_equal(info_of(f, t).store_offset, offset);
	tensor_store(f, t, 3);
	end_held();
}

TEST(one_block_at_a_time_is_read)
{
	struct sim_counts counts;

	(void)begin_held(false);
	for (int i = 1; i < 5; i++) {
		sim_await_workers(f->sim);
		sim_get(f->sim, &counts);
		assert_int_equal(counts.in_flight, 1);
		sim_forget_counts(f->sim);
		assert_int_equal(sim_complete(f->sim, 1), 1);
		assert_true(sim_await_in_flight(f->sim, 1));
	}
	sim_go(f->sim, SIM_ALL);
}

TEST(nothing_is_read_beside_a_transfer)
{
	struct nvs_engine_stats before;
	struct sim_counts counts;
	struct nvs_tensor *t[2];

	OPEN_SCRUBBED(f, .place = PLACE_DISK, .simulated = true, .verify = true,
		      .block_size = 512 * KIB);
	tensors_add(f, "t", (uint64_t[]){NBYTES, NBYTES}, 2, t);
	tensor_store(f, t[0], 1);
	tensor_store(f, t[1], 2);
	await_rounds(1);
	sim_hold(f->sim, SIM_ALL);
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 1, &f->error), 1);
	before = stats_of(f);
	scrub_now();
	/* Longer than it takes an engine that moves nothing to count as quiet. */
	usleep(60000);
	sim_get(f->sim, &counts);
	assert_int_equal(counts.in_flight, 1);
	sim_go(f->sim, SIM_ALL);
	await_rounds(before.scrub_rounds + 1);
	assert_int_equal(stats_of(f).scrub_bytes, before.scrub_bytes + NBYTES);
}

/* ---- Closing ---- */

TEST(closing_ends_it_between_rounds_and_within_one)
{
	OPEN_SCRUBBED(f, .place = PLACE_DISK, .verify = true);
	await_rounds(1);
	fixture_close(f);
	OPEN_SCRUBBED(f, .place = PLACE_DISK, .verify = true);
	tensor_store(f, tensor_add(f, "t", 3 * MIB), 1);
	scrub_now();
}

TEST(closing_does_not_wait_for_a_drive_that_hangs)
{
	INIT(f, .place = PLACE_DISK, .simulated = true, .verify = true);
	f->config.scrub = true;
	f->config.aio.io_timeout_ms = 100;
	OK(f, fixture_reopen(f));
	tensor_store(f, tensor_add(f, "t", NBYTES), 1);
	await_rounds(1);
	sim_hold(f->sim, SIM_READS);
	scrub_now();
	assert_true(sim_await_in_flight(f->sim, 1));
	FAILS(f, -ETIMEDOUT, "the drive hangs", nvs_engine_close);
	sim_go(f->sim, SIM_READS);
	for (unsigned ms = 0; nvs_engine_close(f->engine, &f->error) == -ETIMEDOUT; ms++) {
		assert_true(ms < WAIT_MS);
		usleep(1000);
	}
	f->engine = NULL;
}

/* A scrub in the middle of a round does not keep abandon from leaving the last commit. */
TEST(abandoning_ends_it_within_a_round)
{
	(void)begin_held(true);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	sim_go(f->sim, SIM_READS);
	fixture_crash(f);
	tensor_compare(f, tensor_add(f, "t", NBYTES), 1);
}
