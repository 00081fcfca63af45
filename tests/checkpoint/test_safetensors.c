/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of an engine to .safetensors files and back; its readers in Python are those of
 * python/tests/pytorch/test_torch_safetensors.py.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <time.h>

#include "checkpoint/weights_fixture.h"
#include "support/inject.h"
#include "swap/swap_fixture.h"

#define N 12u

static const uint64_t sizes[N] = {4096, 1,	0,	65536, 4097,  1048576,
				  511,	131072, 300000, 8192,  12288, 2 * MIB};

ONE_ENGINE

static struct {
	const char *directory, *path;
	struct nvs_tensor *t[N];
	struct nvs_checkpoint_item items[N];
} w;

static void write_all(uint64_t seed)
{
	for (unsigned i = 0; i < N; i++)
		tensor_write(f, w.t[i], i + seed);
}

static int begin_in(const char *directory)
{
	memset(&w, 0, sizeof(w));
	OPEN(f, .pool_bytes = 4 * MIB, .max_in_cpu = NONE_STAYS);
	tensors_add(f, "layer.", sizes, N, w.t);
	for (unsigned i = 0; i < N; i++)
		w.items[i] = (struct nvs_checkpoint_item){.size = sizeof(w.items[i]),
							  .tensor = w.t[i]};
	write_all(1);
	w.directory = directory;
	w.path = path_in(w.directory, "model.safetensors");
	return 0;
}

static int begin(void **state)
{
	(void)state;
	return begin_in(temp_directory());
}

/* In memory, where hundreds of exports do not wait for syncs; on a drive in `make check-all`. */
static int begin_in_memory(void **state)
{
	const char *memory = getenv("AT_LENGTH") ? NULL : memory_directory();

	(void)state;
	return begin_in(memory ? memory : temp_directory());
}

EACH_TEST(begin, cleanup)

static void compare_all(uint64_t seed)
{
	for (unsigned i = 0; i < N; i++)
		tensor_compare(f, w.t[i], i + seed);
}

static int import_from(const char *path)
{
	struct nvs_checkpoint *checkpoint;
	int rc = nvs_checkpoint_open(&checkpoint, path, &f->error);

	if (!rc)
		rc = nvs_checkpoint_import(f->engine, checkpoint, w.items, N, &f->error);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

static int export_to(uint64_t shard_bytes)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = shard_bytes};

	return nvs_checkpoint_export(f->engine, w.items, N, w.path, &options, &f->error);
}

TEST(what_was_exported_is_imported)
{
	struct stat status;

	OK(f, export_to(0));
	assert_int_equal(entries_of(w.directory), 1);
	assert_int_equal(stat(w.path, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0600);
	write_all(100);
	OK(f, import_from(w.path));
	compare_all(1);
}

TEST(shards_have_at_most_their_bytes_and_an_index)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint *checkpoint;

	OK(f, export_to(MIB));
	assert_int_equal(entries_of(w.directory), 5);
	OK(f, nvs_checkpoint_open(&checkpoint, w.path, &f->error));
	assert_int_equal(nvs_checkpoint_count(checkpoint), N);
	OK(f, nvs_checkpoint_get(checkpoint, 0, &tensor));
	assert_says(tensor.path, "model-00001-of-00004.safetensors");
	nvs_checkpoint_close(checkpoint);
	write_all(100);
	OK(f, import_from(path_in(w.directory, "model.safetensors.index.json")));
	compare_all(1);
}

/* Readers differ in which of both forms they look for first. */
TEST(shards_and_a_single_file_replace_each_other)
{
	static const struct {
		uint64_t old, new;
		unsigned files;
	} ways[] = {{MIB, MIB, 5}, {MIB, 0, 1}, {0, MIB, 5}};

	for (size_t i = 0; i < COUNT(ways); i++) {
		write_all(1);
		OK(f, export_to(ways[i].old));
		write_all(100);
		OK(f, export_to(ways[i].new));
		assert_int_equal(entries_of(w.directory), ways[i].files);
		write_all(1);
		OK(f, import_from(w.path));
		compare_all(100);
	}
}

