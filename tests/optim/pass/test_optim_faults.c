/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drive fails in the middle of a step: the error names the place, nothing that was computed is
 * lost, other changes are refused until the step is finished, and the repeated step ends with the
 * bits of an undisturbed one.
 */
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>
#include <inttypes.h>

ONE_OPTIMIZER

#define STEPS 3

static const struct group four[] = {{"layers.0", 20001, NVS_BF16},
				    {"layers.1", 9999, NVS_F16},
				    {"layers.2", 14337, NVS_BF16},
				    {"layers.3", 4096, NVS_F32}};

static struct snapshot undisturbed[STEPS + 1];

/* The expected state after that many steps. */
static const struct snapshot *due(uint64_t steps)
{
	struct optim own;

	if (undisturbed[steps].n)
		return &undisturbed[steps];
	optim_init(&own, four, LENGTH(four));
	own.offload->device = NVS_DEVICE_CPU;
	DONE(&own, optim_open(&own));
	for (uint64_t step = 1; step <= STEPS; step++) {
		optim_run(&own, step, step);
		snapshot_take(&own, &undisturbed[step]);
	}
	optim_close(&own);
	return &undisturbed[steps];
}

/* Number of variants: memory, pipelines and so on. */
#define WAYS 6
static void begin(unsigned way)
{
	optim_renew(o, four, LENGTH(four));
	optim_simulate(o);
	o->offload->pipeline_read = way != 1;
	o->offload->pipeline_write = way != 2;
	o->config.optimizer_max_in_cpu = way == 3 ? 12000 : 0;
	o->offload->ratio = way == 4 ? 0.7 : 1;
	o->config.verify = way == 5;
	o->config.aio.queue_depth = way % 2 ? 2 : 8;
}

/* The same of an open one that has taken a step. */
static void begin_stepped(unsigned way, bool keep)
{
	begin(way);
	o->config.keep = keep;
	optim_open_run(o, 1);
}

static void names_what_failed(int rc)
{
	if (rc != -EIO || !o->error.text[0])
		print_error("%s: \"%s\"\n", nvs_strerror(rc), o->error.text);
	assert_int_equal(rc, -EIO);
	assert_int_equal(o->error.code, -EIO);
	/* The error names a group, or a tile with its number and place. */
	assert_true(strstr(o->error.text, "layers.") || strstr(o->error.text, "tile"));
	assert_non_null(strstr(o->error.text, o->path));
	o->error = (struct nvs_error){.size = sizeof(o->error)};
}

/* An unfinished step excludes all other changes. */
static void nothing_else_may_change(void)
{
	static float data[4096];
	uint64_t added = 9;

	for (size_t i = 0; i < o->n; i++)
		REFUSES(o, -EBUSY, "", lend_gradients, i, NVS_F32, o->gradients[i]);
	REFUSES(o, -EBUSY, "", add_gradients, 3, 0, 9, NVS_F32, data, &added);
	assert_int_equal(added, 0);
	REFUSES(o, -EBUSY, "", clear_gradients);
	REFUSES(o, -EBUSY, "", set, 3, NVS_EXP_AVG, 0, 9, data);
}

/* With another learning rate, which a step that has begun ignores. */
static int step_again(void)
{
	const struct nvs_step_options options = {.size = sizeof(options), .lr = 12345};

	return CALL(o, step, &options, &o->result);
}

static void finishes(void)
{
	DONE(o, step_again());
	assert_int_equal(o->result.step, 2);
	assert_false(o->result.skipped);
	o->result.norm = due(2)->norm;
	IS_AS(o, due(2));
	optim_run(o, 3, STEPS);
	IS_AS(o, due(STEPS));
}

TEST(a_step_fails_until_the_drive_is_repaired)
{
	for (unsigned way = 0; way < WAYS; way++) {
		begin_stepped(way, false);
		optim_lend(o, 2, 1);
		sim_fail(o->sim, way % 2 ? NVS_READ : NVS_WRITE, 5, EIO, SIM_ALWAYS);
		names_what_failed(optim_step(o, 2));
		for (int again = 0; again < 3; again++) {
			assert_int_equal(step_again(), -EIO);
			nothing_else_may_change();
		}
		sim_no_faults(o->sim);
		finishes();
	}
}

