/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept stores: reading without writing, listing, the number of the commit, closing without a
 * commit, renaming.
 */
#include "swap/swap_fixture.h"

ONE_ENGINE

enum { N = 3 };

static struct nvs_tensor *t[N];

static const uint64_t lengths[N] = {5000, 300 * KIB, 0};

/* A kept store with t0, t1 and t2, committed with these seeds. */
static void make_store(uint64_t seed)
{
	OPEN(f, .place = PLACE_DISK, .keep = true);
	tensors_add(f, "t", lengths, N, t);
	tensors_write(f, t, N, seed);
	OK(f, nvs_engine_commit(f->engine, &f->error));
}

static void find_again(uint64_t seed)
{
	OK(f, fixture_reopen(f));
	tensors_add(f, "t", lengths, N, t);
	tensors_compare(f, t, N, seed);
}

/* ---- Reading without writing ---- */

TEST(a_read_only_store_is_read_and_nothing_of_it_changes)
{
	char path[512];
	uint64_t before;

	make_store(1);
	fixture_shut(f);
	/* The modes are not tightened either. */
	fixture_store_file(f, "data", path);
	assert_int_equal(chmod(path, 0644), 0);
	/* A store with one manifest is complete; a writer would create the other one. */
	fixture_store_file(f, "manifest.1", path);
	assert_int_equal(unlink(path), 0);
	before = sum_of_files(f->paths[0], true);
	f->config.keep = false;
	f->config.read_only = true;
	find_again(1);
	assert_int_equal(sum_of_files(f->paths[0], true), before);
	fixture_shut(f);
	assert_int_equal(sum_of_files(f->paths[0], true), before);
}

TEST(calls_that_would_write_to_a_read_only_store_are_refused)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "new", .dtype = NVS_U8, .numel = 10};
	static const uint8_t bytes[5000];
	const void *from = bytes;
	struct nvs_tensor *more;

	make_store(1);
	tensor_add(f, "empty", 10);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_shut(f);
	f->config.read_only = true;
	find_again(1);
	more = tensor_add(f, "empty", 10);
	/* It could not be written there as the error of other engines advises. */
	FAILS(f, -ENODATA, "the store, which is open read-only, was last committed",
	      nvs_tensor_prefetch, &more, 1);
	tensors_pin(f, t, 1);
	FAILS(f, -EROFS, "read_", sole_release, t, 1, NVS_DIRTY);
	OK(f, sole_release(f->engine, t, 1, NVS_CLEAN, &f->error));
	tensors_swap_out(f, t, N);
	FAILS(f, -EROFS, "read_", nvs_tensor_swap_out_from, t, &from, 1);
	FAILS(f, -EROFS, "read_", nvs_tensor_register, &spec, 1, &more);
	assert_null(nvs_tensor_find(f->engine, "new"));
	FAILS(f, -EROFS, "read_only", nvs_tensor_forget, t, 1);
	FAILS(f, -EROFS, "read_only", nvs_tensor_rename, t[0], "x");
	FAILS(f, -EROFS, "read_only", nvs_engine_commit);
	tensor_compare(f, t[0], 1);
	fixture_shut(f);
}

TEST(readers_share_a_store_and_exclude_a_writer)
{
	struct nvs_engine *second = NULL, *writer = NULL;

	make_store(1);
	f->config.read_only = true;
	expect_error(f, nvs_engine_open(&second, &f->config, NVS_OFFLOAD_PARAM, &f->error), -EBUSY,
		     "has locked the store");
	/* No other rank has what the reader wants. */
	assert_null(strstr(f->error.text, "rank\""));
	fixture_shut(f);
	find_again(1);
	OK(f, nvs_engine_open(&second, &f->config, NVS_OFFLOAD_PARAM, &f->error));
	f->config.read_only = false;
	expect_error(f, nvs_engine_open(&writer, &f->config, NVS_OFFLOAD_PARAM, &f->error), -EBUSY,
		     "has locked the store");
	OK(f, nvs_engine_close(second, &f->error));
	fixture_shut(f);
	find_again(1);
}

TEST(a_store_to_read_or_to_roll_back_must_be_there)
{
	char data[512];

	INIT(f, .place = PLACE_DISK);
	f->config.rollback = true;
	expect_error(f, fixture_reopen(f), -EINVAL, "set nvswap.keep or nvswap.read_only too");
	f->config.read_only = true;
	expect_error(f, fixture_reopen(f), -ENODATA, "no kept store to read");
	fixture_store_file(f, "data", data);
	assert_int_equal(access(data, F_OK), -1);
	f->config.read_only = false;
	f->config.keep = true;
	assert_int_equal(fixture_reopen(f), 0);
	f->config.keep = false;
	fixture_read_only(f);
}

