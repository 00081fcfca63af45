/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the pool: what is dropped or written back to make it, who waits for it and how long, what
 * may stay, what is read ahead, and in how few I/Os neighbours move.
 */
#include "swap_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>

#define PART (64 * KIB)

/* n tensors of a part each, with contents on the drive, their numbers the seeds. */
static void parts_store(struct fixture *f, struct nvs_tensor **tensors, size_t n)
{
	uint64_t nbytes[64];

	assert_true(n <= LENGTH(nbytes));
	for (size_t i = 0; i < n; i++)
		nbytes[i] = PART;
	tensors_add(f, "t", nbytes, n, tensors);
	for (size_t i = 0; i < n; i++)
		tensor_store(f, tensors[i], i);
}

static struct nvs_engine_stats stats_of(struct fixture *f)
{
	struct nvs_engine_stats stats;

	nvs_get_stats(f->engine, &stats);
	return stats;
}

/* ---- Making room ---- */

static void drops_the_least_recently_used_first(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[6];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 6);
	for (uint64_t i = 0; i < 4; i++)
		tensor_check(&f, t[i], i);
	tensor_check(&f, t[0], 0);
	assert_int_equal(stats_of(&f).evictions, 0);
	tensor_check(&f, t[4], 4);
	STATE(&f, t[1], NVS_ON_DRIVE, false, 0);
	tensor_check(&f, t[5], 5);
	STATE(&f, t[2], NVS_ON_DRIVE, false, 0);
	STATE(&f, t[0], NVS_RESIDENT, false, 0);
	STATE(&f, t[3], NVS_RESIDENT, false, 0);
	assert_int_equal(stats_of(&f).evictions, 2);
	fixture_close(&f);
}

static void writes_back_what_is_dirty_before_it_is_dropped(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[16];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .faults = &faults);
	parts_store(&f, t, 16);
	faults.ios[NVS_WRITE] = 0;
	for (uint64_t i = 0; i < 16; i++)
		tensor_write(&f, t[i], 100 + i);
	assert_int_equal(stats_of(&f).evictions, 12);
	assert_int_equal(faults.ios[NVS_WRITE], 12);
	for (uint64_t i = 0; i < 16; i++)
		tensor_check(&f, t[i], 100 + i);
	fixture_close(&f);
}

/* Memory is in two pieces around a tensor that is out of use. */
static void joins_pieces_by_dropping_what_is_between(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[4], *large;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 4);
	large = tensor_add(&f, "large", 3 * PART);
	for (uint64_t i = 0; i < 4; i++)
		tensor_check(&f, t[i], i);
	tensor_write(&f, t[1], 7);
	OK(&f, nvs_swap_out(f.engine, &t[0], 1, &f.error));
	OK(&f, nvs_swap_out(f.engine, &t[2], 2, &f.error));
	assert_int_equal(stats_of(&f).pool.used, PART);
	OK(&f, nvs_lease(f.engine, &large, 1, 60000, &f.error));
	OK(&f, nvs_release(f.engine, &large, 1, NVS_CLEAN, &f.error));
	tensor_check(&f, t[1], 7);
	fixture_close(&f);
}

/* The whole pool is just enough for the batch, of which one lies in the middle already. */
static void a_batch_is_not_in_its_own_way(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[4], *large, *batch[2];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 4);
	large = tensor_add(&f, "large", 3 * PART);
	tensor_store(&f, large, 9);
	for (uint64_t i = 0; i < 4; i++)
		tensor_check(&f, t[i], i);
	tensor_write(&f, t[1], 7);
	OK(&f, nvs_swap_out(f.engine, &t[0], 1, &f.error));
	OK(&f, nvs_swap_out(f.engine, &t[2], 2, &f.error));
	batch[0] = t[1];
	batch[1] = large;
	OK(&f, nvs_swap_in(f.engine, batch, 2, 60000, &f.error));
	OK(&f, nvs_wait(f.engine, batch, 2, -1, &f.error));
	assert_true(filled(nvs_data(t[1]), PART, 7));
	assert_true(filled(nvs_data(large), 3 * PART, 9));
	OK(&f, nvs_release(f.engine, batch, 2, NVS_CLEAN, &f.error));
	fixture_close(&f);
}

