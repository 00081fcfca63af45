/* SPDX-License-Identifier: Apache-2.0 */
/* NULL arguments and invalid enumerators of the functions of tensors: errors, never a crash. */
#include <errno.h>

#include "support/tests.h"
#include "swap/swap_fixture.h"

ONE_ENGINE

#define PART (64 * KIB)

typedef long call(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n);

static char memory[PART];

static long register_(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	(void)tensors;
	return nvs_tensor_register(engine, NULL, n, NULL, NULL);
}

static long forget(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	return nvs_tensor_forget(engine, tensors, n, NULL);
}

static long pin(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	uint64_t pin;

	return nvs_tensor_pin(engine, tensors, n, -1, &pin, NULL);
}

static long swap_in(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	uint64_t pin;

	return nvs_tensor_swap_in(engine, tensors, n, -1, &pin, NULL);
}

static long prefetch(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	return nvs_tensor_prefetch(engine, tensors, n, NULL);
}

static long wait_(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	return nvs_tensor_wait(engine, tensors, n, 0, -1, NULL);
}

static long release(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	return nvs_tensor_release(engine, tensors, n, 1, NVS_CLEAN, NULL);
}

static long swap_out(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	return nvs_tensor_swap_out(engine, tensors, n, NULL);
}

static long swap_out_from(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	const void *data[] = {memory, memory};

	return nvs_tensor_swap_out_from(engine, tensors, data, n, NULL);
}

static long swap_in_to(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	void *data[] = {memory, memory};

	return nvs_tensor_swap_in_to(engine, tensors, data, n, NULL);
}

static call *const calls[] = {register_, forget,  pin,	    swap_in,	   prefetch,
			      wait_,	 release, swap_out, swap_out_from, swap_in_to};

TEST(null_arguments_are_refused)
{
	struct nvs_tensor *tensors[2] = {NULL, NULL};

	OPEN(f, .place = PLACE_DISK);
	tensors[0] = tensor_add(f, "t", PART);
	tensor_store(f, tensors[0], 1);
	for (size_t i = 0; i < LENGTH(calls); i++) {
		assert_int_equal(calls[i](NULL, tensors, 1), -EINVAL);
		assert_int_equal(calls[i](f->engine, NULL, 1), -EINVAL);
		assert_int_equal(calls[i](f->engine, tensors, 2), -EINVAL);
	}
	STATE(f, tensors[0], NVS_ON_DRIVE, false, 0);
	assert_null(nvs_tensor_data(NULL));
	assert_null(nvs_tensor_find(NULL, "t"));
	assert_null(nvs_tensor_find(f->engine, NULL));
}

TEST(tensors_of_another_engine_are_refused)
{
	struct fixture other;
	struct nvs_tensor *tensors[2];
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_tensor_range range = {sizeof(range), NULL, 0, 1, memory};

	OPEN(f, .place = PLACE_DISK);
	OPEN(&other, .place = PLACE_DISK);
	tensors[0] = tensor_add(f, "t", PART);
	tensors[1] = range.tensor = tensor_add(&other, "u", PART);
	tensor_store(f, tensors[0], 1);
	tensor_store(&other, tensors[1], 2);
	for (size_t i = 0; i < LENGTH(calls); i++)
		assert_int_equal(calls[i](f->engine, tensors, 2), -EINVAL);
	assert_int_equal(nvs_tensor_get_info(f->engine, tensors[1], &info), -EINVAL);
	FAILS(f, -EINVAL, "another engine", nvs_tensor_rename, tensors[1], "v");
	FAILS(f, -EINVAL, "another engine", nvs_tensor_read, &range, 1);
	tensor_compare(f, tensors[0], 1);
	tensor_compare(&other, tensors[1], 2);
	fixture_close(&other);
}

TEST(external_memory_that_is_null_is_refused)
{
	void *to = NULL;
	const void *from = NULL;
	struct nvs_tensor *t = OPEN_ONE(f, PART, .place = PLACE_DISK);

	tensor_store(f, t, 1);
	assert_int_equal(nvs_tensor_swap_out_from(f->engine, &t, NULL, 1, NULL), -EINVAL);
	assert_int_equal(nvs_tensor_swap_in_to(f->engine, &t, NULL, 1, NULL), -EINVAL);
	FAILS(f, -EINVAL, "t", nvs_tensor_swap_out_from, &t, &from, 1);
	FAILS(f, -EINVAL, "t", nvs_tensor_swap_in_to, &t, &to, 1);
	tensor_compare(f, t, 1);
}

TEST(a_release_that_is_neither_clean_nor_dirty_is_refused)
{
	uint64_t pin;
	struct nvs_tensor *t = OPEN_ONE(f, PART, .place = PLACE_DISK);

	OK(f, nvs_tensor_pin(f->engine, &t, 1, 0, &pin, &f->error));
	FAILS(f, -EINVAL, "how", nvs_tensor_release, &t, 1, pin, (enum nvs_how)2);
	STATE(f, t, NVS_RESIDENT, false, 1);
	OK(f, nvs_tensor_release(f->engine, &t, 1, pin, NVS_CLEAN, &f->error));
}