/* ---- Listing ---- */

TEST(stored_tensors_can_be_listed_before_registering)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	unsigned seen = 0;

	make_store(1);
	/* The list is a snapshot of the time of opening. */
	assert_int_equal(nvs_engine_get_stored(f->engine, 0, &stored), -ENOENT);
	fixture_again(f);
	for (size_t i = 0; !nvs_engine_get_stored(f->engine, i, &stored); i++) {
		unsigned which = (unsigned)(stored.name[1] - '0');

		assert_true(which < N);
		assert_int_equal(stored.dtype, NVS_U8);
		assert_int_equal(stored.numel, lengths[which]);
		assert_int_equal(stored.nbytes, lengths[which]);
		assert_true(stored.has_contents);
		assert_int_equal(stored.has_checksum, lengths[which] > 0);
		assert_null(nvs_tensor_find(f->engine, stored.name));
		seen |= 1u << which;
	}
	assert_int_equal(seen, 7);
}

TEST(a_smaller_structure_is_filled_as_far_as_it_goes)
{
	struct nvs_stored_tensor stored;

	make_store(1);
	fixture_again(f);
	memset(&stored, 0xa5, sizeof(stored));
	stored.size = offsetof(struct nvs_stored_tensor, numel);
	assert_int_equal(nvs_engine_get_stored(f->engine, 0, &stored), 0);
	assert_int_equal(stored.dtype, NVS_U8);
	assert_int_equal(stored.numel, UINT64_C(0xa5a5a5a5a5a5a5a5));
	stored.size = 0;
	assert_int_equal(nvs_engine_get_stored(f->engine, 0, &stored), -EINVAL);
	assert_int_equal(nvs_engine_get_stored(f->engine, 0, NULL), -EINVAL);
	assert_int_equal(nvs_engine_get_stored(NULL, 0, &stored), -EINVAL);
}

