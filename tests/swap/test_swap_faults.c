/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the drive fails or lies: nothing is lost in silence, what failed is named, and everything
 * else goes on.
 */
#include "swap_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "store/members.h"

#define PART (64 * KIB)

/* ---- Checksums ---- */

/* Changes a byte of a tensor on the drive; the store has one path. */
static void flip(struct fixture *f, struct nvs_tensor *tensor, uint64_t at)
{
	off_t offset = (off_t)(LABEL_AREA_BYTES + info_of(f, tensor).store_offset + at);
	char path[512], byte;
	int fd;

	fixture_store_file(f, "data", path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, offset), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void flips_are_found(enum place place)
{
	struct fixture f;
	struct nvs_tensor *t[5];
	struct nvs_engine_stats stats;
	static char memory[300000];
	void *data = memory;

	OPEN(&f, .place = place, .verify = true);
	tensors_add(&f, "t", (uint64_t[]){5000, 300000, 1, 70000, 0}, 5, t);
	for (uint64_t i = 0; i < 5; i++)
		tensor_write(&f, t[i], i);
	OK(&f, nvs_swap_out(f.engine, t, 5, &f.error));
	OK(&f, nvs_wait(f.engine, t, 5, -1, &f.error));
	flip(&f, t[1], 299999);
	OK(&f, nvs_swap_in(f.engine, t, 5, 0, &f.error));
	expect_error(&f, nvs_wait(f.engine, t, 5, -1, &f.error), -EBADMSG, "t1: reading /");
	STATE(&f, t[1], NVS_ON_DRIVE, false, 0);
	assert_int_equal(info_of(&f, t[1]).status, -EBADMSG);
	assert_null(nvs_data(t[1]));
	assert_non_null(strstr(f.log, "t1: the bytes read"));
	/* The others came with it and are whole. */
	for (uint64_t i = 0; i < 5; i++)
		if (i != 1) {
			OK(&f, nvs_wait(f.engine, &t[i], 1, -1, &f.error));
			assert_true(filled(nvs_data(t[i]), info_of(&f, t[i]).nbytes, i));
			OK(&f, nvs_release(f.engine, &t[i], 1, NVS_CLEAN, &f.error));
		}
	OK(&f, nvs_swap_in_to(f.engine, &t[1], &data, 1, &f.error));
	expect_error(&f, nvs_wait(f.engine, &t[1], 1, -1, &f.error), -EBADMSG, "t1");
	nvs_get_stats(f.engine, &stats);
	assert_int_equal(stats.verify_errors, 2);
	flip(&f, t[1], 299999);
	tensor_check(&f, t[1], 1);
	/* Behind the tensor's last byte there is nothing to be wrong. */
	OK(&f, nvs_swap_out(f.engine, t, 5, &f.error));
	flip(&f, t[0], 5000);
	tensor_check(&f, t[0], 0);
	fixture_close(&f);
}

static void verifying_finds_a_changed_byte(void **state)
{
	(void)state;
	flips_are_found(PLACE_DISK);
	flips_are_found(PLACE_TMPFS);
}

static void verifying_knows_what_the_caller_wrote(void **state)
{
	struct fixture f;
	struct nvs_tensor *t;
	static char memory[30000];
	const void *data = memory;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .verify = true);
	t = tensor_add(&f, "t", 30000);
	fill(memory, 30000, 4);
	OK(&f, nvs_swap_out_from(f.engine, &t, &data, 1, &f.error));
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	tensor_check(&f, t, 4);
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	flip(&f, t, 0);
	assert_int_equal(nvs_prefetch(f.engine, &t, 1, &f.error), 1);
	expect_error(&f, nvs_wait(f.engine, &t, 1, -1, &f.error), -EBADMSG, "t");
	STATE(&f, t, NVS_ON_DRIVE, false, 0);
	/* Written anew it is whole again. */
	tensor_store(&f, t, 5);
	tensor_check(&f, t, 5);
	fixture_close(&f);
}

static void without_verify_a_changed_byte_goes_unnoticed(void **state)
{
	struct fixture f;
	struct nvs_tensor *t;
	struct nvs_engine_stats stats;

	(void)state;
	OPEN(&f, .place = PLACE_DISK);
	t = tensor_add(&f, "t", 30000);
	tensor_store(&f, t, 4);
	flip(&f, t, 77);
	OK(&f, nvs_swap_in(f.engine, &t, 1, 0, &f.error));
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	assert_false(filled(nvs_data(t), 30000, 4));
	OK(&f, nvs_release(f.engine, &t, 1, NVS_CLEAN, &f.error));
	nvs_get_stats(f.engine, &stats);
	assert_int_equal(stats.verify_errors, 0);
	fixture_close(&f);
}