TEST(a_shape_must_be_that_of_the_tensor)
{
	const uint64_t shape[] = {64, 64}, wrong[] = {64, 63}, huge[] = {UINT64_MAX, 2};
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint *checkpoint;

	w.items[0].ndim = 2;
	w.items[0].shape = wrong;
	expect_error(f, export_to(0), -EINVAL, "4032 elements");
	w.items[0].shape = huge;
	expect_error(f, export_to(0), -EINVAL, "64 bits");
	w.items[0].shape = shape;
	OK(f, export_to(0));
	OK(f, nvs_checkpoint_open(&checkpoint, w.path, &f->error));
	OK(f, nvs_checkpoint_get(checkpoint, 0, &tensor));
	assert_int_equal(tensor.ndim, 2);
	assert_int_equal(tensor.shape[1], 64);
	assert_int_equal(nvs_checkpoint_get(checkpoint, N, &tensor), -ENOENT);
	nvs_checkpoint_close(checkpoint);
}

TEST(a_tensor_is_exported_with_its_own_shape)
{
	const uint64_t matrix[] = {8, 0, 3}, turned[] = {3, 0};
	const struct nvs_tensor_spec specs[] = {{.size = sizeof(specs[0]),
						 .name = "matrix",
						 .dtype = NVS_F32,
						 .shape = matrix,
						 .ndim = 3},
						{.size = sizeof(specs[0]),
						 .name = "scalar",
						 .dtype = NVS_F32,
						 .numel = 1,
						 .shape = matrix}};
	struct nvs_checkpoint_item items[3] = {
		{.size = sizeof(items[0])},
		{.size = sizeof(items[0])},
		{.size = sizeof(items[0]), .name = "turned", .shape = turned, .ndim = 2}};
	const struct nvs_checkpoint_item *const wanted[] = {
		&(struct nvs_checkpoint_item){.shape = matrix, .ndim = 3},
		&(struct nvs_checkpoint_item){.shape = matrix, .ndim = 0}, &items[2]};
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint *checkpoint;
	struct nvs_tensor *t[2];

	OK(f, nvs_tensor_register(f->engine, specs, 2, t, &f->error));
	for (unsigned i = 0; i < 2; i++)
		tensor_write(f, t[i], 1);
	for (unsigned i = 0; i < 3; i++)
		items[i].tensor = t[i % 2];
	OK(f, nvs_checkpoint_export(f->engine, items, 3, w.path, NULL, &f->error));
	OK(f, nvs_checkpoint_open(&checkpoint, w.path, &f->error));
	for (unsigned i = 0; i < 3; i++) {
		OK(f, nvs_checkpoint_get(checkpoint, i, &tensor));
		assert_int_equal(tensor.ndim, wanted[i]->ndim);
		assert_memory_equal(tensor.shape, wanted[i]->shape, 8 * tensor.ndim);
	}
	nvs_checkpoint_close(checkpoint);
}

/* Registers a tensor of 12 elements and imports "m" of the file into it. */
static int import_m(const struct nvs_checkpoint *checkpoint, const char *name,
		    const uint64_t *shape, size_t ndim, const uint64_t *of_item)
{
	const struct nvs_tensor_spec spec = {.size = sizeof(spec),
					     .name = name,
					     .dtype = NVS_F32,
					     .numel = 12,
					     .shape = shape,
					     .ndim = ndim};
	struct nvs_checkpoint_item item = {.size = sizeof(item), .name = "m", .shape = of_item};

	item.ndim = of_item ? 2 : 0;
	OK(f, nvs_tensor_register(f->engine, &spec, 1, &item.tensor, &f->error));
	return nvs_checkpoint_import(f->engine, checkpoint, &item, 1, &f->error);
}

TEST(a_tensor_of_another_shape_is_not_imported)
{
	const uint64_t tall[] = {4, 3}, wide[] = {3, 4}, deep[] = {4, 3, 1};
	const struct nvs_tensor_spec spec = {.size = sizeof(spec),
					     .name = "m",
					     .dtype = NVS_F32,
					     .numel = 12,
					     .shape = tall,
					     .ndim = 2};
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_checkpoint *checkpoint;

	OK(f, nvs_tensor_register(f->engine, &spec, 1, &item.tensor, &f->error));
	tensor_write(f, item.tensor, 1);
	OK(f, nvs_checkpoint_export(f->engine, &item, 1, w.path, NULL, &f->error));
	OK(f, nvs_checkpoint_open(&checkpoint, w.path, &f->error));
	expect_error(f, import_m(checkpoint, "wide", wide, 2, NULL), -ESTALE,
		     "m has the shape [4, 3] there, and [3, 4] here");
	expect_error(f, import_m(checkpoint, "deep", deep, 3, NULL), -ESTALE, "[4, 3, 1]");
	expect_error(f, import_m(checkpoint, "turned", tall, 2, wide), -ESTALE, "[3, 4]");
	OK(f, import_m(checkpoint, "same", tall, 2, NULL));
	OK(f, import_m(checkpoint, "by numel", NULL, 0, NULL));
	OK(f, import_m(checkpoint, "as the item", wide, 2, tall));
	nvs_checkpoint_close(checkpoint);
}

