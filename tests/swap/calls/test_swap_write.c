/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of tensors written from the caller's memory: any range at any alignment, all or none of a
 * call, with the copy-on-write of a kept store and its checksums.
 */
#include "store/member/member.h"
#include "swap/swap_fixture.h"

#include <sched.h>
#include <stdatomic.h>

ONE_ENGINE

static struct nvs_tensor *t[RANGED];

/* What the drive has, read without the pool. */
static void expect_on_drive(void)
{
	for (size_t i = 0; i < RANGED; i++) {
		static char memory[RANGED_MAX];

		if (info_of(f, t[i]).state == NVS_RESIDENT)
			tensors_swap_out(f, &t[i], 1);
		tensor_to(f, t[i], memory);
		assert_memory_equal(memory, ranged_bytes[i], ranged_lengths[i]);
	}
}

static struct nvs_tensor_range range_of(size_t i, uint64_t offset, uint64_t nbytes)
{
	return (struct nvs_tensor_range){.size = sizeof(struct nvs_tensor_range),
					 .tensor = t[i],
					 .offset = offset,
					 .nbytes = nbytes,
					 .data = ranged_bytes[i] + offset};
}

static void write_parts(const struct setup *setup)
{
	struct nvs_tensor_range ranges[2 * RANGED];
	uint64_t seed = seed_of_run();

	fixture_open(f, setup);
	ranged_store(f, t);
	for (int round = 0; round < 40; round++) {
		for (size_t i = 0; i < 2 * RANGED; i++) {
			uint64_t length = ranged_lengths[i / 2], offset = below(&seed, length + 1);
			uint64_t nbytes = below(&seed, length - offset + 1);

			ranges[i] = range_of(i / 2, offset, nbytes);
			fill(ranges[i].data, nbytes, next_random(&seed));
		}
		OK(f, nvs_tensor_write(f->engine, ranges, 2 * RANGED, -1, &f->error));
		if (round % 4 == 3)
			expect_on_drive();
	}
	expect_on_drive();
	fixture_close(f);
}

TEST(writes_any_range_at_any_alignment)
{
	write_parts(&(struct setup){.place = PLACE_DISK});
	write_parts(&(struct setup){.place = PLACE_EXT4,
				    .npaths = 3,
				    .stripe_size = 3 * 4096,
				    .keep = true,
				    .verify = true});
}

TEST(a_later_range_wins)
{
	struct nvs_tensor_range ranges[2];
	char first[400], second[300];

	OPEN(f, .place = PLACE_DISK);
	ranged_store(f, t);
	memset(first, 'a', sizeof(first));
	memset(second, 'b', sizeof(second));
	ranges[0] = (struct nvs_tensor_range){sizeof(ranges[0]), t[1], 1000, 400, first};
	ranges[1] = (struct nvs_tensor_range){sizeof(ranges[0]), t[1], 1100, 300, second};
	OK(f, nvs_tensor_write(f->engine, ranges, 2, -1, &f->error));
	memset(ranged_bytes[1] + 1000, 'a', 100);
	memset(ranged_bytes[1] + 1100, 'b', 300);
	STATE(f, t[1], NVS_RESIDENT, true, 0);
	expect_on_drive();
}

TEST(a_kept_store_has_a_part_with_the_next_commit)
{
	struct nvs_tensor_range range;
	char old[5000];

	OPEN(f, .place = PLACE_DISK, .keep = true);
	ranged_store(f, t);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	memcpy(old, ranged_bytes[2] + 300001, sizeof(old));
	range = range_of(2, 300001, sizeof(old));
	for (int run = 0; run < 2; run++) {
		fill(range.data, sizeof(old), 99);
		OK(f, nvs_tensor_write(f->engine, &range, 1, -1, &f->error));
		tensors_swap_out(f, &t[2], 1);
		if (run)
			OK(f, nvs_engine_commit(f->engine, &f->error));
		else
			memcpy(range.data, old, sizeof(old));
		fixture_crash(f);
		tensors_add(f, "t", ranged_lengths, RANGED, t);
		expect_on_drive();
		range.tensor = t[2];
	}
}

TEST(after_an_error_no_byte_has_changed)
{
	struct nvs_tensor_range ranges[2];
	char other[100];
	uint64_t from;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	ranged_store(f, t);
	memset(other, 'x', sizeof(other));
	ranges[0] = (struct nvs_tensor_range){sizeof(ranges[0]), t[1], 10, 100, other};
	ranges[1] = (struct nvs_tensor_range){sizeof(ranges[0]), t[2], 10, 100, other};
	from = LABEL_AREA_BYTES + info_of(f, t[2]).store_offset;
	sim_fault(f->sim, &(const struct sim_rule){.fault = SIM_ERROR,
						   .error = EIO,
						   .reads = true,
						   .from = from + 600000,
						   .to = from + 600001});
	FAILS(f, -EIO, "t2: reading /", nvs_tensor_write, ranges, 2, -1);
	STATE(f, t[1], NVS_RESIDENT, false, 0);
	STATE(f, t[2], NVS_ON_DRIVE, false, 0);
	sim_no_faults(f->sim);
	expect_on_drive();
}

