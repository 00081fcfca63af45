/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures of callers begin with their size. Programs built against an older header with smaller
 * structures keep working, and so do those built against a newer one, unless they use a field that
 * this library does not know: test_extremes passes each structure that a caller fills in so.
 */
#include "base/struct_size.h"

#include "base/error.h"
#include "project/objects_fixture.h"

#define GUARD 0xa5

/* The offset behind a field: the size of the structure in a header that ended with it. */
#define THROUGH(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

/* The bytes from `size` on must be unchanged. */
static void expect_unwritten(const void *structure, size_t size, size_t full)
{
	const unsigned char *bytes = structure;

	for (size_t i = size; i < full; i++)
		assert_int_equal(bytes[i], GUARD);
}

TEST(an_error_is_written_within_its_size_if_it_has_one)
{
	struct {
		struct nvs_error known;
		unsigned char unknown[64];
	} error;
	const struct nvs_error *known = &error.known;

	for (size_t size = 0; size <= sizeof(error); size++) {
		size_t written = size < sizeof(*known) ? size : sizeof(*known);

		memset(&error, GUARD, sizeof(error));
		error.known.size = size;
		assert_int_equal(nvs_config_load(config, "/nonexistent.json", &error.known),
				 -ENOENT);
		assert_int_equal(known->size, size);
		if (size < THROUGH(struct nvs_error, code))
			written = sizeof(size);
		else
			assert_int_equal(known->code, -ENOENT);
		if (size > offsetof(struct nvs_error, text))
			assert_true(strlen(known->text) < size - offsetof(struct nvs_error, text));
		expect_unwritten(&error, written, sizeof(error));
	}
	assert_says(known->text, "/nonexistent.json");
}

TEST(an_error_names_a_path_in_its_text)
{
	struct nvs_error error = {.size = sizeof(error)}, whole = error;

	assert_int_equal(error_cause(&error, NVS_CAUSE_IO, "/a b",
				     error_about(&error, -EIO, "t", 0, 7, "reading /a b failed")),
			 -EIO);
	assert_int_equal(error.cause, NVS_CAUSE_IO);
	assert_int_equal(error.path_nbytes, strlen("/a b"));
	assert_memory_equal(&error.text[error.path_at], "/a b", strlen("/a b"));
	error_cause_of(&whole, &error, error_set(&whole, -EIO, "no room: %s", error.text));
	assert_int_equal(whole.cause, NVS_CAUSE_IO);
	assert_int_equal(whole.path_at, strlen("no room: reading "));
	assert_int_equal(whole.path_nbytes, strlen("/a b"));
	/* The text has it with an escape, or not at all. */
	error_cause(&error, NVS_CAUSE_OTHER, "/\n", error_set(&error, -ENOENT, "no %s", "/\n"));
	assert_int_equal(error.cause, NVS_CAUSE_OTHER);
	assert_int_equal(error.path_nbytes, 0);
	error_set(&whole, -EINVAL, "another");
	assert_int_equal(whole.cause, NVS_CAUSE_OTHER);
	assert_int_equal(whole.path_nbytes, 0);
	/* A caller with an older header. */
	memset(&error, GUARD, sizeof(error));
	error.size = offsetof(struct nvs_error, cause);
	error_cause(&error, NVS_CAUSE_IO, "/a", error_set(&error, -EIO, "/a failed"));
	assert_string_equal(error.text, "/a failed");
	expect_unwritten(&error, error.size, sizeof(error));
	error_cause(NULL, NVS_CAUSE_IO, "/a", -EIO);
}

/* ---- base/struct_size.h ---- */

struct first {
	size_t size;
	uint32_t old;
};

struct second {
	size_t size;
	uint32_t old;
	uint64_t new;
};

