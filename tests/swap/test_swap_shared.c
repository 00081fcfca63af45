/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines on an aio of the caller: they share its workers and statistics, close in any order while
 * others have transfers in flight, and leave the aio as it is.
 */
#include "base/memory/huge_map.h"
#include "swap/swap_fixture.h"

#include <sched.h>

#define NBYTES (300 * KIB)

/* Two engines on one aio; the first fixture has the simulated drive. */
static struct fixture pair[2], *const f = &pair[0], *const g = &pair[1];
static struct nvs_aio *shared;
static struct nvs_tensor *tensors[2];
static bool paired;

static void open_on(struct fixture *fixture, struct nvs_aio *aio)
{
	OK(fixture, nvs_engine_open_on(&fixture->engine, aio, &fixture->config, NVS_OFFLOAD_PARAM,
				       &fixture->error));
}

static void pair_open(uint32_t io_timeout_ms)
{
	INIT(f, .place = PLACE_DISK, .simulated = true, .thread_count = 2, .verify = true);
	INIT(g, .place = PLACE_DISK, .thread_count = 2, .verify = true);
	f->config.aio.io_timeout_ms = g->config.aio.io_timeout_ms = io_timeout_ms;
	paired = true;
	OK(f,
	   aio_open_with(&shared, &f->config.aio, &engine_sim, f->sim, &f->config.log, &f->error));
	for (int i = 0; i < 2; i++) {
		open_on(&pair[i], shared);
		tensors[i] = tensor_add(&pair[i], "t", NBYTES);
		tensor_store(&pair[i], tensors[i], (uint64_t)i + 1);
	}
}

static void pair_close(void)
{
	if (!paired)
		return;
	for (int i = 0; i < 2; i++)
		if (pair[i].engine)
			fixture_shut(&pair[i]);
	nvs_aio_close(shared);
	fixture_close(g);
	fixture_close(f);
	paired = false;
}
AFTER_SUCCESS(pair_close)

TEST(an_aio_is_not_closed_while_engines_use_it)
{
	pair_open(0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(nvs_aio_close(shared), -EBUSY);
		fixture_shut(&pair[i]);
		if (!i)
			tensor_compare(g, tensors[1], 2);
	}
	assert_int_equal(nvs_aio_close(shared), 0);
	shared = NULL;
}

TEST(an_engine_is_not_closed_while_another_uses_its_own_aio)
{
	struct fixture owner, guest;
	struct nvs_tensor *t;

	OPEN(&owner, .place = PLACE_DISK, .keep = true);
	INIT(&guest, .place = PLACE_DISK);
	open_on(&guest, nvs_engine_aio(owner.engine));
	FAILS(&owner, -EBUSY, "1 other engine is open on this one's aio", nvs_engine_close);
	FAILS(&owner, -EBUSY, "close it first", nvs_engine_abandon);
	t = tensor_add(&guest, "t", NBYTES);
	tensor_store(&guest, t, 1);
	tensor_compare(&guest, t, 1);
	t = tensor_add(&owner, "u", NBYTES);
	tensor_store(&owner, t, 2);
	fixture_shut(&guest);
	/* The refused call did not abandon what is closed now. */
	fixture_shut(&owner);
	OK(&owner, fixture_reopen(&owner));
	t = tensor_add(&owner, "u", NBYTES);
	tensor_compare(&owner, t, 2);
	fixture_close(&guest);
	fixture_close(&owner);
}

TEST(engines_share_the_workers_and_statistics_of_an_aio)
{
	struct nvs_engine_stats stats[2];

	pair_open(0);
	for (int i = 0; i < 2; i++)
		tensor_compare(&pair[i], tensors[i], (uint64_t)i + 1);
	for (int i = 0; i < 2; i++) {
		assert_ptr_equal(nvs_engine_aio(pair[i].engine), shared);
		stats[i] = stats_of(&pair[i]);
		assert_int_equal(stats[i].aio.workers, 2);
		assert_int_equal(stats[i].swapped_out, NBYTES);
		assert_true(stats[i].aio.io[NVS_WRITE].bytes >= 2 * NBYTES);
	}
	assert_int_equal(stats[0].aio.io[NVS_READ].bytes, stats[1].aio.io[NVS_READ].bytes);
}

TEST(closing_an_engine_leaves_the_aio_and_others_in_flight)
{
	uint64_t pin;

	pair_open(0);
	sim_hold(f->sim, SIM_READS);
	OK(g, nvs_tensor_swap_in(g->engine, &tensors[1], 1, 0, &pin, &g->error));
	assert_true(sim_await_in_flight(f->sim, 1));
	/* Unregisters the first pool and closes its files while the second engine's reads stay in
	 * flight. */
	fixture_shut(f);
	STATE(g, tensors[1], NVS_READING, false, 1);
	sim_go(f->sim, SIM_READS);
	OK(g, nvs_tensor_wait(g->engine, &tensors[1], 1, pin, -1, &g->error));
	assert_true(filled(nvs_tensor_data(tensors[1]), NBYTES, 2));
	OK(g, nvs_tensor_release(g->engine, &tensors[1], 1, pin, NVS_CLEAN, &g->error));
	/* Another engine takes its place. */
	open_on(f, shared);
	tensors[0] = tensor_add(f, "u", NBYTES);
	tensor_store(f, tensors[0], 3);
	fixture_shut(g);
	tensor_compare(f, tensors[0], 3);
}

TEST(close_drains_its_own_transfers_alone)
{
	pair_open(0);
	sim_hold(f->sim, SIM_READS);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &tensors[0], 1, &f->error), 1);
	assert_true(sim_await_in_flight(f->sim, 1));
	fixture_shut(g);
	STATE(f, tensors[0], NVS_READING, false, 0);
	sim_go(f->sim, SIM_READS);
	tensor_compare(f, tensors[0], 1);
}

