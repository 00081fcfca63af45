/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State read and written in ranges: each part is read and written once, the next ones are read
 * ahead, and writes behind are neither lost nor fail silently.
 */
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>

ONE_OPTIMIZER

#define RANGE 1000u

/* A group longer than a tile, and short ones that fill one tile. */
static const struct group groups[] = {{"a", 30000, NVS_F32},  {"b", 300, NVS_BF16},
				      {"c", 29999, NVS_BF16}, {"d", 512, NVS_F32},
				      {"e", 100, NVS_F16},    {"f", 30000, NVS_F32}};

enum order { PARTS_TOGETHER, PART_BY_PART, ALL_OF_A_PART, ORDERS };

static void begin(void)
{
	optim_renew(o, groups, LENGTH(groups));
	optim_simulate(o);
	/* The pool holds two groups of 30000 elements. */
	o->offload->buffer_count = 6;
	optim_open_run(o, 1);
}

static void range(size_t group, int part, uint64_t at, bool set)
{
	enum nvs_optimizer_part which = (enum nvs_optimizer_part)part;
	static float data[RANGE];
	uint64_t left = groups[group].numel - at, n = left < RANGE ? left : RANGE;

	DOES(o, get, group, which, at, n, data);
	if (set)
		DOES(o, set, group, which, at, n, data);
}

static void walk_part(size_t group, int part, bool set)
{
	for (uint64_t at = 0; at < groups[group].numel; at += RANGE)
		range(group, part, at, set);
}

static void walk(struct optim *on, enum order order, bool set)
{
	for (int part = 0; part < 3 && order == ALL_OF_A_PART; part++)
		for (size_t i = 0; i < on->n; i++)
			walk_part(i, part, set);
	for (size_t i = 0; i < on->n && order != ALL_OF_A_PART; i++)
		if (order == PART_BY_PART)
			for (int part = 0; part < 3; part++)
				walk_part(i, part, set);
		else
			for (uint64_t at = 0; at < groups[i].numel; at += RANGE)
				for (int part = 0; part < 3; part++)
					range(i, part, at, set);
}

static uint64_t state_bytes(void)
{
	uint64_t numel = 0;

	for (size_t i = 0; i < LENGTH(groups); i++)
		numel += (groups[i].numel + 1023) / 1024 * 1024;
	return 12 * numel;
}

static struct nvs_engine_stats stats_now(void)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &stats);
	return stats;
}

TEST(all_state_in_ranges_is_read_once)
{
	for (int order = PARTS_TOGETHER; order < ORDERS; order++) {
		uint64_t before;

		begin();
		before = stats_now().swapped_in;
		walk(o, (enum order)order, false);
		assert_in_range(stats_now().swapped_in - before, state_bytes() / 2,
				state_bytes() + state_bytes() / 20);
	}
}

TEST(all_state_set_in_ranges_is_written_once)
{
	struct nvs_engine_stats before, after;

	for (int order = PARTS_TOGETHER; order < ORDERS; order++) {
		begin();
		optim_save(o);
		DOES(o, get_weights);
		before = stats_now();
		walk(o, (enum order)order, true);
		/* Any pass ends the walk and waits for its writes. */
		DOES(o, get_weights);
		after = stats_now();
		assert_in_range(after.swapped_out - before.swapped_out, state_bytes() / 2,
				state_bytes() + state_bytes() / 20);
		IS_AS_SAVED(o);
	}
}

TEST(a_part_is_read_without_the_others)
{
	uint64_t before;

	begin();
	before = stats_now().swapped_in;
	for (size_t i = 0; i < o->n; i++)
		walk_part(i, NVS_EXP_AVG, false);
	assert_in_range(stats_now().swapped_in - before, state_bytes() / 4,
			state_bytes() / 3 + state_bytes() / 60);
	before = stats_now().swapped_in;
	DOES(o, get_weights);
	assert_in_range(stats_now().swapped_in - before, state_bytes() / 4,
			state_bytes() / 3 + state_bytes() / 60);
}

TEST(the_next_tiles_are_read_while_one_is_copied)
{
	begin();
	range(0, NVS_MASTER, 0, false);
	sim_hold(o->sim, SIM_READS);
	range(0, NVS_MASTER, RANGE, false);
	assert_true(sim_await_in_flight(o->sim, 1));
	sim_go(o->sim, SIM_READS);
	walk(o, PARTS_TOGETHER, false);
}

TEST(a_step_after_a_walk_finds_the_state_that_was_set)
{
	begin();
	optim_run(o, 2, 3);
	optim_save(o);
	for (int order = PARTS_TOGETHER; order < ORDERS; order++) {
		begin();
		walk(o, (enum order)order, true);
		optim_run(o, 2, 2);
		walk(o, (enum order)order, false);
		optim_run(o, 3, 3);
		IS_AS_SAVED(o);
	}
}

TEST(a_failed_write_behind_a_walk_is_reported)
{
	static float data[RANGE], got[RANGE];
	int rc = 0;

	begin();
	for (size_t i = 0; i < LENGTH(data); i++)
		data[i] = (float)i;
	sim_fail(o->sim, NVS_WRITE, 0, EIO, SIM_ALWAYS);
	DOES(o, set, 0, NVS_EXP_AVG, 5, LENGTH(data), data);
	optim_lend(o, 2, 1);
	rc = optim_step(o, 2);
	assert_int_equal(rc, -EIO);
	sim_no_faults(o->sim);
	DONE(o, optim_step(o, 2));
	optim_close(o);

	begin();
	sim_fail(o->sim, NVS_WRITE, 0, EIO, SIM_ALWAYS);
	DOES(o, set, 0, NVS_EXP_AVG, 5, LENGTH(data), data);
	assert_int_equal(CALL(o, get_weights), -EIO);
	sim_no_faults(o->sim);
	DOES(o, get, 0, NVS_EXP_AVG, 5, LENGTH(got), got);
	assert_memory_equal(got, data, sizeof(got));
}
