/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State exported and imported in bulk, by a function of the caller and by whole tiles: every
 * element once, each tile moved once; an error of the caller's function or of a transfer ends the
 * call. Also the final weights that a step passes to the caller.
 */
#include <errno.h>

#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/tests.h"

ONE_OPTIMIZER

static const struct group five[] = {{"a", 30000, NVS_F32},
				    {"b", 300, NVS_BF16},
				    {"c", 29999, NVS_BF16},
				    {"d", 512, NVS_F16},
				    {"e", 20001, NVS_F16}};

#define NUMEL_MAX   30000u
#define FLIGHTS_MAX 64u

/* All state, in the caller's memory, and what is in flight. */
static struct {
	float parts[LENGTH(five)][3][NUMEL_MAX];
	unsigned seen[LENGTH(five)][NUMEL_MAX];
	bool tiles, import;
	unsigned in_flight[FLIGHTS_MAX]; /* runs */
	unsigned flights, most;		 /* flights with runs; atomic */
	unsigned calls, fails_at; /* of the function, or completions; 0: none fails; atomic */
} all;

static void copy_run(const struct nvs_state_run *run)
{
	float *const state[] = {run->master, run->exp_avg, run->exp_avg_sq};

	MUST(run->size == sizeof(*run) && run->group < LENGTH(five) && run->numel);
	MUST(run->offset + run->numel <= five[run->group].numel);
	for (int part = NVS_MASTER; part <= NVS_EXP_AVG_SQ; part++) {
		float *copy = all.parts[run->group][part] + run->offset;

		memcpy(all.import ? state[part] : copy, all.import ? copy : state[part],
		       run->numel * sizeof(float));
	}
	for (uint64_t i = 0; i < run->numel; i++)
		all.seen[run->group][run->offset + i]++;
}

static int count_call(void)
{
	return __atomic_add_fetch(&all.calls, 1, __ATOMIC_RELAXED) == all.fails_at ? -EDQUOT : 0;
}

static int copy_now(void *arg, const struct nvs_state_run *run)
{
	(void)arg;
	copy_run(run);
	return count_call();
}

static void begin_run(void *arg, const struct nvs_state_run *run, unsigned flight)
{
	unsigned now;

	(void)arg;
	copy_run(run);
	MUST(flight < FLIGHTS_MAX);
	if (all.in_flight[flight]++)
		return;
	now = __atomic_add_fetch(&all.flights, 1, __ATOMIC_RELAXED);
	if (now > __atomic_load_n(&all.most, __ATOMIC_RELAXED))
		__atomic_store_n(&all.most, now, __ATOMIC_RELAXED);
}

static int complete(void *arg, unsigned flight)
{
	(void)arg;
	MUST(flight < FLIGHTS_MAX && all.in_flight[flight]);
	all.in_flight[flight] = 0;
	__atomic_sub_fetch(&all.flights, 1, __ATOMIC_RELAXED);
	return count_call();
}

/* Exports or imports all state; the call or completion `fails_at` fails. */
static int move(struct optim *on, bool import, unsigned fails_at)
{
	const struct tile_mover mover = {.begin = begin_run, .complete = complete};
	int rc;

	memset(all.seen, 0, sizeof(all.seen));
	all.calls = all.most = 0;
	all.import = import;
	all.fails_at = fails_at;
	if (!all.tiles)
		return import ? CALL(on, import, copy_now, NULL) : CALL(on, export, copy_now, NULL);
	assert_in_range(optimizer_flights(on->optimizer), 1, FLIGHTS_MAX);
	rc = import ? optimizer_import_tiles(on->optimizer, &mover, &on->error)
		    : optimizer_export_tiles(on->optimizer, &mover, &on->error);
	assert_int_equal(all.flights, 0);
	return rc;
}

static void all_seen_once(void)
{
	for (size_t i = 0; i < LENGTH(five); i++)
		for (uint64_t k = 0; k < five[i].numel; k++)
			assert_int_equal(all.seen[i][k], 1);
}

static void begin(struct optim *on, unsigned way)
{
	optim_renew(on, five, LENGTH(five));
	on->offload->ratio = way & 1 ? 0.6 : 1;
	on->config.optimizer_max_in_cpu = way & 2 ? 20000 : 0;
	on->offload->fast_init = way != 4;
	on->offload->pipeline_read = on->offload->pipeline_write = way != 5;
	on->config.optimizer_threads = way == 6 ? 1 : way == 7 ? 0 : 3;
	if (way < 7)
		optim_simulate(on);
	DONE(on, optim_open(on));
}
#define WAYS 8u

