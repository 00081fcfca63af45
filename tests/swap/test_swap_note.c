/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's note in commits: it is of the commit that is found, and reading it says how long it
 * is.
 */
#include "support/inject.h"
#include "support/turns.h"
#include "swap/swap_fixture.h"

ONE_ENGINE

#define N_BYTES 5000

/* A kept store with one tensor. */
static struct nvs_tensor *open_kept(void)
{
	OPEN(f, .place = PLACE_DISK, .keep = true);
	return tensor_add(f, "t", N_BYTES);
}

static void set(const char *note)
{
	OK(f, nvs_engine_set_note(f->engine, note, strlen(note), &f->error));
}

static void expect_note(const char *note)
{
	char found[64] = "";
	size_t nbytes = sizeof(found) - 1;

	assert_int_equal(nvs_engine_get_note(f->engine, found, &nbytes), 0);
	assert_string_equal(found, note);
	assert_int_equal(nbytes, strlen(note));
}

TEST(a_note_is_found_with_its_commit)
{
	struct nvs_tensor *t = open_kept();

	expect_note("");
	tensor_write(f, t, 1);
	set("step 1");
	expect_note("");
	OK(f, nvs_engine_commit(f->engine, &f->error));
	expect_note("step 1");
	set("never committed");
	fixture_crash(f);
	expect_note("step 1");
	assert_int_equal(nvs_engine_generation(f->engine), 1);
	/* Closing commits as well. */
	set("closed");
	fixture_read_only(f);
	expect_note("closed");
	assert_int_equal(nvs_engine_generation(f->engine), 2);
	FAILS(f, -EROFS, "read_only", nvs_engine_set_note, "x", 1);
}

TEST(later_commits_have_the_note_until_it_changes)
{
	struct nvs_tensor *t = open_kept();

	set("first");
	fixture_again(f);
	t = tensor_add(f, "t", N_BYTES);
	tensor_write(f, t, 2);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	assert_int_equal(nvs_engine_generation(f->engine), 2);
	expect_note("first");
	OK(f, nvs_engine_set_note(f->engine, NULL, 0, &f->error));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_crash(f);
	expect_note("");
}

TEST(a_failed_commit_leaves_the_previous_note)
{
	/* Syncs and writes of a commit: of the data, the manifests, the label. */
	for (uint64_t call = 1; call <= 6; call++) {
		struct nvs_tensor *t = open_kept();

		tensor_store(f, t, 1);
		set("old");
		OK(f, nvs_engine_commit(f->engine, &f->error));
		tensor_store(f, t, 2);
		set("new");
		inject_fail(INJECT_WRITE | INJECT_SYNC, call, 1, EIO);
		assert_int_equal(nvs_engine_commit(f->engine, &f->error), -EIO);
		inject_stop(NULL);
		expect_note("old");
		fixture_crash(f);
		expect_note("old");
		t = tensor_add(f, "t", N_BYTES);
		tensor_compare(f, t, 1);
		fixture_close(f);
	}
}

TEST(a_note_of_up_to_64_kib_is_kept)
{
	static char bytes[NVS_NOTE_MAX + 1], found[NVS_NOTE_MAX];
	size_t nbytes = 0;

	open_kept();
	fill(bytes, sizeof(bytes), 3);
	FAILS(f, -E2BIG, "at most 65536", nvs_engine_set_note, bytes, sizeof(bytes));
	FAILS(f, -E2BIG, "at most 65536", nvs_engine_set_note, bytes, SIZE_MAX);
	OK(f, nvs_engine_set_note(f->engine, bytes, NVS_NOTE_MAX, &f->error));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_crash(f);
	assert_int_equal(nvs_engine_get_note(f->engine, NULL, &nbytes), 0);
	assert_int_equal(nbytes, NVS_NOTE_MAX);
	nbytes--;
	assert_int_equal(nvs_engine_get_note(f->engine, found, &nbytes), -ERANGE);
	assert_int_equal(nbytes, NVS_NOTE_MAX);
	assert_int_equal(found[0], 0);
	assert_int_equal(nvs_engine_get_note(f->engine, found, &nbytes), 0);
	assert_int_equal(nbytes, NVS_NOTE_MAX);
	assert_memory_equal(found, bytes, NVS_NOTE_MAX);
}

TEST(a_store_that_is_not_kept_has_no_note)
{
	OPEN(f, .place = PLACE_DISK);
	set("lost with the store");
	OK(f, nvs_engine_commit(f->engine, &f->error));
	expect_note("");
}

static void *set_often(void *note)
{
	for (unsigned i = 0; i < 100; i++)
		OK(f, nvs_engine_set_note(f->engine, note, strlen(note), NULL));
	return NULL;
}

TEST(several_threads_may_set_the_note)
{
	char one[] = "of this one", another[] = "of another thread";
	pthread_t thread;

	open_kept();
	turns_begin(seed_of_run());
	assert_int_equal(pthread_create(&thread, NULL, set_often, another), 0);
	set_often(one);
	pthread_join(thread, NULL);
	turns_end();
	set("the last one");
	OK(f, nvs_engine_commit(f->engine, &f->error));
	expect_note("the last one");
}
