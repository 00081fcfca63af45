/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that fail or return wrong bytes: no silent loss, the error names what failed, and
 * everything else continues.
 */
#include "store/member/member.h"
#include "swap/swap_fixture.h"

#include <sched.h>

ONE_ENGINE

#define PART (64 * KIB)

/* ---- Checksums ---- */

static void flips_are_found(enum place place)
{
	struct nvs_tensor *t[5];
	static char memory[300000];
	void *data = memory;

	OPEN(f, .place = place, .verify = true);
	tensors_add(f, "t", (uint64_t[]){5000, 300000, 1, 70000, 0}, 5, t);
	tensors_write(f, t, 5, 0);
	tensors_swap_out(f, t, 5);
	tensor_flip(f, t[1], 299999);
	OK(f, sole_swap_in(f->engine, t, 5, 0, &f->error));
	FAILS(f, -EBADMSG, "t1: reading /", sole_wait, t, 5, -1);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	assert_int_equal(info_of(f, t[1]).status, -EBADMSG);
	assert_null(nvs_tensor_data(t[1]));
	events_await_idle(f->engine);
	assert_non_null(strstr(f->log, "t1: the bytes read"));
	/* The other tensors of the batch are intact. */
	for (uint64_t i = 0; i < 5; i++)
		if (i != 1) {
			OK(f, sole_wait(f->engine, &t[i], 1, -1, &f->error));
			assert_true(filled(nvs_tensor_data(t[i]), info_of(f, t[i]).nbytes, i));
			OK(f, sole_release(f->engine, &t[i], 1, NVS_CLEAN, &f->error));
		}
	OK(f, nvs_tensor_swap_in_to(f->engine, &t[1], &data, 1, &f->error));
	FAILS(f, -EBADMSG, "t1", sole_wait, &t[1], 1, -1);
	assert_int_equal(stats_of(f).verify_errors, 2);
	tensor_flip(f, t[1], 299999);
	tensor_compare(f, t[1], 1);
	/* Bytes beyond the tensor's end are not checked. */
	OK(f, nvs_tensor_swap_out(f->engine, t, 5, &f->error));
	tensor_flip(f, t[0], 5000);
	tensor_compare(f, t[0], 0);
	fixture_close(f);
}

TEST(verifying_finds_a_changed_byte)
{
	flips_are_found(PLACE_DISK);
	flips_are_found(PLACE_TMPFS);
}

TEST(verifying_covers_writes_from_external_memory)
{
	static char memory[30000];
	struct nvs_tensor *t = OPEN_ONE(f, 30000, .place = PLACE_DISK, .verify = true);

	fill(memory, 30000, 4);
	tensor_from(f, t, memory);
	tensor_compare(f, t, 4);
	OK(f, nvs_tensor_swap_out(f->engine, &t, 1, &f->error));
	tensor_flip(f, t, 0);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t, 1, &f->error), 1);
	FAILS(f, -EBADMSG, "t", sole_wait, &t, 1, -1);
	STATE(f, t, NVS_ON_DRIVE, false, 0);
	/* New contents have a new checksum. */
	tensor_store(f, t, 5);
	tensor_compare(f, t, 5);
}

/* ---- Writes that fail ---- */

TEST(a_failed_write_leaves_the_tensor_in_the_pool)
{
	struct nvs_tensor *t = OPEN_ONE(f, 3 * PART, .place = PLACE_DISK, .simulated = true,
					.verify = true);

	tensor_store(f, t, 1);
	tensor_write(f, t, 2);
	sim_fail(f->sim, NVS_WRITE, 0, ENOSPC, 1);
	OK(f, nvs_tensor_swap_out(f->engine, &t, 1, &f->error));
	FAILS(f, -ENOSPC, "t: writing /", sole_wait, &t, 1, -1);
	events_await_idle(f->engine);
	assert_non_null(strstr(f->log, "t could not be written back and stays in the pool"));
	STATE(f, t, NVS_RESIDENT, true, 0);
	assert_int_equal(info_of(f, t).status, -ENOSPC);
	tensor_compare(f, t, 2);
	STATE(f, t, NVS_RESIDENT, true, 0);
	tensors_swap_out(f, &t, 1);
	STATE(f, t, NVS_ON_DRIVE, false, 0);
	tensor_compare(f, t, 2);
}