/* ---- Waiting for it ---- */

static void says_so_when_all_is_in_use(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[6];
	struct nvs_engine_stats stats;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 6);
	OK(&f, nvs_lease(f.engine, t, 3, 0, &f.error));
	expect_error(&f, nvs_lease(f.engine, &t[3], 2, 0, &f.error), -EAGAIN, "no room");
	expect_error(&f, nvs_swap_in(f.engine, &t[3], 2, 0, &f.error), -EAGAIN, "2 tensors");
	expect_error(&f, nvs_lease(f.engine, &t[3], 2, 3, &f.error), -ETIMEDOUT, "no room");
	expect_error(&f, nvs_swap_in(f.engine, &t[3], 2, 3, &f.error), -ETIMEDOUT, "no room");
	/* All or nothing: the one that would have fitted was not begun. */
	STATE(&f, t[3], NVS_ON_DRIVE, false, 0);
	stats = stats_of(&f);
	assert_int_equal(stats.pool.used, 3 * PART);
	assert_int_equal(stats.pool.largest_free, PART);
	assert_int_equal(stats.pool.waits, 4);
	OK(&f, nvs_swap_in(f.engine, &t[3], 1, 0, &f.error));
	assert_int_equal(stats_of(&f).pool.used_max, 4 * PART);
	OK(&f, nvs_wait(f.engine, &t[3], 1, -1, &f.error));
	OK(&f, nvs_release(f.engine, t, 4, NVS_CLEAN, &f.error));
	fixture_close(&f);
}

struct releaser {
	struct fixture *fixture;
	struct nvs_tensor **tensors;
	size_t n;
};

/* Once somebody waits for room, makes some. */
static void *release_when_waited_for(void *arg)
{
	struct releaser *r = arg;

	while (!stats_of(r->fixture).pool.waits)
		sched_yield();
	MUST(!nvs_release(r->fixture->engine, r->tensors, r->n, NVS_DIRTY, NULL));
	return NULL;
}

static void waits_until_another_thread_releases(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[6];
	struct releaser releaser = {&f, t, 4};
	pthread_t thread;

	(void)state;
	for (int finite = 0; finite < 2; finite++) {
		OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
		parts_store(&f, t, 6);
		OK(&f, nvs_lease(f.engine, t, 4, 0, &f.error));
		for (uint64_t i = 0; i < 4; i++)
			fill(nvs_data(t[i]), PART, 50 + i);
		assert_int_equal(pthread_create(&thread, NULL, release_when_waited_for, &releaser),
				 0);
		OK(&f, nvs_swap_in(f.engine, &t[4], 2, finite ? 60000 : -1, &f.error));
		pthread_join(thread, NULL);
		OK(&f, nvs_wait(f.engine, &t[4], 2, -1, &f.error));
		assert_true(filled(nvs_data(t[4]), PART, 4));
		OK(&f, nvs_release(f.engine, &t[4], 2, NVS_CLEAN, &f.error));
		for (uint64_t i = 0; i < 4; i++)
			tensor_check(&f, t[i], 50 + i);
		fixture_close(&f);
	}
}

static void refuses_a_batch_that_could_never_fit(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[5];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 5);
	expect_error(&f, nvs_lease(f.engine, t, 5, -1, &f.error), -ENOBUFS, "320 KiB");
	expect_error(&f, nvs_swap_in(f.engine, t, 5, -1, &f.error), -ENOBUFS,
		     "256 KiB (offload_param: buffer_count 1 x buffer_size");
	for (int i = 0; i < 5; i++)
		STATE(&f, t[i], NVS_ON_DRIVE, false, 0);
	OK(&f, nvs_swap_in(f.engine, t, 4, -1, &f.error));
	OK(&f, nvs_wait(f.engine, t, 4, -1, &f.error));
	OK(&f, nvs_release(f.engine, t, 4, NVS_CLEAN, &f.error));
	fixture_close(&f);
}

