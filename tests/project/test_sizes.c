/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures of callers begin with their size. Programs built against an older header with smaller
 * structures keep working, and so do those built against a newer one, unless they use a field that
 * this library does not know.
 */
#include "base/struct_size.h"

#include "base/error.h"
#include "config/config.h"
#include "nvswap.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "support/support.h"
#include "support/tests.h"

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

/* ---- struct nvs_error ---- */

/* Makes a call that fails, with an error structure of that size. */
static void fail_with(struct nvs_error *error, size_t size)
{
	struct nvs_config config;

	memset(error, GUARD, sizeof(*error));
	error->size = size;
	config_init(&config);
	assert_int_equal(nvs_config_load(&config, "/nonexistent/ds_config.json", error), -ENOENT);
	assert_int_equal(error->size, size);
	config_free(&config);
}

TEST(an_error_of_any_size_is_written_within_it)
{
	struct nvs_error error = {.size = sizeof(error)};

	for (size_t size = sizeof(error.size); size <= sizeof(error); size++) {
		fail_with(&error, size);
		expect_unwritten(&error, size, sizeof(error));
		if (size >= THROUGH(struct nvs_error, code))
			assert_int_equal(error.code, -ENOENT);
		if (size > offsetof(struct nvs_error, text))
			assert_true(strlen(error.text) < size - offsetof(struct nvs_error, text));
	}
	assert_non_null(strstr(error.text, "/nonexistent/ds_config.json"));
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

TEST(an_error_without_a_size_is_not_written)
{
	struct nvs_error error = {.size = sizeof(error)};

	for (size_t size = 0; size < THROUGH(struct nvs_error, code); size++) {
		fail_with(&error, size);
		expect_unwritten(&error, sizeof(error.size), sizeof(error));
	}
}

TEST(an_error_larger_than_the_librarys_keeps_its_tail)
{
	struct {
		struct nvs_error known;
		unsigned char unknown[64];
	} error;

	memset(&error, GUARD, sizeof(error));
	fail_with(&error.known, sizeof(error));
	expect_unwritten(&error, sizeof(error.known), sizeof(error));
	assert_int_equal(error.known.code, -ENOENT);
	assert_non_null(strstr(error.known.text, "/nonexistent/ds_config.json"));
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

TEST(fields_beyond_a_smaller_structure_are_zero)
{
	const struct first given = {sizeof(given), 7};
	struct second taken;

	memset(&taken, GUARD, sizeof(taken));
	assert_int_equal(struct_in(&taken, sizeof(taken), &given), 0);
	assert_int_equal(taken.size, sizeof(taken));
	assert_int_equal(taken.old, 7);
	assert_int_equal(taken.new, 0);
}

TEST(a_larger_structure_must_end_in_zeros)
{
	struct second given = {sizeof(given), 7, 0};
	struct first taken;

	assert_int_equal(struct_in(&taken, sizeof(taken), &given), 0);
	assert_int_equal(taken.old, 7);
	given.new = 1;
	assert_int_equal(struct_in(&taken, sizeof(taken), &given), -E2BIG);
}

TEST(a_size_that_ends_within_a_pointer_is_refused_as_not_set)
{
	const struct second result = {sizeof(result), 7, 8};
	struct second given = {0, 7, 8}, taken = {0};

	for (size_t size = sizeof(size_t) + 1; size <= sizeof(given); size++) {
		int due = size % sizeof(void *) ? -EINVAL : 0;

		given.size = size;
		assert_int_equal(struct_sized(&given), !due);
		assert_int_equal(struct_in(&taken, sizeof(taken), &given), due);
		assert_int_equal(struct_in_at(&taken, sizeof(taken), &given, 0), due);
		taken.size = size;
		assert_int_equal(struct_out(&taken, &result, sizeof(result)), due);
	}
}

/* No version has such a structure. Nothing is read by that size. */
TEST(a_size_beyond_any_versions_is_refused_as_not_set)
{
	const struct first given = {STRUCT_SIZE_MAX + 1, 7};
	struct first taken = {0};

	assert_int_equal(struct_in(&taken, sizeof(taken), &given), -EINVAL);
	assert_int_equal(taken.old, 0);
}

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

TEST(a_structure_without_a_size_is_refused)
{
	const struct second given = {0, 7, 0};
	struct second taken = {0};

	assert_int_equal(struct_in(&taken, sizeof(taken), &given), -EINVAL);
	assert_int_equal(struct_in(&taken, sizeof(taken), NULL), -EINVAL);
	assert_int_equal(struct_out(&taken, &given, sizeof(given)), -EINVAL);
	assert_int_equal(struct_out(NULL, &given, sizeof(given)), -EINVAL);
	assert_int_equal(taken.old, 0);
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

TEST(a_result_is_written_within_its_size)
{
	const struct second result = {sizeof(result), 7, 8};
	struct second given;

	memset(&given, GUARD, sizeof(given));
	given.size = sizeof(struct first);
	assert_int_equal(struct_out(&given, &result, sizeof(result)), 0);
	assert_int_equal(given.size, sizeof(struct first));
	assert_int_equal(given.old, 7);
	expect_unwritten(&given, sizeof(struct first), sizeof(given));
}

/* ---- Each structure, with a running engine ---- */

struct running {
	struct nvs_engine *engine;
	struct nvs_tensor *tensor;
	struct nvs_optimizer *optimizer;
};

/* Opens an engine with a store in host memory. */
static int start(void **state)
{
	static struct running running;
	static const char text[] =
		"{\"offload_param\": {\"device\": \"cpu\", \"buffer_size\": 65536},"
		" \"offload_optimizer\": {\"device\": \"cpu\"},"
		" \"zero_optimization\": {\"sub_group_size\": 65536}}";
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_tensor_spec tensor = {
		.size = sizeof(tensor), .name = "t", .dtype = NVS_F32, .numel = 100};
	struct nvs_group_spec group = {sizeof(group), "g", 100, NVS_F32, NULL};
	struct nvs_config config;

	config_init(&config);
	*state = &running;
	if (!nvs_config_parse(&config, text, strlen(text), "test", &error) &&
	    !nvs_engine_open(&running.engine, &config, NVS_OFFLOAD_PARAM, &error) &&
	    !nvs_tensor_register(running.engine, &tensor, 1, &running.tensor, &error) &&
	    !nvs_optimizer_open(&running.optimizer, &config, &group, 1, NULL, &error))
		return 0;
	print_error("%s\n", error.text);
	return -1;
}

static int stop(void **state)
{
	struct running *running = *state;

	return nvs_optimizer_close(running->optimizer, NULL) ||
	       nvs_engine_close(running->engine, NULL);
}

typedef int call_fn(struct running *running, void *structure);

static int get_engine_stats(struct running *running, void *stats)
{
	return nvs_engine_get_stats(running->engine, stats);
}

static int get_aio_stats(struct running *running, void *stats)
{
	return nvs_aio_get_stats(nvs_engine_aio(running->engine), stats);
}

static int get_tensor_info(struct running *running, void *info)
{
	return nvs_tensor_get_info(running->engine, running->tensor, info);
}

static int get_machine_info(struct running *running, void *info)
{
	(void)running;
	return nvs_machine_get_info(info, NULL);
}

static int get_path_info(struct running *running, void *info)
{
	(void)running;
	return nvs_path_get_info(".", info, NULL);
}

static int get_advice(struct running *running, void *advice)
{
	static struct nvs_machine_info machine = {.size = sizeof(machine)};

	(void)running;
	return nvs_machine_advise(&machine, NULL, advice);
}

static int get_step_io(struct running *running, void *io)
{
	int rc;

	assert_int_equal(nvs_engine_step_begin(running->engine, NULL), 0);
	rc = nvs_engine_step_end(running->engine, io, NULL);
	if (rc)
		assert_int_equal(nvs_engine_step_end(running->engine, NULL, NULL), 0);
	return rc;
}

static int get_sums(struct running *running, void *sums)
{
	return nvs_optimizer_sum_gradients(running->optimizer, sums, NULL);
}

static int get_step_result(struct running *running, void *result)
{
	return nvs_optimizer_step(running->optimizer, NULL, result, NULL);
}

static int get_optimizer_info(struct running *running, void *info)
{
	return nvs_optimizer_get_info(running->optimizer, info, NULL);
}

static int get_group_info(struct running *running, void *info)
{
	return nvs_optimizer_get_group_info(running->optimizer, 0, info, NULL);
}

/* Leaves a kept store with a tensor. */
static void keep_store(const char *const *paths)
{
	struct nvs_config config;
	struct nvs_engine *engine;
	struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_F32, .numel = 4};
	struct nvs_tensor *tensor;

	config_init(&config);
	assert_int_equal(nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, paths, 1, NULL), 0);
	assert_int_equal(nvs_config_set(&config, "nvswap.keep", "true", NULL), 0);
	assert_int_equal(nvs_config_set(&config, "offload_param.buffer_size", "4096", NULL), 0);
	assert_int_equal(nvs_engine_open(&engine, &config, NVS_OFFLOAD_PARAM, NULL), 0);
	assert_int_equal(nvs_tensor_register(engine, &spec, 1, &tensor, NULL), 0);
	assert_int_equal(nvs_engine_close(engine, NULL), 0);
	config_free(&config);
}

typedef int of_store_fn(struct nvs_store *store, struct nvs_aio *aio, void *into);

static int of_store(of_store_fn *get, struct running *running, void *into)
{
	const char *const paths[] = {temp_directory()};
	const struct nvs_store_place place = {sizeof(place), paths, 1, 0, false};
	struct nvs_store *store;
	int rc;

	keep_store(paths);
	assert_int_equal(nvs_store_open(&place, NVS_STORE_LOCK, &store, NULL), 0);
	rc = get(store, nvs_engine_aio(running->engine), into);
	nvs_store_close(store);
	cleanup(NULL);
	return rc;
}

static int info_of(struct nvs_store *store, struct nvs_aio *aio, void *info)
{
	(void)aio;
	return nvs_store_get_info(store, info);
}

static int copy_of(struct nvs_store *store, struct nvs_aio *aio, void *copy)
{
	(void)aio;
	return nvs_store_get_copy(store, 0, copy);
}

static int tensor_of(struct nvs_store *store, struct nvs_aio *aio, void *tensor)
{
	(void)aio;
	return nvs_store_get_tensor(store, 0, tensor);
}

static int verdict_of(struct nvs_store *store, struct nvs_aio *aio, void *verdict)
{
	return nvs_store_verify(store, aio, 0, 1, verdict, NULL);
}

static int get_store_info(struct running *running, void *info)
{
	return of_store(info_of, running, info);
}

static int get_store_copy(struct running *running, void *copy)
{
	return of_store(copy_of, running, copy);
}

static int get_store_tensor(struct running *running, void *tensor)
{
	return of_store(tensor_of, running, tensor);
}

static int get_store_verdict(struct running *running, void *verdict)
{
	return of_store(verdict_of, running, verdict);
}

static int get_store_repairs(struct running *running, void *repairs)
{
	const char *const paths[] = {temp_directory()};
	const struct nvs_store_place place = {sizeof(place), paths, 1, 0, false};
	int rc;

	(void)running;
	keep_store(paths);
	rc = nvs_store_repair(&place, 0, repairs, NULL);
	cleanup(NULL);
	return rc;
}

/* Leaves a checkpoint of the engine's tensor. */
static void export_checkpoint(struct running *running, char *path, size_t size)
{
	const struct nvs_checkpoint_item item = {.size = sizeof(item), .tensor = running->tensor};

	uint64_t pin;

	snprintf(path, size, "%s/t.safetensors", temp_directory());
	assert_int_equal(nvs_tensor_pin(running->engine, &running->tensor, 1, -1, &pin, NULL), 0);
	assert_int_equal(
		nvs_tensor_release(running->engine, &running->tensor, 1, pin, NVS_DIRTY, NULL), 0);
	assert_int_equal(nvs_checkpoint_export(running->engine, &item, 1, path, NULL, NULL), 0);
}

static int get_checkpoint_tensor(struct running *running, void *tensor)
{
	struct nvs_checkpoint *checkpoint;
	char path[4096];
	int rc;

	export_checkpoint(running, path, sizeof(path));
	assert_int_equal(nvs_checkpoint_open(&checkpoint, path, NULL), 0);
	rc = nvs_checkpoint_get(checkpoint, 0, tensor);
	nvs_checkpoint_close(checkpoint);
	cleanup(NULL);
	return rc;
}

static int get_latency(struct running *running, void *latency)
{
	return nvs_aio_get_latency(nvs_engine_aio(running->engine), NVS_READ, NVS_LAT, latency);
}

TEST(every_result_is_written_within_its_size)
{
	static const struct {
		call_fn *call;
		size_t size;
	} calls[] = {
		{get_engine_stats, sizeof(struct nvs_engine_stats)},
		{get_aio_stats, sizeof(struct nvs_aio_stats)},
		{get_tensor_info, sizeof(struct nvs_tensor_info)},
		{get_machine_info, sizeof(struct nvs_machine_info)},
		{get_path_info, sizeof(struct nvs_path_info)},
		{get_advice, sizeof(struct nvs_advice)},
		{get_step_io, sizeof(struct nvs_step_io)},
		{get_sums, sizeof(struct nvs_gradient_sums)},
		{get_step_result, sizeof(struct nvs_step_result)},
		{get_optimizer_info, sizeof(struct nvs_optimizer_info)},
		{get_group_info, sizeof(struct nvs_group_info)},
		{get_latency, sizeof(struct nvs_latency)},
		{get_checkpoint_tensor, sizeof(struct nvs_checkpoint_tensor)},
		{get_store_info, sizeof(struct nvs_store_info)},
		{get_store_copy, sizeof(struct nvs_store_copy)},
		{get_store_tensor, sizeof(struct nvs_store_tensor)},
		{get_store_verdict, sizeof(struct nvs_store_verdict)},
		{get_store_repairs, sizeof(struct nvs_store_repairs)},
	};
	static _Alignas(16) unsigned char bytes[65536];

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		const size_t word = sizeof(size_t), full = calls[i].size;
		const size_t sizes[] = {2 * word, full - word, full - 1, full, full + 64};

		for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
			size_t size = sizes[k] > word ? sizes[k] : 2 * word;
			size_t written = size % word ? word : size < full ? size : full;

			memset(bytes, GUARD, sizeof(bytes));
			memcpy(bytes, &size, sizeof(size));
			assert_int_equal(calls[i].call(*state, bytes), size % word ? -EINVAL : 0);
			assert_memory_equal(bytes, &size, sizeof(size));
			expect_unwritten(bytes, written, sizeof(bytes));
		}
	}
}

