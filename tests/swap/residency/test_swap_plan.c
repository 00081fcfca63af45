/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: the order of a step is recorded, followed and corrected; the budgets for tensors that
 * are read ahead, kept, evicted and written back; the statistics of a step.
 */
#include "config/config.h"
#include "support/tests.h"
#include "swap/sole_owner.h"
#include "swap/swap_fixture.h"

#include <errno.h>
#include <inttypes.h>

#define PART (64 * KIB)
#define MOST 24
#define ANY  UINT64_MAX

/* Tensors t0, t1, ... of one part each, on the drive, and an engine with these budgets. */
struct training {
	struct fixture f;
	struct nvs_tensor *t[MOST];
	uint64_t seeds[MOST];
	size_t n;
};

/* In parts; ANY: no limit. */
struct budgets {
	uint64_t pool, bucket, live, reuse, in_cpu;
	uint64_t persistent; /* elements */
	bool half_bucket;    /* half a part, instead of `bucket` */
	struct nvs_trace *trace;
	bool verify;
};

static uint64_t in_parts(uint64_t n)
{
	return n == ANY ? ANY : n * PART;
}

static void configure(struct training *tr, const struct budgets *budgets)
{
	struct nvs_config *config = &tr->f.config;

	config->prefetch_bucket_size = budgets->half_bucket ? PART / 2 : in_parts(budgets->bucket);
	config->max_live_parameters = in_parts(budgets->live);
	config->max_reuse_distance = in_parts(budgets->reuse);
	config->offload[NVS_OFFLOAD_PARAM].max_in_cpu = in_parts(budgets->in_cpu);
	config->param_persistence_threshold = budgets->persistent;
	config->trace = budgets->trace;
}

static void begin_training(struct training *tr, size_t n, struct budgets budgets)
{
	uint64_t nbytes[MOST];

	memset(tr, 0, sizeof(*tr));
	tr->n = n;
	INIT(&tr->f, .device = NVS_DEVICE_CPU, .pool_bytes = budgets.pool * PART, .simulated = true,
	     .verify = budgets.verify);
	configure(tr, &budgets);
	OK(&tr->f, fixture_reopen(&tr->f));
	for (size_t i = 0; i < n; i++)
		nbytes[i] = PART;
	tensors_add(&tr->f, "t", nbytes, n, tr->t);
	for (size_t i = 0; i < n; i++) {
		tr->seeds[i] = i;
		tensor_store(&tr->f, tr->t[i], i);
	}
}

#define BEGIN(training, n, ...) begin_training(training, n, (struct budgets){__VA_ARGS__})

static enum nvs_tensor_state state_of(struct training *tr, size_t i)
{
	return info_of(&tr->f, tr->t[i]).state;
}

static size_t count_in(struct training *tr, enum nvs_tensor_state state)
{
	size_t count = 0;

	for (size_t i = 0; i < tr->n; i++)
		count += state_of(tr, i) == state;
	return count;
}

/* Waits until no transfer is in flight and the plan starts no further one. */
static void await_idle(struct training *tr)
{
	do {
		for (size_t i = 0; i < tr->n; i++)
			sole_wait(tr->f.engine, &tr->t[i], 1, -1, NULL);
	} while (count_in(tr, NVS_READING) || count_in(tr, NVS_WRITING));
}

static void step_begin(struct training *tr)
{
	OK(&tr->f, nvs_engine_step_begin(tr->f.engine, &tr->f.error));
}

static struct nvs_step_io step_end(struct training *tr)
{
	struct nvs_step_io io = {.size = sizeof(io)};

	OK(&tr->f, nvs_engine_step_end(tr->f.engine, &io, &tr->f.error));
	return io;
}

/* Pins and releases tensor i unchanged, and waits until the engine is idle. */
static void use(struct training *tr, size_t i)
{
	tensor_compare(&tr->f, tr->t[i], tr->seeds[i]);
	await_idle(tr);
}

static void change(struct training *tr, size_t i)
{
	struct nvs_engine *engine = tr->f.engine;

	OK(&tr->f, sole_swap_in(engine, &tr->t[i], 1, -1, &tr->f.error));
	OK(&tr->f, sole_wait(engine, &tr->t[i], 1, -1, &tr->f.error));
	assert_true(filled(nvs_tensor_data(tr->t[i]), PART, tr->seeds[i]));
	tr->seeds[i] += 1000;
	fill(nvs_tensor_data(tr->t[i]), PART, tr->seeds[i]);
	OK(&tr->f, sole_release(engine, &tr->t[i], 1, NVS_DIRTY, &tr->f.error));
	await_idle(tr);
}

static struct nvs_step_io step(struct training *tr, const size_t *order, size_t n,
			       void (*with)(struct training *tr, size_t i))
{
	step_begin(tr);
	await_idle(tr);
	for (size_t i = 0; i < n; i++)
		with(tr, order[i]);
	return step_end(tr);
}

static const size_t in_turn[] = {0, 1, 2, 3, 4, 5, 6, 7};

