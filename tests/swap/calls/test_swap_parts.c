/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of tensors read into external memory: any range at any alignment, from the drive or the
 * pool, and no byte of the caller's memory beyond it is touched.
 */
#include "store/member/member.h"
#include "support/tests.h"
#include "swap/contents_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

ONE_ENGINE

static struct nvs_tensor *t[TENSORS];

#define GUARD	64
#define OUTSIDE 0x5a

/* Memory for a part of each tensor. */
static char parts[TENSORS][GUARD + LENGTH_MAX + GUARD];

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

	assert_memory_equal(part + GUARD, whole[i] + range->offset, range->nbytes);
	for (uint64_t k = 0; k < GUARD; k++)
		assert_true(part[k] == OUTSIDE && part[GUARD + range->nbytes + k] == OUTSIDE);
}

static uint64_t file_offset(struct nvs_tensor *tensor)
{
	return LABEL_AREA_BYTES + info_of(f, tensor).store_offset;
}

/* Ranges of random length and place, and those at the ends, of all tensors in one call. */
static void read_parts(const struct setup *setup, bool resident)
{
	struct nvs_tensor_range ranges[TENSORS];
	uint64_t seed = seed_of_run();

	fixture_open(f, setup);
	contents_store(f, t);
	if (resident)
		contents_load(f, t);
	for (int round = 0; round < 60; round++) {
		for (size_t i = 0; i < TENSORS; i++) {
			uint64_t offset = round == 0 ? 0 : below(&seed, tensor_lengths[i] + 1);
			uint64_t left = tensor_lengths[i] - offset;

			ranges[i] = range_of(i, offset, round % 3 ? below(&seed, left + 1) : left);
		}
		OK(f, nvs_tensor_read(f->engine, ranges, TENSORS, &f->error));
		OK(f, nvs_tensor_wait(f->engine, t, TENSORS, 0, -1, &f->error));
		for (size_t i = 0; i < TENSORS; i++) {
			expect_part(i, &ranges[i]);
			STATE(f, t[i], resident ? NVS_RESIDENT : NVS_ON_DRIVE, false, 0);
		}
	}
	fixture_close(f);
}

TEST(reads_any_range_at_any_alignment)
{
	read_parts(&(struct setup){.place = PLACE_DISK, .verify = true}, false);
}

TEST(reads_any_range_over_stripes)
{
	read_parts(&(struct setup){.place = PLACE_DISK,
				   .npaths = 3,
				   .stripe_size = 5 * 4096,
				   .thread_count = 2},
		   false);
}

TEST(reads_any_range_of_resident_tensors)
{
	read_parts(&(struct setup){.place = PLACE_DISK, .keep = true}, true);
}

TEST(a_part_of_a_dirty_tensor_has_its_newest_bytes)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	contents_store(f, t);
	tensor_write(f, t[1], 77);
	fill(whole[1], tensor_lengths[1], 77);
	range = range_of(1, 12345, 4321);
	sim_forget_counts(f->sim);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t[1], 1, 0, 0, &f->error));
	expect_part(1, &range);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 0);
	STATE(f, t[1], NVS_RESIDENT, true, 0);
}

TEST(reads_little_more_than_the_part_and_needs_no_pool)
{
	struct nvs_tensor_range range;
	struct sim_counts counts;

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 64 * KIB, .simulated = true);
	contents_store(f, t);
	sim_forget_counts(f->sim);
	range = range_of(2, 300001, 5000);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t[2], 1, 0, -1, &f->error));
	expect_part(2, &range);
	sim_get(f->sim, &counts);
	assert_true(counts.bytes[NVS_READ] >= 5000 && counts.bytes[NVS_READ] <= 5000 + 2 * 4096);
	assert_int_equal(stats_of(f).pool.used_max, 0);
	assert_int_equal(stats_of(f).swapped_in, 5000);
}

TEST(a_part_in_flight_keeps_the_tensor_busy)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	contents_store(f, t);
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
	struct nvs_tensor_range ranges[TENSORS];

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	contents_store(f, t);
	for (size_t i = 0; i < TENSORS; i++)
		ranges[i] = range_of(i, tensor_lengths[i] / 2,
				     tensor_lengths[i] - tensor_lengths[i] / 2);
	sim_fault(f->sim, &(const struct sim_rule){.fault = SIM_ERROR,
						   .error = EIO,
						   .reads = true,
						   .from = file_offset(t[1]) + 40000,
						   .to = file_offset(t[1]) + 40001});
	OK(f, nvs_tensor_read(f->engine, ranges, TENSORS, &f->error));
	FAILS(f, -EIO, "t1: reading /", nvs_tensor_wait, t, TENSORS, 0, -1);
	expect_part(0, &ranges[0]);
	expect_part(2, &ranges[2]);
	sim_no_faults(f->sim);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	ranges[1] = range_of(1, 0, tensor_lengths[1]);
	OK(f, nvs_tensor_read(f->engine, &ranges[1], 1, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t[1], 1, 0, -1, &f->error));
	expect_part(1, &ranges[1]);
}

#define MANY 40