static void uses_all_of_the_pool_before_a_lease_waits(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[200];
	uint64_t nbytes[200], seed = seed_of_run();
	struct nvs_pool_stats pool;
	size_t i = 0;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	for (size_t k = 0; k < 200; k++)
		nbytes[k] = 20000 + below(&seed, 60000);
	tensors_add(&f, "t", nbytes, 200, t);
	while (!nvs_lease(f.engine, &t[i], 1, 0, &f.error))
		i++;
	pool = stats_of(&f).pool;
	assert_int_equal(pool.waits, 1);
	assert_int_equal(pool.used_at_first_wait, pool.used);
	assert_true(pool.used * 100 >= pool.bytes * 95);
	OK(&f, nvs_release(f.engine, t, i, NVS_CLEAN, &f.error));
	assert_int_equal(stats_of(&f).pool.used, 0);
	fixture_close(&f);
}

/* ---- What stays ---- */

static uint64_t elements_idle(struct fixture *f, struct nvs_tensor **t, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor_info info = info_of(f, t[i]);

		if (info.state == NVS_RESIDENT && !info.uses)
			sum += info.numel;
	}
	return sum;
}

static void keeps_to(uint64_t max_in_cpu, uint64_t bound)
{
	struct fixture f;
	struct nvs_tensor *t[20];
	uint64_t nbytes[20], seed = seed_of_run(), most = 0;

	OPEN(&f, .place = PLACE_DISK, .max_in_cpu = max_in_cpu);
	for (size_t i = 0; i < 20; i++)
		nbytes[i] = below(&seed, 50000);
	tensors_add(&f, "t", nbytes, 20, t);
	for (uint64_t turn = 0; turn < 200; turn++) {
		uint64_t i = turn < 20 ? turn : below(&seed, 20), idle;

		if (turn < 20 || below(&seed, 2))
			tensor_write(&f, t[i], i);
		else
			tensor_check(&f, t[i], i);
		OK(&f, nvs_wait(f.engine, t, 20, -1, &f.error));
		idle = elements_idle(&f, t, 20);
		most = idle > most ? idle : most;
		assert_true(idle <= bound);
	}
	assert_true(most + 50000 >= bound);
	fixture_close(&f);
}

static void lets_no_more_stay_than_max_in_cpu(void **state)
{
	(void)state;
	keeps_to(NONE_STAYS, 0);
	keeps_to(1, 1);
	keeps_to(100000, 100000);
}

static void what_stays_is_not_read_again(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[4];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .faults = &faults);
	parts_store(&f, t, 4);
	for (int turn = 0; turn < 5; turn++)
		for (uint64_t i = 0; i < 4; i++)
			tensor_check(&f, t[i], i);
	assert_int_equal(faults.ios[NVS_READ], 4);
	fixture_close(&f);
}

/* ---- Reading ahead ---- */

static void reads_ahead_what_finds_room(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[8];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .faults = &faults);
	parts_store(&f, t, 8);
	OK(&f, nvs_lease(f.engine, &t[7], 1, 0, &f.error));
	assert_int_equal(nvs_prefetch(f.engine, t, 7, &f.error), 3);
	OK(&f, nvs_wait(f.engine, t, 7, -1, &f.error));
	for (int i = 0; i < 3; i++)
		STATE(&f, t[i], NVS_RESIDENT, false, 0);
	for (int i = 3; i < 7; i++)
		STATE(&f, t[i], NVS_ON_DRIVE, false, 0);
	assert_int_equal(stats_of(&f).pool.waits, 0);
	/* Again: they are there. */
	assert_int_equal(nvs_prefetch(f.engine, t, 3, &f.error), 3);
	faults.ios[NVS_READ] = 0;
	for (uint64_t i = 0; i < 3; i++)
		tensor_check(&f, t[i], i);
	assert_int_equal(faults.ios[NVS_READ], 0);
	/* Now out of use and clean, they make way. */
	assert_int_equal(nvs_prefetch(f.engine, &t[3], 3, &f.error), 3);
	OK(&f, nvs_wait(f.engine, t, 8, -1, &f.error));
	assert_int_equal(nvs_prefetch(f.engine, NULL, 0, &f.error), 0);
	OK(&f, nvs_release(f.engine, &t[7], 1, NVS_CLEAN, &f.error));
	fixture_close(&f);
}