static uint64_t ios(struct training *tr, enum nvs_direction direction)
{
	return sim_ios(tr->f.sim, direction);
}

/* ---- The order of a step ---- */

TEST(the_first_step_is_recorded_and_the_second_read_ahead)
{
	static const size_t order[] = {3, 0, 5, 1, 7, 2, 6, 4};
	struct training tr;
	struct nvs_step_io io = {.size = sizeof(io)};

	BEGIN(&tr, 8, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	io = step(&tr, order, 8, use);
	assert_int_equal(io.hits, 0);
	assert_int_equal(io.misses, 8);
	sim_hold(tr.f.sim, SIM_READS);
	step_begin(&tr);
	/* No call has asked for a tensor. */
	assert_int_equal(state_of(&tr, 3), NVS_READING);
	assert_int_equal(state_of(&tr, 0), NVS_READING);
	assert_int_equal(count_in(&tr, NVS_READING), 2);
	sim_go(tr.f.sim, SIM_READS);
	await_idle(&tr);
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(state_of(&tr, order[i]), NVS_RESIDENT);
		use(&tr, order[i]);
	}
	/* The plan continues into the beginning of the next step. */
	assert_int_equal(state_of(&tr, 3), NVS_RESIDENT);
	io = step_end(&tr);
	assert_int_equal(io.hits, 8);
	assert_int_equal(io.misses, 0);
	fixture_close(&tr.f);
}

TEST(nothing_is_read_ahead_between_steps)
{
	struct training tr;
	uint64_t before;

	BEGIN(&tr, 8, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 8, use);
	step(&tr, in_turn, 8, use);
	OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, tr.t, 8, &tr.f.error));
	before = ios(&tr, NVS_READ);
	use(&tr, 5);
	use(&tr, 6);
	assert_int_equal(ios(&tr, NVS_READ), before + 2);
	fixture_close(&tr.f);
}

/* A leased tensor is not read. */
TEST(leased_tensors_are_not_read)
{
	struct training tr;
	uint64_t before;

	BEGIN(&tr, 4, .pool = 4, .bucket = 4, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 2; turn++) {
		before = ios(&tr, NVS_READ);
		step_begin(&tr);
		for (size_t i = 0; i < 4; i++)
			tensor_write(&tr.f, tr.t[i], 7 + i);
		assert_int_equal(step_end(&tr).hits, 0);
		OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, tr.t, 4, &tr.f.error));
		await_idle(&tr);
		assert_int_equal(ios(&tr, NVS_READ), before);
	}
	fixture_close(&tr.f);
}

TEST(a_step_that_departs_from_the_plan_is_served_and_corrects_it)
{
	static const size_t other[] = {6, 1, 1, 4, 0, 7, 5, 2, 9};
	struct training tr;
	struct nvs_step_io io = {.size = sizeof(io)};

	BEGIN(&tr, 10, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 8, use);
	step(&tr, in_turn, 8, use);
	io = step(&tr, other, LENGTH(other), use);
	assert_int_equal(io.hits + io.misses, LENGTH(other));
	io = step(&tr, other, LENGTH(other), use);
	assert_int_equal(io.hits, LENGTH(other));
	/* A step that ends early shortens the plan. */
	step(&tr, other, 3, use);
	io = step(&tr, other, 3, use);
	assert_int_equal(io.hits, 3);
	/* A step without accesses leaves no plan. */
	step(&tr, other, 0, use);
	OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, tr.t, 10, &tr.f.error));
	io = step(&tr, in_turn, 8, use);
	assert_int_equal(io.hits, 0);
	fixture_close(&tr.f);
}

/* Tensors read ahead and skipped release their share of the bucket. */
TEST(a_step_that_skips_tensors_is_followed_again)
{
	struct training tr;

	BEGIN(&tr, 8, .pool = 5, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 8, use);
	step_begin(&tr);
	await_idle(&tr);
	use(&tr, 0);
	/* 1 and 2 are read ahead already. */
	use(&tr, 3);
	use(&tr, 4);
	assert_int_equal(state_of(&tr, 5), NVS_RESIDENT);
	assert_int_equal(state_of(&tr, 6), NVS_RESIDENT);
	/* The step goes back. */
	for (size_t i = 1; i < 6; i++)
		use(&tr, i);
	assert_int_equal(state_of(&tr, 7), NVS_RESIDENT);
	step_end(&tr);
	fixture_close(&tr.f);
}

/* A single access out of order does not lose the position in the plan. */
TEST(an_access_out_of_order_changes_nothing)
{
	struct training tr;

	BEGIN(&tr, 8, .pool = 5, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 8, use);
	step_begin(&tr);
	await_idle(&tr);
	use(&tr, 0);
	use(&tr, 6);
	for (size_t i = 1; i < 8; i++) {
		assert_int_equal(state_of(&tr, i), NVS_RESIDENT);
		use(&tr, i);
	}
	step_end(&tr);
	fixture_close(&tr.f);
}

