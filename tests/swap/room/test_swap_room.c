/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: which tensors are evicted or written back to make it, which calls wait for it
 * and how long, max_in_cpu, prefetching, and adjacent tensors moved by few I/Os.
 */
#include "swap/swap_fixture.h"

#include <sched.h>

ONE_ENGINE

#define PART (64 * KIB)

static struct nvs_tensor *t[200];

/* An engine whose pool has room for four of n tensors of a part each; those of tensor i have seed
 * i. */
static void open_parts(bool simulated, size_t n)
{
	OPEN(f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .simulated = simulated);
	tensors_make(f, "t", PART, n, t);
}

/*
 * Four parts and a tensor of three: t[1], which is dirty with contents 7, lies between two free
 * pieces of the pool.
 */
static struct nvs_tensor *open_in_pieces(void)
{
	struct nvs_tensor *large;

	open_parts(false, 4);
	large = tensor_add(f, "large", 3 * PART);
	tensor_store(f, large, 9);
	tensors_compare(f, t, 4, 0);
	tensor_write(f, t[1], 7);
	OK(f, nvs_tensor_swap_out(f->engine, &t[0], 1, &f->error));
	OK(f, nvs_tensor_swap_out(f->engine, &t[2], 2, &f->error));
	assert_int_equal(stats_of(f).pool.used, PART);
	return large;
}

/* ---- Making room ---- */

TEST(evicts_the_least_recently_used_first)
{
	open_parts(false, 6);
	tensors_compare(f, t, 4, 0);
	tensor_compare(f, t[0], 0);
	assert_int_equal(stats_of(f).evictions, 0);
	tensor_compare(f, t[4], 4);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	tensor_compare(f, t[5], 5);
	STATE(f, t[2], NVS_ON_DRIVE, false, 0);
	STATE(f, t[0], NVS_RESIDENT, false, 0);
	STATE(f, t[3], NVS_RESIDENT, false, 0);
	assert_int_equal(stats_of(f).evictions, 2);
}

TEST(writes_dirty_tensors_back_before_evicting_them)
{
	open_parts(true, 16);
	sim_forget_counts(f->sim);
	tensors_write(f, t, 16, 100);
	assert_int_equal(stats_of(f).evictions, 12);
	assert_int_equal(sim_ios(f->sim, NVS_WRITE), 12);
	tensors_compare(f, t, 16, 100);
}

TEST(evicts_the_tensor_between_two_free_pieces)
{
	struct nvs_tensor *large;

	large = open_in_pieces();
	OK(f, sole_pin(f->engine, &large, 1, 60000, &f->error));
	OK(f, sole_release(f->engine, &large, 1, NVS_CLEAN, &f->error));
	tensor_compare(f, t[1], 7);
}

/* The batch needs the whole pool, and one of its tensors is resident in the middle. */
TEST(a_batch_never_evicts_its_own_tensors)
{
	struct nvs_tensor *batch[2];

	batch[1] = open_in_pieces();
	batch[0] = t[1];
	tensors_pin(f, batch, 2);
	assert_true(filled(nvs_tensor_data(batch[0]), PART, 7));
	assert_true(filled(nvs_tensor_data(batch[1]), 3 * PART, 9));
	OK(f, sole_release(f->engine, batch, 2, NVS_CLEAN, &f->error));
}

/* ---- Waiting for room ---- */

TEST(a_full_pool_of_pinned_tensors_is_an_error)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	open_parts(false, 6);
	OK(f, sole_pin(f->engine, t, 3, 0, &f->error));
	FAILS(f, -EAGAIN, "no room", sole_pin, &t[3], 2, 0);
	FAILS(f, -EAGAIN, "2 tensors", sole_swap_in, &t[3], 2, 0);
	FAILS(f, -ETIMEDOUT, "no room", sole_pin, &t[3], 2, 3);
	FAILS(f, -ETIMEDOUT, "no room", sole_swap_in, &t[3], 2, 3);
	/* All or nothing: the tensor that would have fit was not read. */
	STATE(f, t[3], NVS_ON_DRIVE, false, 0);
	stats = stats_of(f);
	assert_int_equal(stats.pool.used, 3 * PART);
	assert_int_equal(stats.pool.largest_free, PART);
	assert_int_equal(stats.pool.waits, 4);
	OK(f, sole_swap_in(f->engine, &t[3], 1, 0, &f->error));
	assert_int_equal(stats_of(f).pool.used_max, 4 * PART);
	OK(f, sole_wait(f->engine, &t[3], 1, -1, &f->error));
	FAILS(f, -EAGAIN, "batch of 1 tensor:", sole_pin, &t[4], 1, 0);
	OK(f, sole_release(f->engine, t, 4, NVS_CLEAN, &f->error));
}

