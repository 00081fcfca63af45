/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File systems that refuse writes while a store is on them: ext4 goes read-only after corrupt
 * metadata, and shuts down when its device disappears. Committed contents are found after a
 * remount; data that could not be written stay in memory, with an error.
 */
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <xxhash.h>

#include "swap/swap_fixture.h"
#include "system/kernel/kernel_drive.h"

ONE_ENGINE

#define DRIVE_BYTES (64 * MIB)
#define SHUTDOWN    _IOR('X', 125, uint32_t) /* FS_IOC_SHUTDOWN, introduced by XFS */
#define DATA	    "nvswap/rank0/data"

/* The effect of corrupt metadata with errors=remount-ro. */
static void damage(const struct kernel_drive *drive)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/sys/fs/ext4/%s/trigger_fs_error",
		 strrchr(drive->device, '/') + 1);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		SKIP("this kernel has no %s", path);
	assert_int_equal(write(fd, "1", 1), 1);
	close(fd);
}

/* Immediately, without writing back. */
static void shut_down(const struct kernel_drive *drive)
{
	uint32_t how = 2;
	int fd = open(drive->directory, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	if (ioctl(fd, SHUTDOWN, &how))
		SKIP("this kernel can't shut an ext4 down: %s", strerror(errno));
	close(fd);
}

enum { TENSORS = 24 };

#define NBYTES(i) (200 * KIB + (i)*1000)

static void add_all(struct nvs_tensor **t)
{
	uint64_t nbytes[TENSORS];

	for (size_t i = 0; i < TENSORS; i++)
		nbytes[i] = NBYTES(i);
	tensors_add(f, "t", nbytes, TENSORS, t);
}

static void compare_all(struct nvs_tensor **t, size_t first)
{
	for (size_t i = first; i < TENSORS; i++)
		tensor_compare(f, t[i], i);
}

/* Makes a kept store with a commit in which tensor i has the contents of seed i. */
static void commit_some(const char *where, enum nvs_ioengine ioengine, struct nvs_tensor **t)
{
	OPEN(f, .in = where, .ioengine = ioengine, .keep = true, .pool_bytes = 8 * MIB);
	add_all(t);
	for (size_t i = 0; i < TENSORS; i++)
		tensor_store(f, t[i], i);
	OK(f, nvs_engine_commit(f->engine, &f->error));
}

static void close_in_vain(int code)
{
	int rc = nvs_engine_close(f->engine, &f->error);

	f->engine = NULL;
	expect_error(f, rc, code, DATA);
}

/* After a remount a later run finds the commit, whatever was in flight after it. */
static void is_as_committed(struct kernel_drive *drive)
{
	struct nvs_tensor *t[TENSORS];

	kernel_drive_remount(drive);
	OK(f, fixture_reopen(f));
	add_all(t);
	compare_all(t, 0);
	tensor_store(f, t[0], 1000);
	tensor_compare(f, t[0], 1000);
	fixture_close(f);
	(void)cleanup(NULL);
}

static void ext4_that_goes_read_only(enum nvs_ioengine ioengine)
{
	struct kernel_drive drive;
	struct nvs_tensor *t[TENSORS];

	kernel_drive_make_ext4(&drive, DRIVE_BYTES, "errors=remount-ro");
	commit_some(drive.directory, ioengine, t);
	tensor_write(f, t[0], 100);
	damage(&drive);

	OK(f, nvs_tensor_swap_out(f->engine, &t[0], 1, &f->error));
	expect_error(f, sole_wait(f->engine, &t[0], 1, -1, &f->error), -EROFS, "t0: writing");
	STATE(f, t[0], NVS_RESIDENT, true, 0);
	assert_true(filled(nvs_tensor_data(t[0]), NBYTES(0), 100));
	compare_all(t, 1);
	FAILS(f, -EROFS, DATA, nvs_engine_commit);
	close_in_vain(-EROFS);
	expect_error(f, fixture_reopen(f), -EROFS, DATA);
	is_as_committed(&drive);
}

TEST_WITH(a_read_only_file_system_is_still_read, NULL, cleanup)
{
	for (enum nvs_ioengine i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		if (engine_works(i))
			ext4_that_goes_read_only(i);
}

TEST_WITH(a_store_that_cannot_be_removed_is_logged, NULL, cleanup)
{
	struct kernel_drive drive;

	kernel_drive_make_ext4(&drive, DRIVE_BYTES, "errors=remount-ro");
	OPEN(f, .in = drive.directory);
	tensor_store(f, tensor_add(f, "t", MIB), 1);
	damage(&drive);
	fixture_shut(f);
	assert_says(f->log, "cannot remove");
	assert_says(f->log, DATA);
}

static void ext4_that_is_shut_down(enum nvs_ioengine ioengine)
{
	enum { KEPT = TENSORS / 2 };
	struct kernel_drive drive;
	struct nvs_tensor *t[TENSORS];
	size_t failed = 0;

	kernel_drive_make_ext4(&drive, DRIVE_BYTES, "");
	commit_some(drive.directory, ioengine, t);
	for (size_t i = KEPT; i < TENSORS; i++)
		tensor_write(f, t[i], 100 + i);
	OK(f, nvs_tensor_swap_out(f->engine, t + KEPT, TENSORS - KEPT, &f->error));
	shut_down(&drive);
	for (size_t i = KEPT; i < TENSORS; i++) {
		int rc = sole_wait(f->engine, &t[i], 1, -1, &f->error);

		if (!rc) {
			STATE(f, t[i], NVS_ON_DRIVE, false, 0);
			continue;
		}
		expect_error(f, rc, -EIO, DATA);
		STATE(f, t[i], NVS_RESIDENT, true, 0);
		assert_true(filled(nvs_tensor_data(t[i]), NBYTES(i), 100 + i));
		failed++;
	}
	print_message("%s: %zu of %d in flight failed\n", nvs_ioengine_name(ioengine), failed,
		      TENSORS - KEPT);
	OK(f, sole_swap_in(f->engine, t, 1, -1, &f->error));
	expect_error(f, sole_wait(f->engine, t, 1, -1, &f->error), -EIO, "t0: reading");
	assert_int_equal(nvs_engine_commit(f->engine, &f->error), -EIO);
	close_in_vain(-EIO);
	is_as_committed(&drive);
}

TEST_WITH(a_file_system_shut_down_during_transfers_has_the_last_commit, NULL, cleanup)
{
	for (enum nvs_ioengine i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		if (engine_works(i))
			ext4_that_is_shut_down(i);
}

TEST_WITH(no_store_is_made_on_a_read_only_mount, NULL, cleanup)
{
	struct kernel_drive drive;

	kernel_drive_make_ext4(&drive, DRIVE_BYTES, "");
	assert_int_equal(mount(NULL, drive.directory, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	INIT(f, .in = drive.directory);
	expect_error(f, fixture_reopen(f), -EROFS, "/nvswap: Read-only file system");
	assert_null(f->engine);
	assert_int_equal(mount(NULL, drive.directory, NULL, MS_REMOUNT, NULL), 0);
	OK(f, fixture_reopen(f));
}

/* ---- A raw device ---- */

/* Space for label and manifests, and for two extents of each tensor. */
#define RAW_BYTES (96 * MIB)

static uint64_t checksum_of_device(const struct kernel_drive *drive)
{
	int fd = open(drive->device, O_RDONLY | O_CLOEXEC);
	void *bytes = mmap(NULL, RAW_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t sum;

	assert_true(bytes != MAP_FAILED);
	sum = XXH3_64bits(bytes, RAW_BYTES);
	munmap(bytes, RAW_BYTES);
	close(fd);
	return sum;
}

static char refusing[64]; /* the device to which the kernel refuses every write; or "" */

/* The flag outlives the file behind a loop device. */
static void set_read_only(int yes)
{
	int fd = *refusing ? open(refusing, O_RDONLY | O_CLOEXEC) : -1;

	assert_true(!yes || fd >= 0);
	if (fd >= 0) {
		assert_true(!ioctl(fd, BLKROSET, &yes) || !yes);
		close(fd);
	}
	if (!yes)
		*refusing = 0;
}

static int allow_writes_and_clean_up(void **state)
{
	set_read_only(false);
	return cleanup(state);
}

static void raw_store_is_read(void)
{
	struct nvs_tensor *t[TENSORS];
	struct nvs_engine *second;

	f->config.read_only = true;
	OK(f, fixture_reopen(f));
	assert_int_equal(nvs_engine_generation(f->engine), 1);
	add_all(t);
	compare_all(t, 0);
	FAILS(f, -EROFS, "read_only", nvs_engine_commit);
	/* Readers share the device. */
	OK(f, nvs_engine_open(&second, &f->config, NVS_OFFLOAD_PARAM, &f->error));
	OK(f, nvs_engine_close(second, &f->error));
	fixture_shut(f);
}

TEST_WITH(a_raw_device_is_read_and_no_byte_of_it_changes, NULL, allow_writes_and_clean_up)
{
	struct kernel_drive drive;
	struct nvs_tensor *t[TENSORS];
	uint64_t sum;

	kernel_drive_make(&drive, RAW_BYTES);
	commit_some(drive.device, NVS_IOENGINE_AUTO, t);
	fixture_shut(f);
	sum = checksum_of_device(&drive);
	for (int refused = 0; refused < 2; refused++) {
		for (enum nvs_ioengine i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++) {
			f->config.aio.ioengine = i;
			if (engine_works(i))
				raw_store_is_read();
			assert_true(checksum_of_device(&drive) == sum);
		}
		snprintf(refusing, sizeof(refusing), "%s", drive.device);
		set_read_only(true);
	}
	f->config.read_only = false;
	expect_error(f, fixture_reopen(f), -EROFS, "blockdev --setrw /dev/loop");
	set_read_only(false);
	OK(f, fixture_reopen(f));
	fixture_read_only(f);
}

TEST_WITH(a_raw_device_without_a_store_stays_as_it_is, NULL, cleanup)
{
	struct kernel_drive drive;
	uint64_t sum;

	kernel_drive_make(&drive, RAW_BYTES);
	sum = checksum_of_device(&drive);
	INIT(f, .in = drive.device);
	f->config.read_only = true;
	expect_error(f, fixture_reopen(f), -ENODATA, "holds no kept store to read");
	assert_true(checksum_of_device(&drive) == sum);
}

TEST_WITH(a_raw_device_too_small_for_a_store_holds_none, NULL, cleanup)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct kernel_drive drive;
	struct nvs_store_place place = {.size = sizeof(place), .npaths = 1, .paths = &drive.device};

	kernel_drive_make(&drive, 8 * MIB);
	assert_int_equal(nvs_store_remove(&place, &error), -ENODATA);
	assert_non_null(strstr(error.text, drive.device));
}
