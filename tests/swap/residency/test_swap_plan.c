/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: the order of a step is recorded, followed and corrected; the budgets for tensors that
 * are read ahead, kept, evicted and written back; the statistics of a step.
 */
#include "swap/swap_fixture.h"

ONE_ENGINE

#define PART (64 * KIB)
#define MOST 24
#define ANY  UINT64_MAX

/* Tensors t0, t1, ... of one part each, on the drive, and an engine with these budgets. */
static struct nvs_tensor *t[MOST];
static uint64_t seeds[MOST];
static size_t ntensors;

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

static void begin_training(size_t n, struct budgets budgets)
{
	struct nvs_config *config = &f->config;

	ntensors = n;
	INIT(f, .device = NVS_DEVICE_CPU, .pool_bytes = budgets.pool * PART, .simulated = true,
	     .verify = budgets.verify);
	config->prefetch_bucket_size = budgets.half_bucket ? PART / 2 : in_parts(budgets.bucket);
	config->max_live_parameters = in_parts(budgets.live);
	config->max_reuse_distance = in_parts(budgets.reuse);
	config->offload[NVS_OFFLOAD_PARAM].max_in_cpu = in_parts(budgets.in_cpu);
	config->param_persistence_threshold = budgets.persistent;
	config->trace = budgets.trace;
	OK(f, fixture_reopen(f));
	tensors_make(f, "t", PART, n, t);
	for (size_t i = 0; i < n; i++)
		seeds[i] = i;
}

#define BEGIN(n, ...) begin_training(n, (struct budgets){__VA_ARGS__})

static enum nvs_tensor_state state_of(size_t i)
{
	return info_of(f, t[i]).state;
}

static size_t count_in(enum nvs_tensor_state state)
{
	size_t count = 0;

	for (size_t i = 0; i < ntensors; i++)
		count += state_of(i) == state;
	return count;
}

/* Waits until no transfer is in flight and the plan starts no further one. */
static void await_idle(void)
{
	do {
		for (size_t i = 0; i < ntensors; i++)
			sole_wait(f->engine, &t[i], 1, -1, NULL);
	} while (count_in(NVS_READING) || count_in(NVS_WRITING));
}

static void step_begin(void)
{
	OK(f, nvs_engine_step_begin(f->engine, &f->error));
}

static struct nvs_step_io step_end(void)
{
	struct nvs_step_io io = {.size = sizeof(io)};

	OK(f, nvs_engine_step_end(f->engine, &io, &f->error));
	return io;
}

/* Pins and releases tensor i unchanged, and waits until the engine is idle. */
static void use(size_t i)
{
	tensor_compare(f, t[i], seeds[i]);
	await_idle();
}

static void use_all(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		use(i);
}

static void change(size_t i)
{
	tensors_pin(f, &t[i], 1);
	assert_true(filled(nvs_tensor_data(t[i]), PART, seeds[i]));
	seeds[i] += 1000;
	fill(nvs_tensor_data(t[i]), PART, seeds[i]);
	OK(f, sole_release(f->engine, &t[i], 1, NVS_DIRTY, &f->error));
	await_idle();
}

static struct nvs_step_io step(const size_t *order, size_t n, void (*with)(size_t i))
{
	step_begin();
	await_idle();
	for (size_t i = 0; i < n; i++)
		with(order[i]);
	return step_end();
}

static const size_t in_turn[] = {0, 1, 2, 3, 4, 5, 6, 7};

/* The same with a plan, of a step that has used the tensors in turn. */
#define PLANNED(n, ...) (BEGIN(n, __VA_ARGS__), step(in_turn, n, use))

static uint64_t ios(enum nvs_direction direction)
{
	return sim_ios(f->sim, direction);
}

/* ---- The order of a step ---- */