TEST(forgetting_a_tensor_drops_the_plan)
{
	struct training tr;

	for (int in_a_step = 0; in_a_step < 2; in_a_step++) {
		BEGIN(&tr, 8, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
		step(&tr, in_turn, 8, use);
		step(&tr, in_turn, 8, use);
		if (in_a_step) {
			step_begin(&tr);
			use(&tr, 0);
			use(&tr, 7);
		}
		/* A tensor that is being read ahead can be forgotten, too. */
		OK(&tr.f, nvs_tensor_forget(tr.f.engine, &tr.t[7], 1, &tr.f.error));
		tr.n = 7;
		if (in_a_step)
			step_end(&tr);
		OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, tr.t, 7, &tr.f.error));
		/* Without a plan each of the 7 is a miss; that step makes a new plan. */
		assert_int_equal(step(&tr, in_turn, 7, use).misses, 7);
		assert_int_equal(step(&tr, in_turn, 7, use).misses, 0);
		fixture_close(&tr.f);
	}
}

TEST(a_step_end_without_a_size_changes_nothing)
{
	struct nvs_step_io io = {0};
	struct training tr;

	BEGIN(&tr, 2, .pool = 2);
	step_begin(&tr);
	use(&tr, 0);
	expect_error(&tr.f, nvs_engine_step_end(tr.f.engine, &io, &tr.f.error), -EINVAL, "size");
	/* The step goes on. */
	use(&tr, 1);
	assert_int_equal(step_end(&tr).misses, 2);
	fixture_close(&tr.f);
}

TEST(steps_begin_and_end_in_turn)
{
	struct training tr;

	BEGIN(&tr, 2, .pool = 2);
	expect_error(&tr.f, nvs_engine_step_end(tr.f.engine, NULL, &tr.f.error), -EBUSY, "no step");
	step_begin(&tr);
	expect_error(&tr.f, nvs_engine_step_begin(tr.f.engine, &tr.f.error), -EBUSY, "already");
	use(&tr, 0);
	OK(&tr.f, nvs_engine_step_end(tr.f.engine, NULL, &tr.f.error));
	/* Close within a step. */
	step_begin(&tr);
	use(&tr, 0);
	fixture_close(&tr.f);
}

/* ---- Budgets ---- */

TEST(reads_ahead_stay_within_the_bucket)
{
	static const uint64_t buckets[] = {0, 1, 3};
	struct training tr;

	for (size_t k = 0; k < LENGTH(buckets); k++) {
		BEGIN(&tr, 8, .pool = 6, .bucket = buckets[k], .live = ANY, .reuse = ANY);
		step(&tr, in_turn, 8, use);
		sim_hold(tr.f.sim, SIM_READS);
		step_begin(&tr);
		assert_int_equal(count_in(&tr, NVS_READING), buckets[k]);
		sim_go(tr.f.sim, SIM_READS);
		await_idle(&tr);
		/* Read ahead and landed, they still count towards the bucket. */
		use(&tr, 7);
		assert_true(ios(&tr, NVS_READ) <= 8 + buckets[k] + 1);
		step_end(&tr);
		fixture_close(&tr.f);
	}
}

/* Otherwise every step would wait for it. */
TEST(a_tensor_longer_than_the_bucket_is_read_ahead_alone)
{
	struct training tr;

	BEGIN(&tr, 8, .pool = 6, .half_bucket = true, .live = ANY, .reuse = ANY);
	step(&tr, in_turn, 8, use);
	sim_hold(tr.f.sim, SIM_READS);
	step_begin(&tr);
	assert_int_equal(count_in(&tr, NVS_READING), 1);
	sim_go(tr.f.sim, SIM_READS);
	await_idle(&tr);
	step_end(&tr);
	fixture_close(&tr.f);
}

TEST(resident_tensors_stay_within_max_live)
{
	struct training tr;
	size_t most = 0;

	BEGIN(&tr, 8, .pool = 8, .bucket = ANY, .live = 3, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 8, use);
	for (int turn = 0; turn < 2; turn++) {
		step_begin(&tr);
		for (size_t i = 0; i < 8; i++) {
			size_t resident;

			if (turn)
				change(&tr, i);
			else
				use(&tr, i);
			resident = count_in(&tr, NVS_RESIDENT);
			assert_true(resident <= 3);
			most = resident > most ? resident : most;
		}
		step_end(&tr);
	}
	assert_int_equal(most, 3);
	fixture_close(&tr.f);
}