TEST(the_error_says_whether_a_size_or_a_field_is_wrong)
{
	struct nvs_error error = {.size = sizeof(error)};

	assert_int_equal(struct_refused(&error, -E2BIG, "nvs_tensor_spec", "specs[%d]", 3), -E2BIG);
	assert_int_equal(error.code, -E2BIG);
	assert_string_equal(error.text,
			    "specs[3]: a field of struct nvs_tensor_spec is set that this version "
			    "of the library does not know; set it to 0, or use the version that "
			    "has it");
	assert_int_equal(struct_refused(&error, -EINVAL, "nvs_tensor_spec", "specs[%d]", 3),
			 -EINVAL);
	assert_string_equal(error.text, "specs[3]: NULL, or the size is not set to sizeof(struct "
					"nvs_tensor_spec)");
}

TEST(the_elements_of_an_array_have_the_size_of_the_first)
{
	struct first given[3] = {{sizeof(given[0]), 1}, {sizeof(given[0]), 2}, {8, 3}};
	struct second taken;

	assert_int_equal(struct_in_at(&taken, sizeof(taken), given, 1), 0);
	assert_int_equal(taken.old, 2);
	assert_int_equal(struct_in_at(&taken, sizeof(taken), given, 2), -EINVAL);
	assert_int_equal(struct_in_at(&taken, sizeof(taken), NULL, 0), -EINVAL);
}

/* ---- Each structure, with a running engine ---- */

static const char *kept[2]; /* a kept store with a tensor in each: one is open, one is repaired */
static struct nvs_store *store;
static struct nvs_checkpoint *checkpoint;

#define GETS(name, call)                                                                           \
	static int get_##name(void *into)                                                          \
	{                                                                                          \
		return call;                                                                       \
	}

GETS(nvs_engine_stats, nvs_engine_get_stats(engine, into))
GETS(nvs_aio_stats, nvs_aio_get_stats(aio, into))
GETS(nvs_tensor_info, nvs_tensor_get_info(engine, tensor, into))
GETS(nvs_machine_info, nvs_machine_get_info(into, NULL))
GETS(nvs_path_info, nvs_path_get_info(".", into, NULL))
GETS(nvs_gradient_sums, nvs_optimizer_sum_gradients(optimizer, into, NULL))
GETS(nvs_step_result, nvs_optimizer_step(optimizer, NULL, into, NULL))
GETS(nvs_optimizer_info, nvs_optimizer_get_info(optimizer, into, NULL))
GETS(nvs_group_info, nvs_optimizer_get_group_info(optimizer, 0, into, NULL))
GETS(nvs_store_info, nvs_store_get_info(store, into))
GETS(nvs_store_copy, nvs_store_get_copy(store, 0, into))
GETS(nvs_store_tensor, nvs_store_get_tensor(store, 0, into))
GETS(nvs_store_verdict, nvs_store_verify(store, aio, 0, 1, into, NULL))
GETS(nvs_checkpoint_tensor, nvs_checkpoint_get(checkpoint, 0, into))
GETS(nvs_latency, nvs_aio_get_latency(aio, NVS_READ, NVS_LAT, into))

static int get_nvs_advice(void *advice)
{
	static struct nvs_machine_info machine = {.size = sizeof(machine)};

	return nvs_machine_advise(&machine, NULL, advice);
}

static int get_nvs_step_io(void *io)
{
	int rc;

	assert_int_equal(nvs_engine_step_begin(engine, NULL), 0);
	rc = nvs_engine_step_end(engine, io, NULL);
	if (rc)
		assert_int_equal(nvs_engine_step_end(engine, NULL, NULL), 0);
	return rc;
}

static int get_nvs_store_repairs(void *repairs)
{
	const struct nvs_store_place place = {sizeof(place), &kept[1], 1, 0, false};

	return nvs_store_repair(&place, 0, repairs, NULL);
}

/* The configuration with a kept store of that block there. */
static struct nvs_config *keeping(enum nvs_block block, const char *path)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_config *made;

	SUCCEEDS(nvs_config_copy(config, &made, &error), &error);
	SUCCEEDS(nvs_config_set_paths(made, block, &path, 1, &error), &error);
	SUCCEEDS(nvs_config_set(made, "nvswap.keep", "true", &error), &error);
	return made;
}