/* A call that waits for room. */
struct waiter {
	struct nvs_tensor **tensors;
	size_t n;
	int timeout_ms, rc;
	pthread_t thread;
};

static void *read_and_release(void *arg)
{
	struct waiter *w = arg;

	w->rc = sole_swap_in(f->engine, w->tensors, w->n, w->timeout_ms, NULL);
	if (!w->rc)
		w->rc = sole_wait(f->engine, w->tensors, w->n, -1, NULL);
	if (!w->rc)
		w->rc = sole_release(f->engine, w->tensors, w->n, NVS_CLEAN, NULL);
	return NULL;
}

static unsigned times_logged(const char *text)
{
	unsigned n = 0;

	pthread_mutex_lock(&f->log_lock);
	for (const char *at = f->log; (at = strstr(at, text)); at++)
		n++;
	pthread_mutex_unlock(&f->log_lock);
	return n;
}

TEST(an_endless_wait_for_room_logs_once_which_tensors_are_pinned)
{
	struct waiter waiter = {&t[4], 2, -1, -1, 0};
	char pins[64];
	uint64_t pin;

	open_parts(false, 6);
	f->engine->room.shortage_after_ns = 1;
	OK(f, sole_pin(f->engine, t, 3, 0, &f->error));
	OK(f, nvs_tensor_pin(f->engine, &t[3], 1, 0, &pin, &f->error));
	snprintf(pins, sizeof(pins), "s by pin %" PRIu64 ")", pin);
	MUST(!pthread_create(&waiter.thread, NULL, read_and_release, &waiter));
	while (!times_logged("waits for room"))
		sched_yield();
	assert_int_equal(times_logged("256 KiB of the pool's 256 KiB are pinned by 4 tensors: "
				      "t0 (64 KiB, for "),
			 1);
	assert_int_equal(times_logged(" and 1 more; 0 bytes are free"), 1);
	/* Not room enough yet. */
	OK(f, sole_release(f->engine, &t[0], 1, NVS_CLEAN, &f->error));
	OK(f, nvs_tensor_release(f->engine, &t[3], 1, pin, NVS_CLEAN, &f->error));
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.rc, 0);
	assert_int_equal(times_logged("waits for room"), 1);
	OK(f, sole_release(f->engine, &t[1], 2, NVS_CLEAN, &f->error));
}

/* No call lasts until the log says it, but all of them together. */
TEST(a_wait_in_short_timeouts_logs_once_which_tensors_are_pinned)
{
	open_parts(false, 6);
	f->engine->room.shortage_after_ns = 20000000;
	OK(f, nvs_engine_keep_place(f->engine, true, &f->error));
	OK(f, sole_pin(f->engine, t, 4, 0, &f->error));
	while (!times_logged("waits for room"))
		assert_int_equal(sole_pin(f->engine, &t[4], 1, 1, &f->error), -ETIMEDOUT);
	for (unsigned i = 0; i < 30; i++)
		assert_int_equal(sole_pin(f->engine, &t[4], 1, 1, &f->error), -ETIMEDOUT);
	assert_int_equal(times_logged("waits for room"), 1);
	OK(f, nvs_engine_keep_place(f->engine, false, &f->error));
	OK(f, sole_release(f->engine, t, 4, NVS_CLEAN, &f->error));
}

