/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who goes first on one drive with one I/O at a time: a tile that a call waits for, before tiles
 * that are read ahead and before write-backs, also those of a pass of another optimizer. And what a
 * pass does while the drive is busy.
 */
#include "optim/optim_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "aio/aio.h"
#include "support/submit.h"
#include "support/tests.h"

#define PATIENT 20 /* s; the limit for events that must happen */
#define NUMEL	65536
#define TILE	1024 /* elements: 64 tiles, of which the pool holds fewer */

static const struct group one[] = {{"a", NUMEL, NVS_F32}};

/* Optimizers that share one aio over a simulated drive. */
static struct {
	struct sim *sim;
	struct nvs_aio *aio;
	struct optim first, second;
} rig;

static void open_one(struct optim *o)
{
	o->config.aio.queue_depth = 1;
	o->config.aio.block_size = 64 * 1024;
	if (!rig.aio)
		DONE(o, aio_open_with(&rig.aio, &o->config.aio, &engine_sim, rig.sim, NULL,
				      &o->error));
	o->options.aio = rig.aio;
	o->offload->fast_init = false;
	DONE(o, optim_open(o));
}

static int open_rig(void **state)
{
	(void)state;
	memset(&rig, 0, sizeof(rig));
	rig.sim = sim_open(&(const struct sim_drive){0});
	assert_non_null(rig.sim);
	optim_init(&rig.first, one, 1);
	optim_init(&rig.second, one, 1);
	open_one(&rig.first);
	open_one(&rig.second);
	return 0;
}

static int close_rig(void **state)
{
	(void)state;
	optim_close(&rig.first);
	optim_close(&rig.second);
	nvs_aio_close(rig.aio);
	sim_close(rig.sim);
	return 0;
}

EACH_TEST(open_rig, close_rig)

/* The drive completes the one I/O that it has. */
static void complete_one(void)
{
	assert_true(sim_await_in_flight(rig.sim, 1));
	assert_int_equal(sim_complete(rig.sim, 1), 1);
}

/* ---- Calls on threads of their own ---- */

struct call {
	struct optim *o;
	int (*call)(struct call *);
	pthread_t thread;
	atomic_uint stage;
	sem_t done;
	int rc;
};

static void *run_call(void *arg)
{
	struct call *call = arg;

	call->rc = call->call(call);
	sem_post(&call->done);
	return NULL;
}

static void start(struct call *call, struct optim *o, int (*function)(struct call *))
{
	*call = (struct call){.o = o, .call = function};
	sem_init(&call->done, 0, 0);
	assert_int_equal(pthread_create(&call->thread, NULL, run_call, call), 0);
}

static void await_call(struct call *call)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENT;
	assert_int_equal(sem_timedwait(&call->done, &until), 0);
	pthread_join(call->thread, NULL);
	assert_int_equal(call->rc, 0);
	sem_destroy(&call->done);
}

static void get(struct call *call, enum nvs_optimizer_part part, uint64_t tile)
{
	float data[16];

	call->stage++;
	if (!call->rc)
		call->rc = nvs_optimizer_get(call->o->optimizer, 0, part, tile * TILE, 16, data,
					     NULL);
}

static int get_one(struct call *call)
{
	get(call, NVS_MASTER, 40);
	return call->rc;
}

/* The second call makes a walk of the part, which reads ahead. The third waits elsewhere. */
static int walk_and_get(struct call *call)
{
	get(call, NVS_MASTER, 0);
	get(call, NVS_MASTER, 1);
	get(call, NVS_EXP_AVG, 40);
	return call->rc;
}

static int step(struct call *call)
{
	/* Without a norm nothing is read before the pass. */
	return nvs_optimizer_step(call->o->optimizer, NULL, NULL, NULL);
}

static int fill_zeros(void *arg, const struct nvs_state_run *run)
{
	(void)arg;
	memset(run->master, 0, run->numel * sizeof(float));
	memset(run->exp_avg, 0, run->numel * sizeof(float));
	memset(run->exp_avg_sq, 0, run->numel * sizeof(float));
	return 0;
}

static int import(struct call *call)
{
	return nvs_optimizer_import(call->o->optimizer, fill_zeros, NULL, NULL);
}

/* ---- What is queued ---- */

/* The tiles of which a part is being read or written, or queued for it. */
static unsigned tiles_in(const struct optim *o, const char *part, enum nvs_tensor_state state)
{
	struct nvs_engine *engine = nvs_optimizer_engine(o->optimizer);
	unsigned n = 0;

	for (unsigned tile = 0; tile < NUMEL / TILE; tile++) {
		struct nvs_tensor_info info = {.size = sizeof(info)};
		char name[64];

		snprintf(name, sizeof(name), "a+%u %s %u", tile * TILE, part, tile);
		assert_int_equal(nvs_tensor_get_info(engine, nvs_tensor_find(engine, name), &info),
				 0);
		n += info.state == state;
	}
	return n;
}