/* ---- Writes that fail ---- */

static void a_failed_write_leaves_the_tensor_in_the_pool(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults, .verify = true);
	t = tensor_add(&f, "t", 3 * PART);
	tensor_store(&f, t, 1);
	tensor_write(&f, t, 2);
	faults_fail(&faults, NVS_WRITE, -ENOSPC, 1);
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	expect_error(&f, nvs_wait(f.engine, &t, 1, -1, &f.error), -ENOSPC, "t: writing /");
	assert_non_null(strstr(f.log, "t could not be written back and stays in the pool"));
	STATE(&f, t, NVS_RESIDENT, true, 0);
	assert_int_equal(info_of(&f, t).status, -ENOSPC);
	tensor_check(&f, t, 2);
	STATE(&f, t, NVS_RESIDENT, true, 0);
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	STATE(&f, t, NVS_ON_DRIVE, false, 0);
	tensor_check(&f, t, 2);
	fixture_close(&f);
}

static void an_error_tells_path_and_offset(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[2];
	char path[512];

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	tensors_add(&f, "layer.", (uint64_t[]){PART, PART}, 2, t);
	tensor_write(&f, t[1], 2);
	faults_fail(&faults, NVS_WRITE, -EIO, 1);
	OK(&f, nvs_swap_out(f.engine, &t[1], 1, &f.error));
	assert_int_equal(nvs_wait(f.engine, t, 2, -1, &f.error), -EIO);
	fixture_store_file(&f, "data", path);
	assert_string_equal(f.error.subject, "layer.1");
	assert_int_equal(f.error.offset, LABEL_AREA_BYTES + info_of(&f, t[1]).store_offset);
	assert_non_null(strstr(f.error.text, path));
	fixture_close(&f);
}

static void room_that_a_failed_write_denies_is_an_error(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[6];
	uint64_t nbytes[6] = {PART, PART, PART, PART, PART, PART}, ios;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .pool_bytes = 4 * PART, .faults = &faults);
	tensors_add(&f, "t", nbytes, 6, t);
	for (uint64_t i = 0; i < 4; i++)
		tensor_write(&f, t[i], i);
	faults_fail(&faults, NVS_WRITE, -EIO, UINT32_MAX);
	expect_error(&f, nvs_lease(f.engine, &t[4], 2, -1, &f.error), -EIO,
		     "no room in the pool, for a tensor could not be written back: t");
	/* It does not try for ever, and nothing is left going. */
	OK(&f, nvs_wait(f.engine, &t[4], 2, 0, &f.error));
	for (int i = 0; i < 4; i++)
		STATE(&f, t[i], NVS_RESIDENT, true, 0);
	ios = faults.ios[NVS_WRITE];
	assert_true(ios <= 2);
	expect_error(&f, nvs_lease(f.engine, &t[4], 2, 60000, &f.error), -EIO, "no room");
	assert_true(faults.ios[NVS_WRITE] <= ios + 2);
	STATE(&f, t[4], NVS_EMPTY, false, 0);
	for (uint64_t i = 0; i < 4; i++)
		tensor_check(&f, t[i], i);
	/* When the drive is well again all goes on. */
	faults_fail(&faults, NVS_WRITE, 0, 0);
	tensor_write(&f, t[4], 4);
	tensor_write(&f, t[5], 5);
	for (uint64_t i = 0; i < 6; i++)
		tensor_check(&f, t[i], i);
	fixture_close(&f);
}

static void who_took_it_back_does_not_hear_of_a_failed_write(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	t = tensor_add(&f, "t", PART);
	tensor_write(&f, t, 1);
	faults_hold(&faults, NVS_WRITE, true);
	faults_fail(&faults, NVS_WRITE, -EIO, 1);
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	OK(&f, nvs_swap_in(f.engine, &t, 1, 0, &f.error));
	faults_hold(&faults, NVS_WRITE, false);
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	STATE(&f, t, NVS_RESIDENT, true, 1);
	assert_true(filled(nvs_data(t), PART, 1));
	OK(&f, nvs_release(f.engine, &t, 1, NVS_CLEAN, &f.error));
	OK(&f, nvs_swap_out(f.engine, &t, 1, &f.error));
	OK(&f, nvs_wait(f.engine, &t, 1, -1, &f.error));
	tensor_check(&f, t, 1);
	fixture_close(&f);
}

