/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scale: the hot path does not allocate once tensors are registered, and one call registers a
 * million tensors. Allocations are counted by interposing the C library's functions, except under
 * sanitizers, which interpose them too.
 */
#include "swap/swap_fixture.h"

#include <sys/statvfs.h>

ONE_ENGINE

/* ---- Allocations ---- */

#if !SANITIZED
void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *data, size_t nbytes);

static bool counting;
static uint64_t allocations;

static void count(void)
{
	if (__atomic_load_n(&counting, __ATOMIC_RELAXED))
		__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
}

/* Exported, so that the C library's own calls are counted as well. */
NVS_API void *malloc(size_t nbytes)
{
	count();
	return __libc_malloc(nbytes);
}

NVS_API void *calloc(size_t n, size_t nbytes)
{
	count();
	return __libc_calloc(n, nbytes);
}

NVS_API void *realloc(void *data, size_t nbytes)
{
	count();
	return __libc_realloc(data, nbytes);
}
#endif

#define N	1024
#define BATCHES 400

/* Uses nothing of cmocka, which allocates. */
static int swap_around(struct nvs_tensor **t, char *memory, uint64_t *seed)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	void *data[16];
	int rc = 0;

	for (int i = 0; i < 16; i++)
		data[i] = memory + i * 5000 + 3;
	for (int turn = 0; turn < BATCHES && !rc; turn++) {
		size_t n = 1 + below(seed, turn % 4 ? 40 : N / 4);

		if (turn % 8 == 0)
			shuffle(t, N, seed);
		rc = sole_swap_in(f->engine, t, n, -1, &f->error)
			     ?: sole_wait(f->engine, t, n, -1, &f->error)
			     ?: sole_release(f->engine, t, n, turn % 3 ? NVS_DIRTY : NVS_CLEAN,
					     &f->error)
			     ?: (turn % 2 ? nvs_tensor_swap_out(f->engine, t, n, &f->error) : 0);
		if (!rc && nvs_tensor_prefetch(f->engine, t + n, n, &f->error) < 0)
			rc = f->error.code;
		rc = rc ?: sole_wait(f->engine, t, N, -1, &f->error)
			?: nvs_tensor_swap_in_to(f->engine, t, data, 16, &f->error)
			?: sole_wait(f->engine, t, 16, -1, &f->error)
			?: nvs_tensor_swap_out_from(f->engine, t, (const void *const *)data, 16,
						    &f->error)
			?: sole_wait(f->engine, t, 16, -1, &f->error);
		if (turn % 10 == 0)
			rc = rc ?: sole_pin(f->engine, t, n, -1, &f->error)
				?: sole_release(f->engine, t, n, NVS_CLEAN, &f->error);
		nvs_engine_get_stats(f->engine, &stats);
	}
	return rc;
}

static void the_hot_path_allocates_nothing(const struct setup *setup)
{
	static struct nvs_tensor *t[N];
	static uint64_t nbytes[N];
	static char memory[16 * 5000 + 16];
	uint64_t seed = seed_of_run();
	int rc;

	fixture_open(f, setup);
	for (size_t i = 0; i < N; i++)
		nbytes[i] = below(&seed, 5000);
	tensors_add(f, "t", nbytes, N, t);
	tensors_store(f, t, N, 0);
	rc = swap_around(t, memory, &seed);
	OK(f, rc);
#if !SANITIZED
	allocations = 0;
	__atomic_store_n(&counting, true, __ATOMIC_RELAXED);
	rc = swap_around(t, memory, &seed);
	__atomic_store_n(&counting, false, __ATOMIC_RELAXED);
	OK(f, rc);
	assert_int_equal(allocations, 0);
#endif
	fixture_close(f);
}

TEST(swapping_allocates_nothing)
{
	for (int i = NVS_IOENGINE_IO_URING; i < NVS_IOENGINE_COUNT; i++)
		the_hot_path_allocates_nothing(&(struct setup){.place = PLACE_TMPFS,
							       .pool_bytes = 2 * MIB,
							       .verify = true,
							       .thread_count = 2,
							       .ioengine = (enum nvs_ioengine)i});
	the_hot_path_allocates_nothing(
		&(struct setup){.place = PLACE_EXT4, .pool_bytes = 2 * MIB, .npaths = 2});
}

/* ---- A million tensors ---- */

#define MANY (SANITIZED ? 100000 : 1000000)

static bool has_space(const char *path, uint64_t nbytes)
{
	struct statvfs vfs;

	return !statvfs(path, &vfs) && (uint64_t)vfs.f_bavail * vfs.f_frsize >= nbytes;
}

static struct nvs_tensor_spec *many_specs(char (**names)[24])
{
	struct nvs_tensor_spec *specs = calloc(MANY, sizeof(*specs));

	*names = calloc(MANY, sizeof(**names));
	assert_true(specs && *names);
	for (size_t i = 0; i < MANY; i++) {
		snprintf((*names)[i], sizeof((*names)[i]), "layer.%zu.weight", i);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = (*names)[i],
						    .dtype = NVS_F32,
						    .numel = 1 + i % 1024};
	}
	return specs;
}

TEST(a_million_tensors_are_registered_in_one_call)
{
	struct nvs_tensor_spec *specs;
	struct nvs_tensor **t = calloc(MANY, sizeof(*t));
	char(*names)[24];
	uint64_t begun, seed = seed_of_run();

	assert_non_null(t);
	INIT(f, .place = PLACE_DISK, .block_size = MIB);
	if (!has_space(f->paths[0], 6 * GIB)) {
		print_message("%s has less than 6 GiB free\n", f->paths[0]);
		fixture_close(f);
		free(t);
		skip();
	}
	OK(f, fixture_reopen(f));
	specs = many_specs(&names);
	begun = clock_ns();
	OK(f, nvs_tensor_register(f->engine, specs, MANY, t, &f->error));
	print_message("%d tensors registered in %.2f s\n", MANY,
		      (double)(clock_ns() - begun) / 1e9);
	for (int k = 0; k < 1000; k++) {
		size_t i = below(&seed, MANY);

		assert_ptr_equal(nvs_tensor_find(f->engine, names[i]), t[i]);
		tensor_write(f, t[i], i);
		if (k % 10 == 0)
			tensor_compare(f, t[i], i);
	}
	begun = clock_ns();
	OK(f, nvs_tensor_forget(f->engine, t, MANY, &f->error));
	print_message("forgotten in %.2f s\n", (double)(clock_ns() - begun) / 1e9);
	begun = clock_ns();
	fixture_close(f);
	print_message("closed in %.2f s\n", (double)(clock_ns() - begun) / 1e9);
	free(specs);
	free(names);
	free(t);
}