TEST(a_tensor_spec_with_unknown_fields_is_refused)
{
	struct {
		struct nvs_tensor_spec known;
		uint64_t unknown;
	} specs[2] = {
		{{.size = sizeof(specs[0]), .name = "later.0", .dtype = NVS_F32, .numel = 10}, 0},
		{{.size = sizeof(specs[0]), .name = "later.1", .dtype = NVS_F32, .numel = 10}, 0}};
	struct running *running = *state;
	struct nvs_tensor *tensors[2];

	specs[1].unknown = 1;
	assert_int_equal(nvs_tensor_register(running->engine, &specs[0].known, 2, tensors, NULL),
			 -E2BIG);
	assert_null(nvs_tensor_find(running->engine, "later.0"));
	specs[1].unknown = 0;
	assert_int_equal(nvs_tensor_register(running->engine, &specs[0].known, 2, tensors, NULL),
			 0);
	assert_ptr_equal(nvs_tensor_find(running->engine, "later.1"), tensors[1]);
}

TEST(step_options_of_an_earlier_and_a_later_version)
{
	struct {
		struct nvs_step_options known;
		uint64_t unknown;
	} options = {{.size = THROUGH(struct nvs_step_options, lr), .lr = 0.5}, 1};
	struct running *running = *state;

	options.known.norm = true; /* beyond `size`: ignored */
	options.known.sums = (const void *)16;
	assert_int_equal(nvs_optimizer_step(running->optimizer, &options.known, NULL, NULL), 0);
	options.known = (struct nvs_step_options){.size = sizeof(options), .lr = 0.5};
	assert_int_equal(nvs_optimizer_step(running->optimizer, &options.known, NULL, NULL),
			 -E2BIG);
	options.known.size = 0;
	assert_int_equal(nvs_optimizer_step(running->optimizer, &options.known, NULL, NULL),
			 -EINVAL);
}