TEST(an_overdue_transfer_is_that_of_its_engine_alone)
{
	uint64_t pin;
	int rc;

	pair_open(1000000);
	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_tensor_swap_in(f->engine, &tensors[0], 1, 0, &pin, &f->error));
	assert_true(sim_await_in_flight(f->sim, 1));
	aio_find_overdue(shared, clock_ns() + UINT64_C(2000000000000));
	FAILS(f, -ETIMEDOUT, "hangs", nvs_tensor_wait, &tensors[0], 1, pin, -1);
	FAILS(f, -ETIMEDOUT, "hangs", nvs_engine_close);
	/* The second engine's writes go on. */
	tensor_store(g, tensors[1], 7);
	fixture_shut(g);
	assert_null(strstr(g->log, "hangs"));
	/* The thread of events says it, which may be after the wait has returned. */
	events_await_idle(f->engine);
	assert_non_null(strstr(f->log, "hangs"));
	sim_go(f->sim, SIM_READS);
	/* Its mark goes when the engine's thread lands it. */
	while ((rc = nvs_tensor_wait(f->engine, &tensors[0], 1, pin, -1, &f->error)) == -ETIMEDOUT)
		sched_yield();
	OK(f, rc);
	OK(f, nvs_tensor_release(f->engine, &tensors[0], 1, pin, NVS_CLEAN, &f->error));
}

/* How many more regions of memory the aio takes. */
static unsigned free_regions(struct nvs_aio *aio)
{
	const size_t page = page_bytes();
	char *pages = aligned_alloc(page, page * (ENGINE_BUFFERS + 1));
	unsigned n = 0;

	assert_non_null(pages);
	while (n <= ENGINE_BUFFERS && !nvs_aio_register_memory(aio, pages + n * page, page))
		n++;
	for (unsigned i = 0; i < n; i++)
		nvs_aio_unregister_memory(aio, pages + i * page);
	free(pages);
	return n;
}

/* The rings of the other engines must not hold the pages of a pool that is gone. */
TEST(a_closed_engine_leaves_no_memory_registered)
{
	unsigned room;

	pair_open(0);
	room = free_regions(shared);
	assert_true(room > 0 && room < ENGINE_BUFFERS);
	fixture_shut(g);
	assert_int_equal(free_regions(shared), room + 1);
}

TEST(a_configuration_that_contradicts_the_aio_is_refused)
{
	struct nvs_aio *aio;

	INIT(f, .place = PLACE_DISK);
	OK(f, nvs_aio_open(&aio, &f->config, &f->error));
	f->config.aio.block_size *= 2;
	expect_error(
		f, nvs_engine_open_on(&f->engine, aio, &f->config, NVS_OFFLOAD_PARAM, &f->error),
		-EINVAL, "aio.block_size is 131072, but the aio to share was opened with 65536");
	f->config.aio.block_size /= 2;
	f->config.aio.io_timeout_ms = 5;
	expect_error(f,
		     nvs_engine_open_on(&f->engine, aio, &f->config, NVS_OFFLOAD_PARAM, &f->error),
		     -EINVAL, "nvswap.io_timeout_ms is 5");
	f->config.aio.io_timeout_ms = 0;
	open_on(f, aio);
	fixture_shut(f);
	nvs_aio_close(aio);
	fixture_close(f);
}

TEST(the_pool_is_one_run_of_pages_that_has_every_tensor)
{
	struct nvs_tensor *t;
	uint64_t pin;
	size_t nbytes;
	char *data;
	void *base;

	OPEN(f, .place = PLACE_DISK, .pool_bytes = MIB + 4);
	assert_int_equal(nvs_engine_pool(f->engine, &base, &nbytes), 0);
	assert_int_equal((uintptr_t)base % page_bytes(), 0);
	assert_int_equal(nbytes % page_bytes(), 0);
	assert_true(nbytes >= stats_of(f).pool.bytes);
	/* All of it is mapped. */
	assert_non_null(memchr((char *)base + nbytes - 1, 0, 1));
	t = tensor_add(f, "t", MIB);
	OK(f, nvs_tensor_pin(f->engine, &t, 1, 0, &pin, &f->error));
	data = nvs_tensor_data(t);
	assert_true(data >= (char *)base && data + MIB <= (char *)base + nbytes);
	OK(f, nvs_tensor_release(f->engine, &t, 1, pin, NVS_CLEAN, &f->error));
	fixture_close(f);
}

static void *swap_often(void *arg)
{
	struct nvs_tensor *t = tensors[0];
	uint64_t pin;

	(void)arg;
	for (int i = 0; i < 50; i++) {
		MUST(!nvs_tensor_swap_in(f->engine, &t, 1, -1, &pin, NULL));
		MUST(!nvs_tensor_wait(f->engine, &t, 1, pin, -1, NULL));
		MUST(!nvs_tensor_release(f->engine, &t, 1, pin, NVS_DIRTY, NULL));
		MUST(!nvs_tensor_swap_out(f->engine, &t, 1, NULL));
		MUST(!nvs_tensor_wait(f->engine, &t, 1, 0, -1, NULL));
	}
	return NULL;
}

TEST(engines_open_and_close_beside_the_transfers_of_another)
{
	pthread_t thread;

	pair_open(0);
	MUST(!pthread_create(&thread, NULL, swap_often, NULL));
	for (uint64_t i = 0; i < 10; i++) {
		fixture_shut(g);
		open_on(g, shared);
		tensors[1] = tensor_add(g, "t", NBYTES);
		tensor_write(g, tensors[1], i);
		tensor_compare(g, tensors[1], i);
	}
	pthread_join(thread, NULL);
	tensor_compare(f, tensors[0], 1);
}
