/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State moved by whole tiles: every element once, a thread's next tile begun before it waits for
 * the one before, and an error of a transfer ends the call.
 */
#include <errno.h>

#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/tests.h"

ONE_OPTIMIZER

static const struct group three[] = {
	{"a", 300000, NVS_F32}, {"b", 300, NVS_BF16}, {"c", 99999, NVS_F16}};

#define NUMEL_MAX   300000u
#define FLIGHTS_MAX 64u

/* All state, in the caller's memory, and what is in flight. */
struct copies {
	float parts[LENGTH(three)][3][NUMEL_MAX];
	unsigned char seen[LENGTH(three)][NUMEL_MAX];
	bool import;
	unsigned in_flight[FLIGHTS_MAX]; /* runs */
	unsigned flights, most;		 /* flights with runs; atomic */
	unsigned completed, fails_at;	 /* the completion that fails; 0: none; atomic */
};

static void count_begun(struct copies *all, const struct nvs_state_run *run, unsigned flight)
{
	unsigned now;

	MUST(flight < FLIGHTS_MAX && run->offset + run->numel <= three[run->group].numel);
	for (uint64_t i = 0; i < run->numel; i++)
		all->seen[run->group][run->offset + i]++;
	if (all->in_flight[flight]++)
		return;
	now = __atomic_add_fetch(&all->flights, 1, __ATOMIC_RELAXED);
	if (now > __atomic_load_n(&all->most, __ATOMIC_RELAXED))
		__atomic_store_n(&all->most, now, __ATOMIC_RELAXED);
}

static void begin_run(void *arg, const struct nvs_state_run *run, unsigned flight)
{
	struct copies *all = arg;
	float *const state[] = {run->master, run->exp_avg, run->exp_avg_sq};

	for (int part = NVS_MASTER; part <= NVS_EXP_AVG_SQ; part++) {
		float *copy = all->parts[run->group][part] + run->offset;

		memcpy(all->import ? state[part] : copy, all->import ? copy : state[part],
		       run->numel * sizeof(float));
	}
	count_begun(all, run, flight);
}

static int complete(void *arg, unsigned flight)
{
	struct copies *all = arg;

	MUST(flight < FLIGHTS_MAX && all->in_flight[flight]);
	all->in_flight[flight] = 0;
	__atomic_sub_fetch(&all->flights, 1, __ATOMIC_RELAXED);
	return __atomic_add_fetch(&all->completed, 1, __ATOMIC_RELAXED) == all->fails_at ? -EDQUOT
											 : 0;
}

static int move(struct optim *on, struct copies *all, bool import, unsigned fails_at)
{
	const struct tile_mover mover = {.begin = begin_run, .complete = complete, .arg = all};
	int rc;

	memset(all->seen, 0, sizeof(all->seen));
	all->completed = all->most = 0;
	all->import = import;
	all->fails_at = fails_at;
	assert_in_range(optimizer_flights(on->optimizer), 1, FLIGHTS_MAX);
	rc = import ? optimizer_import_tiles(on->optimizer, &mover, &on->error)
		    : optimizer_export_tiles(on->optimizer, &mover, &on->error);
	assert_int_equal(all->flights, 0);
	return rc;
}

static void all_seen_once(const struct copies *all)
{
	for (size_t i = 0; i < LENGTH(three); i++)
		for (uint64_t k = 0; k < three[i].numel; k++)
			assert_int_equal(all->seen[i][k], 1);
}

static void begin(struct optim *on, unsigned way)
{
	optim_init(on, three, LENGTH(three));
	on->offload->ratio = way & 1 ? 0.6 : 1;
	on->config.optimizer_max_in_cpu = way & 2 ? 100000 : 0;
	on->offload->fast_init = way != 4;
	on->offload->pipeline_read = on->offload->pipeline_write = way != 5;
	on->config.optimizer_threads = way == 6 ? 1 : 3;
	if (way < 7)
		optim_simulate(on);
	DONE(on, optim_open(on));
}
#define WAYS 8u