static void forgetting_what_failed_leaves_no_trace(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	t = tensor_add(&f, "t", PART);
	tensor_write(&f, t, 1);
	faults_fail(&faults, NVS_WRITE, -EIO, 1);
	expect_error(&f, nvs_commit(f.engine, &f.error), -EIO, "t: writing");
	OK(&f, nvs_forget(f.engine, &t, 1, &f.error));
	OK(&f, nvs_commit(f.engine, &f.error));
	fixture_close(&f);
}

static void passing_troubles_are_tried_again(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	t = tensor_add(&f, "t", 10 * PART);
	faults_fail(&faults, NVS_WRITE, -EINTR, 20);
	tensor_store(&f, t, 1);
	faults_fail(&faults, NVS_READ, -EAGAIN, 20);
	tensor_check(&f, t, 1);
	fixture_close(&f);
}

/* ---- Reads that fail ---- */

static void a_failed_read_ends_the_use_and_can_be_tried_again(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[2];
	struct nvs_engine_stats stats;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	tensors_add(&f, "t", (uint64_t[]){PART, PART}, 2, t);
	tensor_store(&f, t[0], 0);
	tensor_store(&f, t[1], 1);
	tensor_check(&f, t[0], 0);
	faults_fail(&faults, NVS_READ, -EIO, 1);
	OK(&f, nvs_swap_in(f.engine, t, 2, 0, &f.error));
	expect_error(&f, nvs_wait(f.engine, t, 2, -1, &f.error), -EIO, "t1: reading /");
	STATE(&f, t[0], NVS_RESIDENT, false, 1);
	STATE(&f, t[1], NVS_ON_DRIVE, false, 0);
	expect_error(&f, nvs_release(f.engine, &t[1], 1, NVS_CLEAN, &f.error), -EINVAL, "t1");
	OK(&f, nvs_release(f.engine, &t[0], 1, NVS_CLEAN, &f.error));
	nvs_get_stats(f.engine, &stats);
	assert_int_equal(stats.pool.used, PART);
	tensor_check(&f, t[1], 1);
	OK(&f, nvs_wait(f.engine, t, 2, -1, &f.error));
	fixture_close(&f);
}

static void a_failed_reading_ahead_is_tried_again_by_the_use(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	t = tensor_add(&f, "t", PART);
	tensor_store(&f, t, 1);
	faults_fail(&faults, NVS_READ, -EIO, 1);
	assert_int_equal(nvs_prefetch(f.engine, &t, 1, &f.error), 1);
	expect_error(&f, nvs_wait(f.engine, &t, 1, -1, &f.error), -EIO, "t");
	STATE(&f, t, NVS_ON_DRIVE, false, 0);
	tensor_check(&f, t, 1);
	fixture_close(&f);
}

/* ---- Closing ---- */

static void *release_held_writes(void *arg)
{
	faults_hold(arg, NVS_WRITE, false);
	faults_hold(arg, NVS_READ, false);
	return NULL;
}

static void closing_waits_for_what_is_in_flight(void **state)
{
	struct faults faults = FAULTS_NONE;
	struct fixture f;
	struct nvs_tensor *t[3];
	static char memory[PART];
	void *data = memory;
	pthread_t thread;

	(void)state;
	OPEN(&f, .place = PLACE_DISK, .faults = &faults);
	tensors_add(&f, "t", (uint64_t[]){PART, PART, PART}, 3, t);
	tensor_store(&f, t[0], 0);
	tensor_store(&f, t[2], 2);
	tensor_write(&f, t[1], 1);
	faults.ios[NVS_READ] = faults.ios[NVS_WRITE] = 0;
	faults_hold(&faults, NVS_READ, true);
	faults_hold(&faults, NVS_WRITE, true);
	OK(&f, nvs_swap_out(f.engine, &t[1], 1, &f.error));
	OK(&f, nvs_swap_in(f.engine, &t[0], 1, 0, &f.error));
	OK(&f, nvs_swap_in_to(f.engine, &t[2], &data, 1, &f.error));
	assert_int_equal(pthread_create(&thread, NULL, release_held_writes, &faults), 0);
	fixture_shut(&f);
	assert_int_equal(faults.ios[NVS_WRITE], 1);
	assert_int_equal(faults.ios[NVS_READ], 2);
	assert_true(filled(memory, PART, 2));
	pthread_join(thread, NULL);
	fixture_close(&f);
}