TEST(a_time_limit_bounds_the_wait_for_reads)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	ranged_store(f, t);
	range = range_of(1, 500, 600);
	fill(range.data, 600, 42);
	sim_hold(f->sim, SIM_READS);
	FAILS(f, -EAGAIN, "t1", nvs_tensor_write, &range, 1, 0);
	FAILS(f, -ETIMEDOUT, "t1", nvs_tensor_write, &range, 1, 1);
	STATE(f, t[1], NVS_READING, false, 0);
	sim_go(f->sim, SIM_READS);
	OK(f, nvs_tensor_wait(f->engine, &t[1], 1, 0, -1, &f->error));
	/* The read goes on after the limit, so the call can be made again. */
	OK(f, nvs_tensor_write(f->engine, &range, 1, 0, &f->error));
	expect_on_drive();
}

TEST(what_can_not_be_written_is_refused)
{
	struct nvs_tensor_range ranges[RANGED], bad;
	struct nvs_tensor *empty;

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 512 * KIB, .keep = true);
	ranged_store(f, t);
	empty = tensor_add(f, "empty", 100);
	for (size_t i = 0; i < RANGED; i++)
		ranges[i] = range_of(i, 0, 1);
	OK(f, nvs_tensor_write(f->engine, NULL, 0, 0, &f->error));
	FAILS(f, -E2BIG, "t2", nvs_tensor_write, &ranges[2], 1, -1);
	bad = ranges[1];
	bad.tensor = empty;
	FAILS(f, -ENODATA, "empty", nvs_tensor_write, &bad, 1, -1);
	bad.nbytes = 0;
	OK(f, nvs_tensor_write(f->engine, &bad, 1, 0, &f->error));
	bad = ranges[1];
	bad.offset = ranged_lengths[1];
	FAILS(f, -EINVAL, "not within", nvs_tensor_write, &bad, 1, -1);
	OK(f, sole_swap_in(f->engine, &t[1], 1, -1, &f->error));
	FAILS(f, -EBUSY, "t1 is pinned", nvs_tensor_write, ranges, 2, -1);
	OK(f, sole_wait(f->engine, &t[1], 1, -1, &f->error));
	OK(f, sole_release(f->engine, &t[1], 1, NVS_CLEAN, &f->error));
	fixture_read_only(f);
	tensors_add(f, "t", ranged_lengths, RANGED, t);
	ranges[1].tensor = t[1];
	FAILS(f, -EROFS, "read", nvs_tensor_write, &ranges[1], 1, -1);
	expect_on_drive();
}

/* ---- Several threads ---- */

#define HALF   (MIB / 2)
#define ROUNDS (SANITIZED ? 100 : 400)

struct copier {
	struct nvs_tensor *t;
	uint64_t offset;
	atomic_bool *ended;
	char *data;
};

#define HALF_OF(copier)                                                                            \
	{                                                                                          \
		sizeof(struct nvs_tensor_range), (copier)->t, (copier)->offset, HALF,              \
			(copier)->data                                                             \
	}

static void *write_half(void *arg)
{
	struct copier *copier = arg;
	const struct nvs_tensor_range range = HALF_OF(copier);

	for (uint64_t seed = 0; seed < ROUNDS; seed++) {
		fill(copier->data, HALF, seed);
		MUST(!nvs_tensor_write(f->engine, &range, 1, -1, NULL));
	}
	return NULL;
}

static void *read_half(void *arg)
{
	struct copier *copier = arg;
	const struct nvs_tensor_range range = HALF_OF(copier);

	while (!*copier->ended)
		MUST(!nvs_tensor_read(f->engine, &range, 1, NULL));
	return NULL;
}

static void *commit_and_evict(void *arg)
{
	struct copier *copier = arg;

	while (!*copier->ended) {
		MUST(!nvs_engine_commit(f->engine, NULL));
		MUST(!nvs_tensor_swap_out(f->engine, &copier->t, 1, NULL));
	}
	return NULL;
}

/* Two threads write halves of a tensor that a third commits and evicts, and two read another
 * one. */