TEST(a_wait_for_room_that_runs_out_names_the_pinned_tensors)
{
	struct nvs_tensor *large;
	uint64_t pin, again;
	char text[64];

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 6 * PART);
	tensors_make(f, "t", PART, 4, t);
	large = tensor_add(f, "a large one", 2 * PART);
	OK(f, sole_pin(f->engine, t, 4, 0, &f->error));
	OK(f, nvs_tensor_pin(f->engine, &large, 1, 0, &pin, &f->error));
	OK(f, nvs_tensor_pin(f->engine, &large, 1, 0, &again, &f->error));
	t[4] = tensor_add(f, "another", PART);
	assert_int_equal(sole_pin(f->engine, &t[4], 1, 3, &f->error), -ETIMEDOUT);
	assert_int_equal(f->error.cause, NVS_CAUSE_ROOM);
	assert_non_null(strstr(f->error.text, "384 KiB of the pool's 384 KiB are pinned by 5 "
					      "tensors: a large one (128 KiB, for "));
	snprintf(text, sizeof(text), "s by pins %" PRIu64 ", %" PRIu64 "), t", pin, again);
	assert_non_null(strstr(f->error.text, text));
	assert_non_null(strstr(f->error.text, " and 2 more"));
	OK(f, nvs_tensor_release(f->engine, &large, 1, again, NVS_CLEAN, &f->error));
	OK(f, nvs_tensor_release(f->engine, &large, 1, pin, NVS_CLEAN, &f->error));
	OK(f, sole_release(f->engine, t, 4, NVS_CLEAN, &f->error));
}

TEST(refuses_a_batch_that_could_never_fit)
{
	open_parts(false, 5);
	FAILS(f, -ENOBUFS, "320 KiB", sole_pin, t, 5, -1);
	FAILS(f, -ENOBUFS, "256 KiB (offload_param: buffer_count 1 x buffer_size", sole_swap_in, t,
	      5, -1);
	for (int i = 0; i < 5; i++)
		STATE(f, t[i], NVS_ON_DRIVE, false, 0);
	tensors_load(f, t, 4);
}

TEST(uses_all_of_the_pool_before_a_lease_waits)
{
	uint64_t nbytes[200], seed = seed_of_run();
	struct nvs_pool_stats pool;
	size_t i = 0;

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	for (size_t k = 0; k < 200; k++)
		nbytes[k] = 20000 + below(&seed, 60000);
	tensors_add(f, "t", nbytes, 200, t);
	while (!sole_pin(f->engine, &t[i], 1, 0, &f->error))
		i++;
	pool = stats_of(f).pool;
	assert_int_equal(pool.waits, 1);
	assert_int_equal(pool.used_at_first_wait, pool.used);
	assert_true(pool.used * 100 >= pool.bytes * 95);
	OK(f, sole_release(f->engine, t, i, NVS_CLEAN, &f->error));
	assert_int_equal(stats_of(f).pool.used, 0);
}

/* ---- What stays resident ---- */

static uint64_t elements_unpinned(size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor_info info = info_of(f, t[i]);

		if (info.state == NVS_RESIDENT && !info.pins)
			sum += info.numel;
	}
	return sum;
}

static void keeps_to(uint64_t max_in_cpu, uint64_t bound)
{
	uint64_t nbytes[20], seed = seed_of_run(), most = 0;

	OPEN(f, .place = PLACE_DISK, .max_in_cpu = max_in_cpu);
	for (size_t i = 0; i < 20; i++)
		nbytes[i] = below(&seed, 50000);
	tensors_add(f, "t", nbytes, 20, t);
	for (uint64_t turn = 0; turn < 200; turn++) {
		uint64_t i = turn < 20 ? turn : below(&seed, 20), idle;

		if (turn < 20 || below(&seed, 2))
			tensor_write(f, t[i], i);
		else
			tensor_compare(f, t[i], i);
		OK(f, sole_wait(f->engine, t, 20, -1, &f->error));
		idle = elements_unpinned(20);
		most = idle > most ? idle : most;
		assert_true(idle <= bound);
	}
	assert_true(most + 50000 >= bound);
	fixture_close(f);
}

TEST(keeps_no_more_elements_than_max_in_cpu)
{
	keeps_to(NONE_STAYS, 0);
	keeps_to(1, 1);
	keeps_to(100000, 100000);
}

/* ---- Prefetching ---- */