/* Opens an optimizer with one group and these options. */
static int open_optimizer(const struct nvs_group_spec *group,
			  const struct nvs_optimizer_options *options)
{
	struct nvs_optimizer *optimizer;
	struct nvs_config config;
	int rc;

	config_init(&config);
	config.offload[NVS_OFFLOAD_OPTIMIZER].device = NVS_DEVICE_CPU;
	config.sub_group_size = 65536;
	rc = nvs_optimizer_open(&optimizer, &config, group, 1, options, NULL);
	if (!rc)
		assert_int_equal(nvs_optimizer_close(optimizer, NULL), 0);
	return rc;
}

TEST(a_group_spec_of_an_earlier_and_a_later_version)
{
	struct {
		struct nvs_group_spec known;
		uint64_t unknown;
	} group = {{sizeof(group), "g", 100, NVS_F32, NULL}, 1};

	assert_int_equal(open_optimizer(&group.known, NULL), -E2BIG);
	group.unknown = 0;
	assert_int_equal(open_optimizer(&group.known, NULL), 0);
	group.known.size = offsetof(struct nvs_group_spec, weights);
	group.known.weights = (void *)16; /* beyond `size`: ignored */
	assert_int_equal(open_optimizer(&group.known, NULL), 0);
	/* It ends within the name, a pointer. */
	group.known.size = offsetof(struct nvs_group_spec, name) + 1;
	assert_int_equal(open_optimizer(&group.known, NULL), -EINVAL);
	group.known.size = 0;
	assert_int_equal(open_optimizer(&group.known, NULL), -EINVAL);
}

