/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines on an aio of the caller: they share its workers and statistics, close in any order while
 * others have transfers in flight, and leave the aio as it is.
 */
#include "aio/aio.h"
#include "aio/engines/engine.h"
#include "base/clock.h"
#include "base/memory/huge_map.h"
#include "support/tests.h"
#include "swap/swap_fixture.h"

#include <errno.h>
#include <sched.h>

#define NBYTES (300 * KIB)

/* Two engines on one aio; the first fixture has the simulated drive. */
struct pair {
	struct nvs_aio *aio;
	struct fixture f[2];
	struct nvs_tensor *tensor[2];
	bool open;
};
static struct pair one_pair, *const p = &one_pair;

/* Swaps it in, compares and releases. */
static void expect_contents(struct fixture *f, struct nvs_tensor *t, uint64_t seed)
{
	uint64_t pin;

	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, -1, &pin, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t, 1, pin, -1, &f->error));
	assert_true(filled(nvs_tensor_data(t), info_of(f, t).nbytes, seed));
	OK(f, nvs_tensor_release(f->engine, &t, 1, pin, NVS_CLEAN, &f->error));
}

static void aio_on_sim(struct fixture *f, struct nvs_aio **aio)
{
	OK(f, aio_open_with(aio, &f->config.aio, &engine_sim, f->sim, &f->config.log, &f->error));
}

static void open_on(struct fixture *f, struct nvs_aio *aio)
{
	OK(f, nvs_engine_open_on(&f->engine, aio, &f->config, NVS_OFFLOAD_PARAM, &f->error));
}

static void pair_open(uint32_t io_timeout_ms)
{
	INIT(&p->f[0], .place = PLACE_DISK, .simulated = true, .thread_count = 2, .verify = true);
	INIT(&p->f[1], .place = PLACE_DISK, .thread_count = 2, .verify = true);
	p->f[0].config.aio.io_timeout_ms = p->f[1].config.aio.io_timeout_ms = io_timeout_ms;
	p->open = true;
	aio_on_sim(&p->f[0], &p->aio);
	for (int i = 0; i < 2; i++) {
		open_on(&p->f[i], p->aio);
		p->tensor[i] = tensor_add(&p->f[i], "t", NBYTES);
		tensor_store(&p->f[i], p->tensor[i], (uint64_t)i + 1);
	}
}

static void pair_close(void)
{
	if (!p->open)
		return;
	for (int i = 0; i < 2; i++)
		if (p->f[i].engine)
			fixture_shut(&p->f[i]);
	nvs_aio_close(p->aio);
	fixture_close(&p->f[1]);
	fixture_close(&p->f[0]);
	p->open = false;
}
AFTER_SUCCESS(pair_close)

TEST(an_aio_is_not_closed_while_engines_use_it)
{
	pair_open(0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(nvs_aio_close(p->aio), -EBUSY);
		fixture_shut(&p->f[i]);
		if (!i)
			expect_contents(&p->f[1], p->tensor[1], 2);
	}
	assert_int_equal(nvs_aio_close(p->aio), 0);
	p->aio = NULL;
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
	expect_contents(&guest, t, 1);
	t = tensor_add(&owner, "u", NBYTES);
	tensor_store(&owner, t, 2);
	fixture_shut(&guest);
	/* The refused call did not abandon what is closed now. */
	fixture_shut(&owner);
	OK(&owner, fixture_reopen(&owner));
	t = tensor_add(&owner, "u", NBYTES);
	expect_contents(&owner, t, 2);
	fixture_close(&guest);
	fixture_close(&owner);
}

