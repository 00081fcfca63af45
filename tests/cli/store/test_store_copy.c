/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store export` and `import`: tensors leave a store for a file and come back, and what is
 * refused changes neither.
 */
#include <endian.h>

#include "swap/calls/calls.h"

#include "cli/store/store_command_fixture.h"

#define TENSORS 40

/* Bytes of the tensors t0, t1, ... as write_tensors() left them. */
static void holds(const char *paths, unsigned rank, unsigned n)
{
	struct nvs_engine *engine = open_engine(paths, rank, true);

	for (unsigned i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensor_of(engine, i);
		uint64_t pin;

		DO(nvs_tensor_swap_in(engine, &tensor, 1, -1, &pin, &error));
		DO(nvs_tensor_wait(engine, &tensor, 1, pin, -1, &error));
		for (unsigned k = 0; k < NUMEL * 4; k++)
			assert_int_equal(((const uint8_t *)nvs_tensor_data(tensor))[k], i + 1);
		DO(nvs_tensor_release(engine, &tensor, 1, pin, NVS_CLEAN, &error));
	}
	DO(nvs_engine_close(engine, &error));
}

static bool exists(const char *path)
{
	struct stat status;

	return !stat(path, &status);
}

TEST(tensors_leave_a_store_and_come_back)
{
	const char *from = temp_directory(), *to = temp_directory();

	make_store(quoted(from), 0, TENSORS);
	SAYS(0,
	     "commit                     1\n  tensors                    40\n  bytes               "
	     "       781.25 KiB\n",
	     "export --to %s/all.safetensors %s", to, from);
	SAYS(0,
	     "commit                     1\n  tensors                    40\n  bytes               "
	     "       781.25 KiB\n",
	     "import --from %s/all.safetensors --rank 2 %s", to, to);
	holds(quoted(to), 2, TENSORS);
	EXITS(0, "verify %s", from);
}

/* A store of an earlier version, which took such names. */
TEST(a_name_that_is_not_utf8_leaves_the_store_in_a_form_that_is)
{
	const char *from = temp_directory(), *file;
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint *checkpoint;
	struct nvs_engine *engine = open_engine(quoted(from), 0, true);

	write_tensors(engine, 2);
	engine_lock(engine);
	DO(table_rename(engine, table_find(engine, "t1"), "t\xff", &error));
	engine_unlock(engine);
	DO(nvs_engine_close(engine, &error));
	SAYS(0, "tensors                    2\n", "export --to %s/all.pt %s", from, from);
	file = path_in(from, "all.pt");
	DO(nvs_checkpoint_open(&checkpoint, file, &error));
	assert_int_equal(nvs_checkpoint_get(checkpoint, 1, &tensor), 0);
	assert_string_equal(tensor.name, "t\\xff");
	nvs_checkpoint_close(checkpoint);
}

/* A file with a matrix, a scalar and a tensor without elements. */
static void make_shaped(const char *file)
{
	static const char header[] =
		"{\"matrix\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
		"\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[6,7]},"
		"\"none\":{\"dtype\":\"U8\",\"shape\":[4,0,2],\"data_offsets\":[7,7]}}";
	const uint64_t length = htole64(sizeof(header) - 1);
	FILE *out = fopen(file, "w");

	assert_non_null(out);
	fwrite(&length, sizeof(length), 1, out);
	fputs(header, out);
	fputs("abcdefg", out);
	assert_int_equal(fclose(out), 0);
}

static void is_shaped(const char *path, const char *file, unsigned rank)
{
	EXITS(0, "import --from %s/%s --rank %u %s", path, file, rank, path);
	SAYS(0, "name matrix, dtype U8, numel 6, shape 2 3, ", "show --rank %u %s", rank, path);
	assert_says(output, "name scalar, dtype U8, numel 1, shape, ");
	assert_says(output, "name none, dtype U8, numel 0, shape 4 0 2, ");
}

TEST(tensors_have_their_shapes_when_they_leave_a_store)
{
	const char *path = temp_directory();

	make_shaped(path_in(path, "in.safetensors"));
	is_shaped(path, "in.safetensors", 0);
	EXITS(0, "export --to %s/out.safetensors %s", path, path);
	is_shaped(path, "out.safetensors", 1);
	EXITS(0, "export --to %s/out.pt --rank 1 %s", path, path);
	is_shaped(path, "out.pt", 2);
}

TEST(a_striped_store_is_exported_in_shards)
{
	const char *a = temp_directory(), *b = temp_directory(), *to = temp_directory();
	const char *paths = quoted_pair(a, b);

	make_store(paths, 1, TENSORS);
	SAYS(1, "lies on 2 paths", "export --to %s/m.safetensors %s", to, a);
	EXITS(0, "export --to %s/m.safetensors --shard-size 400k %s %s", to, a, b);
	assert_true(exists(path_in(to, "m.safetensors.index.json")));
	assert_true(exists(path_in(to, "m-00002-of-00002.safetensors")));
	EXITS(0, "remove %s %s", a, b);
	make_store(paths, 1, 1);
	EXITS(0, "import --from %s/m.safetensors.index.json --rank 1 %s %s", to, a, b);
	holds(paths, 1, TENSORS);
}

TEST(tensors_that_the_file_lacks_stay)
{
	const char *path = temp_directory();

	make_store(quoted(path), 0, 2);
	SAYS(0, "\"tensors\": 2", "export --to %s/two.safetensors --output-format json %s", path,
	     path);
	make_store(quoted(path), 0, 5);
	SAYS(0, "tensors                    2\n", "import --from %s/two.safetensors %s", path,
	     path);
	holds(quoted(path), 0, 5);
}

TEST(a_failed_export_leaves_the_file_of_before)
{
	const char *path = temp_directory(), *file = path_in(path, "a.safetensors");
	struct stat before, after;

	make_store(quoted(path), 0, 3);
	EXITS(0, "export --to %s %s", file, path);
	assert_int_equal(stat(file, &before), 0);
	damage(path_in(path, "nvswap/rank0/data"), offset_of(path, false, "t1"));
	SAYS(1, "t1", "export --to %s %s", file, path);
	assert_int_equal(stat(file, &after), 0);
	assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
	assert_false(exists(path_in(path, "a.safetensors.partial")));
}

TEST(a_failed_import_leaves_the_commit_of_before)
{
	const char *path = temp_directory(), *file = path_in(path, "a.safetensors");
	struct stat status;

	make_store(quoted(path), 0, 3);
	EXITS(0, "export --to %s %s", file, path);
	assert_int_equal(stat(file, &status), 0);
	assert_int_equal(truncate(file, status.st_size - 1), 0);
	EXITS(1, "import --from %s %s", file, path);
	EXITS(1, "import --from %s/none.safetensors %s", path, path);
	SAYS(0, "commit 1, ", "list %s", path);
	holds(quoted(path), 0, 3);
}

TEST(a_store_in_use_is_not_filled)
{
	const char *path = temp_directory();
	struct nvs_store_place place = place_at(&path);
	struct nvs_engine *engine;
	struct nvs_store *store;

	make_store(quoted(path), 0, 2);
	EXITS(0, "export --to %s/a.safetensors %s", path, path);
	DO(nvs_store_open(&place, NVS_STORE_LOCK, &store, &error));
	SAYS(1, "a process reads the store", "import --from %s/a.safetensors %s", path, path);
	nvs_store_close(store);
	engine = open_engine(quoted(path), 0, true);
	SAYS(1, in_use(), "import --from %s/a.safetensors %s", path, path);
	SAYS(1, in_use(), "export --to %s/b.safetensors %s", path, path);
	DO(nvs_engine_close(engine, &error));
}

TEST(what_cannot_be_done_is_refused)
{
	const char *path = temp_directory();

	make_store(quoted(path), 0, 1);
	make_store(quoted(path), 1, 1);
	SAYS(2, "needs --to", "export %s", path);
	SAYS(2, "needs --from", "import %s", path);
	SAYS(2, "--to is an option of nvswap store export", "list --to a.safetensors %s", path);
	EXITS(2, "verify --rollback %s", path);
	EXITS(2, "import --from a --shard-size 1m %s", path);
	EXITS(1, "export --rank 1 --to %s/t.pt --shard-size 1m %s", path, path);
	SAYS(1, "several stores", "export --to %s/a.safetensors %s", path, path);
	SAYS(2, "must end with .safetensors or .pt", "export --rank 1 --to %s/a.bin %s", path,
	     path);
	EXITS(0, "export --rank 1 --to %s/a.safetensors %s", path, path);
}

EACH_TEST(NULL, cleanup)