TEST(names_are_unique_and_utf8)
{
	w.items[3].name = "layer.5";
	expect_error(f, export_to(0), -EINVAL, "two tensors have the name layer.5");
	w.items[3].name = "\xff";
	expect_error(f, export_to(0), -EINVAL, "not UTF-8");
	w.items[3].name = "__metadata__";
	expect_error(f, export_to(0), -EINVAL, "can't be named");
	assert_int_equal(entries_of(w.directory), 0);
}

TEST(what_the_checkpoint_lacks_is_refused_before_anything_is_read)
{
	OK(f, export_to(0));
	write_all(100);
	w.items[N - 1].name = "other";
	expect_error(f, import_from(w.path), -ENOENT, "model.safetensors: no tensor other");
	w.items[N - 1].name = "layer.0";
	expect_error(f, import_from(w.path), -ESTALE, "model.safetensors: tensor layer.0 has");
	w.items[N - 1].name = NULL;
	compare_all(100);
}

TEST(a_second_writer_is_refused)
{
	int fd = open(path_in(w.directory, "model.safetensors.partial"), O_RDWR | O_CREAT, 0600);

	assert_int_equal(flock(fd, LOCK_EX), 0);
	expect_error(f, export_to(0), -EBUSY, "another process");
	close(fd);
	OK(f, export_to(0));
	assert_int_equal(entries_of(w.directory), 1);
}

/* Starts to write the form with an index when the call in progress is about to remove that form. */
struct rival {
	pthread_t thread;
	bool started, ended;
	int rc;
};

static void *export_shards(void *arg)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options), .shard_bytes = MIB};
	struct rival *rival = arg;

	rival->rc = nvs_checkpoint_export(f->engine, w.items, N, w.path, &options, NULL);
	return NULL;
}

