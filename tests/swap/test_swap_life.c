/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a tensor from registration to removal: the effect of each call, its refusals, and the
 * tensor's reported state.
 */
#include "swap/swap_fixture.h"

#include <sys/statvfs.h>

ONE_ENGINE

static struct nvs_tensor *t, *two[2];

/* An engine with two tensors of 5000 bytes. */
static void open_two(bool simulated)
{
	OPEN(f, .place = PLACE_DISK, .simulated = simulated);
	tensors_add(f, "t", (uint64_t[]){5000, 5000}, 2, two);
}

/* ---- Registering ---- */

TEST(registers_every_element_type)
{
	OPEN(f, .place = PLACE_DISK);
	for (int dtype = 0; dtype < NVS_DTYPE_COUNT; dtype++) {
		struct nvs_tensor_spec spec = {.size = sizeof(spec),
					       .name = nvs_dtype_name((enum nvs_dtype)dtype),
					       .dtype = (enum nvs_dtype)dtype,
					       .numel = 1001};
		struct nvs_tensor_info info = {.size = sizeof(info)};

		if (!nvs_dtype_size(spec.dtype))
			continue;
		OK(f, nvs_tensor_register(f->engine, &spec, 1, &t, &f->error));
		info = info_of(f, t);
		assert_string_equal(info.name, spec.name);
		assert_int_equal(info.dtype, dtype);
		assert_int_equal(info.numel, 1001);
		assert_int_equal(info.nbytes, 1001 * nvs_dtype_size(spec.dtype));
		assert_int_equal(info.status, 0);
		STATE(f, t, NVS_EMPTY, false, 0);
		tensor_store(f, t, (uint64_t)dtype);
		tensor_compare(f, t, (uint64_t)dtype);
	}
}

TEST(copies_a_name_and_refuses_one_of_too_many_bytes)
{
	char name[NVS_NAME_MAX + 2];
	struct nvs_tensor_spec spec = U8_TENSOR(name, 1);

	OPEN(f, .place = PLACE_DISK);
	memset(name, 'x', sizeof(name));
	name[NVS_NAME_MAX + 1] = 0;
	FAILS(f, -EINVAL, "512", nvs_tensor_register, &spec, 1, &t);
	name[NVS_NAME_MAX] = 0;
	OK(f, nvs_tensor_register(f->engine, &spec, 1, &t, &f->error));
	assert_ptr_equal(nvs_tensor_find(f->engine, name), t);
	strcpy(name, "a.b.weight");
	t = tensor_add(f, name, 10);
	memset(name, 'z', 10);
	assert_ptr_equal(nvs_tensor_find(f->engine, "a.b.weight"), t);
	assert_null(nvs_tensor_find(f->engine, name));
}

TEST(a_tensor_larger_than_the_pool_moves_to_and_from_external_memory_alone)
{
	const uint64_t nbytes = 6 * MIB + 5;
	char *memory = malloc(nbytes);

	assert_non_null(memory);
	OPEN(f, .place = PLACE_DISK, .pool_bytes = 4 * MIB, .verify = true);
	t = tensor_add(f, "big", nbytes);
	fill(memory, nbytes, 3);
	tensor_from(f, t, memory);
	memset(memory, 0, nbytes);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t, 1, &f->error), 0);
	FAILS(f, -E2BIG, "big", sole_swap_in, &t, 1, 0);
	tensor_to(f, t, memory);
	assert_true(filled(memory, nbytes, 3));
	assert_int_equal(stats_of(f).pool.used_max, 0);
	free(memory);
	/* The error has the remedy. */
	t = tensor_add(f, "larger", 4 * MIB + 1);
	FAILS(f, -E2BIG, "4194305", sole_pin, &t, 1, 0);
	FAILS(f, -E2BIG, "offload_param: buffer_count 1 x buffer_size 1048576 elements x 4 bytes",
	      sole_pin, &t, 1, 0);
	/* The extent is rounded up to the unit of the store, of 4096 bytes at most. */
	FAILS(f, -E2BIG, "set buffer_size to 104", sole_pin, &t, 1, 0);
	t = tensor_add(f, "fits", 4 * MIB);
	tensor_store(f, t, 5);
	tensor_compare(f, t, 5);
}