static void await_tiles(const struct optim *o, const char *part, enum nvs_tensor_state state,
			unsigned n)
{
	while (tiles_in(o, part, state) < n)
		sched_yield();
}

/* Until that call of walk_and_get() waits for its read. */
static void await_stage(struct call *call, unsigned stage)
{
	while (call->stage < stage)
		sched_yield();
	await_awaited_reads(rig.aio, 1);
}

/* ---- Tests ---- */

TEST(a_piece_is_read_before_tiles_that_a_walk_reads_ahead)
{
	struct call call;

	sim_hold(rig.sim, SIM_READS);
	start(&call, &rig.first, walk_and_get);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(sim_await_in_flight(rig.sim, 1));
		await_stage(&call, i + 1);
		assert_int_equal(sim_complete(rig.sim, 1), 1);
	}
	await_stage(&call, 3);
	/* One read ahead is with the drive already. */
	assert_true(tiles_in(&rig.first, "master", NVS_READING) > 4);
	complete_one();
	complete_one();
	await_call(&call);
	assert_true(tiles_in(&rig.first, "master", NVS_READING) > 2);
	sim_go(rig.sim, SIM_READS);
}

TEST(a_tile_that_a_call_waits_for_is_read_before_those_that_a_pass_fetches)
{
	struct call stepping, getting;

	optim_lend(&rig.first, 1, 1);
	sim_hold(rig.sim, SIM_READS);
	start(&stepping, &rig.first, step);
	/* The first tile is with the drive and waited for, others are queued. */
	await_tiles(&rig.first, "master", NVS_READING, 6);
	await_awaited_reads(rig.aio, 1);
	start(&getting, &rig.second, get_one);
	await_tiles(&rig.second, "master", NVS_READING, 1);
	await_awaited_reads(rig.aio, 2);
	for (unsigned i = 0; i < 3; i++)
		complete_one();
	await_call(&getting);
	assert_true(tiles_in(&rig.first, "master", NVS_READING) > 2);
	sim_go(rig.sim, SIM_READS);
	await_call(&stepping);
}

TEST(a_tile_that_a_call_waits_for_is_read_before_write_backs_of_a_pass)
{
	struct call importing, getting;
	uint64_t written;

	written = sim_ios(rig.sim, NVS_WRITE);
	sim_hold(rig.sim, SIM_WRITES);
	start(&importing, &rig.first, import);
	/* An import reads nothing. */
	assert_true(sim_await_in_flight(rig.sim, 1));
	await_tiles(&rig.first, "master", NVS_WRITING, 6);
	start(&getting, &rig.second, get_one);
	await_awaited_reads(rig.aio, 1);
	/* The import waits for room, so one of its write-backs may have its turn. */
	for (unsigned i = 0; i < 3; i++) {
		assert_true(sim_await_in_flight(rig.sim, 1));
		(void)sim_complete(rig.sim, 1);
	}
	await_call(&getting);
	assert_true(sim_ios(rig.sim, NVS_WRITE) <= written + 3);
	assert_true(tiles_in(&rig.first, "master", NVS_WRITING) > 2);
	sim_go(rig.sim, SIM_WRITES);
	await_call(&importing);
}

/* Elements that a step has updated, of groups that are offloaded and others. */
static atomic_ulong offloaded, in_host;

static void count(void *arg, const struct nvs_update *update)
{
	(void)arg;
	*(update->group < 2 ? &offloaded : &in_host) += update->numel;
}

/* Also by the only compute thread: none is spent on waiting for the tile that is being read. */
TEST(state_in_host_memory_is_updated_while_the_drive_reads)
{
	static const struct group four[] = {{"a", 8192, NVS_F32},
					    {"b", 8192, NVS_F32},
					    {"c", 8192, NVS_F32},
					    {"d", 8192, NVS_F32}};
	struct optim o;
	struct call stepping;

	optim_init(&o, four, LENGTH(four));
	optim_simulate(&o);
	o.offload->ratio = 0.5;
	o.config.optimizer_threads = 1;
	o.offload->fast_init = false;
	o.options.update = count;
	DONE(&o, optim_open(&o));
	optim_lend(&o, 1, 1);
	sim_hold(o.sim, SIM_READS);
	start(&stepping, &o, step);
	while (in_host < 2 * 8192)
		sched_yield();
	assert_int_equal(offloaded, 0);
	sim_go(o.sim, SIM_READS);
	await_call(&stepping);
	assert_int_equal(offloaded, 2 * 8192);
	optim_close(&o);
}