TEST(optimizer_options_of_an_earlier_and_a_later_version)
{
	const struct nvs_group_spec group = {sizeof(group), "g", 100, NVS_F32, NULL};
	struct {
		struct nvs_optimizer_options known;
		uint64_t unknown;
	} options = {{.size = sizeof(options)}, 1};

	assert_int_equal(open_optimizer(&group, &options.known), -E2BIG);
	options.unknown = 0;
	assert_int_equal(open_optimizer(&group, &options.known), 0);
	options.known.size = THROUGH(struct nvs_optimizer_options, update_arg);
	options.known.aio = (void *)16; /* beyond `size`: ignored */
	assert_int_equal(open_optimizer(&group, &options.known), 0);
	options.known.size = 0;
	assert_int_equal(open_optimizer(&group, &options.known), -EINVAL);
}

TEST(sums_of_a_later_version)
{
	struct {
		struct nvs_gradient_sums known;
		uint64_t unknown;
	} sums = {{.size = sizeof(sums)}, 1};
	struct nvs_step_options options = {.size = sizeof(options), .lr = 0.5, .sums = &sums.known};
	struct running *running = *state;

	assert_int_equal(nvs_optimizer_step(running->optimizer, &options, NULL, NULL), -E2BIG);
	sums.unknown = 0;
	assert_int_equal(nvs_optimizer_step(running->optimizer, &options, NULL, NULL), 0);
	sums.known.size = 0;
	assert_int_equal(nvs_optimizer_step(running->optimizer, &options, NULL, NULL), -EINVAL);
}