TEST(registers_all_of_a_batch_or_none)
{
	struct nvs_tensor *tensors[3], *known;
	struct nvs_tensor_spec specs[] = {U8_TENSOR("a", 100), U8_TENSOR("b", 100),
					  U8_TENSOR("c", 1)};
	static const struct {
		const char *name;
		enum nvs_dtype dtype;
		uint64_t numel;
		int code;
		const char *words;
	} refused[] = {{"", NVS_U8, 1, -EINVAL, "1 to 511"},
		       {NULL, NVS_U8, 1, -EINVAL, "1 to 511"},
		       {"known", NVS_U8, 1, -EEXIST, "known"},
		       {"a", NVS_U8, 1, -EEXIST, "a is registered already"},
		       {"c", NVS_U8, UINT64_MAX, -EINVAL, "c: "},
		       {"c", NVS_F64, UINT64_MAX / 8 + 2, -EINVAL, "elements"},
		       {"c", NVS_F4, 1, -EINVAL, "register the tensor's bytes as U8"},
		       {"c", NVS_DTYPE_COUNT, 1, -EINVAL, "dtype 22"},
		       {"c", (enum nvs_dtype) - 1, 1, -EINVAL, "dtype -1"}};
	struct nvs_engine_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};

	OPEN(f, .place = PLACE_DISK, .keep = true);
	known = tensor_add(f, "known", 100);
	before = stats_of(f);
	for (size_t i = 0; i < LENGTH(refused); i++) {
		specs[2].name = refused[i].name;
		specs[2].dtype = refused[i].dtype;
		specs[2].numel = refused[i].numel;
		FAILS(f, refused[i].code, refused[i].words, nvs_tensor_register, specs, 3, tensors);
	}
	after = stats_of(f);
	assert_int_equal(after.tensors, before.tensors);
	assert_int_equal(after.tensor_bytes, before.tensor_bytes);
	assert_int_equal(after.store_bytes, before.store_bytes);
	assert_null(nvs_tensor_find(f->engine, "a"));
	assert_ptr_equal(nvs_tensor_find(f->engine, "known"), known);
	specs[2] = (struct nvs_tensor_spec)U8_TENSOR("c", 1);
	OK(f, nvs_tensor_register(f->engine, specs, 3, tensors, &f->error));
	assert_ptr_equal(nvs_tensor_find(f->engine, "c"), tensors[2]);
	OK(f, nvs_tensor_register(f->engine, NULL, 0, NULL, &f->error));
}

static uint64_t free_space(const char *path)
{
	struct statvfs vfs;

	assert_int_equal(statvfs(path, &vfs), 0);
	return (uint64_t)vfs.f_bfree * vfs.f_frsize;
}

TEST(a_full_drive_is_detected_when_registering)
{
	struct nvs_tensor *tensors[100], *known;
	uint64_t nbytes[100], space;
	struct nvs_engine_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	struct nvs_tensor_spec specs[100];
	char names[100][16];

	OPEN(f, .place = PLACE_EXT4);
	known = tensor_add(f, "known", 3 * MIB);
	tensor_store(f, known, 1);
	space = free_space(f->paths[0]);
	before = stats_of(f);
	for (int i = 0; i < 100; i++) {
		nbytes[i] = 3 * MIB;
		snprintf(names[i], sizeof(names[i]), "t%d", i);
		specs[i] = (struct nvs_tensor_spec)U8_TENSOR(names[i], nbytes[i]);
	}
	FAILS(f, -ENOSPC, "300 MiB", nvs_tensor_register, specs, 100, tensors);
	after = stats_of(f);
	assert_int_equal(after.store_bytes, before.store_bytes);
	assert_int_equal(after.tensors, 1);
	assert_null(nvs_tensor_find(f->engine, "t0"));
	assert_true(free_space(f->paths[0]) >= space);
	tensor_compare(f, known, 1);
	/* Tensors that fit are still registered, and can be written. */
	tensors_add(f, "t", nbytes, 40, tensors);
	tensors_store(f, tensors, 40, 0);
	tensors_compare(f, tensors, 40, 0);
}

