/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes of tensors: given at registration, told by nvs_tensor_get_info, kept by a kept store and
 * replaced by another registration.
 */
#include "swap/swap_fixture.h"

ONE_ENGINE

static const uint64_t matrix[] = {3, 4, 5}, turned[] = {12, 5}, empty[] = {7, 0, 2}, line[] = {60};

static int try_add(const char *name, uint64_t numel, const uint64_t *shape, size_t ndim,
		   struct nvs_tensor **tensor)
{
	const struct nvs_tensor_spec spec = {sizeof(spec), name, NVS_U8, numel, shape, ndim};

	return nvs_tensor_register(f->engine, &spec, 1, tensor, &f->error);
}

static struct nvs_tensor *add(const char *name, uint64_t numel, const uint64_t *shape, size_t ndim)
{
	struct nvs_tensor *tensor;

	OK(f, try_add(name, numel, shape, ndim, &tensor));
	return tensor;
}

static void expect_dimensions(const uint64_t *got, size_t ngot, const uint64_t *shape, size_t ndim)
{
	assert_int_equal(ngot, ndim);
	assert_non_null(got);
	assert_memory_equal(got, shape, ndim * sizeof(*shape));
}

static void expect_shape(struct nvs_tensor *tensor, const uint64_t *shape, size_t ndim)
{
	struct nvs_tensor_info info = info_of(f, tensor);

	expect_dimensions(info.shape, info.ndim, shape, ndim);
}

/* Of a tensor that the store held when it was opened. */
static void expect_stored(const char *name, const uint64_t *shape, size_t ndim)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};

	for (size_t i = 0; !nvs_engine_get_stored(f->engine, i, &stored); i++)
		if (!strcmp(stored.name, name)) {
			expect_dimensions(stored.shape, stored.ndim, shape, ndim);
			return;
		}
	fail_msg("%s is not in the store", name);
}

TEST(a_tensor_has_the_shape_it_is_registered_with)
{
	uint64_t given[] = {3, 4, 5};
	struct nvs_tensor *t;

	OPEN(f, .place = PLACE_DISK);
	t = add("matrix", 60, given, 3);
	/* The shape was copied. */
	memset(given, 0xff, sizeof(given));
	expect_shape(t, matrix, 3);
	expect_shape(add("empty", 0, empty, 3), empty, 3);
	expect_shape(add("line", 60, line, 1), line, 1);
	expect_shape(add("scalar", 1, given, 0), given, 0);
	expect_shape(add("without", 60, NULL, 0), line, 1);
	OK(f, nvs_tensor_rename(f->engine, t, "renamed", &f->error));
	expect_shape(t, matrix, 3);
	OK(f, nvs_tensor_forget(f->engine, &t, 1, &f->error));
}

TEST(a_shape_of_another_number_of_elements_is_refused)
{
	const uint64_t wraps[] = {UINT64_C(1) << 63, 2}, wraps_to_0[] = {UINT64_C(1) << 63, 2, 0};
	uint64_t ones[NVS_NDIM_MAX + 1];
	struct nvs_tensor *t;

	OPEN(f, .place = PLACE_DISK);
	for (size_t i = 0; i < NVS_NDIM_MAX + 1; i++)
		ones[i] = 1;
	expect_error(f, try_add("t", 61, matrix, 3, &t), -EINVAL, "60 elements");
	expect_error(f, try_add("t", 60, matrix, 2, &t), -EINVAL, "12 elements");
	expect_error(f, try_add("t", 0, matrix, 0, &t), -EINVAL, "1 elements");
	expect_error(f, try_add("t", 0, wraps, 2, &t), -EINVAL, "64 bits");
	expect_error(f, try_add("t", 0, wraps_to_0, 3, &t), -EINVAL, "64 bits");
	expect_error(f, try_add("t", 1, ones, NVS_NDIM_MAX + 1, &t), -EINVAL, "65 dim");
	assert_null(nvs_tensor_find(f->engine, "t"));
	expect_shape(add("t", 1, ones, NVS_NDIM_MAX), ones, NVS_NDIM_MAX);
}

/* ---- Kept stores ---- */

TEST(a_kept_store_keeps_shapes)
{
	OPEN(f, .place = PLACE_DISK, .keep = true);
	tensor_write(f, add("matrix", 60, matrix, 3), 1);
	add("empty", 0, empty, 3);
	add("scalar", 1, matrix, 0);
	add("line", 60, line, 1);
	for (unsigned again = 0; again < 2; again++) {
		fixture_again(f);
		expect_stored("matrix", matrix, 3);
		expect_stored("empty", empty, 3);
		expect_stored("scalar", NULL, 0);
		expect_stored("line", line, 1);
		/* A registration without a shape leaves the one that the store has. */
		expect_shape(add("matrix", 60, NULL, 0), matrix, 3);
		expect_shape(add("empty", 0, NULL, 0), empty, 3);
		expect_shape(add("scalar", 1, NULL, 0), matrix, 0);
	}
	tensor_compare(f, nvs_tensor_find(f->engine, "matrix"), 1);
	assert_int_equal(nvs_engine_generation(f->engine), 1);
}

TEST(another_shape_replaces_that_of_a_kept_tensor_with_the_next_commit)
{
	struct nvs_tensor *t;

	OPEN(f, .place = PLACE_DISK, .keep = true);
	tensor_write(f, add("t", 60, matrix, 3), 1);
	fixture_again(f);
	t = add("t", 60, turned, 2);
	expect_shape(t, turned, 2);
	tensor_compare(f, t, 1);
	/* Without a commit the store has the shape of before. */
	fixture_crash(f);
	expect_stored("t", matrix, 3);
	add("t", 60, line, 1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	assert_int_equal(nvs_engine_generation(f->engine), 2);
	fixture_again(f);
	expect_stored("t", line, 1);
	tensor_compare(f, add("t", 60, NULL, 0), 1);
	/* Nothing of a store that is only read is replaced. */
	f->config.keep = false;
	fixture_read_only(f);
	expect_shape(add("t", 60, turned, 2), turned, 2);
	fixture_again(f);
	expect_stored("t", line, 1);
}

/* The first specification is right, and fits a tensor that the store holds. */
TEST(a_failed_registration_leaves_the_shapes)
{
	struct nvs_tensor_spec specs[] = {{sizeof(specs[0]), "t", NVS_U8, 60, turned, 2},
					  {sizeof(specs[0]), "other", NVS_U8, 61, matrix, 3}};
	struct nvs_tensor *t[2];

	OPEN(f, .place = PLACE_DISK, .keep = true);
	add("t", 60, matrix, 3);
	fixture_again(f);
	FAILS(f, -EINVAL, "60 elements", nvs_tensor_register, specs, 2, t);
	specs[1].numel = 60;
	specs[1].dtype = NVS_F64;
	specs[1].name = "t";
	FAILS(f, -EEXIST, "already", nvs_tensor_register, specs, 2, t);
	expect_shape(add("t", 60, NULL, 0), matrix, 3);
}
