/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store verify`, `repair` and `remove`: damage of tensors and of the metadata, and stores
 * in use.
 */
#include <sys/resource.h>

#include "cli/store/store_command_fixture.h"
#include "support/inject.h"

TEST(each_damaged_tensor_is_named)
{
	const char *path = temp_directory(), *data = path_in(path, "nvswap/rank0/data");
	char says[64];

	make_store(quoted(path), 0, 100);
	SAYS(0,
	     "damaged none\n  verified tensors           100\n  verified bytes             1.91 "
	     "MiB\n  without checksum           0\n",
	     "verify %s", path);
	damage(data, offset_of(path, false, "t7"));
	damage(data, offset_of(path, false, "t99") + NUMEL * 4 - 1);
	EXITS(1, "verify %s", path);
	snprintf(says, sizeof(says), "from offset %" PRIu64 " on", offset_of(path, false, "t7"));
	assert_says(output, "tensor t7: its 20000 bytes in ");
	assert_says(output, says);
	assert_says(output, "tensor t99:");
	assert_int_equal(count_of("- tensor "), 2);
	SAYS(1, "\"tensor\": \"t7\"", "verify %s --output-format json", path);
	assert_says(output, "\"verified_tensors\": 100");
	damage(data, offset_of(path, false, "t7"));
	damage(data, offset_of(path, false, "t99") + NUMEL * 4 - 1);
	EXITS(0, "verify %s", path);
}

TEST(a_truncated_store_is_damaged_and_its_lost_tensors_are_named)
{
	static const char says[] = "nvswap/rank0/data is truncated: it has ";
	static const char *const actions[] = {"list",	"list --output-format json", "show",
					      "repair", "repair --rollback",	     "verify"};
	const char *path = temp_directory();

	make_store(quoted(path), 0, 3);
	assert_int_equal(
		truncate(path_in(path, "nvswap/rank0/data"), (off_t)offset_of(path, false, "t2")),
		0);
	SAYS(1, "state damaged, member 0, nmembers 1, commit 1, ", "list %s", path);
	SAYS(1, "\"truncated\": true", "show %s --output-format json", path);
	for (size_t i = 0; i < COUNT(actions); i++)
		SAYS(1, says, "%s %s", actions[i], path);
	assert_says(output, "tensor t2: ");
	assert_int_equal(count_of("- tensor "), 1);
	EXITS(0, "remove %s", path);
	assert_int_equal(entries_of(path), 0);
}

TEST(the_truncated_path_of_several_is_named)
{
	const char *a = temp_directory(), *b = temp_directory();
	char says[512];

	make_store(quoted_pair(a, b), 0, 3);
	EXITS(0, "verify %s %s", a, b);
	SAYS(1, "lies on 2 paths", "verify %s", a);
	/* The second stripe of t0. */
	damage(path_in(b, "nvswap/rank0/data"), 2 << 20);
	SAYS(1, "tensor t0:", "verify %s %s", a, b);
	SAYS(1, "lies on 2 paths", "remove %s", a);
	snprintf(says, sizeof(says), "%s/nvswap/rank0/data is truncated: it has ", b);
	assert_int_equal(truncate(path_in(b, "nvswap/rank0/data"), (2 << 20) + 8192), 0);
	SAYS(1, says, "show %s %s", a, b);
	EXITS(0, "remove %s %s", a, b);
	assert_int_equal(entries_of(a) + entries_of(b), 0);
}

#define REPAIRED(labels, manifests)                                                                \
	"labels                     " labels "\n  manifests                  " manifests "\n"

TEST(damaged_copies_are_named_and_repaired)
{
	static const struct {
		const char *file;
		uint64_t offset;
		const char *shown, *repaired;
	} damages[] = {
		{"nvswap/rank0/data", 60, "data, offset 0, commit 0, problem it is damaged",
		 REPAIRED("1", "0")},
		{"nvswap/rank0/data", (1 << 20) + 60,
		 "data, offset 1048576, commit 0, problem it is damaged", REPAIRED("1", "0")},
		{"nvswap/rank0/manifest.0", 30,
		 "manifest.0, offset 0, commit 0, problem its header is damaged",
		 REPAIRED("0", "1")},
		{"nvswap/rank0/manifest.2", 200,
		 "manifest.2, offset 0, commit 1, problem its checksum differs",
		 REPAIRED("0", "1")},
	};
	const char *path = temp_directory();

	make_store(quoted(path), 0, 2);
	SAYS(0, REPAIRED("0", "0"), "repair %s", path);
	/* Commit 1 is in the slots 0 and 2. */
	SAYS(0, "manifest.2, offset 0, commit 1\n", "show %s", path);
	for (size_t i = 0; i < COUNT(damages); i++) {
		damage(path_in(path, damages[i].file), damages[i].offset);
		SAYS(1, damages[i].shown, "show %s", path);
		assert_int_equal(count_of("state damaged"), 1);
		assert_says(output, "state                      kept");
		SAYS(1, "copies 6, damaged copies 1", "list %s", path);
		SAYS(0, damages[i].repaired, "repair %s", path);
		EXITS(0, "list %s", path);
	}
	assert_int_equal(unlink(path_in(path, "nvswap/rank0/manifest.0")), 0);
	EXITS(0, "repair %s", path);
	EXITS(0, "verify %s", path);
	DO(nvs_engine_close(open_engine(quoted(path), 0, true), &error));
}

TEST(a_limit_on_file_sizes_is_an_error_with_a_remedy)
{
	static const char *const files[] = {"nvswap/rank0/data", "nvswap/rank0/manifest.0"};
	const char *path = temp_directory();
	struct rlimit was, limit;

	make_store(quoted(path), 0, 2);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	limit = (struct rlimit){.rlim_cur = 64, .rlim_max = was.rlim_max};
	for (size_t i = 0; i < COUNT(files); i++) {
		damage(path_in(path, files[i]), 30);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);

		int status = store_command("repair %s", path);

		assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
		assert_int_equal(status, 1);
		assert_says(output, files[i]);
		assert_says(output, "ulimit -f");
		EXITS(0, "repair %s", path);
	}
	EXITS(0, "verify %s", path);
}

/* Goes back to the first of two commits, of which nothing is left to repair, and opens the store. */
static struct nvs_engine *roll_back(const char *path)
{
	struct nvs_engine *engine;

	SAYS(0, "commit                     1\n  lost commit                2\n",
	     "repair %s --rollback", path);
	SAYS(0, REPAIRED("0", "0"), "repair %s", path);
	SAYS(0, "verified tensors           1\n", "verify %s", path);
	engine = open_engine(quoted(path), 0, true);
	assert_int_equal(nvs_engine_generation(engine), 1);
	return engine;
}

TEST(a_label_of_an_earlier_commit_is_described_and_rolled_back_only_when_asked)
{
	static const char *const actions[] = {"list", "verify", "repair", "show"};
	const char *path = temp_directory(), *data = path_in(path, "nvswap/rank0/data");
	struct nvs_engine *engine = open_engine(quoted(path), 0, true);
	int fd = open(data, O_RDWR | O_CLOEXEC);
	char label[4096];

	assert_true(fd >= 0);
	write_tensors(engine, 1);
	DO(nvs_engine_commit(engine, &error));
	assert_int_equal(pread(fd, label, sizeof(label), 1 << 20), sizeof(label));
	write_tensors(engine, 2);
	DO(nvs_engine_close(engine, &error));
	assert_int_equal(pwrite(fd, label, sizeof(label), 1 << 20), sizeof(label));
	close(fd);
	damage(data, 60);
	for (size_t i = 0; i < COUNT(actions); i++)
		SAYS(1, "the last commit is number 2, as a manifest says", "%s %s", actions[i],
		     path);
	assert_says(output, "commit                     2\n");
	assert_int_equal(count_of("label, state damaged"), 1);
	assert_int_equal(count_of("label, state older"), 1);
	assert_int_equal(count_of("manifest, state current"), 2);
	assert_int_equal(count_of("manifest, state older"), 2);
	engine = roll_back(path);
	write_tensors(engine, 2);
	DO(nvs_engine_commit(engine, &error));
	/* The number of the lost commit is not used again. */
	assert_int_equal(nvs_engine_generation(engine), 3);
	DO(nvs_engine_close(engine, &error));
}

TEST(a_lost_commit_is_described_and_rolled_back_only_when_asked)
{
	for (int whole = 0; whole < 2; whole++) {
		const char *path = temp_directory();
		struct nvs_engine *engine = open_engine(quoted(path), 0, true);

		write_tensors(engine, 1);
		DO(nvs_engine_commit(engine, &error));
		write_tensors(engine, 2);
		DO(nvs_engine_close(engine, &error));
		damage(path_in(path, "nvswap/rank0/manifest.1"), 200);
		/* Headers that are whole still say that the commit was made. */
		if (whole)
			assert_int_equal(truncate(path_in(path, "nvswap/rank0/manifest.3"), 130),
					 0);
		else
			damage(path_in(path, "nvswap/rank0/manifest.3"), 30);
		SAYS(1, "state                      damaged", "show %s", path);
		assert_says(output, "the last commit is number 2, and no copy of it is valid");
		assert_int_equal(count_of("manifest, state damaged"), 2);
		assert_int_equal(count_of("manifest, state older"), 2);
		SAYS(1, "no copy of it is valid", "repair %s", path);
		engine = roll_back(path);
		DO(nvs_engine_close(engine, &error));
		damage(path_in(path, "nvswap/rank0/data"), 60);
		damage(path_in(path, "nvswap/rank0/data"), (1 << 20) + 60);
		SAYS(1, "the label of the store", "show %s", path);
		assert_int_equal(count_of("label, state damaged"), 2);
	}
}

TEST(a_store_in_use_is_neither_verified_nor_changed)
{
	static const char *const actions[] = {"verify", "repair", "remove"};
	const char *path = temp_directory();
	struct nvs_engine *engine = open_engine(quoted(path), 0, true);

	write_tensors(engine, 1);
	DO(nvs_engine_commit(engine, &error));
	for (size_t i = 0; i < COUNT(actions); i++)
		SAYS(1, in_use(), "%s %s", actions[i], path);
	DO(nvs_engine_close(engine, &error));
	EXITS(0, "verify %s", path);
}

/* ---- Two processes remove one store ---- */

/* `nvswap store remove` while this process removes the store. */
struct rival {
	const char *path;
	unsigned calls;	  /* of this process, that the rival may precede */
	unsigned nth;	  /* the call that it precedes */
	int status;	  /* its exit status */
	unsigned refused; /* how often it was refused and said why */
};

static int remove_store(const char *path, const struct inject_observer *observer)
{
	const struct nvs_store_place place = place_at(&path);
	int rc;

	inject_observe(observer);
	rc = nvs_store_remove(&place, &error);
	inject_observe(NULL);
	return rc;
}

static void make_store_to_remove(const char *path, bool has_data)
{
	make_store(quoted(path), 0, 1);
	if (!has_data)
		assert_int_equal(unlink(path_in(path, "nvswap/rank0/data")), 0);
}

/* Before a name is removed: files by a process that holds the lock, then empty directories. */
static void remove_meanwhile(void *arg, struct inject_name *name)
{
	struct rival *rival = arg;
	const char *says[2] = {"there is no kept store", "holds no store"};

	if (strstr(name->path, "manifest.") || !strcmp(name->path, "data")) {
		says[0] = in_use();
		says[1] = "is being changed by another process: try again";
	}
	rival->calls++;
	if (store_command("remove %s", rival->path) == 1 &&
	    (strstr(output, says[0]) || strstr(output, says[1])))
		rival->refused++;
	else
		print_error("before %s is removed: %s", name->path, output);
}

TEST(a_store_that_is_being_removed_is_not_removed_by_another_process)
{
	const char *path = temp_directory();

	for (int has_data = 0; has_data < 2; has_data++) {
		struct rival rival = {.path = path};
		const struct inject_observer observer = {.arg = &rival,
							 .before_name = remove_meanwhile};

		make_store_to_remove(path, has_data);
		(void)remove_store(path, &observer);
		assert_true(rival.calls > 4);
		assert_int_equal(rival.refused, rival.calls);
		assert_int_equal(entries_of(path), 0);
	}
}

static void remove_before_open(void *arg, const char *opened)
{
	struct rival *rival = arg;

	(void)opened;
	if (++rival->calls == rival->nth)
		rival->status = store_command("remove %s", rival->path);
}

TEST(of_two_processes_that_remove_a_store_one_succeeds)
{
	const char *path = temp_directory();
	unsigned wins[2] = {0}; /* of this process, of the rival */
	int rc;

	for (int has_data = 0; has_data < 2; has_data++) {
		struct rival rival = {.path = path};
		const struct inject_observer observer = {.arg = &rival,
							 .before_open = remove_before_open};

		while (rival.calls >= rival.nth) {
			rival = (struct rival){.path = path, .nth = rival.nth + 1, .status = 1};
			make_store_to_remove(path, has_data);
			rc = remove_store(path, &observer);
			assert_int_equal(rc != 0, rival.status == 0);
			assert_says(rc ? error.text : output, path);
			wins[rc != 0]++;
			assert_int_equal(entries_of(path), 0);
		}
	}
	assert_true(wins[0] > 2 && wins[1] > 2);
}

/* An engine makes a store as soon as nothing of the one without data is left. */
static void make_store_meanwhile(void *arg, struct inject_name *name, bool done)
{
	const char *path = arg;
	struct stat st;

	if (!done || !strstr(name->path, "manifest."))
		return;
	for (unsigned i = 0; i < 4; i++) {
		char file[32];

		snprintf(file, sizeof(file), "nvswap/rank0/manifest.%u", i);
		if (!stat(path_in(path, file), &st) && st.st_size)
			return;
	}
	inject_observe(NULL);
	make_store(quoted(path), 0, 1);
}

TEST(a_store_that_is_made_while_one_without_data_is_removed_stays)
{
	char *path = (char *)(uintptr_t)temp_directory();
	const struct inject_observer observer = {.arg = path, .after_name = make_store_meanwhile};

	make_store_to_remove(path, false);
	(void)remove_store(path, &observer);
	assert_int_equal(entries_of(path_in(path, "nvswap/rank0")), 5);
	EXITS(0, "verify %s", path);
}

TEST(one_store_is_removed_and_others_stay)
{
	const char *path = temp_directory();

	make_store(quoted(path), 0, 1);
	make_store(quoted(path), 1, 1);
	SAYS(1, "holds several stores", "remove %s", path);
	EXITS(1, "remove %s --rank 2", path);
	SAYS(0, "removed                    store", "remove %s --rank 0", path);
	EXITS(0, "list %s", path);
	assert_null(strstr(output, "rank 0"));
	assert_says(output, "rank 1");
	/* A damaged one can be removed, too. */
	damage(path_in(path, "nvswap/rank1/data"), 60);
	damage(path_in(path, "nvswap/rank1/data"), (1 << 20) + 60);
	EXITS(0, "remove %s", path);
	assert_int_equal(entries_of(path), 0);
}

TEST(a_store_without_its_data_is_described_and_removed)
{
	const char *path = temp_directory();
	static const char *const actions[] = {"list", "show", "verify", "repair"};

	make_store(quoted(path), 0, 1);
	assert_int_equal(unlink(path_in(path, "nvswap/rank0/data")), 0);
	for (size_t i = 0; i < COUNT(actions); i++)
		SAYS(1, "data is missing: the store is damaged", "%s %s", actions[i], path);
	SAYS(1, "state damaged, ", "list %s", path);
	assert_int_equal(entries_of(path_in(path, "nvswap/rank0")), 4);
	EXITS(0, "remove %s", path);
	assert_int_equal(entries_of(path), 0);
}

TEST(the_rest_of_a_store_without_its_first_path_is_removed)
{
	const char *a = temp_directory(), *b = temp_directory();

	make_store(quoted_pair(a, b), 0, 1);
	EXITS(0, "remove %s %s --rank 0", a, b);
	for (int gone = 0; gone < 2; gone++) {
		make_store(quoted_pair(a, b), 0, 1);
		assert_int_equal(unlink(path_in(a, "nvswap/rank0/data")), 0);
		for (unsigned i = 0; i < 4; i++) {
			char name[64];

			snprintf(name, sizeof(name), "nvswap/rank0/manifest.%u", i);
			assert_int_equal(unlink(path_in(a, name)), 0);
		}
		assert_int_equal(rmdir(path_in(a, "nvswap/rank0")), 0);
		assert_int_equal(rmdir(path_in(a, "nvswap")), 0);
		if (gone)
			assert_int_equal(rmdir(a), 0);
		SAYS(1, "lies on 2 paths: give all of them, in their order", "remove %s", b);
		EXITS(1, "remove %s %s", b, a);
		EXITS(0, "remove %s %s", a, b);
		assert_int_equal(entries_of(b), 0);
	}
	EXITS(1, "remove %s %s", a, b);
	assert_int_equal(mkdir(a, 0700), 0);
}

TEST(a_path_of_another_store_stays)
{
	const char *a = temp_directory(), *b = temp_directory(), *c = temp_directory();

	make_store(quoted_pair(a, b), 0, 1);
	make_store(quoted(c), 0, 1);
	damage(path_in(a, "nvswap/rank0/data"), 60);
	damage(path_in(a, "nvswap/rank0/data"), (1 << 20) + 60);
	EXITS(1, "remove %s %s", a, c);
	EXITS(0, "verify %s", c);
	EXITS(0, "remove %s %s", a, b);
}

TEST(a_link_is_not_followed)
{
	const char *path = temp_directory(), *other = temp_directory();

	make_store(quoted(other), 0, 1);
	assert_int_equal(mkdir(path_in(path, "nvswap"), 0700), 0);
	assert_int_equal(symlink(path_in(other, "nvswap/rank0"), path_in(path, "nvswap/rank0")), 0);
	SAYS(1, "symbolic link", "remove %s", path);
	EXITS(0, "verify %s", other);
}

TEST(a_raw_device_is_repaired_and_removed)
{
	const char *device = need_device(UINT64_C(128) << 20, 512);

	make_store(quoted(device), 0, 2);
	SAYS(0, "state                      kept", "show %s", device);
	assert_int_equal(count_of("manifest, state current"), 2);
	damage(device, 60);
	damage(device, (2 << 20) + 30);
	SAYS(0, REPAIRED("1", "1"), "repair %s", device);
	EXITS(0, "verify %s", device);
	EXITS(0, "remove %s", device);
	SAYS(1, "holds no store", "list %s", device);
	make_store(quoted(device), 0, 1);
}

static void spoil(const char *device, uint64_t offset, size_t nbytes, int byte)
{
	char bytes[4096];
	int fd = open(device, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0 && nbytes <= sizeof(bytes));
	memset(bytes, byte, nbytes);
	assert_int_equal(pwrite(fd, bytes, nbytes, (off_t)offset), nbytes);
	assert_int_equal(close(fd), 0);
}

TEST(garbage_in_a_label_of_a_raw_device_is_repaired)
{
	const char *device = need_device(UINT64_C(128) << 20, 512);

	make_store(quoted(device), 0, 2);
	for (unsigned copy = 0; copy < 2; copy++) {
		spoil(device, (uint64_t)copy << 20, 512, 'g');
		SAYS(1, "copies 6, damaged copies 1", "list %s", device);
		SAYS(0, REPAIRED("1", "0"), "repair %s", device);
		EXITS(0, "list %s", device);
	}
}

TEST(a_raw_device_with_lost_labels_is_described_and_removed)
{
	const char *device = need_device(UINT64_C(128) << 20, 512);

	for (int byte = 0; byte <= 'g'; byte += 'g') {
		make_store(quoted(device), 0, 2);
		spoil(device, 0, 4096, byte);
		spoil(device, 1 << 20, 4096, byte);
		SAYS(1, "copies 2, damaged copies 2", "list %s", device);
		assert_null(strstr(output, "wipe"));
		SAYS(1, "there is manifest number 1", "show %s", device);
		SAYS(1, "there is manifest number 1", "repair %s", device);
		assert_null(strstr(output, "wipe"));
		EXITS(0, "remove %s", device);
		/* What is no label stays: it may be another program's. */
		SAYS(1, byte ? "not nvswap's" : "holds no store", "list %s", device);
	}
}

EACH_TEST(NULL, cleanup)