/* Many ranges of two tensors, in any order, some of them empty. */
static void read_many(bool resident)
{
	static char memory[MANY][1000];
	struct nvs_tensor_range ranges[MANY];
	uint64_t seed = seed_of_run();

	OPEN(f, .place = PLACE_DISK);
	contents_store(f, t);
	if (resident)
		contents_load(f, t);
	for (size_t k = 0; k < MANY; k++) {
		size_t i = 1 + below(&seed, 2);

		ranges[k] =
			(struct nvs_tensor_range){.size = sizeof(ranges[k]),
						  .tensor = t[i],
						  .offset = below(&seed, tensor_lengths[i] - 1000),
						  .nbytes = k % 5 ? below(&seed, 1001) : 0,
						  .data = memory[k]};
	}
	OK(f, nvs_tensor_read(f->engine, ranges, MANY, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, TENSORS, 0, -1, &f->error));
	for (size_t k = 0; k < MANY; k++)
		assert_memory_equal(memory[k],
				    whole[ranges[k].tensor == t[1] ? 1 : 2] + ranges[k].offset,
				    ranges[k].nbytes);
	fixture_close(f);
}

TEST(reads_several_ranges_of_one_tensor_in_one_call)
{
	read_many(false);
	read_many(true);
}

/* The failure is reported, and the parts behind it are not read. */
TEST(a_failed_range_ends_those_of_its_tensor_behind_it)
{
	struct nvs_tensor_range ranges[3];
	char memory[3][10] = {{0}};

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	contents_store(f, t);
	for (size_t k = 0; k < 3; k++)
		ranges[k] = (struct nvs_tensor_range){sizeof(ranges[k]), t[1], k * 20000, 10,
						      memory[k]};
	sim_fail(f->sim, NVS_READ, 1, EIO, 1);
	sim_forget_counts(f->sim);
	OK(f, nvs_tensor_read(f->engine, ranges, 3, &f->error));
	FAILS(f, -EIO, "t1: reading /", nvs_tensor_wait, t, TENSORS, 0, -1);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 2);
	assert_memory_equal(memory[0], whole[1], 10);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	OK(f, nvs_tensor_read(f->engine, ranges, 3, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, TENSORS, 0, -1, &f->error));
	assert_memory_equal(memory[2], whole[1] + 40000, 10);
}

TEST(reading_a_part_is_in_the_trace)
{
	struct nvs_tensor_range range;
	struct nvs_trace *trace;
	char path[512], text[16384] = "";
	FILE *file;

	assert_int_equal(nvs_trace_open(&trace, 100, NULL), 0);
	INIT(f, .place = PLACE_DISK);
	f->config.trace = trace;
	OK(f, fixture_reopen(f));
	contents_store(f, t);
	range = range_of(2, 5, 10);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t[2], 1, 0, -1, &f->error));
	snprintf(path, sizeof(path), "%s/trace.json", f->paths[0]);
	assert_int_equal(nvs_trace_write(trace, path, NULL, NULL), 0);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
	fclose(file);
	unlink(path);
	assert_non_null(strstr(text, "\"call\":\"read-part\""));
	fixture_close(f);
	nvs_trace_close(trace);
}

TEST(only_a_range_of_all_bytes_is_verified)
{
	struct nvs_tensor_range range;

	OPEN(f, .place = PLACE_DISK, .keep = true, .verify = true);
	contents_store(f, t);
	tensor_flip(f, t[1], 100);
	range = range_of(1, 200, tensor_lengths[1] - 200);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t[1], 1, 0, -1, &f->error));
	expect_part(1, &range);
	range = range_of(1, 0, tensor_lengths[1]);
	OK(f, nvs_tensor_read(f->engine, &range, 1, &f->error));
	FAILS(f, -EBADMSG, "t1", nvs_tensor_wait, &t[1], 1, 0, -1);
}

TEST(ranges_that_are_wrong_are_refused)
{
	struct nvs_tensor_range good, bad;
	struct nvs_tensor *empty;

	OPEN(f, .place = PLACE_DISK);
	contents_store(f, t);
	good = range_of(1, 0, tensor_lengths[1]);
	OK(f, nvs_tensor_read(f->engine, NULL, 0, &f->error));
	expect_error(f, nvs_tensor_read(NULL, &good, 1, &f->error), -EINVAL, "engine");
	FAILS(f, -EINVAL, "ranges", nvs_tensor_read, NULL, 1);
	bad = good;
	bad.size = 0;
	FAILS(f, -EINVAL, "size", nvs_tensor_read, &bad, 1);
	bad = good;
	bad.tensor = NULL;
	FAILS(f, -EINVAL, "NULL", nvs_tensor_read, &bad, 1);
	bad = good;
	bad.data = NULL;
	FAILS(f, -EINVAL, "data", nvs_tensor_read, &bad, 1);
	bad = good;
	bad.offset = 1;
	FAILS(f, -EINVAL, "70001 bytes", nvs_tensor_read, &bad, 1);
	bad.offset = UINT64_MAX;
	FAILS(f, -EINVAL, "t1", nvs_tensor_read, &bad, 1);
	bad.offset = tensor_lengths[1];
	bad.nbytes = UINT64_MAX;
	FAILS(f, -EINVAL, "t1", nvs_tensor_read, &bad, 1);
	empty = tensor_add(f, "empty", 10);
	bad = good;
	bad.tensor = empty;
	bad.nbytes = 5;
	FAILS(f, -ENODATA, "empty", nvs_tensor_read, &bad, 1);
	bad.nbytes = 0;
	OK(f, nvs_tensor_read(f->engine, &bad, 1, &f->error));
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
}