TEST(lays_tensors_of_a_batch_side_by_side_and_gives_aligned_memory_to_each)
{
	struct nvs_tensor *tensors[64];
	uint64_t nbytes[64], seed = seed_of_run(), end;

	OPEN(f, .place = PLACE_DISK);
	for (size_t i = 0; i < 64; i++)
		nbytes[i] = below(&seed, 30000);
	tensors_add(f, "t", nbytes, 64, tensors);
	end = info_of(f, tensors[0]).store_offset;
	for (size_t i = 0; i < 64; i++) {
		if (!nbytes[i])
			continue;
		assert_int_equal(info_of(f, tensors[i]).store_offset, end);
		end += align_up(nbytes[i], store_unit(f->engine->store));
	}
	OK(f, sole_pin(f->engine, tensors, 64, -1, &f->error));
	for (size_t i = 0; i < 64; i++) {
		assert_non_null(nvs_tensor_data(tensors[i]));
		assert_int_equal((uintptr_t)nvs_tensor_data(tensors[i]) % 512, 0);
		fill(nvs_tensor_data(tensors[i]), nbytes[i], i);
	}
	for (size_t i = 0; i < 64; i++)
		assert_true(filled(nvs_tensor_data(tensors[i]), nbytes[i], i));
	OK(f, sole_release(f->engine, tensors, 64, NVS_CLEAN, &f->error));
	for (size_t i = 0; i < 64; i++)
		assert_null(nvs_tensor_data(tensors[i]));
}

TEST(reuses_the_space_of_forgotten_tensors)
{
	struct nvs_tensor *tensors[8], *again[8];
	uint64_t nbytes[8] = {MIB, MIB, MIB, MIB, 1, 0, 70000, MIB};
	struct nvs_engine_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};

	OPEN(f, .place = PLACE_DISK);
	tensors_add(f, "t", nbytes, 8, tensors);
	before = stats_of(f);
	for (int round = 0; round < 20; round++) {
		tensors_write(f, tensors, 8, 0);
		OK(f, nvs_tensor_swap_out(f->engine, tensors, 4, &f->error));
		OK(f, sole_wait(f->engine, tensors, 8, -1, &f->error));
		OK(f, nvs_tensor_forget(f->engine, tensors, 8, &f->error));
		assert_null(nvs_tensor_find(f->engine, "t0"));
		after = stats_of(f);
		assert_int_equal(after.tensors, 0);
		assert_int_equal(after.tensor_bytes, 0);
		assert_int_equal(after.pool.used, 0);
		tensors_add(f, "t", nbytes, 8, again);
		memcpy(tensors, again, sizeof(tensors));
		STATE(f, tensors[0], NVS_EMPTY, false, 0);
	}
	after = stats_of(f);
	assert_int_equal(after.store_bytes, before.store_bytes);
	assert_int_equal(after.tensor_bytes, before.tensor_bytes);
}

/* ---- Contents ---- */

static size_t lengths_around(uint64_t nbytes[40])
{
	const uint64_t around[] = {store_unit(f->engine->store), f->config.aio.block_size,
				   2 * (uint64_t)f->config.aio.block_size,
				   8 * (uint64_t)f->config.aio.block_size, 256 * KIB};
	size_t n = 0;

	nbytes[n++] = 0;
	nbytes[n++] = 1;
	nbytes[n++] = 2 * MIB + 12345;
	nbytes[n++] = 5 * MIB + 7;
	for (size_t i = 0; i < LENGTH(around); i++)
		for (int less = -1; less <= 1; less++)
			nbytes[n++] = around[i] + (uint64_t)less;
	return n;
}

static void round_trip(const struct setup *setup)
{
	struct nvs_tensor *tensors[40];
	uint64_t nbytes[40], seed = seed_of_run();
	size_t n;

	fixture_open(f, setup);
	n = lengths_around(nbytes);
	tensors_add(f, "t", nbytes, n, tensors);
	for (uint64_t turn = 0; turn < 3; turn++) {
		tensors_write(f, tensors, n, seed + turn * 1000);
		tensors_swap_out(f, tensors, n);
		for (size_t i = 0; i < n; i++) {
			STATE(f, tensors[i], NVS_ON_DRIVE, false, 0);
			assert_null(nvs_tensor_data(tensors[i]));
		}
		for (size_t i = n; i--;)
			tensor_compare(f, tensors[i], seed + turn * 1000 + i);
	}
	fixture_close(f);
}