/*
 * The walk goes backwards, so the last tile is written first: its failure is known long before the
 * end of the pass.
 */
TEST(a_step_is_not_done_while_its_last_write_fails)
{
	static const struct group large[] = {{"a", 400000, NVS_F32}, {"b", 400000, NVS_F32},
					     {"c", 400000, NVS_F32}, {"d", 400000, NVS_F32},
					     {"e", 400000, NVS_F32}, {"f", 400000, NVS_F32}};

	optim_renew(o, large, LENGTH(large));
	optim_simulate(o);
	DONE(o, optim_open(o));
	for (uint64_t step = 1; step <= 6; step++) {
		uint64_t before = sim_ios(o->sim, NVS_WRITE);

		optim_run(o, step, step);
		before = sim_ios(o->sim, NVS_WRITE) - before;
		optim_lend(o, ++step, 1);
		sim_fail(o->sim, NVS_WRITE, before - 1, EIO, SIM_ALWAYS);
		assert_int_equal(optim_step(o, step), -EIO);
		for (int again = 0; again < 40; again++)
			assert_int_equal(step_again(), -EIO);
		sim_no_faults(o->sim);
		DONE(o, step_again());
		assert_int_equal(o->result.step, step);
	}
}

TEST(an_open_that_cannot_write_the_state_fails)
{
	for (unsigned way = 0; way < WAYS; way += 2) {
		begin(way);
		o->offload->fast_init = false;
		sim_fail(o->sim, NVS_WRITE, 3, EIO, SIM_ALWAYS);
		names_what_failed(optim_open(o));
		assert_null(o->optimizer);
		sim_no_faults(o->sim);
		optim_open_run(o, 1);
		IS_AS(o, due(1));
	}
}

/* Adds the gradients of a step, again where they are refused; returns how often they are. */
static unsigned add_until_all(uint64_t step)
{
	unsigned refused = 0;

	for (size_t i = 0; i < o->n; i++) {
		float *data = o->gradients[i];
		uint64_t numel = four[i].numel, added;

		for (uint64_t j = 0; j < numel; j++)
			data[j] = (float)element_value(16 * step + i, j);
		for (uint64_t at = 0; at < numel; at += added) {
			int rc = CALL(o, add_gradients, i, at, numel - at, NVS_F32, data + at,
				      &added);

			assert_true(rc ? rc == -EIO : added == numel - at);
			if (rc && ++refused == 5)
				sim_no_faults(o->sim);
		}
	}
	o->error = (struct nvs_error){.size = sizeof(o->error)};
	return refused;
}

/* Those that a call says it has added are not added again, and each counts in the norm. */
TEST(gradients_that_cannot_be_written_or_read_are_not_lost)
{
	unsigned refused = 0;

	for (unsigned way = 0; way < WAYS; way++) {
		begin_stepped(way, false);
		sim_fail(o->sim, NVS_WRITE, 2, EIO, way % 2 ? SIM_ALWAYS : 1);
		refused += add_until_all(2);
		sim_no_faults(o->sim);
		sim_fail(o->sim, NVS_READ, 0, EIO, 1);
		names_what_failed(optim_step(o, 2));
		DONE(o, optim_step(o, 2));
		IS_AS(o, due(2));
		optim_run(o, 3, STEPS);
		IS_AS(o, due(STEPS));
	}
	assert_true(refused > 0);
}

TEST(an_unfinished_step_is_finished_by_the_next_run)
{
	for (unsigned way = 0; way < WAYS; way++) {
		bool added = way / 2 % 2;

		begin_stepped(way, true);
		if (added)
			optim_add(o, 2, 1);
		else
			optim_lend(o, 2, 1);
		/* A failed read of added gradients would refuse the step before it begins. */
		sim_fail(o->sim, way % 2 && !added ? NVS_READ : NVS_WRITE, 9, EIO, SIM_ALWAYS);
		assert_int_equal(optim_step(o, 2), -EIO);
		sim_no_faults(o->sim);
		optim_reopen(o);
		if (!added) {
			/*
			 * Without the lent gradients the step cannot be finished, and the error
			 * says so.
			 */
			assert_true(step_again() < 0);
			optim_lend(o, 2, 1);
		}
		finishes();
	}
}