TEST(an_error_names_path_and_offset)
{
	struct nvs_tensor *t[2];
	char path[512];

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	tensors_add(f, "layer.", (uint64_t[]){PART, PART}, 2, t);
	tensor_write(f, t[1], 2);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	OK(f, nvs_tensor_swap_out(f->engine, &t[1], 1, &f->error));
	assert_int_equal(sole_wait(f->engine, t, 2, -1, &f->error), -EIO);
	fixture_store_file(f, "data", path);
	assert_string_equal(f->error.subject, "layer.1");
	assert_int_equal(f->error.offset, LABEL_AREA_BYTES + info_of(f, t[1]).store_offset);
	assert_non_null(strstr(f->error.text, path));
}

TEST(a_failed_eviction_is_an_error_of_the_lease)
{
	struct nvs_tensor *t[6];
	uint64_t nbytes[6] = {PART, PART, PART, PART, PART, PART}, ios;
	char path[512];

	OPEN(f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .simulated = true);
	tensors_add(f, "t", nbytes, 6, t);
	tensors_write(f, t, 4, 0);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, SIM_ALWAYS);
	assert_int_equal(sole_pin(f->engine, &t[4], 2, -1, &f->error), -EIO);
	/* A program sees the I/O that failed, not a lack of room. */
	fixture_store_file(f, "data", path);
	assert_int_equal(f->error.cause, NVS_CAUSE_IO);
	assert_int_equal(f->error.path_nbytes, strlen(path));
	assert_memory_equal(f->error.text + f->error.path_at, path, strlen(path));
	expect_error(f, f->error.code, -EIO,
		     "no room in the pool: a tensor could not be written back and stays in it: t");
	/* It gives up, and leaves nothing in flight. */
	OK(f, sole_wait(f->engine, &t[4], 2, 0, &f->error));
	for (int i = 0; i < 4; i++)
		STATE(f, t[i], NVS_RESIDENT, true, 0);
	ios = sim_ios(f->sim, NVS_WRITE);
	assert_true(ios <= 2);
	assert_int_equal(sole_pin(f->engine, &t[4], 2, 60000, &f->error), -EIO);
	assert_int_equal(f->error.cause, NVS_CAUSE_IO);
	expect_error(f, f->error.code, -EIO, "no room");
	assert_true(sim_ios(f->sim, NVS_WRITE) <= ios + 2);
	STATE(f, t[4], NVS_EMPTY, false, 0);
	tensors_compare(f, t, 4, 0);
	/* The engine works again once the drive does. */
	sim_no_faults(f->sim);
	tensor_write(f, t[4], 4);
	tensor_write(f, t[5], 5);
	tensors_compare(f, t, 6, 0);
}

TEST(a_failed_write_of_a_repinned_tensor_is_not_reported)
{
	struct nvs_tensor *t = OPEN_ONE(f, PART, .place = PLACE_DISK, .simulated = true);

	tensor_write(f, t, 1);
	sim_hold(f->sim, SIM_WRITES);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	OK(f, nvs_tensor_swap_out(f->engine, &t, 1, &f->error));
	OK(f, sole_swap_in(f->engine, &t, 1, 0, &f->error));
	sim_go(f->sim, SIM_WRITES);
	OK(f, sole_wait(f->engine, &t, 1, -1, &f->error));
	STATE(f, t, NVS_RESIDENT, true, 1);
	assert_true(filled(nvs_tensor_data(t), PART, 1));
	OK(f, sole_release(f->engine, &t, 1, NVS_CLEAN, &f->error));
	tensors_swap_out(f, &t, 1);
	tensor_compare(f, t, 1);
}