TEST(calls_that_copy_bytes_do_not_fail_for_each_other)
{
	void *(*const calls[])(void *) = {write_half, write_half, commit_and_evict, read_half,
					  read_half};
	struct nvs_tensor *written, *read;
	struct copier copiers[LENGTH(calls)];
	pthread_t threads[LENGTH(calls)];
	atomic_bool ended = false;

	OPEN(f, .place = PLACE_DISK, .keep = true);
	written = tensor_add(f, "written", MIB);
	read = tensor_add(f, "read", MIB);
	tensor_write(f, written, 0);
	tensor_write(f, read, 0);
	for (size_t i = 0; i < LENGTH(calls); i++) {
		copiers[i] = (struct copier){calls[i] == read_half ? read : written, i % 2 * HALF,
					     &ended, malloc(HALF)};
		assert_non_null(copiers[i].data);
		assert_int_equal(pthread_create(&threads[i], NULL, calls[i], &copiers[i]), 0);
	}
	for (size_t i = 0; i < LENGTH(calls); i++) {
		pthread_join(threads[i], NULL);
		ended = ended || i == 1;
	}
	OK(f, nvs_tensor_wait(f->engine, &written, 1, 0, -1, &f->error));
	tensors_pin(f, &written, 1);
	for (size_t i = 0; i < 2; i++)
		assert_true(filled((char *)nvs_tensor_data(written) + i * HALF, HALF, ROUNDS - 1));
	OK(f, sole_release(f->engine, &written, 1, NVS_CLEAN, &f->error));
	for (size_t i = 0; i < LENGTH(calls); i++)
		free(copiers[i].data);
}

/* A call on n tensors, of which a write has pinned the last while it reads `other`. */
struct outsider {
	struct nvs_tensor *t[2], *other;
	size_t n;
	void (*call)(struct outsider *outsider);
	char data[2][100];
};

static void swaps_out(struct outsider *o)
{
	MUST(!nvs_tensor_swap_out(f->engine, o->t, o->n, NULL));
}

static void swaps_in(struct outsider *o)
{
	MUST(!sole_swap_in(f->engine, o->t, o->n, -1, NULL));
	MUST(!sole_release(f->engine, o->t, o->n, NVS_CLEAN, NULL));
}

static void pins_for_new_contents(struct outsider *o)
{
	MUST(!sole_pin(f->engine, o->t, o->n, -1, NULL));
	MUST(!sole_release(f->engine, o->t, o->n, NVS_CLEAN, NULL));
}

static void reads_to_external_memory(struct outsider *o)
{
	void *data[] = {o->data[0], o->data[1]};

	MUST(!nvs_tensor_swap_in_to(f->engine, o->t, data, o->n, NULL));
	MUST(!nvs_tensor_wait(f->engine, o->t, o->n, 0, -1, NULL));
}

static void writes_from_external_memory(struct outsider *o)
{
	tensor_from(f, o->t[0], o->data[0]);
}

static void forgets(struct outsider *o)
{
	MUST(!nvs_tensor_forget(f->engine, o->t, o->n, NULL));
}

#define BYTE_OF(tensor, data)                                                                      \
	{                                                                                          \
		sizeof(struct nvs_tensor_range), tensor, 0, 1, data                                \
	}

static void reads_bytes(struct outsider *o)
{
	const struct nvs_tensor_range ranges[] = {BYTE_OF(o->t[0], o->data[0]),
						  BYTE_OF(o->t[1], o->data[1])};

	MUST(!nvs_tensor_read(f->engine, ranges, o->n, NULL));
	MUST(!nvs_tensor_wait(f->engine, o->t, o->n, 0, -1, NULL));
}

static void writes_bytes(struct outsider *o)
{
	const struct nvs_tensor_range ranges[] = {BYTE_OF(o->t[0], o->data[0]),
						  BYTE_OF(o->t[1], o->data[1])};

	MUST(!nvs_tensor_write(f->engine, ranges, o->n, -1, NULL));
}

static void commits(struct outsider *o)
{
	(void)o;
	MUST(!nvs_engine_commit(f->engine, NULL));
}

static void *call_outside(void *arg)
{
	struct outsider *outsider = arg;

	outsider->call(outsider);
	return NULL;
}

static void *write_second(void *arg)
{
	struct outsider *o = arg;
	char byte = 0;
	const struct nvs_tensor_range ranges[] = {BYTE_OF(o->t[1], &byte),
						  BYTE_OF(o->other, &byte)};

	MUST(!nvs_tensor_write(f->engine, ranges, 2, -1, NULL));
	return NULL;
}

static void await_call(const struct nvs_tensor *tensor)
{
	bool waits = false;

	while (!waits) {
		sched_yield();
		engine_lock(f->engine);
		waits = tensor->rest->in_line || f->engine->turns.held != COPIED_NOT;
		engine_unlock(f->engine);
	}
}

