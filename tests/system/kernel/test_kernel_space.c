/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system that fills up under a store: registered tensors have their space and are written,
 * kept and found again; later ones are refused with the numbers, and fit once there is room again.
 * The bytes that an engine counts as written are those that the block layer has given the drive.
 */
#include <sys/statvfs.h>

#include "base/numbers.h"
#include "optim/optim_fixture.h"
#include "system/kernel/kernel_drive.h"

ONE_OPTIMIZER

ONE_ENGINE

#define DRIVE_BYTES (48 * MIB)

/* Uses all free blocks. */
static void fill_up(const char *directory)
{
	int fd = open(path_in(directory, "filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	uint64_t length = 0;
	struct statvfs vfs;

	assert_true(fd >= 0);
	for (uint64_t piece = DRIVE_BYTES; piece >= 1024; piece /= 2)
		while (!posix_fallocate(fd, (off_t)length, (off_t)piece))
			length += piece;
	close(fd);
	assert_int_equal(statvfs(directory, &vfs), 0);
	assert_true(vfs.f_bavail * vfs.f_bsize < 64 * KIB);
}

static void make_room(const char *directory)
{
	assert_int_equal(unlink(path_in(directory, "filler")), 0);
}

/* ---- Registered before the file system is full ---- */

enum { TENSORS = 4 };
static const uint64_t sizes[TENSORS] = {MIB, 3 * MIB + 5, 300, 2 * MIB};

static void check_all(struct nvs_tensor **t, uint64_t seed)
{
	for (size_t i = 0; i < TENSORS; i++)
		tensor_compare(f, t[i], seed + i);
	OK(f, nvs_tensor_swap_out(f->engine, t, TENSORS, &f->error));
}

/* The tensor is refused with the free space and a remedy. */
static void is_refused(void)
{
	static const struct nvs_tensor_spec specs[] = {U8_TENSOR("little", 1000),
						       U8_TENSOR("much", 4 * MIB)};
	struct nvs_tensor *tensors[2];

	int rc = nvs_tensor_register(f->engine, specs, 2, tensors, &f->error);

	assert_says(f->error.text, "nvswap/rank0/");
	expect_error(f, rc, -ENOSPC, "free some space, or give another nvme_path");
	assert_null(nvs_tensor_find(f->engine, "little"));
	assert_null(nvs_tensor_find(f->engine, "much"));
}

static void fill_behind_its_back(enum nvs_ioengine ioengine, bool keep, const char *options)
{
	const char *directory = need_ext4_on(need_device(DRIVE_BYTES, 512), options, NULL);
	struct nvs_tensor *t[TENSORS], *late;
	struct nvs_engine_stats before, after;

	OPEN(f, .in = directory, .ioengine = ioengine, .keep = keep, .verify = true);
	/* Enough for a manifest of several blocks. */
	for (unsigned i = 0; i < 500; i++) {
		char name[64];

		snprintf(name, sizeof(name), "another tensor with nothing in it, number %u", i);
		tensor_add(f, name, 1);
	}
	tensors_add(f, "t", sizes, TENSORS, t);
	fill_up(directory);
	before = stats_of(f);
	is_refused();
	after = stats_of(f);
	assert_int_equal(after.store_bytes, before.store_bytes);
	assert_int_equal(after.tensors, before.tensors);
	for (uint64_t round = 0; round < 3; round++) {
		for (size_t i = 0; i < TENSORS; i++)
			tensor_store(f, t[i], 10 * round + i);
		check_all(t, 10 * round);
		OK(f, nvs_engine_commit(f->engine, &f->error));
	}
	if (keep) {
		fixture_shut(f);
		OK(f, fixture_reopen(f));
		tensors_add(f, "t", sizes, TENSORS, t);
		check_all(t, 20);
		is_refused();
	}
	make_room(directory);
	late = tensor_add(f, "much", 4 * MIB);
	tensor_store(f, late, 7);
	tensor_compare(f, late, 7);
	check_all(t, 20);
	fixture_close(f);
	(void)cleanup(NULL);
}

TEST(registered_tensors_are_written_on_a_full_file_system)
{
	for (enum nvs_ioengine i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++) {
		if (engine_works(i))
			fill_behind_its_back(i, false, "");
		if (SANITIZED)
			break;
	}
}

TEST(a_kept_store_is_committed_on_a_full_file_system)
{
	fill_behind_its_back(NVS_IOENGINE_AUTO, true, "");
}

/* Files without extents have no fallocate(2), as those of ext2. */
TEST(a_kept_store_is_committed_on_a_full_file_system_without_fallocate)
{
	fill_behind_its_back(NVS_IOENGINE_AUTO, true, "-O ^extent,^64bit");
}

/* Like a copy that skips zeros: the length stays, the blocks are freed. */
static void punch(struct nvs_tensor *tensor)
{
	struct nvs_tensor_info info = info_of(f, tensor);
	char path[512];
	int fd;

	fixture_store_file(f, "data", path);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				   (off_t)(2 * MIB + info.store_offset), (off_t)info.nbytes),
			 0);
	close(fd);
}

