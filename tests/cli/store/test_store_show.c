/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store list` and `show`: what lies below a path, its damage, and who uses it. Both only
 * read.
 */
#include "cli/store/store_command_fixture.h"

TEST(list_and_show_describe_a_kept_store)
{
	const char *path = temp_directory();

	make_store(quoted(path), 0, 3);
	SAYS(0, "rank 0, kind parameters, state kept", "list %s", path);
	assert_says(output, "commit 1, committed 20");
	assert_says(output, "tensors 3, tensor bytes 58.59 KiB");
	SAYS(0, "writer                     " NVS_VERSION, "show %s", path);
	assert_int_equal(count_of("label, state current"), 2);
	assert_int_equal(count_of("manifest, state current"), 2);
	assert_says(output, "/nvswap/rank0/data, offset 1048576, commit 1");
	assert_int_equal(count_of("written yes, checksum "), 3);
	assert_says(output, "name t2, dtype F32, numel 5000, shape 5000, ");
	SAYS(0, "\"state\": \"kept\"", "show %s --output-format json", path);
	assert_says(output, "\"numel\": 5000");
}

TEST(shapes_are_shown)
{
	const char *path = temp_directory();
	const uint64_t shape[] = {20, 30};
	struct nvs_tensor_spec spec = {.size = sizeof(spec),
				       .name = "matrix",
				       .dtype = NVS_F32,
				       .numel = 600,
				       .shape = shape,
				       .ndim = 2};
	struct nvs_engine *engine = open_engine(quoted(path), 0, true);
	struct nvs_tensor *tensor;
	const char *at;

	DO(nvs_tensor_register(engine, &spec, 1, &tensor, &error));
	spec.name = "scalar";
	spec.numel = 1;
	spec.ndim = 0;
	DO(nvs_tensor_register(engine, &spec, 1, &tensor, &error));
	DO(nvs_engine_close(engine, &error));
	SAYS(0, "shape 20 30, ", "show %s", path);
	assert_says(output, "shape, ");
	EXITS(0, "show %s --output-format json", path);
	at = strstr(output, "\"shape\"");
	assert_non_null(at);
	assert_int_equal(strtoul(at + strcspn(at, "23"), NULL, 10), 20);
}

TEST(stores_are_listed_by_rank)
{
	const char *path = temp_directory();

	make_store(quoted(path), 10, 1);
	make_store(quoted(path), 9, 1);
	EXITS(0, "list %s", path);
	assert_true(strstr(output, "rank 9") < strstr(output, "rank 10"));
	EXITS(0, "list %s --rank 10", path);
	assert_null(strstr(output, "rank 9"));
	SAYS(1, "holds no store of that rank", "list %s --rank 1", path);
	EXITS(1, "list %s --kind optimizer", path);
}

TEST(a_running_engine_is_named_and_its_commits_are_seen)
{
	const char *path = temp_directory();
	struct nvs_engine *engine = open_engine(quoted(path), 0, true);
	char who[64], commit[32];

	snprintf(who, sizeof(who), "in use yes, owner %d, owner name test_store_show",
		 (int)getpid());
	for (unsigned i = 1; i <= 3; i++) {
		write_tensors(engine, i);
		DO(nvs_engine_commit(engine, &error));
		SAYS(0, who, "list %s", path);
		snprintf(commit, sizeof(commit), "commit %u, ", i);
		assert_says(output, commit);
	}
	EXITS(0, "show %s", path);
	assert_int_equal(count_of("manifest, state older"), 2);
	DO(nvs_engine_close(engine, &error));
}

TEST(the_note_of_the_commit_is_shown)
{
	static const char note[] = "step 17\33[2J";
	char long_note[66] = "x", begins[80];
	const char *path = temp_directory();
	struct nvs_engine *engine = open_engine(quoted(path), 0, true);

	write_tensors(engine, 1);
	DO(nvs_engine_set_note(engine, note, sizeof(note) - 1, &error));
	DO(nvs_engine_close(engine, &error));
	SAYS(0, "note begins                step 17\\x1b[2J", "show %s", path);
	/* Its hexadecimal digits, of up to 64 KiB, are for programs. */
	assert_null(strstr(output, "73746570"));
	SAYS(0, "\"note\": \"737465702031371b5b324a\"", "list %s --output-format json", path);
	/* Its beginning ends with a whole character. */
	for (size_t i = 1; i < 65; i += 2)
		memcpy(long_note + i, "\xc3\xa4", 2);
	engine = open_engine(quoted(path), 0, true);
	DO(nvs_engine_set_note(engine, long_note, strlen(long_note), &error));
	DO(nvs_engine_close(engine, &error));
	snprintf(begins, sizeof(begins), "%.63s\"", long_note);
	SAYS(0, begins, "show %s --output-format json", path);
}

TEST(a_store_that_is_not_kept_is_temporary)
{
	const char *path = temp_directory();
	struct nvs_engine *engine = open_engine(quoted(path), 3, false);

	SAYS(0, "rank 3, kind parameters, state temporary", "list %s", path);
	DO(nvs_engine_close(engine, &error));
	SAYS(1, "holds no store", "list %s", path);
}

TEST(a_striped_store_needs_all_paths_in_their_order)
{
	const char *a = temp_directory(), *b = temp_directory();

	make_store(quoted_pair(a, b), 0, 3);
	SAYS(0, "state                      kept", "show %s %s", a, b);
	assert_says(output, "nmembers                   2");
	assert_int_equal(count_of("label, state current"), 4);
	SAYS(0, "state                      partial", "show %s", a);
	assert_says(output, "lies on 2 paths, and 1 is given");
	SAYS(0, "is member 1 (counted from 0) of a store of 2 paths", "show %s %s", b, a);
	SAYS(0, "member 0, nmembers 2", "list %s %s", a, b);
	assert_says(output, "member 1, nmembers 2");
}

TEST(looking_changes_nothing)
{
	static const char *const files[] = {"nvswap/rank0/data", "nvswap/rank0/manifest.0",
					    "nvswap/rank0/manifest.1"};
	const char *path = temp_directory();
	struct stat before[COUNT(files)], after;

	make_store(quoted(path), 0, 2);
	damage(path_in(path, files[0]), 60);
	for (size_t i = 0; i < COUNT(files); i++)
		assert_int_equal(stat(path_in(path, files[i]), &before[i]), 0);
	EXITS(1, "show %s", path);
	EXITS(1, "list %s", path);
	for (size_t i = 0; i < COUNT(files); i++) {
		assert_int_equal(stat(path_in(path, files[i]), &after), 0);
		assert_memory_equal(&after.st_mtim, &before[i].st_mtim, sizeof(after.st_mtim));
		assert_memory_equal(&after.st_ctim, &before[i].st_ctim, sizeof(after.st_ctim));
	}
	assert_int_equal(entries_of(path_in(path, "nvswap/rank0")), 5);
}

TEST(what_is_not_nvswaps_is_refused)
{
	const char *path = temp_directory(), *other = temp_directory();
	const struct nvs_store_place place = place_at(&path);

	SAYS(1, "holds no store", "list %s", path);
	assert_int_equal(entries_of(path), 0);
	/* A call on such a place names no setting, as the error of an engine does. */
	assert_int_equal(nvs_store_repair(&place, 0, NULL, &error), -ENODATA);
	assert_null(strstr(error.text, "read_only"));
	make_store(quoted(other), 0, 1);
	assert_int_equal(symlink(path_in(other, "nvswap"), path_in(path, "nvswap")), 0);
	SAYS(1, "symbolic link", "list %s", path);
	SAYS(1, "No such file", "list %s/none", path);
	SAYS(2, "did you mean list?", "lsit %s", path);
	EXITS(2, "list");
	if (geteuid())
		return;
	assert_int_equal(chown(path_in(other, "nvswap"), 65534, 65534), 0);
	SAYS(1, "belongs to another user", "list %s", other);
}

EACH_TEST(NULL, cleanup)