static void reads_nothing_ahead_over_what_is_dirty_or_in_use(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[8];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .faults = &faults);
	parts_store(&f, t, 8);
	for (uint64_t i = 0; i < 2; i++)
		tensor_write(&f, t[i], 20 + i);
	OK(&f, nvs_swap_in(f.engine, &t[2], 2, 0, &f.error));
	OK(&f, nvs_wait(f.engine, &t[2], 2, -1, &f.error));
	faults.ios[NVS_READ] = faults.ios[NVS_WRITE] = 0;
	assert_int_equal(nvs_prefetch(f.engine, &t[4], 4, &f.error), 0);
	assert_int_equal(faults.ios[NVS_READ] + faults.ios[NVS_WRITE], 0);
	OK(&f, nvs_release(f.engine, &t[2], 2, NVS_CLEAN, &f.error));
	assert_int_equal(nvs_prefetch(f.engine, &t[4], 4, &f.error), 2);
	OK(&f, nvs_wait(f.engine, t, 8, -1, &f.error));
	STATE(&f, t[0], NVS_RESIDENT, true, 0);
	STATE(&f, t[1], NVS_RESIDENT, true, 0);
	tensor_check(&f, t[0], 20);
	tensor_check(&f, t[1], 21);
	fixture_close(&f);
}

static void what_was_read_ahead_is_kept_for_its_use(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[8];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 8);
	assert_int_equal(nvs_prefetch(f.engine, t, 2, &f.error), 2);
	OK(&f, nvs_wait(f.engine, t, 2, -1, &f.error));
	tensor_check(&f, t[4], 4);
	tensor_check(&f, t[5], 5);
	/* What has been used goes first, though more recently than they were read. */
	tensor_check(&f, t[6], 6);
	assert_int_equal(nvs_prefetch(f.engine, &t[7], 1, &f.error), 1);
	OK(&f, nvs_wait(f.engine, &t[7], 1, -1, &f.error));
	STATE(&f, t[0], NVS_RESIDENT, false, 0);
	STATE(&f, t[1], NVS_RESIDENT, false, 0);
	/* And reading ahead more does not undo what was read ahead. */
	assert_int_equal(nvs_prefetch(f.engine, &t[2], 2, &f.error), 1);
	assert_int_equal(nvs_prefetch(f.engine, &t[4], 3, &f.error), 0);
	OK(&f, nvs_wait(f.engine, t, 8, -1, &f.error));
	fixture_close(&f);
}

static void what_was_read_ahead_makes_way_for_uses(void **state)
{
	struct fixture f;
	struct nvs_tensor *t[8];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART);
	parts_store(&f, t, 8);
	assert_int_equal(nvs_prefetch(f.engine, t, 8, &f.error), 4);
	OK(&f, nvs_swap_in(f.engine, &t[4], 4, 60000, &f.error));
	OK(&f, nvs_wait(f.engine, t, 8, -1, &f.error));
	OK(&f, nvs_release(f.engine, &t[4], 4, NVS_CLEAN, &f.error));
	for (uint64_t i = 0; i < 8; i++)
		tensor_check(&f, t[i], i);
	fixture_close(&f);
}

static void what_is_on_its_way_out_stays_when_read_ahead(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	t = tensor_add(&f, "t", PART);
	tensor_write(&f, t, 1);
	faults_hold(&faults, NVS_WRITE, true);
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	assert_int_equal(nvs_prefetch(f.engine, &t, 1, &f.error), 1);
	faults_hold(&faults, NVS_WRITE, false);
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	STATE(&f, t, NVS_RESIDENT, false, 0);
	tensor_check(&f, t, 1);
	assert_int_equal(faults.ios[NVS_READ], 0);
	fixture_close(&f);
}