TEST(tensors_needed_again_soon_stay)
{
	static const size_t order[] = {0, 1, 2, 0, 3, 4, 5};
	struct training tr;

	for (uint64_t reuse = 1; reuse <= 2; reuse++) {
		BEGIN(&tr, 6, .pool = 6, .live = ANY, .reuse = reuse, .in_cpu = 0);
		step(&tr, order, LENGTH(order), use);
		step_begin(&tr);
		use(&tr, 0);
		/* Two parts lie between this access and the next, then three. */
		assert_int_equal(state_of(&tr, 0), reuse == 2 ? NVS_RESIDENT : NVS_ON_DRIVE);
		use(&tr, 1);
		assert_int_equal(state_of(&tr, 1), NVS_ON_DRIVE);
		use(&tr, 2);
		assert_int_equal(state_of(&tr, 0), reuse == 2 ? NVS_RESIDENT : NVS_ON_DRIVE);
		use(&tr, 0);
		assert_int_equal(state_of(&tr, 0), NVS_ON_DRIVE);
		step_end(&tr);
		fixture_close(&tr.f);
	}
}

TEST(small_tensors_stay)
{
	struct training tr;
	struct nvs_tensor *small, *all;

	for (uint64_t longer = 0; longer < 2; longer++) {
		BEGIN(&tr, 4, .pool = 3, .live = 2, .in_cpu = 1, .persistent = 5000 + longer);
		small = tensor_add(&tr.f, "small", 5000);
		tensor_store(&tr.f, small, 9);
		for (int turn = 0; turn < 3; turn++) {
			step_begin(&tr);
			tensor_compare(&tr.f, small, 9);
			for (size_t i = 0; i < 4; i++)
				use(&tr, i);
			/* The threshold is exclusive; its tensors are in addition to max_in_cpu. */
			if (turn)
				STATE(&tr.f, small, longer ? NVS_RESIDENT : NVS_ON_DRIVE, false, 0);
			if (turn && longer)
				assert_int_equal(count_in(&tr, NVS_RESIDENT), 1);
			step_end(&tr);
		}
		all = tensor_add(&tr.f, "all", 3 * PART);
		OK(&tr.f, sole_pin(tr.f.engine, &all, 1, 60000, &tr.f.error));
		STATE(&tr.f, small, NVS_ON_DRIVE, false, 0);
		fixture_close(&tr.f);
	}
}

/* With LRU, the six would evict each other, and no access would be a hit. */
TEST(max_in_cpu_holds_the_tensors_needed_soonest)
{
	struct training tr;

	BEGIN(&tr, 6, .pool = 6, .live = ANY, .in_cpu = 2);
	assert_int_equal(step(&tr, in_turn, 6, use).hits, 0);
	for (int turn = 0; turn < 4; turn++) {
		assert_int_equal(step(&tr, in_turn, 6, turn % 2 ? use : change).hits, 2);
		assert_int_equal(count_in(&tr, NVS_RESIDENT), 2);
	}
	fixture_close(&tr.f);
}

/* ---- Room ---- */

TEST(the_tensor_needed_last_is_evicted)
{
	struct training tr;

	BEGIN(&tr, 6, .pool = 3, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	step_begin(&tr);
	use(&tr, 0);
	assert_int_equal(state_of(&tr, 5), NVS_ON_DRIVE);
	use(&tr, 1);
	assert_int_equal(state_of(&tr, 0), NVS_ON_DRIVE);
	assert_int_equal(state_of(&tr, 3), NVS_RESIDENT);
	assert_int_equal(state_of(&tr, 4), NVS_RESIDENT);
	use(&tr, 2);
	use(&tr, 3);
	use(&tr, 4);
	use(&tr, 5);
	assert_int_equal(state_of(&tr, 4), NVS_ON_DRIVE);
	assert_int_equal(step_end(&tr).hits, 2);
	fixture_close(&tr.f);
}

TEST(tensors_outside_the_plan_are_evicted_first)
{
	struct training tr;

	BEGIN(&tr, 8, .pool = 4, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 5, use);
	/* The pool has 1 to 4; the plan needs 4 last. */
	use(&tr, 6);
	assert_int_equal(state_of(&tr, 4), NVS_ON_DRIVE);
	use(&tr, 7);
	assert_int_equal(state_of(&tr, 6), NVS_ON_DRIVE);
	assert_int_equal(state_of(&tr, 3), NVS_RESIDENT);
	fixture_close(&tr.f);
}

/* Reading ahead evicts no tensor needed sooner, and none prefetched by the caller. */
TEST(reading_ahead_evicts_only_tensors_needed_later)
{
	struct training tr;

	BEGIN(&tr, 8, .pool = 4, .bucket = 8, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 7, use);
	/* The pool has 3 to 6, and 3 is needed before 4. */
	step_begin(&tr);
	await_idle(&tr);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(state_of(&tr, i), i < 4 ? NVS_RESIDENT : NVS_ON_DRIVE);
	for (size_t i = 0; i < 7; i++)
		use(&tr, i);
	step_end(&tr);
	OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, tr.t, 8, &tr.f.error));
	assert_int_equal(nvs_tensor_prefetch(tr.f.engine, &tr.t[7], 1, &tr.f.error), 1);
	await_idle(&tr);
	step_begin(&tr);
	await_idle(&tr);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(state_of(&tr, i), i < 3 || i == 7 ? NVS_RESIDENT : NVS_ON_DRIVE);
	/* A pin may use the whole pool. */
	OK(&tr.f, sole_swap_in(tr.f.engine, &tr.t[3], 4, 60000, &tr.f.error));
	OK(&tr.f, sole_wait(tr.f.engine, &tr.t[3], 4, -1, &tr.f.error));
	OK(&tr.f, sole_release(tr.f.engine, &tr.t[3], 4, NVS_CLEAN, &tr.f.error));
	step_end(&tr);
	fixture_close(&tr.f);
}