static void export_is_due(void)
{
	struct snapshot now;

	DONE(o, move(o, false, 0));
	all_seen_once();
	snapshot_take(o, &now);
	for (size_t i = 0; i < LENGTH(five); i++)
		for (int part = 0; part < 3; part++)
			assert_memory_equal(all.parts[i][part], now.parts[i][part],
					    five[i].numel * sizeof(float));
	snapshot_free(&now);
}

TEST(an_export_has_every_element_once)
{
	for (unsigned i = 0; i < 2 * WAYS; i++) {
		all.tiles = i % 2;
		begin(o, i / 2);
		/* Before the first step, the state is the initial weights and zeros. */
		export_is_due();
		optim_run(o, 1, 2);
		export_is_due();
	}
}

TEST(imported_state_computes_the_same_bits)
{
	struct optim from = {0}, to = {0};

	for (unsigned i = 0; i < 2 * WAYS; i++) {
		all.tiles = i % 2;
		begin(&from, 0);
		optim_run(&from, 1, 2);
		DONE(&from, move(&from, false, 0));
		begin(&to, i / 2);
		if (i & 2)
			optim_run(&to, 1, 1);
		DONE(&to, move(&to, true, 0));
		all_seen_once();
		DOES(&to, set_step, 2);
		to.result.norm = from.result.norm;
		IS_LIKE(&to, &from);
		optim_run(&from, 3, 3);
		optim_run(&to, 3, 3);
		IS_LIKE(&to, &from);
		optim_close(&to);
		optim_close(&from);
	}
}

TEST(bulk_calls_move_each_tile_once)
{
	struct nvs_engine_stats from = {.size = sizeof(from)}, to = {.size = sizeof(to)};
	uint64_t nbytes = 12 * 81920; /* all groups, rounded up to multiples of 1024 elements */

	all.tiles = false;
	begin(o, 0);
	optim_run(o, 1, 1);
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &from);
	DONE(o, move(o, false, 0));
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &to);
	assert_in_range(to.swapped_in - from.swapped_in, nbytes * 9 / 10, nbytes * 11 / 10);
	assert_int_equal(to.swapped_out, from.swapped_out);
	from = to;
	DONE(o, move(o, true, 0));
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &to);
	assert_int_equal(to.swapped_in, from.swapped_in);
	assert_in_range(to.swapped_out - from.swapped_out, nbytes * 9 / 10, nbytes * 11 / 10);
}

/* Tiles in host memory are always at hand, so one thread has two in flight. */
TEST(a_thread_begins_the_next_tile_before_it_waits)
{
	optim_renew(o, five, LENGTH(five));
	o->offload->ratio = 0;
	o->config.optimizer_threads = 1;
	DONE(o, optim_open(o));
	all.tiles = true;
	for (unsigned import = 0; import < 2; import++) {
		DONE(o, move(o, import, 0));
		assert_in_range(all.calls, 3, 100);
		assert_int_equal(all.most, 2);
	}
}

TEST(an_error_of_the_caller_ends_the_call)
{
	for (unsigned tiles = 0; tiles < 2; tiles++) {
		all.tiles = tiles;
		begin(o, 0);
		optim_run(o, 1, 1);
		optim_save(o);
		REFUSED(o, move(o, false, 3), -EDQUOT, tiles ? "failed" : "export");
		assert_in_range(all.calls, 3, 8);
		IS_AS_SAVED(o);
		/* Repeated, it imports what was exported. */
		DONE(o, move(o, false, 0));
		REFUSED(o, move(o, true, 2), -EDQUOT, tiles ? "failed" : "import");
		/* The import equals the state, so even a partial import changes nothing. */
		IS_AS_SAVED(o);
		DONE(o, move(o, true, 0));
		IS_AS_SAVED(o);
		optim_run(o, 2, 2);
	}
}

TEST(faults_of_the_drive_end_the_call)
{
	for (unsigned tiles = 0; tiles < 2; tiles++) {
		all.tiles = tiles;
		begin(o, 0);
		optim_run(o, 1, 1);
		optim_save(o);
		DOES(o, get_weights);
		for (unsigned import = 0; import < 2; import++) {
			sim_fail(o->sim, import ? NVS_WRITE : NVS_READ, 4, EIO, SIM_ALWAYS);
			assert_int_equal(move(o, import, 0), -EIO);
			sim_no_faults(o->sim);
			DONE(o, move(o, import, 0));
		}
		IS_AS_SAVED(o);
	}
}