static void swapping_out_ends_reading_ahead(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	t = tensor_add(&f, "t", PART);
	tensor_store(&f, t, 1);
	faults_hold(&faults, NVS_READ, true);
	assert_int_equal(nvs_prefetch(f.engine, &t, 1, &f.error), 1);
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	faults_hold(&faults, NVS_READ, false);
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	STATE(&f, t, NVS_ON_DRIVE, false, 0);
	assert_int_equal(stats_of(&f).pool.used, 0);
	fixture_close(&f);
}

/* ---- Few long I/Os ---- */

static void shuffle(struct nvs_tensor **tensors, size_t n, uint64_t *seed)
{
	for (size_t i = n; i > 1; i--) {
		size_t k = below(seed, i);
		struct nvs_tensor *tensor = tensors[k];

		tensors[k] = tensors[i - 1];
		tensors[i - 1] = tensor;
	}
}

static void neighbours_move_in_few_long_ios(void **state)
{
	enum { N = 1024 };
	static struct nvs_tensor *t[N], *mixed[N];
	static uint64_t nbytes[N];
	struct fixture f;
	struct nvs_engine_stats stats;
	uint64_t seed = seed_of_run();

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 8 * MIB, .block_size = MIB);
	for (size_t i = 0; i < N; i++)
		nbytes[i] = 4096;
	tensors_add(&f, "t", nbytes, N, t);
	OK(&f, nvs_lease(f.engine, t, N, 0, &f.error));
	for (uint64_t i = 0; i < N; i++)
		fill(nvs_data(t[i]), 4096, i);
	OK(&f, nvs_release(f.engine, t, N, NVS_DIRTY, &f.error));
	memcpy(mixed, t, sizeof(t));
	shuffle(mixed, N, &seed);
	OK(&f, nvs_swap_out(f.engine, mixed, N, &f.error));
	OK(&f, nvs_wait(f.engine, t, N, -1, &f.error));
	stats = stats_of(&f);
	assert_int_equal(stats.transfers, 1);
	assert_int_equal(stats.aio.io[NVS_WRITE].bytes, 4 * MIB);
	assert_int_equal(stats.aio.io[NVS_WRITE].ios, 4);
	assert_int_equal(stats.swapped_out, 4 * MIB);

	shuffle(mixed, N, &seed);
	OK(&f, nvs_swap_in(f.engine, mixed, N, 0, &f.error));
	OK(&f, nvs_wait(f.engine, mixed, N, -1, &f.error));
	stats = stats_of(&f);
	assert_int_equal(stats.transfers, 2);
	assert_int_equal(stats.aio.io[NVS_READ].ios, 4);
	assert_int_equal(stats.swapped_in, 4 * MIB);
	for (uint64_t i = 0; i < N; i++)
		assert_true(filled(nvs_data(t[i]), 4096, i));
	OK(&f, nvs_release(f.engine, t, N, NVS_CLEAN, &f.error));
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drops_the_least_recently_used_first),
		cmocka_unit_test(writes_back_what_is_dirty_before_it_is_dropped),
		cmocka_unit_test(joins_pieces_by_dropping_what_is_between),
		cmocka_unit_test(a_batch_is_not_in_its_own_way),
		cmocka_unit_test(says_so_when_all_is_in_use),
		cmocka_unit_test(waits_until_another_thread_releases),
		cmocka_unit_test(refuses_a_batch_that_could_never_fit),
		cmocka_unit_test(uses_all_of_the_pool_before_a_lease_waits),
		cmocka_unit_test(lets_no_more_stay_than_max_in_cpu),
		cmocka_unit_test(what_stays_is_not_read_again),
		cmocka_unit_test(reads_ahead_what_finds_room),
		cmocka_unit_test(reads_nothing_ahead_over_what_is_dirty_or_in_use),
		cmocka_unit_test(what_was_read_ahead_is_kept_for_its_use),
		cmocka_unit_test(what_was_read_ahead_makes_way_for_uses),
		cmocka_unit_test(what_is_on_its_way_out_stays_when_read_ahead),
		cmocka_unit_test(swapping_out_ends_reading_ahead),
		cmocka_unit_test(neighbours_move_in_few_long_ios),
	};

	return cmocka_run_group_tests(tests, NULL, places_leave_all);
}