#define ROUND_TRIP(...) round_trip(&(const struct setup){.pool_bytes = 16 * MIB, __VA_ARGS__})

TEST(brings_back_every_byte_of_every_length)
{
	ROUND_TRIP(.place = PLACE_DISK);
	ROUND_TRIP(.place = PLACE_TMPFS);
	ROUND_TRIP(.place = PLACE_DISK, .verify = true);
	ROUND_TRIP(.place = PLACE_DISK, .block_size = 512, .queue_depth = 64, .thread_count = 2);
	ROUND_TRIP(.place = PLACE_DISK, .device = NVS_DEVICE_CPU);
}

TEST(brings_back_every_byte_on_each_ioengine)
{
	for (int i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		ROUND_TRIP(.place = PLACE_EXT4, .ioengine = (enum nvs_ioengine)i);
}

TEST(reports_the_state_at_every_stage)
{
	t = OPEN_ONE(f, 100000, .place = PLACE_DISK, .simulated = true);
	STATE(f, t, NVS_EMPTY, false, 0);
	OK(f, sole_pin(f->engine, &t, 1, 0, &f->error));
	STATE(f, t, NVS_RESIDENT, false, 1);
	fill(nvs_tensor_data(t), 100000, 1);
	OK(f, sole_release(f->engine, &t, 1, NVS_DIRTY, &f->error));
	STATE(f, t, NVS_RESIDENT, true, 0);

	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out(f->engine, &t, 1, &f->error));
	STATE(f, t, NVS_WRITING, false, 0);
	sim_go(f->sim, SIM_WRITES);
	OK(f, sole_wait(f->engine, &t, 1, -1, &f->error));
	STATE(f, t, NVS_ON_DRIVE, false, 0);

	sim_hold(f->sim, SIM_READS);
	OK(f, sole_swap_in(f->engine, &t, 1, 0, &f->error));
	STATE(f, t, NVS_READING, false, 1);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, &t, 1, -1, &f->error));
	STATE(f, t, NVS_RESIDENT, false, 1);
	OK(f, sole_release(f->engine, &t, 1, NVS_CLEAN, &f->error));
	STATE(f, t, NVS_RESIDENT, false, 0);
	OK(f, nvs_tensor_swap_out(f->engine, &t, 1, &f->error));
	STATE(f, t, NVS_ON_DRIVE, false, 0);
	assert_int_equal(sim_ios(f->sim, NVS_WRITE), 2);

	assert_string_equal(nvs_tensor_state_name(NVS_EMPTY), "empty");
	assert_string_equal(nvs_tensor_state_name((enum nvs_tensor_state)99), "unknown");
}

TEST(contents_that_a_caller_has_pinned_are_not_overwritten)
{
	uint64_t reads, changes, lease;

	t = OPEN_ONE(f, 10000, .place = PLACE_DISK, .max_in_cpu = NONE_STAYS);
	tensor_store(f, t, 1);
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &reads, &f->error));
	/* Also while the contents are on their way. */
	FAILS(f, -EBUSY, "t is pinned with its contents by another call", nvs_tensor_pin, &t, 1, -1,
	      &lease);
	STATE(f, t, NVS_RESIDENT, false, 1);
	assert_true(filled(nvs_tensor_data(t), 10000, 1));
	/* And when they have changed. */
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &changes, &f->error));
	fill(nvs_tensor_data(t), 10000, 2);
	OK(f, nvs_tensor_release(f->engine, &t, 1, changes, NVS_DIRTY, &f->error));
	FAILS(f, -EBUSY, "t is pinned", nvs_tensor_pin, &t, 1, 0, &lease);
	OK(f, nvs_tensor_release(f->engine, &t, 1, reads, NVS_CLEAN, &f->error));
	tensor_compare(f, t, 2);
}

/* ---- Leases released clean ---- */

static void lease_in_vain(void)
{
	OK(f, sole_pin(f->engine, &t, 1, -1, &f->error));
	fill(nvs_tensor_data(t), 10000, 99);
	OK(f, sole_release(f->engine, &t, 1, NVS_CLEAN, &f->error));
}

