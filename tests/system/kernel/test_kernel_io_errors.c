/* SPDX-License-Identifier: Apache-2.0 */
/*
 * I/O errors from the kernel: a loop device that lost bytes, or shrank to nothing, with each I/O
 * engine. Only bytes that the drive lost may be lost, and the loss must be reported.
 */

#include "optim/optim_fixture.h"
#include "system/kernel/kernel_drive.h"

ONE_OPTIMIZER

ONE_ENGINE

#define RAW_BYTES  (80 * MIB)
#define EXT4_BYTES (48 * MIB)
#define RAW_BASE   (66 * MIB) /* label and manifests of a raw device */
#define FILE_BASE  (2 * MIB)  /* labels of a file */

/* A store on a failing drive, with the file and base offset that its errors name. */
struct drive_store {
	struct kernel_drive drive;
	char path[512];
	uint64_t base;
};

static void make(struct drive_store *on, bool raw)
{
	if (raw)
		kernel_drive_make(&on->drive, RAW_BYTES);
	else
		kernel_drive_make_ext4(&on->drive, EXT4_BYTES, "");
	on->base = raw ? RAW_BASE : FILE_BASE;
	snprintf(on->path, sizeof(on->path), "%s%s", raw ? on->drive.device : on->drive.directory,
		 raw ? "" : "/nvswap/rank0/data");
}

static const char *where(const struct drive_store *on)
{
	return on->drive.directory ? on->drive.directory : on->drive.device;
}

/* Removes the drive's bytes from this offset of the store on. */
static void cut_at(struct drive_store *on, uint64_t store_offset)
{
	uint64_t place = on->base + store_offset;

	if (on->drive.directory) {
		char data[512];

		data_path(path_in(on->drive.directory, "nvswap/rank0"), data);
		place = kernel_drive_place(&on->drive, data, place, 4096);
	}
	kernel_drive_cut(&on->drive, place);
}

/* Its transfer has failed at this offset of the store or behind it, within the tensor. */
static void failed_from(const struct drive_store *on, struct nvs_tensor *tensor, const char *doing,
			uint64_t store_offset)
{
	int rc = sole_wait(f->engine, &tensor, 1, -1, &f->error);
	struct nvs_tensor_info info = info_of(f, tensor);

	assert_int_equal(rc, -EIO);
	assert_int_equal(f->error.code, -EIO);
	assert_string_equal(f->error.subject, info.name);
	assert_says(f->error.text, info.name);
	assert_says(f->error.text, doing);
	assert_says(f->error.text, on->path);
	assert_in_range(f->error.offset, on->base + store_offset,
			on->base + info.store_offset + info.nbytes - 1);
	assert_int_equal(info.status, -EIO);
}

enum { A, B, C, TENSORS };

/*
 * Reads before the cut succeed. A write across it stays in memory and succeeds later. A failed read
 * succeeds once the drive is repaired, or the loss is reported.
 */
static void lose_and_regain(struct drive_store *on, enum nvs_ioengine ioengine)
{
	static const uint64_t nbytes[TENSORS] = {256 * KIB, MIB + 4000, 512 * KIB};
	struct nvs_tensor *t[TENSORS];
	uint64_t half;

	OPEN(f, .in = where(on), .ioengine = ioengine, .verify = true, .thread_count = 2);
	tensors_add(f, "t", nbytes, TENSORS, t);
	for (size_t i = 0; i < TENSORS; i++)
		tensor_store(f, t[i], i);
	tensor_write(f, t[B], 10);
	half = info_of(f, t[B]).store_offset + 512 * KIB;
	cut_at(on, half);

	OK(f, nvs_tensor_swap_out(f->engine, &t[B], 1, &f->error));
	failed_from(on, t[B], "writing", info_of(f, t[B]).store_offset);
	STATE(f, t[B], NVS_RESIDENT, true, 0);
	assert_true(filled(nvs_tensor_data(t[B]), nbytes[B], 10));
	OK(f, sole_swap_in(f->engine, &t[C], 1, -1, &f->error));
	failed_from(on, t[C], "reading", info_of(f, t[C]).store_offset);
	STATE(f, t[C], NVS_ON_DRIVE, false, 0);
	tensor_compare(f, t[A], A);

	kernel_drive_mend(&on->drive);
	tensor_compare(f, t[C], C);
	tensors_swap_out(f, t, TENSORS);
	STATE(f, t[B], NVS_ON_DRIVE, false, 0);
	tensor_compare(f, t[B], 10);

	/* The second time, the bytes are not restored. */
	tensors_swap_out(f, t, TENSORS);
	cut_at(on, half);
	kernel_drive_mend_blank(&on->drive);
	tensor_compare(f, t[A], A);
	for (size_t i = B; i < TENSORS; i++) {
		OK(f, sole_swap_in(f->engine, &t[i], 1, -1, &f->error));
		expect_error(f, sole_wait(f->engine, &t[i], 1, -1, &f->error), -EBADMSG, "t");
		tensor_store(f, t[i], 20 + i);
		tensor_compare(f, t[i], 20 + i);
	}
	fixture_close(f);
}

