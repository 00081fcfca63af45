/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State exported and imported in bulk: every element once, each tile moved once; an error of the
 * caller's function ends the call. Also the final weights that a step passes to the caller.
 */
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>

ONE_OPTIMIZER

static const struct group five[] = {{"a", 30000, NVS_F32},
				    {"b", 300, NVS_BF16},
				    {"c", 29999, NVS_BF16},
				    {"d", 512, NVS_F16},
				    {"e", 20001, NVS_F16}};

#define NUMEL_MAX 30000u

/* All state, in the caller's memory. */
struct checkpoint {
	float parts[LENGTH(five)][3][NUMEL_MAX];
	unsigned seen[LENGTH(five)][NUMEL_MAX];
	unsigned fails_at; /* number of the call that fails; 0: none; atomic */
	unsigned calls;
};

static int count_run(struct checkpoint *all, const struct nvs_state_run *run)
{
	unsigned call = __atomic_add_fetch(&all->calls, 1, __ATOMIC_RELAXED);

	MUST(run->size == sizeof(*run) && run->group < LENGTH(five) && run->numel);
	MUST(run->offset + run->numel <= five[run->group].numel);
	for (uint64_t i = 0; i < run->numel; i++)
		all->seen[run->group][run->offset + i]++;
	return all->fails_at && call >= all->fails_at ? -EDQUOT : 0;
}

static int take(void *arg, const struct nvs_state_run *run)
{
	struct checkpoint *all = arg;
	float(*parts)[NUMEL_MAX] = all->parts[run->group];
	size_t nbytes = run->numel * sizeof(float);

	memcpy(parts[NVS_MASTER] + run->offset, run->master, nbytes);
	memcpy(parts[NVS_EXP_AVG] + run->offset, run->exp_avg, nbytes);
	memcpy(parts[NVS_EXP_AVG_SQ] + run->offset, run->exp_avg_sq, nbytes);
	return count_run(all, run);
}

static int give(void *arg, const struct nvs_state_run *run)
{
	struct checkpoint *all = arg;
	float(*parts)[NUMEL_MAX] = all->parts[run->group];
	size_t nbytes = run->numel * sizeof(float);

	memcpy(run->master, parts[NVS_MASTER] + run->offset, nbytes);
	memcpy(run->exp_avg, parts[NVS_EXP_AVG] + run->offset, nbytes);
	memcpy(run->exp_avg_sq, parts[NVS_EXP_AVG_SQ] + run->offset, nbytes);
	return count_run(all, run);
}

static void forget_counts(struct checkpoint *all)
{
	memset(all->seen, 0, sizeof(all->seen));
	all->calls = all->fails_at = 0;
}

static void all_seen(const struct checkpoint *all, unsigned times)
{
	for (size_t i = 0; i < LENGTH(five); i++)
		for (uint64_t k = 0; k < five[i].numel; k++)
			assert_int_equal(all->seen[i][k], times);
}

static void begin(struct optim *on, unsigned way)
{
	optim_init(on, five, LENGTH(five));
	on->offload->ratio = way & 1 ? 0.6 : 1;
	on->config.optimizer_max_in_cpu = way & 2 ? 20000 : 0;
	on->offload->fast_init = way != 4;
	on->offload->pipeline_read = on->offload->pipeline_write = way != 5;
	if (way != 6)
		optim_simulate(on);
	DONE(on, optim_open(on));
}
#define WAYS 7u

static void export_is(struct checkpoint *all)
{
	struct snapshot now;

	forget_counts(all);
	DOES(o, export, take, all);
	all_seen(all, 1);
	snapshot_take(o, &now);
	for (size_t i = 0; i < LENGTH(five); i++)
		for (int part = 0; part < 3; part++)
			assert_memory_equal(all->parts[i][part], now.parts[i][part],
					    five[i].numel * sizeof(float));
	snapshot_free(&now);
}

TEST(an_export_has_every_element_once)
{
	static struct checkpoint all;

	for (unsigned way = 0; way < WAYS; way++) {
		begin(o, way);
		/* Before the first step, the state is the initial weights and zeros. */
		export_is(&all);
		optim_run(o, 1, 2);
		export_is(&all);
		optim_close(o);
	}
}