static void start_rival(void *arg, struct inject_name *name)
{
	struct rival *rival = arg;
	struct timespec until;

	if (rival->started || name->change != INJECT_REMOVES || !strstr(name->path, ".index.json"))
		return;
	rival->started = true;
	assert_int_equal(pthread_create(&rival->thread, NULL, export_shards, rival), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	rival->ended = !pthread_timedjoin_np(rival->thread, NULL, &until);
}

/* Each form removes the other, so two calls at once must not remove both. */
TEST(of_two_forms_written_at_once_one_stays)
{
	struct rival rival = {0};
	struct inject_observer observer = {.arg = &rival, .before_name = start_rival};

	inject_observe(&observer);
	OK(f, export_to(0));
	if (!rival.ended)
		pthread_join(rival.thread, NULL);
	inject_observe(NULL);
	assert_true(rival.started);
	assert_int_equal(rival.rc, 0);
	assert_int_equal(entries_of(w.directory), 5);
	OK(f, import_from(path_in(w.directory, "model.safetensors.index.json")));
}

TEST(a_planted_link_is_not_followed)
{
	const char *victim = path_in(w.directory, "victim");

	write_text(victim, "");
	assert_int_equal(symlink(victim, path_in(w.directory, "model.safetensors.partial")), 0);
	expect_error(f, export_to(0), -ELOOP, "model.safetensors.partial");
}

/* Whether the first tensor is as that seed's. */
static bool filled_as(uint64_t seed)
{
	uint64_t pin;
	bool is;

	OK(f, nvs_tensor_swap_in(f->engine, &w.t[0], 1, -1, &pin, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &w.t[0], 1, pin, -1, &f->error));
	is = filled(nvs_tensor_data(w.t[0]), sizes[0], seed);
	OK(f, nvs_tensor_release(f->engine, &w.t[0], 1, pin, NVS_CLEAN, &f->error));
	return is;
}

/* Every call that can fail does so once: the files are the old ones or the new ones, without a
 * rest. */
TEST_WITH(each_failing_call_leaves_the_old_files_or_the_new, begin_in_memory, cleanup)
{
	uint64_t failed = 1, stored = 1, seed = 100;

	OK(f, export_to(MIB));
	for (uint64_t nth = 1; failed; nth += at_length(1, 3), seed = seed == 1 ? 100 : 1) {
		unsigned files = inject_held().files;
		int rc;

		write_all(seed);
		inject_fail(INJECT_MEMORY | INJECT_OPEN | INJECT_SYNC | INJECT_SPACE | INJECT_NAME,
			    nth, 1, ENOSPC);
		rc = export_to(MIB);
		inject_stop(&failed);
		assert_int_equal(inject_held().files, files);
		if (!rc)
			stored = seed;
		OK(f, import_from(w.path));
		if (rc && seed != stored && filled_as(seed))
			stored = seed; /* only the directory could not be synced */
		compare_all(stored);
		assert_true(rc || !failed || nth < 2000);
	}
	/* Replaced files stay if the directory could not be opened and synced, and an empty draft
	 * if it could not be looked at. */
	assert_in_range(entries_of(w.directory), 5, 30);
}

TEST(a_signal_while_space_is_reserved_ends_no_export)
{
	uint64_t failed;

	write_all(1);
	/* A file is emptied before. */
	inject_fail(INJECT_SPACE, 2, 1, EINTR);
	OK(f, export_to(MIB));
	inject_stop(&failed);
	assert_int_equal(failed, 1);
	assert_string_equal(inject_failed_call(), "fallocate");
}

/* Whether what a reader finds by that name is whole, and of which seed. */
static uint64_t seed_in(const char *path)
{
	uint64_t seed;

	write_all(50);
	OK(f, import_from(path));
	seed = filled_as(1) ? 1 : 100;
	compare_all(seed);
	return seed;
}

/* The same where the new checkpoint has the other form; and readers of either form find a whole
 * one. */
static void fail_calls_of_replacing(uint64_t old_shard_bytes, uint64_t new_shard_bytes)
{
	uint64_t failed = 1;
	const char *index = path_in(w.directory, "model.safetensors.index.json");
	for (uint64_t nth = 1; failed; nth += at_length(1, 3)) {
		int rc;

		write_all(1);
		OK(f, export_to(old_shard_bytes));
		write_all(100);
		inject_fail(INJECT_OPEN | INJECT_SYNC | INJECT_NAME, nth, 1, EIO);
		rc = export_to(new_shard_bytes);
		inject_stop(&failed);
		if (access(index, F_OK) == 0)
			assert_true(seed_in(index) == 100 || rc);
		assert_true(seed_in(w.path) == 100 || rc);
		assert_true(rc || !failed || nth < 2000);
	}
	assert_in_range(entries_of(w.directory), new_shard_bytes ? 5 : 1, 30);
}

/* Ends the process before a change of names. */
struct killer {
	unsigned changes, last;
};

static void kill_at_name(void *arg, struct inject_name *name)
{
	struct killer *killer = arg;

	if (strstr(name->path, "model") && ++killer->changes == killer->last)
		kill(getpid(), SIGKILL);
}

/* Whether a child that exports shards of seed 100 was killed before change number `last`. */
static bool export_and_kill(unsigned last)
{
	struct killer killer = {.last = last};
	const struct inject_observer observer = {.arg = &killer, .before_name = kill_at_name};
	int status;
	pid_t child = fork();

	if (!child) {
		const char *path = w.path;

		begin(NULL);
		w.path = path;
		write_all(100);
		inject_observe(&observer);
		_exit(export_to(MIB) != 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	return WIFSIGNALED(status);
}

TEST(the_next_export_replaces_what_a_killed_one_has_left)
{
	bool killed = true;
	unsigned last;

	OK(f, export_to(MIB));
	for (last = 1; killed; last++) {
		killed = export_and_kill(last);
		(void)seed_in(w.path); /* whole */
		write_all(1);
		OK(f, export_to(MIB));
		assert_int_equal(entries_of(w.directory), 5);
		OK(f, import_from(w.path));
		compare_all(1);
	}
	assert_in_range(last, 10, 100);
}

TEST_WITH(a_failing_call_leaves_shards_or_a_single_file_or_the_form_that_replaces_it,
	  begin_in_memory, cleanup)
{
	fail_calls_of_replacing(MIB, 0);
	fail_calls_of_replacing(0, MIB);
}

/* Names that were changed and not synced since. */
struct names {
	bool renamed, removed;
	unsigned removals;
};

static void name_synced(void *arg, int fd)
{
	struct names *names = arg;
	struct stat status;

	assert_int_equal(fstat(fd, &status), 0);
	if (S_ISDIR(status.st_mode))
		names->renamed = names->removed = false;
}

static void before_name(void *arg, struct inject_name *name)
{
	const struct names *names = arg;

	if (name->change == INJECT_REMOVES)
		assert_false(names->renamed);
}

static void after_name(void *arg, struct inject_name *name, bool done)
{
	struct names *names = arg;

	names->renamed |= done && name->change == INJECT_RENAMES;
	/* Readers find the checkpoint by one of these; shards may return. */
	if (done && name->change == INJECT_REMOVES && !strstr(name->path, "-of-")) {
		names->removed = true;
		names->removals++;
	}
}

TEST(the_old_form_is_removed_durably_once_the_new_one_is_durable)
{
	const uint64_t shard_bytes[] = {0, MIB, 0};
	struct names names = {0};
	const struct inject_observer observer = {.arg = &names,
						 .synced = name_synced,
						 .before_name = before_name,
						 .after_name = after_name};

	inject_observe(&observer);
	for (size_t i = 0; i < COUNT(shard_bytes); i++) {
		OK(f, export_to(shard_bytes[i]));
		assert_false(names.renamed || names.removed);
	}
	inject_observe(NULL);
	assert_int_equal(names.removals, 2);
}

TEST(a_failed_import_leaves_nothing_pinned)
{
	struct inject_observer observer = {.before_open = truncate_before_reading};

	struct nvs_checkpoint *checkpoint;

	OK(f, export_to(0));
	OK(f, nvs_checkpoint_open(&checkpoint, w.path, &f->error));
	observer.arg = (void *)(uintptr_t)w.path;
	inject_observe(&observer);
	FAILS(f, -ENODATA, "model.safetensors", nvs_checkpoint_import, checkpoint, w.items, N);
	inject_observe(NULL);
	nvs_checkpoint_close(checkpoint);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(info_of(f, w.t[i]).pins, 0);
}

/* Tensors of one size in another order, so that nothing but the file's identity differs. */
TEST(a_file_that_was_replaced_since_it_was_opened_is_not_imported)
{
	static const char *const names[] = {"m.safetensors", "m.pt"};
	const uint64_t sizes_of_two[2] = {65536, 65536};
	struct nvs_checkpoint_item items[2], reversed[2];
	struct nvs_checkpoint *checkpoint;
	struct nvs_tensor *t[2];

	tensors_add(f, "twin.", sizes_of_two, 2, t);
	for (unsigned i = 0; i < 2; i++)
		reversed[1 - i] = items[i] = (struct nvs_checkpoint_item){.size = sizeof(items[i]),
									  .tensor = t[i]};
	for (size_t i = 0; i < COUNT(names); i++) {
		const char *path = path_in(w.directory, names[i]);

		tensor_write(f, t[0], 1);
		tensor_write(f, t[1], 2);
		OK(f, nvs_checkpoint_export(f->engine, items, 2, path, NULL, &f->error));
		OK(f, nvs_checkpoint_open(&checkpoint, path, &f->error));
		OK(f, nvs_checkpoint_export(f->engine, reversed, 2, path, NULL, &f->error));
		tensor_write(f, t[0], 3);
		FAILS(f, -ESTALE, names[i], nvs_checkpoint_import, checkpoint, items, 2);
		tensor_compare(f, t[0], 3);
		nvs_checkpoint_close(checkpoint);
		OK(f, nvs_checkpoint_open(&checkpoint, path, &f->error));
		OK(f, nvs_checkpoint_import(f->engine, checkpoint, items, 2, &f->error));
		tensor_compare(f, t[0], 1);
		nvs_checkpoint_close(checkpoint);
	}
}

TEST(files_that_were_written_to_since_they_were_opened_are_not_imported)
{
	static const uint64_t shard_bytes[] = {0, 2 * MIB};
	static const char *const names[] = {"model.safetensors",
					    "model-00002-of-00002.safetensors"};
	struct nvs_checkpoint *checkpoint;

	for (size_t i = 0; i < COUNT(shard_bytes); i++) {
		const char *path = path_in(w.directory, names[i]);

		OK(f, export_to(shard_bytes[i]));
		OK(f, nvs_checkpoint_open(&checkpoint, w.path, &f->error));
		assert_int_equal(truncate(path, 100000), 0);
		write_all(100);
		FAILS(f, -ESTALE, names[i], nvs_checkpoint_import, checkpoint, w.items, N);
		compare_all(100);
		nvs_checkpoint_close(checkpoint);
	}
}
