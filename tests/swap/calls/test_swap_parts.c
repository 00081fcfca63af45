/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of tensors read into external memory: any range at any alignment, from the drive or the
 * pool, and no byte of the caller's memory beyond it is touched.
 */
#include "store/member/member.h"
#include "swap/swap_fixture.h"

ONE_ENGINE

static struct nvs_tensor *t[RANGED];

#define GUARD	64
#define OUTSIDE 0x5a

/* Memory for a part of each tensor. */
static char parts[RANGED][GUARD + RANGED_MAX + GUARD];

static struct nvs_tensor_range range_of(size_t i, uint64_t offset, uint64_t nbytes)
{
	memset(parts[i], OUTSIDE, sizeof(parts[i]));
	return (struct nvs_tensor_range){.size = sizeof(struct nvs_tensor_range),
					 .tensor = t[i],
					 .offset = offset,
					 .nbytes = nbytes,
					 .data = parts[i] + GUARD};
}

static void expect_part(size_t i, const struct nvs_tensor_range *range)
{
	const char *part = parts[i];

	assert_memory_equal(part + GUARD, ranged_bytes[i] + range->offset, range->nbytes);
	for (uint64_t k = 0; k < GUARD; k++)
		assert_true(part[k] == OUTSIDE && part[GUARD + range->nbytes + k] == OUTSIDE);
}

/* Reads the part, and compares it. */
static void read_part(size_t i, const struct nvs_tensor_range *range)
{
	OK(f, nvs_tensor_read(f->engine, range, 1, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t[i], 1, 0, -1, &f->error));
	expect_part(i, range);
}

/* Ranges of random length and place, and those at the ends, of all tensors in one call. */
static void read_parts(const struct setup *setup, bool resident)
{
	struct nvs_tensor_range ranges[RANGED];
	uint64_t seed = seed_of_run();

	fixture_open(f, setup);
	ranged_store(f, t);
	if (resident)
		tensors_load(f, t, RANGED);
	for (int round = 0; round < 60; round++) {
		for (size_t i = 0; i < RANGED; i++) {
			uint64_t offset = round == 0 ? 0 : below(&seed, ranged_lengths[i] + 1);
			uint64_t left = ranged_lengths[i] - offset;

			ranges[i] = range_of(i, offset, round % 3 ? below(&seed, left + 1) : left);
		}
		OK(f, nvs_tensor_read(f->engine, ranges, RANGED, &f->error));
		OK(f, nvs_tensor_wait(f->engine, t, RANGED, 0, -1, &f->error));
		for (size_t i = 0; i < RANGED; i++) {
			expect_part(i, &ranges[i]);
			STATE(f, t[i], resident ? NVS_RESIDENT : NVS_ON_DRIVE, false, 0);
		}
	}
	fixture_close(f);
}

TEST(reads_any_range_at_any_alignment)
{
	read_parts(&(struct setup){.place = PLACE_DISK, .verify = true}, false);
	read_parts(&(struct setup){.place = PLACE_DISK, .keep = true}, true);
	read_parts(&(struct setup){.place = PLACE_DISK,
				   .npaths = 3,
				   .stripe_size = 5 * 4096,
				   .thread_count = 2},
		   false);
}

TEST(a_part_of_a_dirty_tensor_has_its_newest_bytes)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	ranged_store(f, t);
	tensor_write(f, t[1], 77);
	fill(ranged_bytes[1], ranged_lengths[1], 77);
	range = range_of(1, 12345, 4321);
	sim_forget_counts(f->sim);
	read_part(1, &range);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 0);
	STATE(f, t[1], NVS_RESIDENT, true, 0);
}

TEST(reads_little_more_than_the_part_and_needs_no_pool)
{
	struct nvs_tensor_range range;
	struct sim_counts counts;

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 64 * KIB, .simulated = true);
	ranged_store(f, t);
	sim_forget_counts(f->sim);
	range = range_of(2, 300001, 5000);
	read_part(2, &range);
	sim_get(f->sim, &counts);
	assert_true(counts.bytes[NVS_READ] >= 5000 && counts.bytes[NVS_READ] <= 5000 + 2 * 4096);
	assert_int_equal(stats_of(f).pool.used_max, 0);
	assert_int_equal(stats_of(f).swapped_in, 5000);
}

TEST(a_part_in_flight_keeps_the_tensor_busy)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	ranged_store(f, t);
	range = range_of(1, 5, 600);
	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	STATE(f, t[1], NVS_READING, false, 0);
	FAILS(f, -EBUSY, "t1", nvs_tensor_read, &range, 1);
	FAILS(f, -EBUSY, "t1", nvs_tensor_forget, &t[1], 1);
	FAILS(f, -EAGAIN, "t1", nvs_tensor_wait, &t[1], 1, 0, 0);
	sim_go(f->sim, SIM_READS);
	/* Closing would wait, too. */
	OK(f, nvs_tensor_wait(f->engine, &t[1], 1, 0, -1, &f->error));
	expect_part(1, &range);
	OK(f, sole_pin(f->engine, &t[1], 1, 0, &f->error));
	FAILS(f, -EBUSY, "t1 is pinned", nvs_tensor_read, &range, 1);
	OK(f, sole_release(f->engine, &t[1], 1, NVS_CLEAN, &f->error));
}