TEST(prefetches_as_many_tensors_as_fit)
{
	open_parts(true, 8);
	OK(f, sole_pin(f->engine, &t[7], 1, 0, &f->error));
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 7, &f->error), 3);
	OK(f, sole_wait(f->engine, t, 7, -1, &f->error));
	for (int i = 0; i < 3; i++)
		STATE(f, t[i], NVS_RESIDENT, false, 0);
	for (int i = 3; i < 7; i++)
		STATE(f, t[i], NVS_ON_DRIVE, false, 0);
	assert_int_equal(stats_of(f).pool.waits, 0);
	/* A second prefetch finds them resident. */
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 3, &f->error), 3);
	sim_forget_counts(f->sim);
	tensors_compare(f, t, 3, 0);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 0);
	/* Clean and unpinned, they can be evicted. */
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[3], 3, &f->error), 3);
	OK(f, sole_wait(f->engine, t, 8, -1, &f->error));
	assert_int_equal(nvs_tensor_prefetch(f->engine, NULL, 0, &f->error), 0);
	OK(f, sole_release(f->engine, &t[7], 1, NVS_CLEAN, &f->error));
	/* A pin may take the room of all. */
	tensors_load(f, &t[4], 4);
	STATE(f, t[3], NVS_ON_DRIVE, false, 0);
	tensors_compare(f, t, 8, 0);
}

TEST(prefetches_evict_nothing_dirty_or_pinned)
{
	open_parts(true, 8);
	tensors_write(f, t, 2, 20);
	tensors_pin(f, &t[2], 2);
	sim_forget_counts(f->sim);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[4], 4, &f->error), 0);
	assert_int_equal(sim_ios(f->sim, NVS_READ) + sim_ios(f->sim, NVS_WRITE), 0);
	OK(f, sole_release(f->engine, &t[2], 2, NVS_CLEAN, &f->error));
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[4], 4, &f->error), 2);
	OK(f, sole_wait(f->engine, t, 8, -1, &f->error));
	STATE(f, t[0], NVS_RESIDENT, true, 0);
	STATE(f, t[1], NVS_RESIDENT, true, 0);
	tensor_compare(f, t[0], 20);
	tensor_compare(f, t[1], 21);
}

TEST(prefetched_tensors_are_evicted_last)
{
	open_parts(false, 8);
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 2, &f->error), 2);
	OK(f, sole_wait(f->engine, t, 2, -1, &f->error));
	tensor_compare(f, t[4], 4);
	tensor_compare(f, t[5], 5);
	/* A tensor that was used is evicted first, though it was used after they were read. */
	tensor_compare(f, t[6], 6);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[7], 1, &f->error), 1);
	OK(f, sole_wait(f->engine, &t[7], 1, -1, &f->error));
	STATE(f, t[0], NVS_RESIDENT, false, 0);
	STATE(f, t[1], NVS_RESIDENT, false, 0);
	/* A further prefetch does not evict what an earlier one read. */
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[2], 2, &f->error), 1);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[4], 3, &f->error), 0);
	OK(f, sole_wait(f->engine, t, 8, -1, &f->error));
}

TEST(a_copy_is_the_use_that_a_tensor_was_prefetched_for)
{
	static char data[PART];

	open_parts(false, 8);
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 2, &f->error), 2);
	OK(f, sole_wait(f->engine, t, 2, -1, &f->error));
	tensor_to(f, t[0], data);
	/* The first one has left, the second one stays. */
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[2], 4, &f->error), 3);
	OK(f, sole_wait(f->engine, t, 8, -1, &f->error));
	STATE(f, t[0], NVS_ON_DRIVE, false, 0);
	STATE(f, t[1], NVS_RESIDENT, false, 0);
}

/*
 * A drive that serves one I/O at a time has read ahead t[0] in hand and t[1] queued behind it, and
 * the write-back of t[2] behind both. The pool has no room but theirs.
 */
static void open_queued_write_back(void)
{
	OPEN(f, .place = PLACE_DISK, .simulated = true, .pool_bytes = 3 * PART, .queue_depth = 1,
	     .thread_count = 1);
	tensors_make(f, "t", PART, 4, t);
	tensor_write(f, t[2], 7);
	sim_hold(f->sim, SIM_ALL);
	sim_forget_counts(f->sim);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[0], 2, &f->error), 2);
	assert_true(sim_await_in_flight(f->sim, 1));
	OK(f, nvs_tensor_swap_out(f->engine, &t[2], 1, &f->error));
	sim_await_workers(f->sim);
}