TEST(advice_for_descriptions_of_a_later_version)
{
	struct {
		struct nvs_path_info known;
		uint64_t unknown;
	} path = {{.size = sizeof(path)}, 1};
	struct {
		struct nvs_machine_info known;
		uint64_t unknown;
	} machine = {{.size = sizeof(machine)}, 0};
	struct nvs_advice advice = {.size = sizeof(advice)};

	assert_int_equal(nvs_machine_advise(&machine.known, &path.known, &advice), -E2BIG);
	path.unknown = 0;
	assert_int_equal(nvs_machine_advise(&machine.known, &path.known, &advice), 0);
	machine.unknown = 1;
	assert_int_equal(nvs_machine_advise(&machine.known, &path.known, &advice), -E2BIG);
	machine.known.size = 0;
	assert_int_equal(nvs_machine_advise(&machine.known, &path.known, &advice), -EINVAL);
}

TEST(checkpoint_items_of_an_earlier_and_a_later_version)
{
	struct {
		struct nvs_checkpoint_item known;
		uint64_t unknown;
	} item = {{.size = sizeof(item)}, 1};
	struct running *running = *state;
	struct nvs_engine *engine = running->engine;
	char path[4096];

	export_checkpoint(running, path, sizeof(path));
	item.known.tensor = running->tensor;
	assert_int_equal(nvs_checkpoint_export(engine, &item.known, 1, path, NULL, NULL), -E2BIG);
	item.unknown = 0;
	assert_int_equal(nvs_checkpoint_export(engine, &item.known, 1, path, NULL, NULL), 0);
	item.known.size = THROUGH(struct nvs_checkpoint_item, name);
	item.known.shape = (const void *)16; /* beyond `size`: ignored */
	assert_int_equal(nvs_checkpoint_export(engine, &item.known, 1, path, NULL, NULL), 0);
	item.known.size = 0;
	assert_int_equal(nvs_checkpoint_export(engine, &item.known, 1, path, NULL, NULL), -EINVAL);
	cleanup(NULL);
}