TEST(bulk_is_refused_while_a_step_is_unfinished)
{
	begin(o, 0);
	optim_run(o, 1, 1);
	REFUSES(o, -EINVAL, "NULL", export, NULL, NULL);
	REFUSES(o, -EINVAL, "NULL", import, NULL, NULL);
	REFUSED(o, nvs_optimizer_export(NULL, copy_now, NULL, &o->error), -EINVAL, "NULL");
	REFUSED(o, nvs_optimizer_import(NULL, copy_now, NULL, &o->error), -EINVAL, "NULL");
	optim_fail(o, 2, NVS_WRITE, 2);
	sim_no_faults(o->sim);
	for (unsigned i = 0; i < 4; i++) {
		all.tiles = i & 2;
		REFUSED(o, move(o, i & 1, 0), -EBUSY, "finish");
	}
	DONE(o, optim_step(o, 2));
	export_is_due();
}

/* ---- Final weights ---- */

struct finals {
	char data[LENGTH(five)][NUMEL_MAX * 4];
	unsigned seen[LENGTH(five)][NUMEL_MAX];
};

static void take_final(void *arg, size_t group, uint64_t offset, uint64_t numel,
		       enum nvs_dtype dtype, const void *data)
{
	struct finals *finals = arg;
	size_t size = nvs_dtype_size(dtype);

	MUST(dtype == five[group].dtype && offset + numel <= five[group].numel);
	memcpy(finals->data[group] + offset * size, data, numel * size);
	for (uint64_t i = 0; i < numel; i++)
		finals->seen[group][offset + i]++;
}

static void double_update(void *arg, const struct nvs_update *update)
{
	(void)arg;
	for (uint64_t i = 0; i < update->numel; i++)
		update->master[i] -= (float)update->lr * update->gradients[i];
}

static void begin_finals(unsigned way, struct finals *finals, bool weights)
{
	memset(finals, 0, sizeof(*finals));
	optim_renew(o, five, LENGTH(five));
	for (size_t i = 0; i < LENGTH(five) && !weights; i++) {
		free(o->specs[i].weights);
		o->specs[i].weights = NULL;
	}
	o->options.weights_final = take_final;
	o->options.weights_final_arg = finals;
	o->options.update = way & 1 ? double_update : NULL;
	o->config.optimizer_max_in_cpu = way & 2 ? 20000 : 0;
	o->offload->ratio = way & 4 ? 0.6 : 1;
	optim_simulate(o);
	DONE(o, optim_open(o));
}

/* The weights passed to the caller are the master weights, rounded to the group's type. */
static void are_final(const struct finals *finals, unsigned times)
{
	struct snapshot now;

	snapshot_take(o, &now);
	for (size_t i = 0; i < LENGTH(five); i++)
		for (uint64_t k = 0; k < five[i].numel; k++) {
			double master = (double)now.parts[i][NVS_MASTER][k];

			assert_int_equal(finals->seen[i][k], times);
			assert_true(element_get(five[i].dtype, finals->data[i], k) ==
				    element_rounded(five[i].dtype, master));
		}
	snapshot_free(&now);
}

TEST(each_final_weight_is_passed_once)
{
	static struct finals finals;

	for (unsigned way = 0; way < 8; way++)
		for (int weights = 0; weights < 2; weights++) {
			begin_finals(way, &finals, weights);
			for (uint64_t step = 1; step <= 2; step++) {
				optim_run(o, step, step);
				are_final(&finals, (unsigned)step);
			}
			for (size_t i = 0; i < LENGTH(five) && weights; i++)
				assert_memory_equal(o->specs[i].weights, finals.data[i],
						    five[i].numel * nvs_dtype_size(five[i].dtype));
		}
}

TEST(groups_without_gradients_are_not_passed)
{
	static struct finals finals;

	begin_finals(0, &finals, false);
	DOES(o, lend_gradients, 1, NVS_F32, o->gradients[1]);
	memset(o->gradients[1], 0, five[1].numel * 4);
	DONE(o, optim_step(o, 1));
	for (size_t i = 0; i < LENGTH(five); i++)
		for (uint64_t k = 0; k < five[i].numel; k++)
			assert_int_equal(finals.seen[i][k], i == 1);
}

TEST(a_step_finished_later_passes_each_weight_once)
{
	static struct finals finals;

	for (int direction = NVS_READ; direction <= NVS_WRITE; direction++)
		for (unsigned after = 0; after < 12; after += 3) {
			begin_finals(0, &finals, false);
			optim_run(o, 1, 1);
			optim_lend(o, 2, 1);
			sim_fail(o->sim, (enum nvs_direction)direction, after, EIO, SIM_ALWAYS);
			assert_int_equal(optim_step(o, 2), -EIO);
			sim_no_faults(o->sim);
			DONE(o, optim_step(o, 2));
			are_final(&finals, 2);
		}
}