TEST(a_wait_for_room_promotes_write_backs_that_are_queued_already)
{
	uint64_t pin;

	open_queued_write_back();
	/* A call that does not wait promotes nothing. */
	FAILS(f, -EAGAIN, "room", nvs_tensor_pin, &t[3], 1, 0, &pin);
	assert_int_equal(t[2]->run_first->rest->transfer.priority, TRANSFER_USUAL);
	FAILS(f, -ETIMEDOUT, "room", nvs_tensor_pin, &t[3], 1, 1, &pin);
	assert_int_equal(sim_complete(f->sim, 1), 1);
	assert_true(sim_await_in_flight(f->sim, 1));
	assert_int_equal(sim_complete(f->sim, 1), 1);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 1);
	assert_int_equal(sim_ios(f->sim, NVS_WRITE), 1);
	sim_go(f->sim, SIM_ALL);
	tensor_compare(f, t[2], 7);
}

/* The stored tensors are not side by side in the pool, so each is written by itself. */
TEST(a_wait_for_room_promotes_no_more_write_backs_than_make_it)
{
	uint64_t pin;

	open_parts(true, 6);
	for (uint64_t i = 4; i; i--)
		tensor_write(f, t[i - 1], i);
	sim_hold(f->sim, SIM_WRITES);
	for (size_t i = 0; i < 4; i++)
		OK(f, nvs_tensor_swap_out(f->engine, &t[i], 1, &f->error));
	FAILS(f, -ETIMEDOUT, "room", nvs_tensor_pin, &t[4], 2, 1, &pin);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(t[i]->run_first->rest->transfer.priority,
				 i < 2 ? TRANSFER_AWAITED : TRANSFER_USUAL);
	fixture_check(f);
	sim_go(f->sim, SIM_WRITES);
	tensors_compare(f, t, 4, 1);
}

/* Of the two tensors of the older run one is pinned again, so it makes room for one part alone. */
TEST(a_wait_for_room_promotes_runs_by_the_room_that_they_make)
{
	uint64_t pin, again;

	open_parts(true, 6);
	OK(f, nvs_tensor_pin(f->engine, t, 2, -1, &pin, &f->error));
	fill(nvs_tensor_data(t[0]), PART, 1);
	fill(nvs_tensor_data(t[1]), PART, 2);
	OK(f, nvs_tensor_release(f->engine, t, 2, pin, NVS_DIRTY, &f->error));
	tensor_write(f, t[2], 3);
	tensor_write(f, t[3], 4);
	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out(f->engine, t, 2, &f->error));
	assert_ptr_equal(t[1]->run_first, t[0]);
	OK(f, nvs_tensor_swap_out(f->engine, &t[2], 1, &f->error));
	OK(f, nvs_tensor_swap_out(f->engine, &t[3], 1, &f->error));
	OK(f, nvs_tensor_swap_in(f->engine, &t[1], 1, 0, &again, &f->error));
	FAILS(f, -ETIMEDOUT, "room", nvs_tensor_pin, &t[4], 2, 1, &pin);
	fixture_check(f);
	assert_int_equal(t[0]->run_first->rest->transfer.priority, TRANSFER_AWAITED);
	assert_int_equal(t[2]->run_first->rest->transfer.priority, TRANSFER_AWAITED);
	assert_int_equal(t[3]->run_first->rest->transfer.priority, TRANSFER_USUAL);
	sim_go(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_release(f->engine, &t[1], 1, again, NVS_CLEAN, &f->error));
	tensors_compare(f, t, 4, 1);
}

TEST(a_pin_for_new_contents_promotes_what_its_tensors_wait_for)
{
	uint64_t pin;

	open_queued_write_back();
	FAILS(f, -ETIMEDOUT, "one of them is in flight", nvs_tensor_pin, &t[1], 2, 1, &pin);
	assert_int_equal(t[1]->run_first->rest->transfer.priority, TRANSFER_AWAITED);
	assert_int_equal(t[2]->run_first->rest->transfer.priority, TRANSFER_AWAITED);
	sim_go(f->sim, SIM_ALL);
	tensor_compare(f, t[2], 7);
}

/* As during a commit, and after it. */
static struct transfer *set_committing(struct nvs_tensor *tensor, bool value)
{
	struct transfer *list = NULL;

	engine_lock(f->engine);
	f->engine->commit.writing = value;
	tensor->rest->snapshot = value ? tensor->offset : NOWHERE;
	if (!value)
		list = runs_build_held(f->engine);
	engine_check(f->engine);
	engine_unlock(f->engine);
	launch(f->engine, list);
	return list;
}

