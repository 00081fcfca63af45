/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that an engine counts as written are those that the block layer has given the drive.
 */

#include "base/numbers.h"
#include "optim/optim_fixture.h"
#include "system/kernel/kernel_drive.h"

ONE_OPTIMIZER

ONE_ENGINE

#define DRIVE_BYTES (128 * MIB)
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

	kernel_drive_make_ext4(&drive, DRIVE_BYTES, "noinit_itable");
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

	kernel_drive_make_ext4(&drive, DRIVE_BYTES, "noinit_itable");
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
