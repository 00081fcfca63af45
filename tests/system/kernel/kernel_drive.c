/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop device over a file on an ext4 in memory. Bytes behind a truncation cannot be read, and an
 * immutable file cannot be written, not even through open descriptors: the device returns I/O
 * errors, which come from the block layer like those of a dying drive. The device uses direct I/O
 * on the file, so no stale byte comes from the page cache.
 */
#include "system/kernel/kernel_drive.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include "aio/aio.h"
#include "aio/engines/engine.h"

#define PAGE UINT64_C(4096)

static void set_immutable(const struct kernel_drive *drive, bool immutable)
{
	int fd = open(drive->backing, O_RDONLY | O_CLOEXEC), flags;

	assert_int_equal(ioctl(fd, FS_IOC_GETFLAGS, &flags), 0);
	flags = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
	assert_int_equal(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
	close(fd);
}

/* With request 0 the device is synced. */
static void call_device(const struct kernel_drive *drive, unsigned long request)
{
	int fd = open(drive->device, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	if (request)
		assert_int_equal(ioctl(fd, request, 0), 0);
	else
		(void)fsync(fd);
	close(fd);
}

void kernel_drive_make(struct kernel_drive *drive, uint64_t nbytes)
{
	const char *why = NULL, *memory = need_ext4(2 * nbytes, 512);

	*drive = (struct kernel_drive){.nbytes = nbytes,
				       .backing = path_in(memory, "drive"),
				       .gone = path_in(memory, "gone")};
	close(open(drive->backing, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	assert_int_equal(truncate(drive->backing, (off_t)nbytes), 0);
	drive->device = loop_device_over(drive->backing, &why);
	if (!drive->device)
		SKIP("%s", why);
	/*
	 * The kernel reports a write-back error to the next sync, which can belong to a later test
	 * whose device has the same number. So sync once here.
	 */
	call_device(drive, 0);
}

void kernel_drive_make_ext4(struct kernel_drive *drive, uint64_t nbytes, const char *options)
{
	kernel_drive_make(drive, nbytes);
	drive->directory = need_ext4_on(drive->device, "-b 4096 -m 0 -O ^has_journal", options);
}

void kernel_drive_remount(struct kernel_drive *drive)
{
	assert_int_equal(umount2(drive->directory, 0), 0);
	assert_int_equal(mount(drive->device, drive->directory, "ext4", 0, NULL), 0);
}

uint64_t kernel_drive_place(const struct kernel_drive *drive, const char *file, uint64_t offset,
			    uint64_t nbytes)
{
	union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + sizeof(struct fiemap_extent)];
	} found = {.map = {.fm_start = offset, .fm_length = nbytes, .fm_extent_count = 1}};
	const struct fiemap_extent *extent;
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	uint64_t before;

	assert_true(fd >= 0 && drive->directory);
	assert_int_equal(ioctl(fd, FS_IOC_FIEMAP, &found.map), 0);
	close(fd);
	assert_int_equal(found.map.fm_mapped_extents, 1);
	extent = &found.map.fm_extents[0];
	before = offset - extent->fe_logical;
	assert_true(extent->fe_length - before >= nbytes);
	return extent->fe_physical + before;
}

/* Copies the data behind `at`, without holes, to the same offsets. */
static void copy_data(const char *from, const char *to, off_t at)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(in >= 0 && out >= 0);
	while ((at = lseek(in, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(in, at, SEEK_HOLE);

		while (at < end) {
			off_t there = at;

			assert_true(copy_file_range(in, &at, out, &there, (size_t)(end - at), 0) >
				    0);
		}
	}
	assert_int_equal(errno, ENXIO);
	close(in);
	close(out);
}

void kernel_drive_cut(struct kernel_drive *drive, uint64_t from)
{
	assert_true(from && from % PAGE == 0 && from < drive->nbytes);
	copy_data(drive->backing, drive->gone, (off_t)from);
	assert_int_equal(truncate(drive->backing, (off_t)from), 0);
	set_immutable(drive, true);
	/* Reads of a raw device must not find in the page cache what the drive has lost. */
	if (!drive->directory)
		call_device(drive, BLKFLSBUF);
}

void kernel_drive_mend_blank(struct kernel_drive *drive)
{
	set_immutable(drive, false);
	assert_int_equal(truncate(drive->backing, (off_t)drive->nbytes), 0);
	assert_int_equal(unlink(drive->gone), 0);
}

void kernel_drive_mend(struct kernel_drive *drive)
{
	set_immutable(drive, false);
	copy_data(drive->gone, drive->backing, 0);
	kernel_drive_mend_blank(drive);
}

void kernel_drive_resize(struct kernel_drive *drive)
{
	call_device(drive, LOOP_SET_CAPACITY);
}

bool engine_works(enum nvs_ioengine ioengine)
{
	char reason[192];
	int rc = ioengine_try(ioengine, reason, sizeof(reason));

	if (rc)
		print_message("without %s: %s\n", nvs_ioengine_name(ioengine), reason);
	return !rc;
}