TEST(tiles_have_every_element_once)
{
	static struct copies all;
	struct snapshot now;

	for (unsigned way = 0; way < WAYS; way++) {
		begin(o, way);
		for (uint64_t step = 0; step < 2; step++) {
			DONE(o, move(o, &all, false, 0));
			all_seen_once(&all);
			snapshot_take(o, &now);
			for (size_t i = 0; i < LENGTH(three); i++)
				for (int part = 0; part < 3; part++)
					assert_memory_equal(all.parts[i][part], now.parts[i][part],
							    three[i].numel * sizeof(float));
			snapshot_free(&now);
			optim_run(o, step + 1, step + 1);
		}
		optim_close(o);
	}
}

TEST(imported_tiles_compute_the_same_bits)
{
	static struct copies all;
	struct snapshot due;
	struct optim from, to;

	for (unsigned way = 0; way < WAYS; way++) {
		begin(&from, 0);
		optim_run(&from, 1, 2);
		DONE(&from, move(&from, &all, false, 0));
		begin(&to, way);
		DONE(&to, move(&to, &all, true, 0));
		all_seen_once(&all);
		DOES(&to, set_step, 2);
		optim_run(&from, 3, 3);
		optim_run(&to, 3, 3);
		snapshot_take(&from, &due);
		IS_AS(&to, &due);
		snapshot_free(&due);
		optim_close(&to);
		optim_close(&from);
	}
}

/* Tiles in host memory are always at hand, so one thread has two in flight. */
TEST(a_thread_begins_the_next_tile_before_it_waits)
{
	static struct copies all;

	optim_init(o, three, LENGTH(three));
	o->offload->ratio = 0;
	o->config.optimizer_threads = 1;
	DONE(o, optim_open(o));
	for (unsigned import = 0; import < 2; import++) {
		DONE(o, move(o, &all, import, 0));
		assert_in_range(all.completed, 3, 100);
		assert_int_equal(all.most, 2);
	}
}

TEST(an_error_of_a_transfer_ends_the_call)
{
	static struct copies all;
	struct snapshot due;

	begin(o, 0);
	optim_run(o, 1, 1);
	snapshot_take(o, &due);
	DONE(o, move(o, &all, false, 0));
	assert_int_equal(move(o, &all, false, 2), -EDQUOT);
	IS_AS(o, &due);
	/* The import equals the state, so even a part of it changes nothing. */
	assert_int_equal(move(o, &all, true, 2), -EDQUOT);
	IS_AS(o, &due);
	DONE(o, move(o, &all, true, 0));
	IS_AS(o, &due);
	snapshot_free(&due);
	optim_run(o, 2, 2);
}

TEST(faults_of_the_drive_end_the_call)
{
	static struct copies all;

	begin(o, 0);
	optim_run(o, 1, 1);
	DOES(o, get_weights);
	sim_fail(o->sim, NVS_READ, 4, EIO, SIM_ALWAYS);
	assert_int_equal(move(o, &all, false, 0), -EIO);
	sim_no_faults(o->sim);
	DONE(o, move(o, &all, false, 0));
	sim_fail(o->sim, NVS_WRITE, 4, EIO, SIM_ALWAYS);
	assert_int_equal(move(o, &all, true, 0), -EIO);
	sim_no_faults(o->sim);
	DONE(o, move(o, &all, true, 0));
}

TEST(tiles_are_refused_while_a_step_is_unfinished)
{
	static struct copies all;

	begin(o, 0);
	optim_run(o, 1, 1);
	optim_lend(o, 2, 1);
	sim_fail(o->sim, NVS_WRITE, 2, EIO, SIM_ALWAYS);
	assert_int_equal(optim_step(o, 2), -EIO);
	sim_no_faults(o->sim);
	REFUSED(o, move(o, &all, false, 0), -EBUSY, "finish");
	REFUSED(o, move(o, &all, true, 0), -EBUSY, "finish");
	DONE(o, optim_step(o, 2));
	DONE(o, move(o, &all, false, 0));
}