TEST(reading_ahead_joins_pieces)
{
	struct training tr;
	struct nvs_tensor *wide;

	BEGIN(&tr, 4, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	wide = tensor_add(&tr.f, "wide", 2 * PART);
	tensor_store(&tr.f, wide, 50);
	step_begin(&tr);
	tensor_compare(&tr.f, wide, 50);
	use(&tr, 0);
	use(&tr, 1);
	use(&tr, 2);
	use(&tr, 3);
	step_end(&tr);
	OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, &wide, 1, &tr.f.error));
	OK(&tr.f, sole_swap_in(tr.f.engine, tr.t, 4, -1, &tr.f.error));
	OK(&tr.f, sole_wait(tr.f.engine, tr.t, 4, -1, &tr.f.error));
	OK(&tr.f, sole_release(tr.f.engine, tr.t, 4, NVS_CLEAN, &tr.f.error));
	/* Two parts are free, but not adjacent. */
	OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, &tr.t[0], 1, &tr.f.error));
	OK(&tr.f, nvs_tensor_swap_out(tr.f.engine, &tr.t[2], 1, &tr.f.error));
	step_begin(&tr);
	OK(&tr.f, sole_wait(tr.f.engine, &wide, 1, -1, &tr.f.error));
	STATE(&tr.f, wide, NVS_RESIDENT, false, 0);
	step_end(&tr);
	fixture_close(&tr.f);
}

/* ---- Dirty tensors ---- */

TEST(dirty_tensors_are_written_back_before_room_is_needed)
{
	struct training tr;
	uint64_t waits;

	BEGIN(&tr, 6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, change);
	step(&tr, in_turn, 6, change);
	waits = stats_of(&tr.f).pool.waits;
	for (int turn = 0; turn < 2; turn++)
		assert_int_equal(step(&tr, in_turn, 6, change).misses, 0);
	assert_int_equal(stats_of(&tr.f).pool.waits, waits);
	for (size_t i = 0; i < 6; i++)
		use(&tr, i);
	fixture_close(&tr.f);
}

/* Tensors that stay in the pool stay dirty: a step that changes all 6 does not write all 6. */
TEST(only_tensors_to_be_evicted_are_written_back)
{
	struct training tr;
	uint64_t before;

	BEGIN(&tr, 6, .pool = 5, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, change);
	step(&tr, in_turn, 6, change);
	before = stats_of(&tr.f).swapped_out;
	step(&tr, in_turn, 6, change);
	before = stats_of(&tr.f).swapped_out - before;
	assert_true(before < 6 * PART);
	fixture_close(&tr.f);
}