TEST(the_first_step_is_recorded_and_the_second_read_ahead)
{
	static const size_t order[] = {3, 0, 5, 1, 7, 2, 6, 4};
	struct nvs_step_io io = {.size = sizeof(io)};

	BEGIN(8, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	io = step(order, 8, use);
	assert_int_equal(io.hits, 0);
	assert_int_equal(io.misses, 8);
	sim_hold(f->sim, SIM_READS);
	step_begin();
	/* No call has asked for a tensor. */
	assert_int_equal(state_of(3), NVS_READING);
	assert_int_equal(state_of(0), NVS_READING);
	assert_int_equal(count_in(NVS_READING), 2);
	sim_go(f->sim, SIM_READS);
	await_idle();
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(state_of(order[i]), NVS_RESIDENT);
		use(order[i]);
	}
	/* The plan continues into the beginning of the next step. */
	assert_int_equal(state_of(3), NVS_RESIDENT);
	io = step_end();
	assert_int_equal(io.hits, 8);
	assert_int_equal(io.misses, 0);
}

TEST(nothing_is_read_ahead_between_steps)
{
	uint64_t before;

	PLANNED(8, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(in_turn, 8, use);
	OK(f, nvs_tensor_swap_out(f->engine, t, 8, &f->error));
	before = ios(NVS_READ);
	use_all(5, 7);
	assert_int_equal(ios(NVS_READ), before + 2);
}

TEST(leased_tensors_are_not_read)
{
	uint64_t before;

	BEGIN(4, .pool = 4, .bucket = 4, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 2; turn++) {
		before = ios(NVS_READ);
		step_begin();
		tensors_write(f, t, 4, 7);
		assert_int_equal(step_end().hits, 0);
		OK(f, nvs_tensor_swap_out(f->engine, t, 4, &f->error));
		await_idle();
		assert_int_equal(ios(NVS_READ), before);
	}
}

TEST(a_step_that_departs_from_the_plan_is_served_and_corrects_it)
{
	static const size_t other[] = {6, 1, 1, 4, 0, 7, 5, 2, 9};
	struct nvs_step_io io = {.size = sizeof(io)};

	BEGIN(10, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(in_turn, 8, use);
	step(in_turn, 8, use);
	io = step(other, LENGTH(other), use);
	assert_int_equal(io.hits + io.misses, LENGTH(other));
	io = step(other, LENGTH(other), use);
	assert_int_equal(io.hits, LENGTH(other));
	/* A step that ends early shortens the plan. */
	step(other, 3, use);
	io = step(other, 3, use);
	assert_int_equal(io.hits, 3);
	/* A step without accesses leaves no plan. */
	step(other, 0, use);
	OK(f, nvs_tensor_swap_out(f->engine, t, 10, &f->error));
	io = step(in_turn, 8, use);
	assert_int_equal(io.hits, 0);
}

/* Tensors read ahead and skipped release their share of the bucket. */
TEST(a_step_that_skips_tensors_is_followed_again)
{
	PLANNED(8, .pool = 5, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin();
	await_idle();
	use(0);
	/* 1 and 2 are read ahead already. */
	use_all(3, 5);
	assert_int_equal(state_of(5), NVS_RESIDENT);
	assert_int_equal(state_of(6), NVS_RESIDENT);
	/* The step goes back. */
	use_all(1, 6);
	assert_int_equal(state_of(7), NVS_RESIDENT);
	step_end();
}

TEST(an_access_out_of_order_changes_nothing)
{
	PLANNED(8, .pool = 5, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin();
	await_idle();
	use(0);
	use(6);
	for (size_t i = 1; i < 8; i++) {
		assert_int_equal(state_of(i), NVS_RESIDENT);
		use(i);
	}
	step_end();
}

TEST(forgetting_a_tensor_drops_the_plan)
{
	for (int in_a_step = 0; in_a_step < 2; in_a_step++) {
		PLANNED(8, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
		step(in_turn, 8, use);
		if (in_a_step) {
			step_begin();
			use(0);
			use(7);
		}
		/* A tensor that is being read ahead can be forgotten, too. */
		OK(f, nvs_tensor_forget(f->engine, &t[7], 1, &f->error));
		ntensors = 7;
		if (in_a_step)
			step_end();
		OK(f, nvs_tensor_swap_out(f->engine, t, 7, &f->error));
		/* Without a plan each of the 7 is a miss; that step makes a new plan. */
		assert_int_equal(step(in_turn, 7, use).misses, 7);
		assert_int_equal(step(in_turn, 7, use).misses, 0);
		fixture_close(f);
	}
}

TEST(steps_begin_and_end_in_turn)
{
	struct nvs_step_io io = {0};

	BEGIN(2, .pool = 2);
	FAILS(f, -EBUSY, "no step", nvs_engine_step_end, NULL);
	step_begin();
	FAILS(f, -EBUSY, "already", nvs_engine_step_begin);
	use(0);
	/* An end that is refused changes nothing. */
	FAILS(f, -EINVAL, "size", nvs_engine_step_end, &io);
	use(1);
	assert_int_equal(step_end().misses, 2);
	step_begin();
	OK(f, nvs_engine_step_end(f->engine, NULL, &f->error));
	/* Close within a step. */
	step_begin();
	use(0);
}

/* ---- Budgets ---- */

TEST(reads_ahead_stay_within_the_bucket_or_are_one_tensor)
{
	static const uint64_t buckets[] = {0, 1, 3, 1};

	for (size_t k = 0; k < LENGTH(buckets); k++) {
		/* Every step would wait for a tensor that is longer than the bucket. */
		PLANNED(8, .pool = 6, .bucket = buckets[k], .half_bucket = k == 3, .live = ANY,
			.reuse = ANY);
		sim_hold(f->sim, SIM_READS);
		step_begin();
		assert_int_equal(count_in(NVS_READING), buckets[k]);
		sim_go(f->sim, SIM_READS);
		await_idle();
		/* Read ahead and landed, they still count towards the bucket. */
		use(7);
		assert_true(ios(NVS_READ) <= 8 + buckets[k] + 1);
		step_end();
		fixture_close(f);
	}
}

TEST(resident_tensors_stay_within_max_live)
{
	size_t most = 0;

	PLANNED(8, .pool = 8, .bucket = ANY, .live = 3, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 2; turn++) {
		step_begin();
		for (size_t i = 0; i < 8; i++) {
			size_t resident;

			if (turn)
				change(i);
			else
				use(i);
			resident = count_in(NVS_RESIDENT);
			assert_true(resident <= 3);
			most = resident > most ? resident : most;
		}
		step_end();
	}
	assert_int_equal(most, 3);
}

TEST(tensors_needed_again_soon_stay)
{
	static const size_t order[] = {0, 1, 2, 0, 3, 4, 5};

	for (uint64_t reuse = 1; reuse <= 2; reuse++) {
		BEGIN(6, .pool = 6, .live = ANY, .reuse = reuse, .in_cpu = 0);
		step(order, LENGTH(order), use);
		step_begin();
		use(0);
		/* Two parts lie between this access and the next, then three. */
		assert_int_equal(state_of(0), reuse == 2 ? NVS_RESIDENT : NVS_ON_DRIVE);
		use(1);
		assert_int_equal(state_of(1), NVS_ON_DRIVE);
		use(2);
		assert_int_equal(state_of(0), reuse == 2 ? NVS_RESIDENT : NVS_ON_DRIVE);
		use(0);
		assert_int_equal(state_of(0), NVS_ON_DRIVE);
		step_end();
		fixture_close(f);
	}
}

TEST(small_tensors_stay)
{
	struct nvs_tensor *small, *all;

	for (uint64_t longer = 0; longer < 2; longer++) {
		BEGIN(4, .pool = 3, .live = 2, .in_cpu = 1, .persistent = 5000 + longer);
		small = tensor_add(f, "small", 5000);
		tensor_store(f, small, 9);
		for (int turn = 0; turn < 3; turn++) {
			step_begin();
			tensor_compare(f, small, 9);
			use_all(0, 4);
			/* The threshold is exclusive; its tensors are in addition to max_in_cpu. */
			if (turn)
				STATE(f, small, longer ? NVS_RESIDENT : NVS_ON_DRIVE, false, 0);
			if (turn && longer)
				assert_int_equal(count_in(NVS_RESIDENT), 1);
			step_end();
		}
		all = tensor_add(f, "all", 3 * PART);
		OK(f, sole_pin(f->engine, &all, 1, 60000, &f->error));
		STATE(f, small, NVS_ON_DRIVE, false, 0);
		fixture_close(f);
	}
}

/* They would leave no room to read ahead, and each access of the others would wait. */
TEST(small_tensors_that_half_of_the_pool_does_not_hold_are_read_ahead_as_others)
{
	BEGIN(8, .pool = 4, .bucket = ANY, .live = ANY, .reuse = ANY, .in_cpu = ANY,
	      .persistent = PART + 1);
	for (int turn = 0; turn < 4; turn++)
		assert_int_equal(step(in_turn, 8, use).misses, turn ? 0 : 8);
}

TEST(a_step_that_exceeds_the_pool_by_a_little_reads_little_more_than_the_rest)
{
	size_t order[16];

	for (size_t i = 0; i < LENGTH(order); i++)
		order[i] = i;
	BEGIN(16, .pool = 12, .bucket = ANY, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 5; turn++) {
		struct nvs_step_io io = step(order, LENGTH(order), use);

		assert_int_equal(io.misses, turn ? 0 : 16);
		/* What half of the pool does not hold. */
		if (turn > 1)
			assert_true(io.read_bytes <= 10 * PART);
	}
}

/* With LRU, the six would evict each other, and no access would be a hit. */
TEST(max_in_cpu_holds_the_tensors_needed_soonest)
{
	BEGIN(6, .pool = 6, .live = ANY, .in_cpu = 2);
	assert_int_equal(step(in_turn, 6, use).hits, 0);
	for (int turn = 0; turn < 4; turn++) {
		assert_int_equal(step(in_turn, 6, turn % 2 ? use : change).hits, 2);
		assert_int_equal(count_in(NVS_RESIDENT), 2);
	}
}

/* ---- Room ---- */

TEST(the_tensor_needed_last_is_evicted)
{
	PLANNED(6, .pool = 3, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin();
	use(0);
	assert_int_equal(state_of(5), NVS_ON_DRIVE);
	use(1);
	assert_int_equal(state_of(0), NVS_ON_DRIVE);
	assert_int_equal(state_of(3), NVS_RESIDENT);
	assert_int_equal(state_of(4), NVS_RESIDENT);
	use_all(2, 6);
	assert_int_equal(state_of(4), NVS_ON_DRIVE);
	assert_int_equal(step_end().hits, 2);
}

TEST(tensors_outside_the_plan_are_evicted_first)
{
	BEGIN(8, .pool = 4, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(in_turn, 5, use);
	/* The pool has 1 to 4; the plan needs 4 last. */
	use(6);
	assert_int_equal(state_of(4), NVS_ON_DRIVE);
	use(7);
	assert_int_equal(state_of(6), NVS_ON_DRIVE);
	assert_int_equal(state_of(3), NVS_RESIDENT);
}

TEST(reading_ahead_evicts_only_tensors_needed_later)
{
	BEGIN(8, .pool = 4, .bucket = 8, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(in_turn, 7, use);
	/* The pool has 3 to 6, and 3 is needed before 4. */
	step_begin();
	await_idle();
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(state_of(i), i < 4 ? NVS_RESIDENT : NVS_ON_DRIVE);
	use_all(0, 7);
	step_end();
	OK(f, nvs_tensor_swap_out(f->engine, t, 8, &f->error));
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[7], 1, &f->error), 1);
	await_idle();
	step_begin();
	await_idle();
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(state_of(i), i < 3 || i == 7 ? NVS_RESIDENT : NVS_ON_DRIVE);
	/* A pin may use the whole pool. */
	tensors_load(f, &t[3], 4);
	step_end();
}

TEST(reading_ahead_joins_pieces)
{
	struct nvs_tensor *wide;

	BEGIN(4, .pool = 4, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	wide = tensor_add(f, "wide", 2 * PART);
	tensor_store(f, wide, 50);
	step_begin();
	tensor_compare(f, wide, 50);
	use_all(0, 4);
	step_end();
	OK(f, nvs_tensor_swap_out(f->engine, &wide, 1, &f->error));
	tensors_load(f, t, 4);
	/* Two parts are free, but not adjacent. */
	OK(f, nvs_tensor_swap_out(f->engine, &t[0], 1, &f->error));
	OK(f, nvs_tensor_swap_out(f->engine, &t[2], 1, &f->error));
	step_begin();
	OK(f, sole_wait(f->engine, &wide, 1, -1, &f->error));
	STATE(f, wide, NVS_RESIDENT, false, 0);
	step_end();
}

/* ---- Dirty tensors ---- */

TEST(dirty_tensors_are_written_back_before_room_is_needed)
{
	uint64_t waits;

	BEGIN(6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step(in_turn, 6, change);
	step(in_turn, 6, change);
	waits = stats_of(f).pool.waits;
	for (int turn = 0; turn < 2; turn++)
		assert_int_equal(step(in_turn, 6, change).misses, 0);
	assert_int_equal(stats_of(f).pool.waits, waits);
	use_all(0, 6);
}

/* Tensors that stay in the pool stay dirty: a step that changes all 6 does not write all 6. */
TEST(only_tensors_to_be_evicted_are_written_back)
{
	for (uint64_t pool = 5; pool <= 6; pool++) {
		uint64_t before, ready;
		struct nvs_step_io io;

		BEGIN(6, .pool = pool, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
		before = ios(NVS_WRITE);
		step(in_turn, 6, change);
		step(in_turn, 6, change);
		ready = ios(NVS_WRITE);
		io = step(in_turn, 6, change);
		assert_true(ios(NVS_WRITE) - ready < 6);
		/* A model that fits the pool is never written. */
		assert_true(pool < 6 || (ios(NVS_WRITE) == before && io.hits == 6));
		fixture_close(f);
	}
}

/* The write is tried once; the data stay, and the call that needs the room gets the error. */
TEST(a_write_back_that_fails_loses_nothing)
{
	uint64_t before;

	PLANNED(6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin();
	await_idle();
	before = ios(NVS_WRITE);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	change(0);
	assert_int_equal(ios(NVS_WRITE), before + 1);
	STATE(f, t[0], NVS_RESIDENT, true, 0);
	use(1);
	STATE(f, t[0], NVS_RESIDENT, true, 0);
	assert_int_equal(ios(NVS_WRITE), before + 1);
	step_end();
	use_all(0, 6);
}

/* ---- Failing reads ---- */

TEST(a_failed_read_ahead_is_read_again_when_asked_for)
{
	uint64_t before;

	PLANNED(6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	before = ios(NVS_READ);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	step_begin();
	await_idle();
	assert_int_equal(state_of(0), NVS_ON_DRIVE);
	/* The failed read is not repeated, and reading ahead continues behind it. */
	assert_int_equal(ios(NVS_READ), before + 2);
	assert_int_equal(state_of(1), NVS_RESIDENT);
	use(0);
	use_all(1, 6);
	assert_int_equal(step_end().misses, 1);
}

/* The write has succeeded; what the plan read behind it is nobody's error. */
TEST(a_failed_read_ahead_is_no_error_of_the_write_before_it)
{
	static char memory[PART];
	const void *data = memory;

	PLANNED(6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin();
	await_idle();
	use(0);
	/* The next tensor of the plan has been read ahead; its new contents come from elsewhere. */
	assert_int_equal(state_of(1), NVS_RESIDENT);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	seeds[1] = 78;
	fill(memory, PART, 78);
	OK(f, nvs_tensor_swap_out_from(f->engine, &t[1], &data, 1, &f->error));
	/* The write lands, the thread of events reads ahead, and logs the failure. */
	for (int round = 0; round < 2; round++) {
		await_idle();
		events_await_idle(f->engine);
	}
	OK(f, nvs_tensor_wait(f->engine, &t[1], 1, 0, -1, &f->error));
	assert_int_equal(info_of(f, t[1]).status, 0);
	assert_non_null(strstr(f->log, "t1 could not be read ahead: "));
	use(1);
	use_all(2, 6);
	step_end();
}

TEST(a_read_ahead_that_fails_while_prefetched_or_pinned_is_reported)
{
	for (int pinned = 0; pinned < 2; pinned++) {
		PLANNED(6, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
		sim_hold(f->sim, SIM_READS);
		sim_fail(f->sim, NVS_READ, 0, EIO, 1);
		step_begin();
		if (pinned)
			OK(f, sole_swap_in(f->engine, t, 1, -1, &f->error));
		else
			assert_int_equal(nvs_tensor_prefetch(f->engine, t, 1, &f->error), 1);
		sim_go(f->sim, SIM_READS);
		FAILS(f, -EIO, "t0", sole_wait, t, 1, -1);
		use(0);
		step_end();
		fixture_close(f);
	}
}

/* ---- Concurrent calls ---- */

static void *let_reads_go(void *arg)
{
	(void)arg;
	sim_go(f->sim, SIM_READS);
	return NULL;
}

/* Transfers that the plan started never cause -EBUSY for the caller. */
TEST(external_transfers_wait_for_reads_ahead)
{
	static char memory[PART];
	pthread_t thread;

	PLANNED(6, .pool = 3, .bucket = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	sim_hold(f->sim, SIM_READS);
	step_begin();
	assert_int_equal(state_of(0), NVS_READING);
	assert_int_equal(pthread_create(&thread, NULL, let_reads_go, NULL), 0);
	seeds[0] = 77;
	fill(memory, PART, 77);
	tensor_from(f, t[0], memory);
	pthread_join(thread, NULL);
	await_idle();
	memset(memory, 0, PART);
	tensor_to(f, t[0], memory);
	assert_true(filled(memory, PART, 77));
	use_all(0, 6);
	step_end();
}

static void meddle(uint64_t *random)
{
	size_t i = below(random, ntensors), n = 1 + below(random, ntensors - i);
	char name[16];

	switch (below(random, 6)) {
	case 0:
		assert_true(nvs_tensor_prefetch(f->engine, &t[i], n, &f->error) >= 0);
		break;
	case 1:
		OK(f, nvs_tensor_swap_out(f->engine, &t[i], n, &f->error));
		break;
	case 2:
		OK(f, nvs_engine_commit(f->engine, &f->error));
		break;
	case 3:
		seeds[i] += 5000;
		tensor_write(f, t[i], seeds[i]);
		break;
	case 4:
		tensor_compare(f, t[i], seeds[i]);
		break;
	default:
		if (below(random, 4))
			break;
		OK(f, sole_wait(f->engine, &t[i], 1, -1, &f->error));
		OK(f, nvs_tensor_forget(f->engine, &t[i], 1, &f->error));
		snprintf(name, sizeof(name), "t%zu", i);
		t[i] = tensor_add(f, name, PART);
		tensor_write(f, t[i], seeds[i]);
	}
}

/* Steps in an order that changes sometimes, with random other calls in between. */
static void wander(struct budgets budgets, uint64_t *random)
{
	size_t order[40];

	begin_training(12, budgets);
	for (size_t k = 0; k < LENGTH(order); k++)
		order[k] = below(random, ntensors);
	for (int turn = 0; turn < (SANITIZED ? 12 : 30); turn++) {
		step_begin();
		for (size_t k = below(random, 4); k < LENGTH(order); k++) {
			uint64_t what = below(random, 16);

			if (what == 0)
				order[k] = below(random, ntensors);
			if (what == 1)
				k += below(random, 5);
			if (what == 2)
				meddle(random);
			if (k < LENGTH(order) && what < 8)
				tensor_compare(f, t[order[k]], seeds[order[k]]);
			else if (k < LENGTH(order))
				change(order[k]);
			fixture_check(f);
		}
		step_end();
		meddle(random);
		fixture_check(f);
	}
	for (size_t i = 0; i < ntensors; i++)
		use(i);
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

/* ---- Statistics of a step ---- */

TEST(a_step_reports_its_io)
{
	BEGIN(8, .pool = 3, .bucket = 1, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	for (int turn = 0; turn < 4; turn++) {
		struct nvs_engine_stats before = stats_of(f), after = {.size = sizeof(after)};
		struct nvs_step_io io = step(in_turn, 8, turn % 2 ? use : change);
		uint64_t less = io.io_ns < io.compute_ns ? io.io_ns : io.compute_ns;

		after = stats_of(f);
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
}

TEST(waits_are_stalls_and_polls_are_not)
{
	struct nvs_step_io io = {.size = sizeof(io)};

	BEGIN(4, .pool = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY);
	step_begin();
	use(0);
	step_end();
	sim_hold(f->sim, SIM_READS);
	step_begin();
	OK(f, sole_swap_in(f->engine, &t[1], 2, -1, &f->error));
	assert_int_equal(sole_wait(f->engine, &t[1], 2, 0, NULL), -EAGAIN);
	assert_int_equal(sole_swap_in(f->engine, &t[3], 1, 0, NULL), -EAGAIN);
	assert_int_equal(sole_wait(f->engine, &t[1], 2, 3, NULL), -ETIMEDOUT);
	assert_int_equal(sole_swap_in(f->engine, &t[3], 1, 3, NULL), -ETIMEDOUT);
	io = step_end();
	assert_int_equal(io.misses, 2);
	assert_int_equal(io.stalls, 2);
	assert_true(io.stall_ns >= 6000000 && io.stall_ns <= io.wall_ns);
	assert_true(io.io_ns >= 6000000);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, &t[1], 2, -1, &f->error));
	OK(f, sole_release(f->engine, &t[1], 2, NVS_CLEAN, &f->error));
}

TEST(transfers_and_waits_are_on_the_timeline)
{
	struct nvs_tensor_range range = {.size = sizeof(range)};
	struct nvs_trace *trace;
	const char *path;
	char *text, byte;

	assert_int_equal(nvs_trace_open(&trace, 1000, NULL), 0);
	BEGIN(4, .pool = 2, .live = ANY, .reuse = ANY, .in_cpu = ANY, .trace = trace);
	range.tensor = t[1];
	range.nbytes = 1;
	range.data = &byte;
	sim_hold(f->sim, SIM_READS);
	OK(f, sole_swap_in(f->engine, &t[1], 2, -1, &f->error));
	assert_int_equal(sole_wait(f->engine, &t[2], 1, 1, NULL), -ETIMEDOUT);
	assert_int_equal(sole_swap_in(f->engine, &t[3], 1, 1, NULL), -ETIMEDOUT);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, &t[1], 2, -1, &f->error));
	OK(f, sole_release(f->engine, &t[1], 2, NVS_CLEAN, &f->error));
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	path = path_in(f->paths[0], "trace.json");
	assert_int_equal(nvs_trace_write(trace, path, NULL, NULL), 0);
	text = file_text(path);
	assert_says(text, "\"read t1\"");
	assert_says(text, "\"read t2\"");
	assert_says(text, "wait for t2");
	assert_says(text, "room in the pool");
	assert_says(text, "\"call\":\"read-part\"");
	free(text);
	fixture_close(f);
	nvs_trace_close(trace);
}