TEST(a_lease_released_clean_leaves_no_contents_or_the_last_finished_ones)
{
	t = OPEN_ONE(f, 10000, .place = PLACE_DISK);
	lease_in_vain();
	STATE(f, t, NVS_EMPTY, false, 0);
	FAILS(f, -ENODATA, "t has no contents", sole_swap_in, &t, 1, 0);
	tensor_store(f, t, 1);
	for (int resident = 0; resident < 2; resident++) {
		STATE(f, t, resident ? NVS_RESIDENT : NVS_ON_DRIVE, false, 0);
		lease_in_vain();
		STATE(f, t, NVS_ON_DRIVE, false, 0);
		tensor_compare(f, t, 1);
	}
	tensor_write(f, t, 2);
	lease_in_vain();
	tensor_compare(f, t, 2);
}

TEST(a_lease_writes_the_finished_contents_and_waits_for_ios_of_the_tensor)
{
	t = OPEN_ONE(f, 10000, .place = PLACE_DISK, .simulated = true);
	tensor_write(f, t, 1);
	sim_fail(f->sim, NVS_WRITE, 0, ENOSPC, 1);
	FAILS(f, -ENOSPC, "t: writing /", sole_pin, &t, 1, -1);
	tensor_compare(f, t, 1);
	sim_hold(f->sim, SIM_WRITES);
	FAILS(f, -EAGAIN, "in flight", sole_pin, &t, 1, 0);
	STATE(f, t, NVS_WRITING, false, 0);
	FAILS(f, -EAGAIN, "in flight", sole_pin, &t, 1, 0);
	sim_go(f->sim, SIM_WRITES);
	lease_in_vain();
	STATE(f, t, NVS_ON_DRIVE, false, 0);

	sim_hold(f->sim, SIM_READS);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t, 1, &f->error), 1);
	FAILS(f, -ETIMEDOUT, "in flight", sole_pin, &t, 1, 1);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_pin(f->engine, &t, 1, -1, &f->error));
	STATE(f, t, NVS_RESIDENT, false, 1);
	fill(nvs_tensor_data(t), 10000, 3);
	OK(f, sole_release(f->engine, &t, 1, NVS_DIRTY, &f->error));
	tensor_compare(f, t, 3);
}

/* ---- Refusals ---- */

TEST(refuses_to_read_a_tensor_never_written)
{
	static char memory[10000];
	void *data[2] = {memory, memory + 5000};

	open_two(false);
	tensor_store(f, two[0], 1);
	FAILS(f, -ENODATA, "t1", sole_swap_in, two, 2, 0);
	STATE(f, two[0], NVS_ON_DRIVE, false, 0);
	assert_int_equal(nvs_tensor_prefetch(f->engine, two, 2, &f->error), -ENODATA);
	FAILS(f, -ENODATA, "t1", nvs_tensor_swap_in_to, two, data, 2);
	STATE(f, two[0], NVS_ON_DRIVE, false, 0);
	tensor_compare(f, two[0], 1);
	/* Without bytes, too. */
	t = tensor_add(f, "none", 0);
	FAILS(f, -ENODATA, "none", sole_swap_in, &t, 1, 0);
	tensor_store(f, t, 1);
	STATE(f, t, NVS_ON_DRIVE, false, 0);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t, 1, &f->error), 1);
	tensor_compare(f, t, 1);
	OK(f, nvs_tensor_forget(f->engine, &t, 1, &f->error));
}

TEST(releases_only_pinned_tensors)
{
	open_two(true);
	tensor_store(f, two[0], 1);
	FAILS(f, -EINVAL, "t0", sole_release, two, 1, NVS_CLEAN);
	OK(f, sole_pin(f->engine, &two[1], 1, 0, &f->error));
	FAILS(f, -EINVAL, "t0", sole_release, two, 2, NVS_DIRTY);
	STATE(f, two[1], NVS_RESIDENT, false, 1);

	sim_hold(f->sim, SIM_READS);
	OK(f, sole_swap_in(f->engine, two, 1, 0, &f->error));
	FAILS(f, -EBUSY, "t0", sole_release, two, 2, NVS_CLEAN);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, two, 2, -1, &f->error));
	OK(f, sole_release(f->engine, two, 2, NVS_DIRTY, &f->error));

	/* A tensor pinned again during its write must not be changed before the write completes. */
	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out(f->engine, two, 1, &f->error));
	OK(f, sole_swap_in(f->engine, two, 1, 0, &f->error));
	FAILS(f, -EBUSY, "t0", sole_release, two, 1, NVS_DIRTY);
	OK(f, sole_release(f->engine, two, 1, NVS_CLEAN, &f->error));
	sim_go(f->sim, SIM_WRITES);
	OK(f, sole_wait(f->engine, two, 1, -1, &f->error));
}