TEST(a_failed_read_is_that_of_its_tensor_alone)
{
	struct nvs_tensor_range ranges[RANGED];
	uint64_t from;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	ranged_store(f, t);
	from = LABEL_AREA_BYTES + info_of(f, t[1]).store_offset + 40000;
	for (size_t i = 0; i < RANGED; i++)
		ranges[i] = range_of(i, ranged_lengths[i] / 2,
				     ranged_lengths[i] - ranged_lengths[i] / 2);
	sim_fault(f->sim, &(const struct sim_rule){.fault = SIM_ERROR,
						   .error = EIO,
						   .reads = true,
						   .from = from,
						   .to = from + 1});
	OK(f, nvs_tensor_read(f->engine, ranges, RANGED, &f->error));
	FAILS(f, -EIO, "t1: reading /", nvs_tensor_wait, t, RANGED, 0, -1);
	expect_part(0, &ranges[0]);
	expect_part(2, &ranges[2]);
	sim_no_faults(f->sim);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	ranges[1] = range_of(1, 0, ranged_lengths[1]);
	read_part(1, &ranges[1]);
}

#define MANY 40

/* Many ranges of two tensors, in any order, some of them empty. */
static void read_many(bool resident)
{
	static char memory[MANY][1000];
	struct nvs_tensor_range ranges[MANY];
	uint64_t seed = seed_of_run();

	OPEN(f, .place = PLACE_DISK);
	ranged_store(f, t);
	if (resident)
		tensors_load(f, t, RANGED);
	for (size_t k = 0; k < MANY; k++) {
		size_t i = 1 + below(&seed, 2);

		ranges[k] =
			(struct nvs_tensor_range){.size = sizeof(ranges[k]),
						  .tensor = t[i],
						  .offset = below(&seed, ranged_lengths[i] - 1000),
						  .nbytes = k % 5 ? below(&seed, 1001) : 0,
						  .data = memory[k]};
	}
	OK(f, nvs_tensor_read(f->engine, ranges, MANY, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, RANGED, 0, -1, &f->error));
	for (size_t k = 0; k < MANY; k++)
		assert_memory_equal(memory[k],
				    ranged_bytes[ranges[k].tensor == t[1] ? 1 : 2] +
					    ranges[k].offset,
				    ranges[k].nbytes);
	fixture_close(f);
}

TEST(reads_several_ranges_of_one_tensor_in_one_call)
{
	read_many(false);
	read_many(true);
}

TEST(a_failed_range_ends_those_of_its_tensor_behind_it)
{
	struct nvs_tensor_range ranges[3];
	char memory[3][10] = {{0}};

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	ranged_store(f, t);
	for (size_t k = 0; k < 3; k++)
		ranges[k] = (struct nvs_tensor_range){sizeof(ranges[k]), t[1], k * 20000, 10,
						      memory[k]};
	sim_fail(f->sim, NVS_READ, 1, EIO, 1);
	sim_forget_counts(f->sim);
	OK(f, nvs_tensor_read(f->engine, ranges, 3, &f->error));
	FAILS(f, -EIO, "t1: reading /", nvs_tensor_wait, t, RANGED, 0, -1);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 2);
	assert_memory_equal(memory[0], ranged_bytes[1], 10);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	OK(f, nvs_tensor_read(f->engine, ranges, 3, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, RANGED, 0, -1, &f->error));
	assert_memory_equal(memory[2], ranged_bytes[1] + 40000, 10);
}

TEST(only_a_range_of_all_bytes_is_verified)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .keep = true, .verify = true);
	ranged_store(f, t);
	tensor_flip(f, t[1], 100);
	range = range_of(1, 200, ranged_lengths[1] - 200);
	read_part(1, &range);
	range = range_of(1, 0, ranged_lengths[1]);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	FAILS(f, -EBADMSG, "t1", nvs_tensor_wait, &t[1], 1, 0, -1);
}

TEST(ranges_that_are_wrong_are_refused)
{
	static const struct {
		uint64_t offset, nbytes;
		const char *words;
	} outside[] = {
		{1, 70001, "70001 bytes"}, {UINT64_MAX, 70001, "t1"}, {70001, UINT64_MAX, "t1"}};
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK);
	ranged_store(f, t);
	OK(f, nvs_tensor_read(f->engine, NULL, 0, &f->error));
	range = range_of(1, 0, ranged_lengths[1]);
	range.size = 0;
	FAILS(f, -EINVAL, "size", nvs_tensor_read, &range, 1);
	range.size = sizeof(range);
	for (size_t i = 0; i < LENGTH(outside); i++) {
		range.offset = outside[i].offset;
		range.nbytes = outside[i].nbytes;
		FAILS(f, -EINVAL, outside[i].words, nvs_tensor_read, &range, 1);
	}
	range = range_of(1, 0, 5);
	range.tensor = tensor_add(f, "empty", 10);
	FAILS(f, -ENODATA, "empty", nvs_tensor_read, &range, 1);
	range.nbytes = 0;
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
}
