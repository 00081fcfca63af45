/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores on file systems that can copy on write: btrfs, and xfs after a reflink copy. What is
 * promised of reserved space there, and what the log and nvs_path_get_info say.
 */
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "system/kernel/kernel_drive.h"

ONE_ENGINE

static bool is_no_cow(const char *name)
{
	char path[512];
	int flags = 0, fd;

	fixture_store_file(f, name, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, FS_IOC_GETFLAGS, &flags), 0);
	close(fd);
	return flags & FS_NOCOW_FL;
}

static void expect_reserve(const char *path, const char *word)
{
	struct nvs_path_info info = {.size = sizeof(info)};
	struct nvs_error error = {.size = sizeof(error)};

	assert_int_equal(nvs_path_get_info(path, &info, &error), 0);
	if (word)
		assert_says(info.reserve_fails, word);
	else
		assert_string_equal(info.reserve_fails, "");
}

/* Copies `from` to a new file `to`, with the same blocks. */
static void reflink(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(in >= 0 && out >= 0);
	assert_int_equal(ioctl(out, FICLONE, in), 0);
	close(in);
	close(out);
}

/* The files of a store. */
static const char *const names[] = {"data", "manifest.0", "manifest.1", "manifest.2", "manifest.3"};

/* Opens it again: the tensor "t" has those contents. */
static struct nvs_tensor *reopened(unsigned seed)
{
	struct nvs_tensor *t;

	OK(f, fixture_reopen(f));
	t = tensor_add(f, "t", MIB);
	tensor_compare(f, t, seed);
	return t;
}

TEST(a_new_store_on_btrfs_is_overwritten_in_place)
{
	const char *directory = need_file_system("btrfs", 256 * MIB, 4096);
	struct nvs_tensor *t;
	char path[512];

	t = OPEN_ONE(f, MIB, .in = directory, .keep = true);
	for (size_t i = 0; i < LENGTH(names); i++)
		assert_true(is_no_cow(names[i]));
	assert_null(strstr(f->log, "may not suffice"));
	tensor_store(f, t, 1);
	fixture_shut(f);
	fixture_store_file(f, "data", path);
	expect_reserve(path, NULL);
	expect_reserve(directory, NULL);
	reopened(1);
	assert_null(strstr(f->log, "may not suffice"));
}

/* As one that cp --reflink=always makes, or the file system's snapshots. */
TEST(a_store_copied_by_reflink_is_reported)
{
	const char *directory = need_file_system("xfs", 400 * MIB, 4096);
	char path[512], copy[512];
	struct nvs_tensor *t;

	t = OPEN_ONE(f, MIB, .in = directory, .keep = true);
	tensor_store(f, t, 1);
	assert_null(strstr(f->log, "may not suffice"));
	fixture_shut(f);
	fixture_store_file(f, "data", path);
	expect_reserve(path, NULL);
	snprintf(copy, sizeof(copy), "%s/copy", directory);
	reflink(path, copy);
	expect_reserve(path, "shares blocks");
	reopened(1);
	assert_says(f->log, "may not suffice: the file shares blocks");
}

/* Then xfs takes direct I/O only in whole blocks, while the store has the sectors' unit. */
TEST(a_store_that_shares_blocks_opens_in_units_of_sectors)
{
	const char *directory = need_file_system("xfs", 400 * MIB, 512);
	char paths[LENGTH(names)][512], copies[LENGTH(names)][512];
	struct nvs_tensor *t;

	t = OPEN_ONE(f, MIB, .in = directory, .keep = true);
	tensor_store(f, t, 1);
	fixture_shut(f);
	for (size_t i = 0; i < LENGTH(names); i++) {
		fixture_store_file(f, names[i], paths[i]);
		snprintf(copies[i], sizeof(copies[i]), "%s/copy of %s", directory, names[i]);
		reflink(paths[i], copies[i]);
	}
	/* The original, the copy in its place, and the copy once its blocks are its own. */
	for (unsigned round = 0; round < 3; round++) {
		unsigned last = round < 2 ? 1 : 2;

		for (size_t i = 0; i < LENGTH(names) && round == 1; i++)
			assert_int_equal(rename(copies[i], paths[i]), 0);
		t = reopened(last);
		tensor_store(f, t, last + 1);
		fixture_shut(f);
	}
	reopened(3);
}

EACH_TEST(NULL, cleanup)