TEST(refuses_tensors_of_another_engine)
{
	struct fixture other;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_tensor_range range = {.size = sizeof(range)};

	open_two(false);
	OPEN(&other, .place = PLACE_DISK);
	t = two[0];
	two[1] = range.tensor = tensor_add(&other, "u", 5000);
	tensor_store(f, t, 1);
	tensor_store(&other, two[1], 2);
	FAILS(f, -EINVAL, "another engine", nvs_tensor_forget, two, 2);
	FAILS(f, -EINVAL, "another engine", sole_pin, two, 2, 0);
	FAILS(f, -EINVAL, "another engine", nvs_tensor_wait, two, 2, 0, -1);
	FAILS(f, -EINVAL, "another engine", nvs_tensor_release, &two[1], 1, 1, NVS_CLEAN);
	FAILS(f, -EINVAL, "another engine", nvs_tensor_swap_out, two, 2);
	FAILS(f, -EINVAL, "another engine", nvs_tensor_rename, two[1], "v");
	FAILS(f, -EINVAL, "another engine", nvs_tensor_read, &range, 1);
	assert_int_equal(nvs_tensor_prefetch(f->engine, two, 2, NULL), -EINVAL);
	assert_int_equal(nvs_tensor_get_info(f->engine, two[1], &info), -EINVAL);
	tensor_compare(f, t, 1);
	tensor_compare(&other, two[1], 2);
	fixture_close(&other);
}

TEST(refuses_a_tensor_named_twice)
{
	struct nvs_tensor *twice[2];
	static char memory[100];
	void *data[2] = {memory, memory + 50};

	t = OPEN_ONE(f, 50, .place = PLACE_DISK);
	tensor_store(f, t, 1);
	twice[0] = twice[1] = t;
	FAILS(f, -EINVAL, "t is named twice", sole_pin, twice, 2, 0);
	FAILS(f, -EINVAL, "twice", sole_swap_in, twice, 2, 0);
	expect_error(f, (int)nvs_tensor_prefetch(f->engine, twice, 2, &f->error), -EINVAL, "twice");
	FAILS(f, -EINVAL, "twice", nvs_tensor_swap_out, twice, 2);
	FAILS(f, -EINVAL, "twice", nvs_tensor_forget, twice, 2);
	FAILS(f, -EINVAL, "twice", nvs_tensor_swap_in_to, twice, data, 2);
	FAILS(f, -EINVAL, "twice", nvs_tensor_swap_out_from, twice, (const void *const *)data, 2);
	tensors_pin(f, &t, 1);
	FAILS(f, -EINVAL, "twice", sole_release, twice, 2, NVS_CLEAN);
	STATE(f, t, NVS_RESIDENT, false, 1);
	OK(f, sole_release(f->engine, &t, 1, NVS_CLEAN, &f->error));
	tensor_compare(f, t, 1);
}

TEST(a_wait_ends_at_its_timeout)
{
	t = OPEN_ONE(f, 5000, .place = PLACE_DISK, .simulated = true);
	tensor_store(f, t, 1);
	OK(f, sole_wait(f->engine, &t, 1, 0, &f->error));
	sim_hold(f->sim, SIM_READS);
	OK(f, sole_swap_in(f->engine, &t, 1, 0, &f->error));
	FAILS(f, -EAGAIN, "t is still in flight", sole_wait, &t, 1, 0);
	FAILS(f, -ETIMEDOUT, "t is still", sole_wait, &t, 1, 2);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, &t, 1, 60000, &f->error));
	assert_true(filled(nvs_tensor_data(t), 5000, 1));
	OK(f, sole_release(f->engine, &t, 1, NVS_CLEAN, &f->error));
}