TEST(engines_share_the_workers_and_statistics_of_an_aio)
{
	struct nvs_engine_stats stats[2];

	pair_open(0);
	for (int i = 0; i < 2; i++)
		expect_contents(&p->f[i], p->tensor[i], (uint64_t)i + 1);
	for (int i = 0; i < 2; i++) {
		assert_ptr_equal(nvs_engine_aio(p->f[i].engine), p->aio);
		stats[i] = stats_of(&p->f[i]);
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
	sim_hold(p->f[0].sim, SIM_READS);
	OK(&p->f[1], nvs_tensor_swap_in(p->f[1].engine, &p->tensor[1], 1, 0, &pin, &p->f[1].error));
	assert_true(sim_await_in_flight(p->f[0].sim, 1));
	/* Unregisters the first pool and closes its files while the second engine's reads stay in
	 * flight. */
	fixture_shut(&p->f[0]);
	STATE(&p->f[1], p->tensor[1], NVS_READING, false, 1);
	sim_go(p->f[0].sim, SIM_READS);
	OK(&p->f[1], nvs_tensor_wait(p->f[1].engine, &p->tensor[1], 1, pin, -1, &p->f[1].error));
	assert_true(filled(nvs_tensor_data(p->tensor[1]), NBYTES, 2));
	OK(&p->f[1],
	   nvs_tensor_release(p->f[1].engine, &p->tensor[1], 1, pin, NVS_CLEAN, &p->f[1].error));
	/* Another engine takes its place. */
	open_on(&p->f[0], p->aio);
	p->tensor[0] = tensor_add(&p->f[0], "u", NBYTES);
	tensor_store(&p->f[0], p->tensor[0], 3);
	fixture_shut(&p->f[1]);
	expect_contents(&p->f[0], p->tensor[0], 3);
}

TEST(close_drains_its_own_transfers_alone)
{
	pair_open(0);
	sim_hold(p->f[0].sim, SIM_READS);
	assert_int_equal(nvs_tensor_prefetch(p->f[0].engine, &p->tensor[0], 1, &p->f[0].error), 1);
	assert_true(sim_await_in_flight(p->f[0].sim, 1));
	fixture_shut(&p->f[1]);
	STATE(&p->f[0], p->tensor[0], NVS_READING, false, 0);
	sim_go(p->f[0].sim, SIM_READS);
	expect_contents(&p->f[0], p->tensor[0], 1);
}

TEST(an_overdue_transfer_is_that_of_its_engine_alone)
{
	uint64_t pin;
	int rc;

	pair_open(1000000);
	sim_hold(p->f[0].sim, SIM_READS);
	OK(&p->f[0], nvs_tensor_swap_in(p->f[0].engine, &p->tensor[0], 1, 0, &pin, &p->f[0].error));
	assert_true(sim_await_in_flight(p->f[0].sim, 1));
	aio_look_for_overdue(p->aio, clock_ns() + UINT64_C(2000000000000));
	FAILS(&p->f[0], -ETIMEDOUT, "hangs", nvs_tensor_wait, &p->tensor[0], 1, pin, -1);
	FAILS(&p->f[0], -ETIMEDOUT, "hangs", nvs_engine_close);
	/* The second engine's writes go on. */
	tensor_store(&p->f[1], p->tensor[1], 7);
	fixture_shut(&p->f[1]);
	assert_null(strstr(p->f[1].log, "hangs"));
	/* The thread of events says it, which may be after the wait has returned. */
	events_await_idle(p->f[0].engine);
	assert_non_null(strstr(p->f[0].log, "hangs"));
	sim_go(p->f[0].sim, SIM_READS);
	/* Its mark goes when the engine's thread lands it. */
	while ((rc = nvs_tensor_wait(p->f[0].engine, &p->tensor[0], 1, pin, -1, &p->f[0].error)) ==
	       -ETIMEDOUT)
		sched_yield();
	OK(&p->f[0], rc);
	OK(&p->f[0],
	   nvs_tensor_release(p->f[0].engine, &p->tensor[0], 1, pin, NVS_CLEAN, &p->f[0].error));
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
	room = free_regions(p->aio);
	assert_true(room > 0 && room < ENGINE_BUFFERS);
	fixture_shut(&p->f[1]);
	assert_int_equal(free_regions(p->aio), room + 1);
}

TEST(a_configuration_that_contradicts_the_aio_is_refused)
{
	struct nvs_aio *aio;
	struct fixture f;

	INIT(&f, .place = PLACE_DISK);
	OK(&f, nvs_aio_open(&aio, &f.config, &f.error));
	f.config.aio.block_size *= 2;
	expect_error(&f, nvs_engine_open_on(&f.engine, aio, &f.config, NVS_OFFLOAD_PARAM, &f.error),
		     -EINVAL,
		     "aio.block_size is 131072, but the aio to share was opened with 65536");
	f.config.aio.block_size /= 2;
	f.config.aio.io_timeout_ms = 5;
	expect_error(&f, nvs_engine_open_on(&f.engine, aio, &f.config, NVS_OFFLOAD_PARAM, &f.error),
		     -EINVAL, "nvswap.io_timeout_ms is 5");
	f.config.aio.io_timeout_ms = 0;
	open_on(&f, aio);
	fixture_shut(&f);
	nvs_aio_close(aio);
	fixture_close(&f);
}

TEST(arguments_that_are_null_are_refused)
{
	struct nvs_engine *engine = NULL;
	struct fixture f;
	size_t nbytes;
	void *data;

	OPEN(&f, .place = PLACE_DISK);
	expect_error(&f, nvs_engine_open(NULL, &f.config, NVS_OFFLOAD_PARAM, &f.error), -EINVAL,
		     "engine");
	expect_error(&f, nvs_engine_open(&engine, NULL, NVS_OFFLOAD_PARAM, &f.error), -EINVAL,
		     "config");
	expect_error(&f, nvs_engine_open(&engine, &f.config, (enum nvs_block)7, &f.error), -EINVAL,
		     "block");
	expect_error(&f, nvs_engine_open_on(&engine, NULL, &f.config, NVS_OFFLOAD_PARAM, &f.error),
		     -EINVAL, "aio");
	assert_null(engine);
	assert_null(nvs_engine_aio(NULL));
	assert_int_equal(nvs_engine_pool(NULL, &data, &nbytes), -EINVAL);
	assert_int_equal(nvs_engine_pool(f.engine, NULL, &nbytes), -EINVAL);
	assert_int_equal(nvs_engine_pool(f.engine, &data, NULL), -EINVAL);
	fixture_close(&f);
}

TEST(the_pool_is_one_run_of_pages_that_has_every_tensor)
{
	struct nvs_tensor *t;
	struct fixture f;
	uint64_t pin;
	size_t nbytes;
	char *data;
	void *base;

	OPEN(&f, .place = PLACE_DISK, .pool_bytes = MIB + 4);
	assert_int_equal(nvs_engine_pool(f.engine, &base, &nbytes), 0);
	assert_int_equal((uintptr_t)base % page_bytes(), 0);
	assert_int_equal(nbytes % page_bytes(), 0);
	assert_true(nbytes >= stats_of(&f).pool.bytes);
	/* All of it is mapped. */
	assert_non_null(memchr((char *)base + nbytes - 1, 0, 1));
	t = tensor_add(&f, "t", MIB);
	OK(&f, nvs_tensor_pin(f.engine, &t, 1, 0, &pin, &f.error));
	data = nvs_tensor_data(t);
	assert_true(data >= (char *)base && data + MIB <= (char *)base + nbytes);
	OK(&f, nvs_tensor_release(f.engine, &t, 1, pin, NVS_CLEAN, &f.error));
	fixture_close(&f);
}

/* ---- Threads ---- */

struct worker {
	int i;
};

static void *swap_often(void *arg)
{
	struct worker *worker = arg;
	struct fixture *f = &p->f[worker->i];
	struct nvs_tensor *t = p->tensor[worker->i];
	uint64_t pin;

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
	struct worker worker;
	pthread_t thread;

	pair_open(0);
	worker = (struct worker){0};
	MUST(!pthread_create(&thread, NULL, swap_often, &worker));
	for (uint64_t i = 0; i < 10; i++) {
		fixture_shut(&p->f[1]);
		open_on(&p->f[1], p->aio);
		p->tensor[1] = tensor_add(&p->f[1], "t", NBYTES);
		tensor_write(&p->f[1], p->tensor[1], i);
		expect_contents(&p->f[1], p->tensor[1], i);
	}
	pthread_join(thread, NULL);
	expect_contents(&p->f[0], p->tensor[0], 1);
}