TEST(the_number_of_the_commit_grows_with_each_that_changes_something)
{
	make_store(1);
	assert_int_equal(nvs_engine_generation(f->engine), 1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	assert_int_equal(nvs_engine_generation(f->engine), 1);
	tensor_write(f, t[0], 9);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	assert_int_equal(nvs_engine_generation(f->engine), 2);
	fixture_read_only(f);
	assert_int_equal(nvs_engine_generation(f->engine), 2);
	assert_int_equal(nvs_engine_generation(NULL), 0);
}

TEST(abandoning_leaves_the_last_commit)
{
	make_store(1);
	tensors_store(f, t, N, 100);
	OK(f, nvs_engine_abandon(f->engine, &f->error));
	f->engine = NULL;
	OK(f, nvs_engine_abandon(NULL, &f->error));
	find_again(1);
	assert_int_equal(nvs_engine_generation(f->engine), 1);
}

/* ---- Renaming ---- */

TEST(a_renamed_tensor_is_found_under_its_new_name_after_a_commit)
{
	struct nvs_tensor *again;

	make_store(1);
	tensors_pin(f, &t[1], 1);
	OK(f, nvs_tensor_rename(f->engine, t[1], "other", &f->error));
	assert_string_equal(info_of(f, t[1]).name, "other");
	assert_true(filled(nvs_tensor_data(t[1]), lengths[1], 2));
	OK(f, sole_release(f->engine, &t[1], 1, NVS_CLEAN, &f->error));
	assert_ptr_equal(nvs_tensor_find(f->engine, "other"), t[1]);
	assert_null(nvs_tensor_find(f->engine, "t1"));
	/* Two tensors swap names. */
	OK(f, nvs_tensor_rename(f->engine, t[0], "t1", &f->error));
	OK(f, nvs_tensor_rename(f->engine, t[1], "t0", &f->error));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	assert_int_equal(nvs_engine_generation(f->engine), 2);
	/* Renamed, but not committed. */
	OK(f, nvs_tensor_rename(f->engine, t[2], "lost", &f->error));
	OK(f, nvs_engine_abandon(f->engine, &f->error));
	f->engine = NULL;

	OK(f, fixture_reopen(f));
	again = tensor_add(f, "t1", lengths[0]);
	tensor_compare(f, again, 1);
	again = tensor_add(f, "t0", lengths[1]);
	tensor_compare(f, again, 2);
	again = tensor_add(f, "t2", lengths[2]);
	tensor_compare(f, again, 3);
}

TEST(names_that_were_returned_stay_valid)
{
	const char *names[3];

	make_store(1);
	names[0] = info_of(f, t[0]).name;
	OK(f, nvs_tensor_rename(f->engine, t[0], "second", &f->error));
	names[1] = info_of(f, t[0]).name;
	OK(f, nvs_tensor_rename(f->engine, t[0], "third", &f->error));
	names[2] = info_of(f, t[0]).name;
	/* Its own name changes nothing. */
	OK(f, nvs_tensor_rename(f->engine, t[0], "third", &f->error));
	assert_ptr_equal(info_of(f, t[0]).name, names[2]);
	assert_string_equal(names[0], "t0");
	assert_string_equal(names[1], "second");
	assert_string_equal(names[2], "third");
	assert_ptr_equal(nvs_tensor_find(f->engine, "third"), t[0]);
}

TEST(names_that_are_taken_or_invalid_are_refused)
{
	char longest[NVS_NAME_MAX + 2];

	make_store(1);
	FAILS(f, -EEXIST, "t1", nvs_tensor_rename, t[0], "t1");
	FAILS(f, -EINVAL, "1 to", nvs_tensor_rename, t[0], "");
	FAILS(f, -EINVAL, "1 to", nvs_tensor_rename, t[0], NULL);
	FAILS(f, -EINVAL, "NULL", nvs_tensor_rename, NULL, "x");
	expect_error(f, nvs_tensor_rename(NULL, t[0], "x", &f->error), -EINVAL, "NULL");
	memset(longest, 'n', sizeof(longest));
	longest[NVS_NAME_MAX + 1] = 0;
	FAILS(f, -EINVAL, "512", nvs_tensor_rename, t[0], longest);
	longest[NVS_NAME_MAX] = 0;
	OK(f, nvs_tensor_rename(f->engine, t[0], longest, &f->error));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_shut(f);
	/* A stored tensor that is not registered keeps its name. */
	OK(f, fixture_reopen(f));
	t[1] = tensor_add(f, "t1", lengths[1]);
	FAILS(f, -EEXIST, "t2", nvs_tensor_rename, t[1], "t2");
	tensor_compare(f, t[1], 2);
}

static const char *const not_utf8[] = {"\xff", "a\xe9z", "\xc3", "\xed\xa0\x80",
				       "\xf4\x90\x80\x80"};

TEST(a_name_that_is_not_utf8_is_refused)
{
	struct nvs_tensor_spec specs[2] = {{sizeof(*specs), "new", NVS_U8, 1, NULL, 0},
					   {sizeof(*specs), NULL, NVS_U8, 1, NULL, 0}};
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	struct nvs_tensor *made[2];

	make_store(1);
	for (size_t i = 0; i < COUNT(not_utf8); i++) {
		specs[1].name = not_utf8[i];
		FAILS(f, -EINVAL, "UTF-8", nvs_tensor_register, specs, 2, made);
		assert_null(nvs_tensor_find(f->engine, "new"));
		FAILS(f, -EINVAL, "UTF-8", nvs_tensor_rename, t[0], not_utf8[i]);
	}
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_shut(f);
	find_again(1);
	assert_int_equal(nvs_engine_get_stored(f->engine, N, &stored), -ENOENT);
}

TEST(a_kept_store_with_a_name_that_is_not_utf8_is_opened_to_read_alone)
{
	struct nvs_tensor_spec spec = {sizeof(spec), not_utf8[0], NVS_U8, lengths[1], NULL, 0};
	uint64_t before, contents;

	make_store(1);
	engine_lock(f->engine);
	OK(f, table_rename(f->engine, t[1], not_utf8[0], &f->error));
	engine_unlock(f->engine);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_shut(f);
	contents = sum_of_files(f->paths[0], false);
	expect_error(f, fixture_reopen(f), -EILSEQ, "a tensor named \\xff, which is not UTF-8");
	assert_int_equal(sum_of_files(f->paths[0], false), contents);
	before = sum_of_files(f->paths[0], true);
	f->config.keep = false;
	f->config.read_only = true;
	OK(f, fixture_reopen(f));
	OK(f, nvs_tensor_register(f->engine, &spec, 1, t, &f->error));
	tensor_compare(f, t[0], 2);
	spec.name = not_utf8[1];
	FAILS(f, -EROFS, "", nvs_tensor_register, &spec, 1, t);
	fixture_shut(f);
	assert_int_equal(sum_of_files(f->paths[0], true), before);
}