TEST(a_model_that_fits_the_pool_is_never_written)
{
	struct training tr;
	uint64_t before;

	BEGIN(&tr, 6, .pool = 6, .bucket = ANY, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	before = ios(&tr, NVS_WRITE);
	for (int turn = 0; turn < 3; turn++)
		step(&tr, in_turn, 6, change);
	assert_int_equal(ios(&tr, NVS_WRITE), before);
	assert_int_equal(step(&tr, in_turn, 6, change).hits, 6);
	fixture_close(&tr.f);
}

/* The write is tried once; the data stay, and the call that needs the room gets the error. */
TEST(a_write_back_that_fails_loses_nothing)
{
	struct training tr;
	uint64_t before;

	BEGIN(&tr, 6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	step_begin(&tr);
	await_idle(&tr);
	before = ios(&tr, NVS_WRITE);
	sim_fail(tr.f.sim, NVS_WRITE, 0, EIO, 1);
	change(&tr, 0);
	assert_int_equal(ios(&tr, NVS_WRITE), before + 1);
	STATE(&tr.f, tr.t[0], NVS_RESIDENT, true, 0);
	use(&tr, 1);
	STATE(&tr.f, tr.t[0], NVS_RESIDENT, true, 0);
	assert_int_equal(ios(&tr, NVS_WRITE), before + 1);
	step_end(&tr);
	for (size_t i = 0; i < 6; i++)
		use(&tr, i);
	fixture_close(&tr.f);
}

/* ---- Failing reads ---- */

TEST(a_failed_read_ahead_is_read_again_when_asked_for)
{
	struct training tr;
	uint64_t before;

	BEGIN(&tr, 6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	before = ios(&tr, NVS_READ);
	sim_fail(tr.f.sim, NVS_READ, 0, EIO, 1);
	step_begin(&tr);
	await_idle(&tr);
	assert_int_equal(state_of(&tr, 0), NVS_ON_DRIVE);
	/* The failed read is not repeated, and reading ahead continues behind it. */
	assert_int_equal(ios(&tr, NVS_READ), before + 2);
	assert_int_equal(state_of(&tr, 1), NVS_RESIDENT);
	use(&tr, 0);
	for (size_t i = 1; i < 6; i++)
		use(&tr, i);
	assert_int_equal(step_end(&tr).misses, 1);
	fixture_close(&tr.f);
}

/* The write has succeeded; what the plan read behind it is nobody's error. */
TEST(a_failed_read_ahead_is_no_error_of_the_write_before_it)
{
	static char memory[PART];
	const void *data = memory;
	struct training tr;

	BEGIN(&tr, 6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	step_begin(&tr);
	await_idle(&tr);
	use(&tr, 0);
	/* The next tensor of the plan has been read ahead; its new contents come from elsewhere. */
	assert_int_equal(state_of(&tr, 1), NVS_RESIDENT);
	sim_fail(tr.f.sim, NVS_READ, 0, EIO, 1);
	tr.seeds[1] = 78;
	fill(memory, PART, 78);
	OK(&tr.f, nvs_tensor_swap_out_from(tr.f.engine, &tr.t[1], &data, 1, &tr.f.error));
	/* The write lands, the thread of events reads ahead, and logs the failure. */
	for (int round = 0; round < 2; round++) {
		await_idle(&tr);
		events_await_idle(tr.f.engine);
	}
	OK(&tr.f, nvs_tensor_wait(tr.f.engine, &tr.t[1], 1, 0, -1, &tr.f.error));
	assert_int_equal(info_of(&tr.f, tr.t[1]).status, 0);
	assert_non_null(strstr(tr.f.log, "t1 could not be read ahead: "));
	use(&tr, 1);
	for (size_t i = 2; i < 6; i++)
		use(&tr, i);
	step_end(&tr);
	fixture_close(&tr.f);
}

/* The caller has asked for the tensor, so it hears of the failure. */
TEST(a_read_ahead_that_fails_while_prefetched_is_reported)
{
	struct training tr;

	BEGIN(&tr, 6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	sim_hold(tr.f.sim, SIM_READS);
	sim_fail(tr.f.sim, NVS_READ, 0, EIO, 1);
	step_begin(&tr);
	assert_int_equal(nvs_tensor_prefetch(tr.f.engine, tr.t, 1, &tr.f.error), 1);
	sim_go(tr.f.sim, SIM_READS);
	expect_error(&tr.f, nvs_tensor_wait(tr.f.engine, tr.t, 1, 0, -1, &tr.f.error), -EIO, "t0");
	use(&tr, 0);
	step_end(&tr);
	fixture_close(&tr.f);
}

TEST(a_read_ahead_that_fails_while_pinned_is_reported)
{
	struct training tr;

	BEGIN(&tr, 6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	sim_hold(tr.f.sim, SIM_READS);
	sim_fail(tr.f.sim, NVS_READ, 0, EIO, 1);
	step_begin(&tr);
	OK(&tr.f, sole_swap_in(tr.f.engine, &tr.t[0], 1, -1, &tr.f.error));
	sim_go(tr.f.sim, SIM_READS);
	expect_error(&tr.f, sole_wait(tr.f.engine, &tr.t[0], 1, -1, &tr.f.error), -EIO, "t0");
	use(&tr, 0);
	step_end(&tr);
	fixture_close(&tr.f);
}

/* ---- Concurrent calls ---- */

static void *let_reads_go(void *arg)
{
	struct training *tr = arg;

	sim_go(tr->f.sim, SIM_READS);
	return NULL;
}

/* Transfers that the plan started never cause -EBUSY for the caller. */
TEST(external_transfers_wait_for_reads_ahead)
{
	static char memory[PART];
	struct training tr;
	const void *data = memory;
	void *back = memory;
	pthread_t thread;

	BEGIN(&tr, 6, .pool = 3, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(&tr, in_turn, 6, use);
	sim_hold(tr.f.sim, SIM_READS);
	step_begin(&tr);
	assert_int_equal(state_of(&tr, 0), NVS_READING);
	assert_int_equal(pthread_create(&thread, NULL, let_reads_go, &tr), 0);
	tr.seeds[0] = 77;
	fill(memory, PART, 77);
	OK(&tr.f, nvs_tensor_swap_out_from(tr.f.engine, tr.t, &data, 1, &tr.f.error));
	pthread_join(thread, NULL);
	OK(&tr.f, sole_wait(tr.f.engine, tr.t, 1, -1, &tr.f.error));
	await_idle(&tr);
	memset(memory, 0, PART);
	OK(&tr.f, nvs_tensor_swap_in_to(tr.f.engine, tr.t, &back, 1, &tr.f.error));
	OK(&tr.f, sole_wait(tr.f.engine, tr.t, 1, -1, &tr.f.error));
	assert_true(filled(memory, PART, 77));
	for (size_t i = 0; i < 6; i++)
		use(&tr, i);
	step_end(&tr);
	fixture_close(&tr.f);
}

/* The engine's counters must equal sums over its tensors. */
static void counters_hold(struct training *tr)
{
	engine_lock(tr->f.engine);
	engine_check(tr->f.engine);
	engine_unlock(tr->f.engine);
}

static void meddle(struct training *tr, uint64_t *random)
{
	size_t i = below(random, tr->n), n = 1 + below(random, tr->n - i);
	char name[16];

	switch (below(random, 6)) {
	case 0:
		assert_true(nvs_tensor_prefetch(tr->f.engine, &tr->t[i], n, &tr->f.error) >= 0);
		break;
	case 1:
		OK(&tr->f, nvs_tensor_swap_out(tr->f.engine, &tr->t[i], n, &tr->f.error));
		break;
	case 2:
		OK(&tr->f, nvs_engine_commit(tr->f.engine, &tr->f.error));
		break;
	case 3:
		tr->seeds[i] += 5000;
		tensor_write(&tr->f, tr->t[i], tr->seeds[i]);
		break;
	case 4:
		tensor_compare(&tr->f, tr->t[i], tr->seeds[i]);
		break;
	default:
		if (below(random, 4))
			break;
		OK(&tr->f, sole_wait(tr->f.engine, &tr->t[i], 1, -1, &tr->f.error));
		OK(&tr->f, nvs_tensor_forget(tr->f.engine, &tr->t[i], 1, &tr->f.error));
		snprintf(name, sizeof(name), "t%zu", i);
		tr->t[i] = tensor_add(&tr->f, name, PART);
		tensor_write(&tr->f, tr->t[i], tr->seeds[i]);
	}
}

/* Steps in an order that changes sometimes, with random other calls in between. */
static void wander(struct budgets budgets, uint64_t *random)
{
	struct training tr;
	size_t order[40];

	begin_training(&tr, 12, budgets);
	for (size_t k = 0; k < LENGTH(order); k++)
		order[k] = below(random, tr.n);
	for (int turn = 0; turn < (SANITIZED ? 12 : 30); turn++) {
		step_begin(&tr);
		for (size_t k = below(random, 4); k < LENGTH(order); k++) {
			uint64_t what = below(random, 16);

			if (what == 0)
				order[k] = below(random, tr.n);
			if (what == 1)
				k += below(random, 5);
			if (what == 2)
				meddle(&tr, random);
			if (k < LENGTH(order) && what < 8)
				tensor_compare(&tr.f, tr.t[order[k]], tr.seeds[order[k]]);
			else if (k < LENGTH(order))
				change(&tr, order[k]);
			counters_hold(&tr);
		}
		step_end(&tr);
		meddle(&tr, random);
		counters_hold(&tr);
	}
	for (size_t i = 0; i < tr.n; i++)
		use(&tr, i);
	fixture_close(&tr.f);
}

TEST(any_steps_among_any_calls_keep_every_byte)
{
	uint64_t random = seed_of_run();

	wander((struct budgets){.pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY},
	       &random);
	wander((struct budgets){.pool = 8, .bucket = 3, .live = 5, .reuse = 4, .in_cpu = 2},
	       &random);
	wander((struct budgets){.pool = 6, .bucket = ANY, .live = 3, .reuse = 0, .verify = true},
	       &random);
	wander((struct budgets){.pool = 5, .bucket = 5, .live = ANY, .persistent = PART + 1},
	       &random);
}

struct user {
	struct training *tr;
	size_t from, to;
};

static void *use_own(void *arg)
{
	struct user *user = arg;
	struct training *tr = user->tr;

	for (size_t k = 0; k < 60; k++) {
		size_t i = user->from + k % (user->to - user->from);
		struct nvs_tensor **t = &tr->t[i];

		MUST(!sole_swap_in(tr->f.engine, t, 1, -1, NULL));
		MUST(!sole_wait(tr->f.engine, t, 1, -1, NULL));
		MUST(filled(nvs_tensor_data(*t), PART, tr->seeds[i]));
		tr->seeds[i] += k % 3;
		fill(nvs_tensor_data(*t), PART, tr->seeds[i]);
		MUST(!sole_release(tr->f.engine, t, 1, NVS_DIRTY, NULL));
	}
	return NULL;
}

TEST(threads_share_a_step)
{
	struct training tr;
	pthread_t thread[2];
	struct user users[2];

	BEGIN(&tr, 10, .pool = 5, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 4; turn++) {
		struct nvs_step_io io = {.size = sizeof(io)};

		step_begin(&tr);
		for (size_t k = 0; k < 2; k++) {
			users[k] = (struct user){&tr, k * 5, k * 5 + 5};
			assert_int_equal(pthread_create(&thread[k], NULL, use_own, &users[k]), 0);
		}
		for (size_t k = 0; k < 2; k++)
			pthread_join(thread[k], NULL);
		io = step_end(&tr);
		assert_int_equal(io.hits + io.misses, 120);
	}
	await_idle(&tr);
	counters_hold(&tr);
	for (size_t i = 0; i < 10; i++)
		use(&tr, i);
	fixture_close(&tr.f);
}

/* ---- Statistics of a step ---- */

TEST(a_step_reports_its_io)
{
	struct training tr;

	BEGIN(&tr, 8, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 4; turn++) {
		struct nvs_engine_stats before = stats_of(&tr.f), after = {.size = sizeof(after)};
		struct nvs_step_io io = step(&tr, in_turn, 8, turn % 2 ? use : change);
		uint64_t less = io.io_ns < io.compute_ns ? io.io_ns : io.compute_ns;

		after = stats_of(&tr.f);
		assert_int_equal(io.hits + io.misses, 8);
		assert_int_equal(io.read_bytes, after.swapped_in - before.swapped_in);
		assert_int_equal(io.written_bytes, after.swapped_out - before.swapped_out);
		assert_int_equal(io.io_ns, after.busy_ns - before.busy_ns);
		assert_true(io.io_ns && io.io_ns <= io.wall_ns && io.hidden_ns <= less);
		assert_int_equal(io.compute_ns, io.wall_ns - io.stall_ns);
		assert_int_equal(io.hidden_ns, io.io_ns + io.compute_ns > io.wall_ns
						       ? io.io_ns + io.compute_ns - io.wall_ns
						       : 0);
	}
	fixture_close(&tr.f);
}

TEST(waits_are_stalls_and_polls_are_not)
{
	struct training tr;
	struct nvs_step_io io = {.size = sizeof(io)};

	BEGIN(&tr, 4, .pool = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin(&tr);
	use(&tr, 0);
	step_end(&tr);
	sim_hold(tr.f.sim, SIM_READS);
	step_begin(&tr);
	OK(&tr.f, sole_swap_in(tr.f.engine, &tr.t[1], 2, -1, &tr.f.error));
	assert_int_equal(sole_wait(tr.f.engine, &tr.t[1], 2, 0, NULL), -EAGAIN);
	assert_int_equal(sole_swap_in(tr.f.engine, &tr.t[3], 1, 0, NULL), -EAGAIN);
	assert_int_equal(sole_wait(tr.f.engine, &tr.t[1], 2, 3, NULL), -ETIMEDOUT);
	assert_int_equal(sole_swap_in(tr.f.engine, &tr.t[3], 1, 3, NULL), -ETIMEDOUT);
	io = step_end(&tr);
	assert_int_equal(io.misses, 2);
	assert_int_equal(io.stalls, 2);
	assert_true(io.stall_ns >= 6000000 && io.stall_ns <= io.wall_ns);
	assert_true(io.io_ns >= 6000000);
	sim_go(tr.f.sim, SIM_READS);
	OK(&tr.f, sole_wait(tr.f.engine, &tr.t[1], 2, -1, &tr.f.error));
	OK(&tr.f, sole_release(tr.f.engine, &tr.t[1], 2, NVS_CLEAN, &tr.f.error));
	fixture_close(&tr.f);
}

static bool shows(const char *text, const char *what)
{
	if (!strstr(text, what))
		print_error("%s is not on the timeline: %.3000s\n", what, text);
	return strstr(text, what);
}

TEST(transfers_and_waits_are_on_the_timeline)
{
	static char text[65536];
	struct training tr;
	struct nvs_trace *trace;
	char path[600];
	FILE *file;

	assert_int_equal(nvs_trace_open(&trace, 1000, NULL), 0);
	BEGIN(&tr, 4, .pool = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY, .trace = trace);
	sim_hold(tr.f.sim, SIM_READS);
	OK(&tr.f, sole_swap_in(tr.f.engine, &tr.t[1], 2, -1, &tr.f.error));
	assert_int_equal(sole_wait(tr.f.engine, &tr.t[2], 1, 1, NULL), -ETIMEDOUT);
	assert_int_equal(sole_swap_in(tr.f.engine, &tr.t[3], 1, 1, NULL), -ETIMEDOUT);
	sim_go(tr.f.sim, SIM_READS);
	OK(&tr.f, sole_wait(tr.f.engine, &tr.t[1], 2, -1, &tr.f.error));
	OK(&tr.f, sole_release(tr.f.engine, &tr.t[1], 2, NVS_CLEAN, &tr.f.error));
	snprintf(path, sizeof(path), "%s/trace.json", tr.f.paths[0]);
	assert_int_equal(nvs_trace_write(trace, path, NULL, NULL), 0);
	file = fopen(path, "r");
	assert_non_null(file);
	text[fread(text, 1, sizeof(text) - 1, file)] = 0;
	fclose(file);
	assert_true(shows(text, "\"read t1\"") && shows(text, "\"read t2\""));
	assert_true(shows(text, "wait for t2") && shows(text, "room in the pool"));
	fixture_close(&tr.f);
	nvs_trace_close(trace);
}