TEST(a_sparse_kept_store_gets_its_space_back_when_opened)
{
	const char *directory = need_ext4(DRIVE_BYTES, 512);
	struct nvs_tensor *t[TENSORS];

	OPEN(f, .in = directory, .keep = true);
	tensors_add(f, "t", sizes, TENSORS, t);
	tensor_store(f, t[0], 1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	punch(t[1]);
	fixture_shut(f);
	fill_up(directory);
	expect_error(f, fixture_reopen(f), -ENOSPC, "has no room for another");
	make_room(directory);
	OK(f, fixture_reopen(f));
	fill_up(directory);
	tensors_add(f, "t", sizes, TENSORS, t);
	tensor_store(f, t[1], 2);
	tensor_compare(f, t[1], 2);
	tensor_compare(f, t[0], 1);
	make_room(directory);
}

/* Once an optimizer is open, only added gradients need more space. */
TEST(gradients_without_room_are_refused_and_added_later)
{
	static const struct group groups[] = {{"g0", 500000, NVS_F32}, {"g1", 500000, NVS_BF16}};
	static float gradients[1000];
	const char *directory = need_ext4(DRIVE_BYTES, 512);
	uint64_t added = 1;

	for (size_t i = 0; i < LENGTH(gradients); i++)
		gradients[i] = (float)element_value(1, i);
	optim_init(o, groups, LENGTH(groups));
	DONE(o, nvs_config_set_paths(&o->config, NVS_OFFLOAD_OPTIMIZER, &directory, 1, &o->error));
	optim_open_run(o, 1);
	fill_up(directory);
	REFUSES(o, -ENOSPC, "has no room for another", add_gradients, 0, 0, LENGTH(gradients),
		NVS_F32, gradients, &added);
	assert_int_equal(added, 0);
	optim_run(o, 2, 2);
	make_room(directory);
	DOES(o, add_gradients, 0, 0, LENGTH(gradients), NVS_F32, gradients, &added);
	assert_int_equal(added, LENGTH(gradients));
	DONE(o, optim_step(o, 3));
}

/* ---- Bytes written ---- */

#define WRITTEN_BYTES (128 * MIB)
/* Of the file system's own: its bitmaps and inodes. */
#define OWN_BYTES (512 * KIB)

static struct kernel_drive drive;

/* What the block layer has written so far. */
static uint64_t drive_written(void)
{
	char path[128], line[512] = "";
	int fd = open(drive.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint64_t sectors;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/block/%s/stat", strrchr(drive.device, '/') + 1);
	assert_int_equal(syncfs(fd), 0);
	close(fd);
	file = fopen(path, "re");
	if (!file)
		SKIP("%s can't be read", path);
	assert_non_null(fgets(line, sizeof(line), file));
	fclose(file);
	assert_int_equal(sscanf(line, "%*u %*u %*u %*u %*u %*u %" SCNu64, &sectors), 1);
	return sectors * 512;
}

static void expect_counted(uint64_t counted, uint64_t since)
{
	uint64_t got = drive_written() - since;

	print_message("%" PRIu64 " bytes counted, %" PRIu64 " written\n", counted, got);
	assert_in_range(got, counted, counted + OWN_BYTES);
}

TEST(counted_bytes_of_tensors_and_commits_are_those_of_the_block_layer)
{
	static const uint64_t nbytes[] = {3 * MIB + 5, 300, MIB, 4097, 2 * MIB - 1};
	struct nvs_tensor *t[LENGTH(nbytes)];
	uint64_t since, before, tensors = 0, padded = 0, counted;

	kernel_drive_make_ext4(&drive, WRITTEN_BYTES, "noinit_itable");
	INIT(f, .in = drive.directory, .keep = true);
	since = drive_written();
	OK(f, fixture_reopen(f));
	tensors_add(f, "t", nbytes, LENGTH(nbytes), t);
	before = stats_of(f).drive_written_bytes;
	for (unsigned round = 0; round < 4; round++) {
		for (size_t i = 0; i < LENGTH(nbytes); i++) {
			tensor_store(f, t[i], round + i);
			tensors += nbytes[i];
			padded += align_up(nbytes[i], 512);
		}
		OK(f, nvs_engine_commit(f->engine, &f->error));
	}
	counted = stats_of(f).drive_written_bytes;
	assert_int_equal(stats_of(f).swapped_out, tensors);
	/* Two copies of a label, of a manifest of a page, and of its mark. */
	assert_in_range(counted - before, padded + 4 * 6 * 4096, padded + 4 * (6 + 5) * 4096);
	expect_counted(counted, since);
	fixture_shut(f);
}

TEST(counted_bytes_of_optimizer_steps_are_those_of_the_block_layer)
{
	static const struct group groups[] = {{"a", 700001, NVS_F32}, {"b", 300, NVS_BF16}};
	const char *path;
	uint64_t since, steps = 0, before;
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	kernel_drive_make_ext4(&drive, WRITTEN_BYTES, "noinit_itable");
	optim_init(o, groups, LENGTH(groups));
	path = drive.directory;
	assert_int_equal(config_set_paths(o->offload, &path, 1, NULL), 0);
	since = drive_written();
	DONE(o, optim_open(o));
	assert_int_equal(nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &stats), 0);
	before = stats.drive_written_bytes;
	for (uint64_t step = 1; step <= 4; step++) {
		optim_run(o, step, step);
		assert_in_range(o->result.io.drive_written_bytes, o->result.io.written_bytes,
				o->result.io.written_bytes + 64 * KIB);
		steps += o->result.io.drive_written_bytes;
	}
	assert_int_equal(nvs_engine_get_stats(nvs_optimizer_engine(o->optimizer), &stats), 0);
	assert_int_equal(stats.drive_written_bytes, before + steps);
	expect_counted(stats.drive_written_bytes, since);
	optim_shut(o);
}

EACH_TEST(NULL, cleanup)