static void by_each_engine(bool raw)
{
	struct drive_store on;

	make(&on, raw);
	for (enum nvs_ioengine i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		if (engine_works(i))
			lose_and_regain(&on, i);
}

TEST(io_errors_of_ext4_are_reported_and_lose_nothing)
{
	by_each_engine(false);
}

TEST(io_errors_of_a_raw_device_are_reported_and_lose_nothing)
{
	by_each_engine(true);
}

static const uint64_t three[TENSORS] = {MIB, MIB, MIB};

/* The raw device keeps only its first page, so not even the label can be written. */
TEST(a_commit_to_a_missing_drive_fails_and_leaves_the_previous_one)
{
	struct drive_store on;
	struct nvs_tensor *t[TENSORS];
	int rc;

	make(&on, true);
	OPEN(f, .in = where(&on), .keep = true);
	tensors_add(f, "t", three, TENSORS, t);
	for (size_t i = 0; i < TENSORS; i++)
		tensor_store(f, t[i], i);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_write(f, t[A], 10);
	kernel_drive_cut(&on.drive, 4096);
	FAILS(f, -EIO, on.path, nvs_engine_commit);
	STATE(f, t[A], NVS_RESIDENT, true, 0);
	assert_true(filled(nvs_tensor_data(t[A]), three[A], 10));
	FAILS(f, -EIO, on.path, nvs_engine_commit);
	rc = nvs_engine_close(f->engine, &f->error);
	f->engine = NULL;
	expect_error(f, rc, -EIO, on.path);

	/* The label is there, and every copy of the manifest that it names is gone. */
	rc = fixture_reopen(f);
	expect_error(f, rc, -EUCLEAN, "can't be read (Input/output error)");
	kernel_drive_mend(&on.drive);
	OK(f, fixture_reopen(f));
	tensors_add(f, "t", three, TENSORS, t);
	for (size_t i = 0; i < TENSORS; i++)
		tensor_compare(f, t[i], i);
}

/* Like a drive that lost its link: the device exists and has no bytes. */
static void shrink_to_nothing(enum nvs_ioengine ioengine)
{
	struct drive_store on;
	struct nvs_tensor *t[TENSORS];
	int rc;

	make(&on, true);
	OPEN(f, .in = where(&on), .ioengine = ioengine);
	tensors_add(f, "t", three, TENSORS, t);
	tensor_store(f, t[A], A);
	tensor_write(f, t[B], B);
	kernel_drive_cut(&on.drive, 4096);
	kernel_drive_resize(&on.drive);

	OK(f, nvs_tensor_swap_out(f->engine, &t[B], 1, &f->error));
	rc = sole_wait(f->engine, &t[B], 1, -1, &f->error);
	assert_true(rc == -ENOSPC || rc == -EIO);
	expect_error(f, rc, rc, on.path);
	STATE(f, t[B], NVS_RESIDENT, true, 0);
	OK(f, sole_swap_in(f->engine, &t[A], 1, -1, &f->error));
	rc = sole_wait(f->engine, &t[A], 1, -1, &f->error);
	assert_true(rc == -ENODATA || rc == -EIO);
	expect_error(f, rc, rc, on.path);
	STATE(f, t[A], NVS_ON_DRIVE, false, 0);

	kernel_drive_mend(&on.drive);
	kernel_drive_resize(&on.drive);
	tensor_compare(f, t[A], A);
	tensor_compare(f, t[B], B);
	tensors_swap_out(f, t, 2);
	tensor_compare(f, t[B], B);
	fixture_close(f);
}

TEST(a_device_that_shrinks_to_nothing_fails_every_transfer)
{
	for (enum nvs_ioengine i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		if (engine_works(i))
			shrink_to_nothing(i);
}

static void steps_on(const char *path, struct kernel_drive *drive)
{
	static const struct group groups[] = {{"g0", 200000, NVS_F32}, {"g1", 150000, NVS_BF16}};
	int rc;

	optim_init(o, groups, LENGTH(groups));
	if (path)
		DONE(o,
		     nvs_config_set_paths(&o->config, NVS_OFFLOAD_OPTIMIZER, &path, 1, &o->error));
	DONE(o, optim_open(o));
	optim_run(o, 1, 2);
	if (!drive) {
		optim_run(o, 3, 4);
		return;
	}
	optim_lend(o, 3, 1);
	/* The last tiles are in memory since the previous step; those behind the middle are not. */
	kernel_drive_cut(drive, RAW_BASE + 2 * MIB);
	for (int tries = 0; tries < 2; tries++) {
		rc = optim_step(o, 3);
		assert_int_equal(rc, -EIO);
		assert_says(o->error.text, path);
		assert_in_range(o->error.offset, RAW_BASE, RAW_BYTES);
	}
	kernel_drive_mend(drive);
	DONE(o, optim_step(o, 3));
	optim_run(o, 4, 4);
}

TEST(a_step_over_io_errors_is_finished_with_the_same_bits)
{
	struct kernel_drive drive;
	struct snapshot undisturbed;

	kernel_drive_make(&drive, RAW_BYTES);
	steps_on(NULL, NULL);
	snapshot_take(o, &undisturbed);
	optim_close(o);
	steps_on(drive.device, &drive);
	IS_AS(o, &undisturbed);
	optim_close(o);
	snapshot_free(&undisturbed);
}

EACH_TEST(NULL, cleanup)