TEST(a_write_that_waits_for_a_commit_is_promoted_when_it_begins)
{
	uint64_t pin;

	for (int room = 0; room < 2; room++) {
		OPEN(f, .place = PLACE_DISK, .simulated = true, .pool_bytes = PART, .keep = true);
		tensors_make(f, "t", PART, 2, t);
		OK(f, nvs_engine_commit(f->engine, &f->error));
		tensor_store(f, t[0], 5);
		tensor_write(f, t[0], 7);
		assert_null(set_committing(t[0], true));
		OK(f, nvs_tensor_swap_out(f->engine, &t[0], 1, &f->error));
		assert_ptr_equal(f->engine->moves.held_writes, t[0]);
		assert_int_equal(room ? nvs_tensor_pin(f->engine, &t[1], 1, 1, &pin, &f->error)
				      : sole_wait(f->engine, t, 1, 1, &f->error),
				 -ETIMEDOUT);
		sim_hold(f->sim, SIM_WRITES);
		assert_ptr_equal(set_committing(t[0], false), &t[0]->rest->transfer);
		assert_int_equal(t[0]->rest->transfer.priority, TRANSFER_AWAITED);
		sim_go(f->sim, SIM_WRITES);
		tensor_compare(f, t[0], 7);
		fixture_close(f);
	}
}

TEST(a_prefetch_and_a_swap_out_cancel_each_other)
{
	t[0] = OPEN_ONE(f, PART, .place = PLACE_DISK, .simulated = true);
	tensor_write(f, t[0], 1);
	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out(f->engine, t, 1, &f->error));
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 1, &f->error), 1);
	sim_go(f->sim, SIM_WRITES);
	OK(f, sole_wait(f->engine, t, 1, -1, &f->error));
	STATE(f, t[0], NVS_RESIDENT, false, 0);
	tensor_compare(f, t[0], 1);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 0);
	tensors_swap_out(f, t, 1);
	sim_hold(f->sim, SIM_READS);
	assert_int_equal(nvs_tensor_prefetch(f->engine, t, 1, &f->error), 1);
	OK(f, nvs_tensor_swap_out(f->engine, t, 1, &f->error));
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, t, 1, -1, &f->error));
	STATE(f, t[0], NVS_ON_DRIVE, false, 0);
	assert_int_equal(stats_of(f).pool.used, 0);
}

TEST(neighbours_move_in_few_long_ios)
{
	enum { N = 1024 };
	static struct nvs_tensor *many[N], *mixed[N];
	static uint64_t nbytes[N];
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	uint64_t seed = seed_of_run();

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 8 * MIB, .block_size = MIB);
	for (size_t i = 0; i < N; i++)
		nbytes[i] = 4096;
	tensors_add(f, "t", nbytes, N, many);
	OK(f, sole_pin(f->engine, many, N, 0, &f->error));
	for (uint64_t i = 0; i < N; i++)
		fill(nvs_tensor_data(many[i]), 4096, i);
	OK(f, sole_release(f->engine, many, N, NVS_DIRTY, &f->error));
	memcpy(mixed, many, sizeof(many));
	shuffle(mixed, N, &seed);
	OK(f, nvs_tensor_swap_out(f->engine, mixed, N, &f->error));
	OK(f, sole_wait(f->engine, many, N, -1, &f->error));
	stats = stats_of(f);
	assert_int_equal(stats.transfers, 1);
	assert_int_equal(stats.aio.io[NVS_WRITE].bytes, 4 * MIB);
	assert_int_equal(stats.aio.io[NVS_WRITE].ios, 4);
	assert_int_equal(stats.swapped_out, 4 * MIB);

	shuffle(mixed, N, &seed);
	tensors_pin(f, mixed, N);
	stats = stats_of(f);
	assert_int_equal(stats.transfers, 2);
	assert_int_equal(stats.aio.io[NVS_READ].ios, 4);
	assert_int_equal(stats.swapped_in, 4 * MIB);
	for (uint64_t i = 0; i < N; i++)
		assert_true(filled(nvs_tensor_data(many[i]), 4096, i));
	OK(f, sole_release(f->engine, many, N, NVS_CLEAN, &f->error));
}
