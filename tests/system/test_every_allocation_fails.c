/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th allocation of memory, mappings or threads fails, for n = 1, 2, 3, ... until a call makes
 * no more, in every public call that allocates. Each time, the call returns an error and changes
 * nothing, or continues with less and logs it. The hot path allocates nothing.
 */

#include "system/kernel/kernel_drive.h"
#include "system/nth_fixture.h"

/* ---- Transfers ---- */

struct aio_way {
	struct aio_config config;
	char *path;
	struct nvs_aio *aio; /* used by open_file() */
};

static int open_aio(void *arg, struct nvs_error *error)
{
	static _Alignas(4096) char data[64 * KIB];
	struct aio_way *way = arg;
	struct nvs_file *file;
	struct nvs_aio *aio;
	int rc = aio_open_with(&aio, &way->config, NULL, NULL, NULL, error);

	if (rc)
		return rc;
	inject_pause();
	SUCCEEDS(nvs_file_open(aio, way->path, NVS_FILE_WRITE | NVS_FILE_CREATE, &file, error),
		 error);
	fill(data, sizeof(data), 1);
	SUCCEEDS(nvs_aio_pwrite(aio, file, data, sizeof(data), 0, NULL, error), error);
	SUCCEEDS(nvs_aio_wait_all(aio, -1, NULL, error), error);
	memset(data, 0, sizeof(data));
	SUCCEEDS(nvs_aio_pread(aio, file, data, sizeof(data), 0, NULL, error), error);
	SUCCEEDS(nvs_aio_wait_all(aio, -1, NULL, error), error);
	assert_true(filled(data, sizeof(data), 1));
	nvs_file_close(file);
	inject_resume();
	nvs_aio_close(aio);
	return 0;
}

static int open_file(void *arg, struct nvs_error *error)
{
	struct aio_way *way = arg;
	struct nvs_file *file;
	int rc = nvs_file_open(way->aio, way->path, NVS_FILE_WRITE | NVS_FILE_CREATE, &file, error);

	if (!rc)
		nvs_file_close(file);
	return rc;
}

/*
 * Without locking or registration, I/O is slower; so are a bounce buffer that a fork copies and a
 * queue with fewer threads.
 */
static bool only_slower(const char *call)
{
	return !strcmp(call, "mlock") || !strcmp(call, "madvise") ||
	       !strncmp(call, "io_uring_register", 17);
}

static bool only_slower_or_fewer(const char *call)
{
	return only_slower(call) || !strcmp(call, "pthread_create");
}

TEST(all_workers_start_or_none)
{
	char *directory = place_make(PLACE_DISK), path[256];
	struct aio_way way = {.config = {.block_size = 16 * KIB,
					 .queue_depth = 4,
					 .thread_count = 2,
					 .overlap_events = true},
			      .path = path};

	assert_non_null(directory);
	snprintf(path, sizeof(path), "%s/file", directory);
	for (int i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++) {
		way.config.ioengine = (enum nvs_ioengine)i;
		if (engine_works(way.config.ioengine))
			fail_each(open_aio, &way, INJECT_ALLOCATIONS | INJECT_QUEUE, ENOMEM,
				  i == NVS_IOENGINE_POSIX ? only_slower_or_fewer : only_slower);
	}
	/* auto skips an engine that has no memory, and takes the next. */
	way.config.ioengine = NVS_IOENGINE_AUTO;
	fail_each(open_aio, &way, INJECT_ALLOCATIONS | INJECT_QUEUE, ENOMEM, survives_all);
	assert_int_equal(aio_open_with(&way.aio, &way.config, NULL, NULL, NULL, NULL), 0);
	assert_int_equal(fail_each(open_file, &way, INJECT_ALLOCATIONS, ENOMEM, NULL), 2);
	nvs_aio_close(way.aio);
	place_leave(directory);
}

#define MANY 300 /* more than the tables' initial room */