TEST(forgetting_a_tensor_clears_its_failed_write)
{
	struct nvs_tensor *t = OPEN_ONE(f, PART, .place = PLACE_DISK, .simulated = true);

	tensor_write(f, t, 1);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	FAILS(f, -EIO, "t: writing", nvs_engine_commit);
	OK(f, nvs_tensor_forget(f->engine, &t, 1, &f->error));
	OK(f, nvs_engine_commit(f->engine, &f->error));
}

/* ---- Reads that fail ---- */

/* ---- Closing ---- */

static void *release_held_writes(void *arg)
{
	sim_go(arg, SIM_ALL);
	return NULL;
}

TEST(closing_waits_for_ios_in_flight)
{
	struct nvs_tensor *t[3];
	static char memory[PART];
	void *data = memory;
	pthread_t thread;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	tensors_add(f, "t", (uint64_t[]){PART, PART, PART}, 3, t);
	tensor_store(f, t[0], 0);
	tensor_store(f, t[2], 2);
	tensor_write(f, t[1], 1);
	sim_forget_counts(f->sim);
	sim_hold(f->sim, SIM_ALL);
	OK(f, nvs_tensor_swap_out(f->engine, &t[1], 1, &f->error));
	OK(f, sole_swap_in(f->engine, &t[0], 1, 0, &f->error));
	OK(f, nvs_tensor_swap_in_to(f->engine, &t[2], &data, 1, &f->error));
	assert_int_equal(pthread_create(&thread, NULL, release_held_writes, f->sim), 0);
	fixture_shut(f);
	assert_int_equal(sim_ios(f->sim, NVS_WRITE), 1);
	assert_int_equal(sim_ios(f->sim, NVS_READ), 2);
	assert_true(filled(memory, PART, 2));
	pthread_join(thread, NULL);
}

TEST(a_failed_external_write_is_reported_by_the_next_commit)
{
	static const char data[4096];
	const void *from = data;
	int rc;
	struct nvs_tensor *tensor = OPEN_ONE(f, sizeof(data), .simulated = true, .keep = true);

	for (int close = 0; close < 2; close++) {
		sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
		OK(f, nvs_tensor_swap_out_from(f->engine, &tensor, &from, 1, &f->error));
		do
			rc = close ? nvs_engine_close(f->engine, &f->error)
				   : nvs_engine_commit(f->engine, &f->error);
		while (rc == -EBUSY);
		expect_error(f, rc, -EIO, "t: writing");
		if (!close)
			OK(f, nvs_engine_commit(f->engine, &f->error));
	}
	f->engine = NULL;
}

/* A write from external memory that fails; returns when it has failed. */
static void fail_unwaited(struct nvs_tensor *tensor, const void *data)
{
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	OK(f, nvs_tensor_swap_out_from(f->engine, &tensor, &data, 1, &f->error));
	while (info_of(f, tensor).state == NVS_WRITING)
		sched_yield();
}

TEST(a_failed_external_write_is_reported_before_a_read)
{
	static char data[4096], back[4096];
	void *to = back;
	struct nvs_tensor *tensor = OPEN_ONE(f, sizeof(data), .simulated = true, .keep = true);

	tensor_store(f, tensor, 1);
	OK(f, nvs_engine_commit(f->engine, &f->error));

	fail_unwaited(tensor, data);
	FAILS(f, -EIO, "t: writing", sole_swap_in, &tensor, 1, -1);
	tensor_compare(f, tensor, 1);

	fail_unwaited(tensor, data);
	FAILS(f, -EIO, "t: writing", nvs_tensor_swap_in_to, &tensor, &to, 1);
	tensor_compare(f, tensor, 1);

	/* A lease released clean keeps the error for the commit. */
	fail_unwaited(tensor, data);
	OK(f, sole_pin(f->engine, &tensor, 1, -1, &f->error));
	OK(f, sole_release(f->engine, &tensor, 1, NVS_CLEAN, &f->error));
	FAILS(f, -EIO, "t: writing", nvs_engine_commit);

	/* New contents replace the failed write. */
	fail_unwaited(tensor, data);
	tensor_write(f, tensor, 2);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_compare(f, tensor, 2);
}