/* Of a store that has the format. */
static int get_nvs_state_conversion(void *conversion)
{
	static const struct nvs_group_spec group = {
		.size = sizeof(group), .name = "g", .dtype = NVS_F32, .numel = 8};
	struct nvs_config *made = keeping(NVS_OFFLOAD_OPTIMIZER, kept[1]);
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_optimizer *opened;
	int rc;

	SUCCEEDS(nvs_optimizer_open(&opened, made, &group, 1, NULL, &error), &error);
	SUCCEEDS(nvs_optimizer_close(opened, &error), &error);
	rc = nvs_optimizer_convert(made, NVS_STATE_FP32, conversion, NULL);
	nvs_config_close(made);
	return rc;
}

TEST(every_result_is_written_within_its_size)
{
#define RESULT(name)                                                                               \
	{                                                                                          \
		get_##name, sizeof(struct name)                                                    \
	}
	static const struct {
		int (*call)(void *structure);
		size_t size;
	} calls[] = {RESULT(nvs_engine_stats),	  RESULT(nvs_aio_stats),
		     RESULT(nvs_tensor_info),	  RESULT(nvs_machine_info),
		     RESULT(nvs_path_info),	  RESULT(nvs_gradient_sums),
		     RESULT(nvs_step_result),	  RESULT(nvs_optimizer_info),
		     RESULT(nvs_group_info),	  RESULT(nvs_store_info),
		     RESULT(nvs_store_copy),	  RESULT(nvs_store_tensor),
		     RESULT(nvs_store_verdict),	  RESULT(nvs_checkpoint_tensor),
		     RESULT(nvs_latency),	  RESULT(nvs_advice),
		     RESULT(nvs_step_io),	  RESULT(nvs_store_repairs),
		     RESULT(nvs_state_conversion)};
	static _Alignas(16) unsigned char bytes[65536];

	for (size_t i = 0; i < COUNT(calls); i++) {
		const size_t word = sizeof(size_t), full = calls[i].size;
		const size_t sizes[] = {2 * word, full - word, full - 1, full, full + 64};

		for (size_t k = 0; k < COUNT(sizes); k++) {
			size_t size = sizes[k] > word ? sizes[k] : 2 * word;
			size_t written = size % word ? word : size < full ? size : full;

			memset(bytes, GUARD, sizeof(bytes));
			memcpy(bytes, &size, sizeof(size));
			assert_int_equal(calls[i].call(bytes), size % word ? -EINVAL : 0);
			assert_memory_equal(bytes, &size, sizeof(size));
			expect_unwritten(bytes, written, sizeof(bytes));
		}
	}
}

static int start(void **state)
{
	const struct nvs_store_place place = {sizeof(place), kept, 1, 0, false};
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_F32, .numel = 4};
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_engine *opened;
	struct nvs_tensor *in_it;
	const char *path;
	uint64_t pin;

	(void)state;
	objects_open(100);
	for (unsigned i = 0; i < 2; i++) {
		struct nvs_config *made = keeping(NVS_OFFLOAD_PARAM, kept[i] = temp_directory());

		assert_int_equal(nvs_engine_open(&opened, made, NVS_OFFLOAD_PARAM, NULL), 0);
		assert_int_equal(nvs_tensor_register(opened, &spec, 1, &in_it, NULL), 0);
		assert_int_equal(nvs_engine_close(opened, NULL), 0);
		nvs_config_close(made);
	}
	path = path_in(kept[1], "t.safetensors");
	item.tensor = tensor;
	assert_int_equal(nvs_store_open(&place, NVS_STORE_LOCK, &store, NULL), 0);
	assert_int_equal(nvs_tensor_pin(engine, &tensor, 1, -1, &pin, NULL), 0);
	assert_int_equal(nvs_tensor_release(engine, &tensor, 1, pin, NVS_DIRTY, NULL), 0);
	assert_int_equal(nvs_checkpoint_export(engine, &item, 1, path, NULL, NULL), 0);
	return nvs_checkpoint_open(&checkpoint, path, NULL);
}

static int stop(void **state)
{
	(void)state;
	nvs_checkpoint_close(checkpoint);
	nvs_store_close(store);
	return objects_close();
}

AROUND_TESTS(start, stop)