TEST(checkpoint_options_of_a_later_version)
{
	struct {
		struct nvs_checkpoint_options known;
		uint64_t unknown;
	} options = {{.size = sizeof(options)}, 1};
	struct running *running = *state;
	const struct nvs_checkpoint_item item = {.size = sizeof(item), .tensor = running->tensor};
	char path[4096];

	export_checkpoint(running, path, sizeof(path));
	assert_int_equal(
		nvs_checkpoint_export(running->engine, &item, 1, path, &options.known, NULL),
		-E2BIG);
	options.unknown = 0;
	assert_int_equal(
		nvs_checkpoint_export(running->engine, &item, 1, path, &options.known, NULL), 0);
	cleanup(NULL);
}

TEST(options_for_files_of_a_later_version)
{
	struct {
		struct nvs_files_options known;
		uint64_t unknown;
	} options = {{.size = sizeof(options)}, 1};
	struct running *running = *state;
	struct nvs_engine *opened;
	struct nvs_config *config;
	char text[4096];
	const char *path = text;

	export_checkpoint(running, text, sizeof(text));
	assert_int_equal(nvs_config_open(&config, NULL), 0);
	assert_int_equal(nvs_config_set_number(config, "offload_param.buffer_size", 65536, NULL),
			 0);
	assert_int_equal(nvs_engine_open_files(&opened, config, &path, 1, &options.known, NULL),
			 -E2BIG);
	options.unknown = 0;
	assert_int_equal(nvs_engine_open_files(&opened, config, &path, 1, &options.known, NULL), 0);
	assert_int_equal(nvs_engine_close(opened, NULL), 0);
	nvs_config_close(config);
	cleanup(NULL);
}

TEST(a_store_place_of_a_later_version)
{
	const char *const paths[] = {temp_directory()};
	struct {
		struct nvs_store_place known;
		uint64_t unknown;
	} place = {{sizeof(place), paths, 1, 0, false}, 1};

	keep_store(paths);
	assert_int_equal(nvs_store_repair(&place.known, 0, NULL, NULL), -E2BIG);
	place.unknown = 0;
	assert_int_equal(nvs_store_repair(&place.known, 0, NULL, NULL), 0);
	assert_int_equal(nvs_store_remove(&place.known, NULL), 0);
	cleanup(NULL);
}

AROUND_TESTS(start, stop)