static void a_failed_write_from_memory_is_told_by_the_commit_where_nobody_waits(void **state)
{
	struct faults faults = FAULTS_NONE;
	static const char data[4096];
	const void *from = data;
	struct nvs_tensor *tensor;
	struct fixture f;
	int rc;

	(void)state;
	OPEN(&f, .faults = &faults, .keep = true);
	tensor = tensor_add(&f, "t", sizeof(data));
	for (int close = 0; close < 2; close++) {
		faults_fail(&faults, NVS_WRITE, -EIO, 1);
		OK(&f, nvs_swap_out_from(f.engine, &tensor, &from, 1, &f.error));
		do
			rc = close ? nvs_close(f.engine, &f.error) : nvs_commit(f.engine, &f.error);
		while (rc == -EBUSY);
		expect_error(&f, rc, -EIO, "t: writing");
		if (!close)
			OK(&f, nvs_commit(f.engine, &f.error));
	}
	f.engine = NULL;
	fixture_close(&f);
}

/* The write from memory that fails, until it has. */
static void fail_unwaited(struct fixture *f, struct faults *faults, struct nvs_tensor *tensor,
			  const void *data)
{
	faults_fail(faults, NVS_WRITE, -EIO, 1);
	OK(f, nvs_swap_out_from(f->engine, &tensor, &data, 1, &f->error));
	while (info_of(f, tensor).state == NVS_WRITING)
		sched_yield();
}

static void what_a_failed_write_from_memory_left_is_not_read_unawares(void **state)
{
	struct faults faults = FAULTS_NONE;
	static char data[4096], back[4096];
	void *to = back;
	struct nvs_tensor *tensor;
	struct fixture f;

	(void)state;
	OPEN(&f, .faults = &faults, .keep = true);
	tensor = tensor_add(&f, "t", sizeof(data));
	tensor_store(&f, tensor, 1);
	OK(&f, nvs_commit(f.engine, &f.error));

	fail_unwaited(&f, &faults, tensor, data);
	expect_error(&f, nvs_swap_in(f.engine, &tensor, 1, -1, &f.error), -EIO, "t: writing");
	tensor_check(&f, tensor, 1);

	fail_unwaited(&f, &faults, tensor, data);
	expect_error(&f, nvs_swap_in_to(f.engine, &tensor, &to, 1, &f.error), -EIO, "t: writing");
	tensor_check(&f, tensor, 1);

	/* A lease that makes nothing new changes nothing of that. */
	fail_unwaited(&f, &faults, tensor, data);
	OK(&f, nvs_lease(f.engine, &tensor, 1, -1, &f.error));
	OK(&f, nvs_release(f.engine, &tensor, 1, NVS_CLEAN, &f.error));
	expect_error(&f, nvs_commit(f.engine, &f.error), -EIO, "t: writing");

	/* What is written anew takes its place. */
	fail_unwaited(&f, &faults, tensor, data);
	tensor_write(&f, tensor, 2);
	OK(&f, nvs_commit(f.engine, &f.error));
	tensor_check(&f, tensor, 2);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_failed_write_from_memory_is_told_by_the_commit_where_nobody_waits),
		cmocka_unit_test(what_a_failed_write_from_memory_left_is_not_read_unawares),
		cmocka_unit_test(verifying_finds_a_changed_byte),
		cmocka_unit_test(verifying_knows_what_the_caller_wrote),
		cmocka_unit_test(without_verify_a_changed_byte_goes_unnoticed),
		cmocka_unit_test(a_failed_write_leaves_the_tensor_in_the_pool),
		cmocka_unit_test(an_error_tells_path_and_offset),
		cmocka_unit_test(room_that_a_failed_write_denies_is_an_error),
		cmocka_unit_test(who_took_it_back_does_not_hear_of_a_failed_write),
		cmocka_unit_test(forgetting_what_failed_leaves_no_trace),
		cmocka_unit_test(passing_troubles_are_tried_again),
		cmocka_unit_test(a_failed_read_ends_the_use_and_can_be_tried_again),
		cmocka_unit_test(a_failed_reading_ahead_is_tried_again_by_the_use),
		cmocka_unit_test(closing_waits_for_what_is_in_flight),
	};

	return cmocka_run_group_tests(tests, NULL, places_leave_all);
}