TEST(all_or_none_are_registered)
{
	static const uint64_t square[] = {10, 10};
	static char names[MANY][sizeof("many.-2147483648")];
	struct nvs_tensor_spec specs[MANY];
	struct nvs_tensor *tensors[MANY];
	struct inject_held before;
	uint64_t failed = 1, n = 1;
	char store[512];
	struct world w;
	int rc;

	for (int i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof(names[i]), "many.%d", i);
		specs[i] = (struct nvs_tensor_spec){sizeof(*specs),	    names[i], NVS_BF16, 100,
						    i % 50 ? NULL : square, 2};
	}
	world_make(&w, &(const struct setup){.place = PLACE_TMPFS, SMALL});
	w.error = ENOMEM;
	fixture_store_file(&w.f, ".", store);
	before = inject_held();
	/* Most allocations are alike: fail the first ones, some in the middle, and the last. */
	for (; failed && n < N_LIMIT; n += n < 20 || n > 3 * MANY - 5 ? 1 : 29) {
		w.f.config.keep = n % 2;
		OK(&w.f, world_try_open(&w));
		world_add_tensors(&w);
		world_swaps(&w);
		inject_fail(INJECT_ALLOCATIONS, n, 1, ENOMEM);
		rc = nvs_tensor_register(w.f.engine, specs, MANY, tensors, &w.f.error);
		inject_stop(&failed);
		assert_int_equal(world_failed(&w, rc), failed != 0);
		for (int i = 0; i < MANY && rc; i++)
			assert_null(nvs_tensor_find(w.f.engine, names[i]));
		if (rc)
			OK(&w.f, nvs_tensor_register(w.f.engine, specs, MANY, tensors, &w.f.error));
		tensor_store(&w.f, tensors[MANY - 1], n);
		tensor_compare(&w.f, tensors[MANY - 1], n);
		OK(&w.f, nvs_tensor_forget(w.f.engine, tensors, MANY, &w.f.error));
		assert_int_equal(stats_of(&w.f).tensors, TENSORS);
		world_check_all(&w);
		engine_abandon(w.f.engine);
		fixture_shut(&w.f);
		/* The store is kept, so remove it before the next attempt. */
		(void)remove_tree(store);
		assert_same_held(&before, "registering", n);
	}
	assert_true(n > 3 * MANY && !failed);
	fixture_close(&w.f);
}

/* In three steps a plan is recorded and followed; without memory there is no plan and no error. */
TEST(a_step_without_memory_for_its_plan_is_served)
{
	uint64_t failed = 1;
	struct world w;

	world_make(&w, &(const struct setup){.place = PLACE_TMPFS, SMALL});
	for (uint64_t n = 1; failed; n++) {
		OK(&w.f, world_try_open(&w));
		world_add_tensors(&w);
		world_swaps(&w);
		inject_fail(INJECT_ALLOCATIONS, n, 1, ENOMEM);
		for (int i = 0; i < 3; i++)
			world_step(&w);
		inject_stop(&failed);
		assert_int_equal(w.failures, 0);
		events_await_idle(w.f.engine);
		if (failed)
			assert_says(w.f.log, "out of memory");
		else
			assert_true(n > 5);
		world_check_all(&w);
		fixture_shut(&w.f);
	}
	fixture_close(&w.f);
}

/* ---- The hot path ---- */

static void everything_hot(struct world *w)
{
	static char memory[TENSORS][PART];
	struct nvs_tensor_range ranges[TENSORS];
	const void *from[TENSORS];
	void *to[TENSORS];

	world_swaps(w);
	for (unsigned i = 0; i < TENSORS; i++) {
		from[i] = to[i] = memory[i];
		ranges[i] = (struct nvs_tensor_range){
			.size = sizeof(*ranges), .tensor = w->t[i], .nbytes = 1, .data = memory[i]};
	}
	tensors_swap_out(&w->f, w->t, TENSORS);
	OK(&w->f, nvs_tensor_swap_in_to(w->f.engine, w->t, to, TENSORS, &w->f.error));
	OK(&w->f, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
	OK(&w->f, nvs_tensor_swap_out_from(w->f.engine, w->t, from, TENSORS, &w->f.error));
	OK(&w->f, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
	OK(&w->f, nvs_tensor_read(w->f.engine, ranges, TENSORS, &w->f.error));
	OK(&w->f, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
	OK(&w->f, nvs_tensor_write(w->f.engine, ranges, 2, -1, &w->f.error));
	assert_true(nvs_tensor_prefetch(w->f.engine, w->t, TENSORS, &w->f.error) > 0);
	world_step(w);
	world_step(w);
	OK(&w->f, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
}

static void no_allocation_when_hot(struct world *w, const char *engine)
{
	uint64_t allocated;

	/* The first step records the plan. */
	everything_hot(w);
	inject_fail(INJECT_ALLOCATIONS | INJECT_OPEN, 0, 0, ENOMEM);
	for (int i = 0; i < 3; i++)
		everything_hot(w);
	allocated = inject_stop(NULL);
	if (allocated)
		fail_msg("with %s the hot path allocated %" PRIu64 " times", engine, allocated);
	assert_int_equal(w->failures, 0);
}

TEST(the_hot_path_allocates_nothing)
{
	struct world w;

	for (int keep = 0; keep < 2; keep++) {
		struct setup setup = {.place = PLACE_DISK, SMALL, .keep = keep, .thread_count = 2};

		world_open(&w, &setup);
		no_allocation_when_hot(&w, "the simulated drive");
		fixture_close(&w.f);
		for (int i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++) {
			setup.ioengine = (enum nvs_ioengine)i;
			if (!engine_works(setup.ioengine))
				continue;
			world_make(&w, &setup);
			OK(&w.f, nvs_engine_open(&w.f.engine, &w.f.config, NVS_OFFLOAD_PARAM,
						 &w.f.error));
			world_add_tensors(&w);
			no_allocation_when_hot(&w, nvs_ioengine_name(setup.ioengine));
			fixture_close(&w.f);
		}
	}
}