TEST(later_writes_do_not_pass_a_call_that_waits_for_earlier_ones)
{
	static void (*const calls[])(struct outsider *) = {swaps_out,
							   swaps_in,
							   pins_for_new_contents,
							   reads_to_external_memory,
							   reads_bytes,
							   writes_bytes,
							   commits};

	for (size_t i = 0; i < LENGTH(calls); i++) {
		struct outsider o = {.call = calls[i], .n = 2};
		char byte = 1;
		struct nvs_tensor_range first = {.size = sizeof(first), .nbytes = 1, .data = &byte};
		pthread_t writer, caller;

		OPEN(f, .place = PLACE_DISK, .simulated = true);
		o.t[0] = first.tensor = tensor_add(f, "first", sizeof(o.data[0]));
		o.t[1] = tensor_add(f, "second", sizeof(o.data[1]));
		o.other = tensor_add(f, "other", 100);
		tensor_write(f, o.t[0], 1);
		tensor_write(f, o.t[1], 2);
		tensor_store(f, o.other, 3);
		sim_hold(f->sim, SIM_READS);
		assert_int_equal(pthread_create(&writer, NULL, write_second, &o), 0);
		assert_true(sim_await_in_flight(f->sim, 1));
		OK(f, nvs_tensor_write(f->engine, &first, 1, 0, &f->error));
		assert_int_equal(pthread_create(&caller, NULL, call_outside, &o), 0);
		await_call(o.t[0]);
		FAILS(f, -EAGAIN, "can't be pinned while one of them is in flight or being copied",
		      nvs_tensor_write, &first, 1, 0);
		sim_go(f->sim, SIM_READS);
		pthread_join(writer, NULL);
		pthread_join(caller, NULL);
		OK(f, nvs_tensor_wait(f->engine, o.t, 2, 0, -1, &f->error));
		OK(f, nvs_tensor_write(f->engine, &first, 1, -1, &f->error));
		fixture_close(f);
	}
}

TEST(calls_wait_for_the_read_of_a_write_that_gave_up)
{
	static void (*const calls[])(struct outsider *) = {reads_to_external_memory, reads_bytes,
							   writes_from_external_memory, forgets};
	char byte = 0;

	for (size_t i = 0; i < LENGTH(calls); i++) {
		struct nvs_tensor_range range = {.size = sizeof(range), .nbytes = 1, .data = &byte};
		struct outsider o = {.call = calls[i], .n = 1};
		pthread_t caller;

		OPEN(f, .place = PLACE_DISK, .simulated = true);
		o.t[0] = range.tensor = tensor_add(f, "t", sizeof(o.data[0]));
		tensor_store(f, o.t[0], 1);
		sim_hold(f->sim, SIM_READS);
		FAILS(f, -EAGAIN, "t", nvs_tensor_write, &range, 1, 0);
		STATE(f, o.t[0], NVS_READING, false, 0);
		assert_int_equal(pthread_create(&caller, NULL, call_outside, &o), 0);
		await_call(o.t[0]);
		sim_go(f->sim, SIM_READS);
		pthread_join(caller, NULL);
		fixture_close(f);
	}
}

TEST(a_write_that_gave_up_leaves_a_read_of_the_callers)
{
	struct nvs_tensor_range range = {.size = sizeof(range), .nbytes = 1};
	char bytes[100] = "";
	void *data = bytes;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	range.tensor = tensor_add(f, "t", sizeof(bytes));
	range.data = bytes;
	tensor_store(f, range.tensor, 1);
	sim_hold(f->sim, SIM_READS);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &range.tensor, 1, &f->error), 1);
	FAILS(f, -EAGAIN, "t", nvs_tensor_write, &range, 1, 0);
	FAILS(f, -EBUSY, "wait for it", nvs_tensor_swap_in_to, &range.tensor, &data, 1);
	sim_go(f->sim, SIM_READS);
	FAILS(f, -EIO, "t", nvs_tensor_wait, &range.tensor, 1, 0, -1);
}

static void *write_and_fail(void *arg)
{
	struct copier *copier = arg;
	const struct nvs_tensor_range range = HALF_OF(copier);

	MUST(nvs_tensor_write(f->engine, &range, 1, -1, NULL) == -EIO);
	return NULL;
}

TEST(a_write_whose_read_fails_ends_before_its_tensor_is_forgotten)
{
	struct copier copier;
	pthread_t thread;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	copier = (struct copier){.t = tensor_add(f, "t", MIB), .data = calloc(1, HALF)};
	assert_non_null(copier.data);
	tensor_store(f, copier.t, 1);
	sim_hold(f->sim, SIM_READS);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	assert_int_equal(pthread_create(&thread, NULL, write_and_fail, &copier), 0);
	assert_true(sim_await_in_flight(f->sim, 1));
	sim_go(f->sim, SIM_READS);
	OK(f, nvs_tensor_forget(f->engine, &copier.t, 1, &f->error));
	pthread_join(thread, NULL);
	free(copier.data);
}