TEST(imported_state_computes_the_same_bits)
{
	static struct checkpoint all;
	struct snapshot due;
	struct optim from, to;

	for (unsigned way = 0; way < WAYS; way++) {
		begin(&from, 0);
		optim_run(&from, 1, 2);
		forget_counts(&all);
		DOES(&from, export, take, &all);
		begin(&to, way);
		if (way & 1)
			optim_run(&to, 1, 1);
		forget_counts(&all);
		DOES(&to, import, give, &all);
		all_seen(&all, 1);
		DOES(&to, set_step, 2);
		to.result.norm = from.result.norm;
		snapshot_take(&from, &due);
		IS_AS(&to, &due);
		snapshot_free(&due);
		optim_run(&from, 3, 3);
		optim_run(&to, 3, 3);
		snapshot_take(&from, &due);
		IS_AS(&to, &due);
		snapshot_free(&due);
		optim_close(&to);
		optim_close(&from);
	}
}

TEST(bulk_calls_move_each_tile_once)
{
	static struct checkpoint all;
	struct nvs_engine_stats from = {.size = sizeof(from)}, to = {.size = sizeof(to)};
	uint64_t nbytes = 12 * 81920; /* all groups, rounded up to multiples of 1024 elements */

	begin(o, 0);
	optim_run(o, 1, 1);
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &from);
	DOES(o, export, take, &all);
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &to);
	assert_in_range(to.swapped_in - from.swapped_in, nbytes * 9 / 10, nbytes * 11 / 10);
	assert_int_equal(to.swapped_out, from.swapped_out);
	from = to;
	DOES(o, import, give, &all);
	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &to);
	assert_int_equal(to.swapped_in, from.swapped_in);
	assert_in_range(to.swapped_out - from.swapped_out, nbytes * 9 / 10, nbytes * 11 / 10);
}

TEST(an_error_of_the_callers_function_ends_the_call)
{
	static struct checkpoint all;
	struct snapshot due;

	begin(o, 0);
	optim_run(o, 1, 1);
	snapshot_take(o, &due);
	forget_counts(&all);
	all.fails_at = 3;
	REFUSES(o, -EDQUOT, "export", export, take, &all);
	assert_in_range(all.calls, 3, 8);
	IS_AS(o, &due);
	/* Repeated, it imports what was exported. */
	forget_counts(&all);
	DOES(o, export, take, &all);
	forget_counts(&all);
	all.fails_at = 2;
	REFUSES(o, -EDQUOT, "import", import, give, &all);
	/* The import equals the state, so even a partial import changes nothing. */
	IS_AS(o, &due);
	snapshot_free(&due);
	optim_run(o, 2, 2);
}

TEST(faults_of_the_drive_end_the_call)
{
	static struct checkpoint all;
	struct snapshot due;

	begin(o, 0);
	optim_run(o, 1, 1);
	snapshot_take(o, &due);
	DOES(o, get_weights);
	sim_fail(o->sim, NVS_READ, 4, EIO, SIM_ALWAYS);
	assert_int_equal(CALL(o, export, take, &all), -EIO);
	sim_no_faults(o->sim);
	DOES(o, export, take, &all);
	sim_fail(o->sim, NVS_WRITE, 4, EIO, SIM_ALWAYS);
	assert_int_equal(CALL(o, import, give, &all), -EIO);
	sim_no_faults(o->sim);
	DOES(o, import, give, &all);
	IS_AS(o, &due);
	snapshot_free(&due);
}

TEST(bulk_is_refused_while_a_step_is_unfinished)
{
	static struct checkpoint all;

	begin(o, 0);
	optim_run(o, 1, 1);
	REFUSES(o, -EINVAL, "NULL", export, NULL, NULL);
	REFUSES(o, -EINVAL, "NULL", import, NULL, NULL);
	REFUSED(o, nvs_optimizer_export(NULL, take, NULL, &o->error), -EINVAL, "NULL");
	REFUSED(o, nvs_optimizer_import(NULL, give, NULL, &o->error), -EINVAL, "NULL");
	optim_lend(o, 2, 1);
	sim_fail(o->sim, NVS_WRITE, 2, EIO, SIM_ALWAYS);
	assert_int_equal(optim_step(o, 2), -EIO);
	sim_no_faults(o->sim);
	REFUSES(o, -EBUSY, "finish", export, take, &all);
	REFUSES(o, -EBUSY, "finish", import, give, &all);
	DONE(o, optim_step(o, 2));
	export_is(&all);
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
	optim_init(o, five, LENGTH(five));
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
			optim_close(o);
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
			optim_close(o);
		}
}
