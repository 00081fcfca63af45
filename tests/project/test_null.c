/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public function refuses NULL and unknown enumerators: -EINVAL, or NULL, 0 or "unknown"
 * where the type has no errno. The table has every function of include/nvswap/.
 */
#include "project/objects_fixture.h"

#include <limits.h>

#define BAD	     99 /* of no enumeration */
#define REFUSES(x)   assert_int_equal(x, -EINVAL)
#define RETURNS_0(x) assert_true((x) == 0)

static struct nvs_trace *trace;
static struct nvs_error error = {.size = sizeof(error)};
static _Alignas(4096) char page[4096];

static void aio_functions(void)
{
	static struct nvs_latency latency = {.size = sizeof(latency)};
	struct nvs_aio_stats stats = {.size = sizeof(stats)};
	struct nvs_aio *opened;

	REFUSES(nvs_aio_open(NULL, config, &error));
	REFUSES(nvs_aio_open(&opened, NULL, &error));
	nvs_aio_close(NULL);
	REFUSES(nvs_aio_register_memory(NULL, page, sizeof(page)));
	REFUSES(nvs_aio_register_memory(aio, NULL, sizeof(page)));
	nvs_aio_unregister_memory(NULL, page);
	nvs_aio_unregister_memory(aio, NULL);
	nvs_aio_unregister_memory(aio, page);
	REFUSES(nvs_aio_get_stats(NULL, &stats));
	REFUSES(nvs_aio_get_stats(aio, NULL));
	REFUSES(nvs_aio_get_latency(NULL, NVS_READ, NVS_LAT, &latency));
	REFUSES(nvs_aio_get_latency(aio, NVS_READ, NVS_LAT, NULL));
	REFUSES(nvs_aio_get_latency(aio, BAD, NVS_LAT, &latency));
	REFUSES(nvs_aio_get_latency(aio, NVS_READ, BAD, &latency));
	latency.size = 0;
	REFUSES(nvs_aio_get_latency(aio, NVS_READ, NVS_LAT, &latency));
	nvs_aio_reset_stats(NULL);
}

/* The pointer of the caller may hold what was closed; a second close must not find it. */
TEST(a_function_that_fails_to_open_stores_null)
{
	struct nvs_group_spec group = {sizeof(group), "g", 0, NVS_F32, NULL};
	struct nvs_engine *no_engine = (void *)page;
	const char *path = "x";
	struct nvs_optimizer *no_optimizer = (void *)page;
	struct nvs_aio *no_aio = (void *)page;
	struct nvs_file *no_file = (void *)page;
	struct nvs_trace *no_trace = (void *)page;
	void *no_memory = page;

	REFUSES(nvs_engine_open(&no_engine, config, BAD, &error));
	assert_null(no_engine);
	no_engine = (void *)page;
	REFUSES(nvs_engine_open_files(&no_engine, config, &path, 0, NULL, &error));
	assert_null(no_engine);
	no_engine = (void *)page;
	REFUSES(nvs_engine_open_on(&no_engine, NULL, config, NVS_OFFLOAD_PARAM, &error));
	assert_null(no_engine);
	REFUSES(nvs_optimizer_open(&no_optimizer, config, &group, 1, NULL, &error));
	assert_null(no_optimizer);
	REFUSES(nvs_aio_open(&no_aio, NULL, &error));
	assert_null(no_aio);
	assert_int_equal(nvs_file_open(aio, "/nonexistent", 0, &no_file, &error), -ENOENT);
	assert_null(no_file);
	no_file = (void *)page;
	assert_int_equal(nvs_file_from_fd(aio, -1, 0, &no_file, &error), -EBADF);
	assert_null(no_file);
	REFUSES(nvs_trace_open(&no_trace, 0, &error));
	assert_null(no_trace);
	REFUSES(nvs_memory_alloc(aio, 0, NULL, &no_memory, &error));
	assert_null(no_memory);
}

static void file_functions(void)
{
	struct nvs_file *opened;

	REFUSES(nvs_file_open(NULL, "x", 0, &opened, &error));
	REFUSES(nvs_file_open(aio, NULL, 0, &opened, &error));
	REFUSES(nvs_file_open(aio, "x", 0, NULL, &error));
	REFUSES(nvs_file_open(aio, "x", 1u << 30, &opened, &error));
	REFUSES(nvs_file_from_fd(NULL, 0, 0, &opened, &error));
	REFUSES(nvs_file_from_fd(aio, 0, 0, NULL, &error));
	REFUSES(nvs_file_from_fd(aio, 0, 1u << 30, &opened, &error));
	nvs_file_close(NULL);
	RETURNS_0(nvs_file_direct(NULL));
	RETURNS_0(nvs_file_unit(NULL));
	REFUSES(nvs_file_sync(NULL, &error));
}

static void request_functions(void)
{
	struct nvs_transfer transfer = {sizeof(transfer), file, NVS_WRITE, page, 512, 0, NULL};
	struct nvs_request *request = NULL;
	size_t index;

	REFUSES(nvs_aio_submit(NULL, &transfer, 1, &request, &error));
	REFUSES(nvs_aio_submit(aio, NULL, 1, &request, &error));
	transfer.direction = BAD;
	REFUSES(nvs_aio_submit(aio, &transfer, 1, &request, &error));
	transfer = (struct nvs_transfer){sizeof(transfer), NULL, NVS_WRITE, page, 512, 0, NULL};
	REFUSES(nvs_aio_submit(aio, &transfer, 1, &request, &error));
	REFUSES(nvs_aio_pread(NULL, file, page, 512, 0, &request, &error));
	REFUSES(nvs_aio_pread(aio, NULL, page, 512, 0, &request, &error));
	REFUSES(nvs_aio_pread(aio, file, NULL, 512, 0, &request, &error));
	REFUSES(nvs_aio_pwrite(NULL, file, page, 512, 0, &request, &error));
	REFUSES(nvs_aio_pwrite(aio, NULL, page, 512, 0, &request, &error));
	REFUSES(nvs_aio_pwrite(aio, file, NULL, 512, 0, &request, &error));
	RETURNS_0(nvs_request_close(NULL));
	REFUSES(nvs_request_status(NULL, &error));
	assert_null(nvs_request_user(NULL));
	REFUSES(nvs_aio_wait(NULL, &request, 1, 0, &error));
	REFUSES(nvs_aio_wait(aio, NULL, 1, 0, &error));
	REFUSES(nvs_aio_wait(aio, &request, 1, 0, &error));
	REFUSES(nvs_aio_wait_any(NULL, &request, 1, 0, &index, &error));
	REFUSES(nvs_aio_wait_any(aio, NULL, 1, 0, &index, &error));
	REFUSES(nvs_aio_wait_any(aio, &request, 1, 0, NULL, &error));
	REFUSES(nvs_aio_wait_all(NULL, 0, NULL, &error));
	RETURNS_0(nvs_aio_wait_all(aio, 0, NULL, NULL));
	REFUSES(nvs_aio_eventfd(NULL));
	RETURNS_0(nvs_aio_take(NULL, &request, 1));
	RETURNS_0(nvs_aio_take(aio, NULL, 1));
}

static void config_functions(void)
{
	struct nvs_config *none = NULL;
	const char *path = NULL;
	uint64_t number;
	double real;
	char text[8];

	REFUSES(nvs_config_open(NULL, &error));
	REFUSES(nvs_config_copy(NULL, &none, &error));
	REFUSES(nvs_config_copy(config, NULL, &error));
	nvs_config_close(NULL);
	REFUSES(nvs_config_load(NULL, "x", &error));
	REFUSES(nvs_config_load(config, NULL, &error));
	REFUSES(nvs_config_parse(NULL, "{}", 2, "x", &error));
	REFUSES(nvs_config_parse(config, NULL, 2, "x", &error));
	REFUSES(nvs_config_parse(config, "{}", 2, NULL, &error));
	REFUSES(nvs_config_set(NULL, "aio.block_size", "1M", &error));
	REFUSES(nvs_config_set(config, NULL, "1M", &error));
	REFUSES(nvs_config_set(config, "aio.block_size", NULL, &error));
	REFUSES(nvs_config_set_number(NULL, "aio.block_size", 512, &error));
	REFUSES(nvs_config_set_number(config, NULL, 512, &error));
	REFUSES(nvs_config_set_paths(NULL, NVS_OFFLOAD_PARAM, &path, 1, &error));
	REFUSES(nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, NULL, 1, &error));
	REFUSES(nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, &path, 1, &error));
	path = "/mnt";
	REFUSES(nvs_config_set_paths(config, BAD, &path, 1, &error));
	REFUSES(nvs_config_get(NULL, "aio.block_size", text, sizeof(text), &error));
	REFUSES(nvs_config_get(config, NULL, text, sizeof(text), &error));
	REFUSES(nvs_config_get(config, "aio.block_size", NULL, sizeof(text), &error));
	REFUSES(nvs_config_get_number(NULL, "aio.block_size", &number, &error));
	REFUSES(nvs_config_get_number(config, NULL, &number, &error));
	REFUSES(nvs_config_get_number(config, "aio.block_size", NULL, &error));
	REFUSES(nvs_config_get_real(NULL, "aio.block_size", &real, &error));
	REFUSES(nvs_config_get_real(config, NULL, &real, &error));
	REFUSES(nvs_config_get_real(config, "gradient_clipping", NULL, &error));
	assert_null(nvs_config_get_path(NULL, NVS_OFFLOAD_PARAM, 0));
	assert_null(nvs_config_get_path(config, BAD, 0));
	RETURNS_0(nvs_config_pool_bytes(NULL, NVS_OFFLOAD_PARAM));
	RETURNS_0(nvs_config_pool_bytes(config, BAD));
	REFUSES(nvs_config_read_rank(NULL, &error));
	nvs_config_set_log(NULL, NULL, NULL);
	nvs_config_set_log(config, NULL, NULL);
	nvs_config_set_trace(NULL, NULL);
	nvs_config_set_trace(config, NULL);
}

static void names(void)
{
	enum nvs_ioengine ioengine;
	enum nvs_dtype dtype;

	assert_string_equal(nvs_ioengine_name(BAD), "unknown");
	assert_string_equal(nvs_device_name(BAD), "unknown");
	assert_string_equal(nvs_dtype_name(BAD), "unknown");
	assert_string_equal(nvs_tensor_state_name(BAD), "unknown");
	RETURNS_0(nvs_dtype_size(BAD));
	RETURNS_0(nvs_dtype_bits(BAD));
	REFUSES(nvs_ioengine_parse(NULL, &ioengine));
	REFUSES(nvs_ioengine_parse("auto", NULL));
	REFUSES(nvs_dtype_parse(NULL, &dtype));
	REFUSES(nvs_dtype_parse("F32", NULL));
	assert_non_null(nvs_strerror(12345));
	assert_string_equal(nvs_strerror(INT_MIN), "unknown error");
	assert_non_null(nvs_version());
}

static void engine_functions(void)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	struct nvs_step_io io = {.size = sizeof(io)};
	const char *path = "x", *no_path = NULL;
	struct nvs_engine *opened;
	size_t nbytes;
	void *data;

	REFUSES(nvs_engine_open(NULL, config, NVS_OFFLOAD_PARAM, &error));
	REFUSES(nvs_engine_open(&opened, NULL, NVS_OFFLOAD_PARAM, &error));
	REFUSES(nvs_engine_open(&opened, config, BAD, &error));
	REFUSES(nvs_engine_open_files(NULL, config, &path, 1, NULL, &error));
	REFUSES(nvs_engine_open_files(&opened, NULL, &path, 1, NULL, &error));
	REFUSES(nvs_engine_open_files(&opened, config, NULL, 1, NULL, &error));
	REFUSES(nvs_engine_open_files(&opened, config, &path, 0, NULL, &error));
	REFUSES(nvs_engine_open_files(&opened, config, &no_path, 1, NULL, &error));
	REFUSES(nvs_engine_open_files(&opened, config, &path, 1,
				      &(const struct nvs_files_options){.size = 0}, &error));
	REFUSES(nvs_engine_open_on(NULL, aio, config, NVS_OFFLOAD_PARAM, &error));
	REFUSES(nvs_engine_open_on(&opened, NULL, config, NVS_OFFLOAD_PARAM, &error));
	REFUSES(nvs_engine_open_on(&opened, aio, NULL, NVS_OFFLOAD_PARAM, &error));
	REFUSES(nvs_engine_open_on(&opened, aio, config, BAD, &error));
	REFUSES(nvs_engine_pool(NULL, &data, &nbytes));
	REFUSES(nvs_engine_pool(engine, NULL, &nbytes));
	REFUSES(nvs_engine_pool(engine, &data, NULL));
	RETURNS_0(nvs_engine_close(NULL, &error));
	RETURNS_0(nvs_engine_abandon(NULL, &error));
	REFUSES(nvs_engine_get_stored(NULL, 0, &stored));
	REFUSES(nvs_engine_get_stored(engine, 0, NULL));
	RETURNS_0(nvs_engine_generation(NULL));
	REFUSES(nvs_engine_set_note(NULL, "x", 1, &error));
	REFUSES(nvs_engine_set_note(engine, NULL, 1, &error));
	REFUSES(nvs_engine_get_note(NULL, NULL, &nbytes));
	REFUSES(nvs_engine_get_note(engine, &data, NULL));
	assert_null(nvs_engine_aio(NULL));
	REFUSES(nvs_engine_commit(NULL, &error));
	REFUSES(nvs_engine_get_stats(NULL, &stats));
	REFUSES(nvs_engine_get_stats(engine, NULL));
	REFUSES(nvs_engine_keep_place(NULL, true, &error));
	REFUSES(nvs_engine_step_begin(NULL, &error));
	REFUSES(nvs_engine_step_end(NULL, &io, &error));
}

static void tensor_functions(void)
{
	struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "u", .dtype = NVS_F32, .numel = 4};
	struct nvs_tensor_rows rows = {sizeof(rows), tensor, 0, 1, NULL};
	struct nvs_tensor *none = NULL, *registered;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_tensor_range range = {sizeof(range), tensor, 0, 1, NULL};
	const void *from = page;
	void *to = page, *nowhere = NULL;
	uint64_t pin;

	REFUSES(nvs_tensor_register_rows(NULL, &rows, 1, &registered, &error));
	REFUSES(nvs_tensor_register_rows(engine, NULL, 1, &registered, &error));
	REFUSES(nvs_tensor_register_rows(engine, &rows, 1, NULL, &error));
	REFUSES(nvs_tensor_register(NULL, &spec, 1, &registered, &error));
	REFUSES(nvs_tensor_register(engine, NULL, 1, &registered, &error));
	REFUSES(nvs_tensor_register(engine, &spec, 1, NULL, &error));
	spec.dtype = BAD;
	REFUSES(nvs_tensor_register(engine, &spec, 1, &registered, &error));
	spec = (struct nvs_tensor_spec){
		.size = sizeof(spec), .name = NULL, .dtype = NVS_F32, .numel = 4};
	REFUSES(nvs_tensor_register(engine, &spec, 1, &registered, &error));
	assert_null(nvs_tensor_find(NULL, "t"));
	assert_null(nvs_tensor_find(engine, NULL));
	REFUSES(nvs_tensor_rename(NULL, tensor, "u", &error));
	REFUSES(nvs_tensor_rename(engine, NULL, "u", &error));
	REFUSES(nvs_tensor_rename(engine, tensor, NULL, &error));
#define REFUSES_TENSORS(function, ...)                                                             \
	do {                                                                                       \
		REFUSES(function(NULL, &tensor, 1, __VA_ARGS__));                                  \
		REFUSES(function(engine, NULL, 1, __VA_ARGS__));                                   \
		REFUSES(function(engine, &none, 1, __VA_ARGS__));                                  \
	} while (0)
	REFUSES_TENSORS(nvs_tensor_forget, &error);
	REFUSES_TENSORS(nvs_tensor_pin, 0, &pin, &error);
	REFUSES(nvs_tensor_pin(engine, &tensor, 1, 0, NULL, &error));
	REFUSES_TENSORS(nvs_tensor_swap_in, 0, &pin, &error);
	REFUSES(nvs_tensor_swap_in(engine, &tensor, 1, 0, NULL, &error));
	REFUSES_TENSORS(nvs_tensor_prefetch, &error);
	REFUSES_TENSORS(nvs_tensor_wait, 0, 0, &error);
	REFUSES_TENSORS(nvs_tensor_swap_out, &error);
	REFUSES_TENSORS(nvs_tensor_release, 1, NVS_CLEAN, &error);
	assert_int_equal(nvs_tensor_pin(engine, &tensor, 1, 0, &pin, &error), 0);
	REFUSES(nvs_tensor_release(engine, &tensor, 1, pin, BAD, &error));
	assert_int_equal(nvs_tensor_release(engine, &tensor, 1, pin, NVS_DIRTY, &error), 0);
	REFUSES(nvs_tensor_swap_out_from(NULL, &tensor, &from, 1, &error));
	REFUSES(nvs_tensor_swap_out_from(engine, NULL, &from, 1, &error));
	REFUSES(nvs_tensor_swap_out_from(engine, &tensor, NULL, 1, &error));
	from = NULL;
	REFUSES(nvs_tensor_swap_out_from(engine, &tensor, &from, 1, &error));
	REFUSES(nvs_tensor_swap_in_to(NULL, &tensor, &to, 1, &error));
	REFUSES(nvs_tensor_swap_in_to(engine, NULL, &to, 1, &error));
	REFUSES(nvs_tensor_swap_in_to(engine, &tensor, NULL, 1, &error));
	REFUSES(nvs_tensor_swap_in_to(engine, &tensor, &nowhere, 1, &error));
	REFUSES(nvs_tensor_read(NULL, &range, 1, &error));
	REFUSES(nvs_tensor_read(engine, NULL, 1, &error));
	REFUSES(nvs_tensor_read(engine, &range, 1, &error));
	REFUSES(nvs_tensor_write(NULL, &range, 1, -1, &error));
	REFUSES(nvs_tensor_write(engine, NULL, 1, -1, &error));
	REFUSES(nvs_tensor_write(engine, &range, 1, -1, &error));
	range.data = to;
	range.tensor = NULL;
	REFUSES(nvs_tensor_read(engine, &range, 1, &error));
	REFUSES(nvs_tensor_write(engine, &range, 1, -1, &error));
	range = (struct nvs_tensor_range){.tensor = tensor};
	REFUSES(nvs_tensor_read(engine, &range, 1, &error));
	REFUSES(nvs_tensor_write(engine, &range, 1, -1, &error));
	assert_null(nvs_tensor_data(NULL));
	REFUSES(nvs_tensor_get_info(NULL, tensor, &info));
	REFUSES(nvs_tensor_get_info(engine, NULL, &info));
	REFUSES(nvs_tensor_get_info(engine, tensor, NULL));
}

static void latency_functions(void)
{
	static struct nvs_latency latency = {.size = sizeof(latency)};

	REFUSES(nvs_latency_merge(NULL, &latency));
	REFUSES(nvs_latency_merge(&latency, NULL));
	RETURNS_0(nvs_latency_percentile(NULL, 50));
	RETURNS_0(nvs_latency_mean(NULL));
	RETURNS_0(nvs_latency_stddev(NULL));
	RETURNS_0(nvs_latency_within(NULL, 1));
}

static void machine_functions(void)
{
	static struct nvs_machine_info machine = {.size = sizeof(machine)};
	static struct nvs_path_info path = {.size = sizeof(path)};
	static struct nvs_advice advice = {.size = sizeof(advice)};

	REFUSES(nvs_machine_get_info(NULL, &error));
	REFUSES(nvs_path_get_info(NULL, &path, &error));
	REFUSES(nvs_path_get_info("/", NULL, &error));
	REFUSES(nvs_machine_advise(NULL, &path, &advice));
	REFUSES(nvs_machine_advise(&machine, &path, NULL));
	RETURNS_0(nvs_machine_advise(&machine, NULL, &advice));
}

static void store_functions(void)
{
	const char *const paths[] = {"/"};
	struct nvs_store_place place = {sizeof(place), paths, 1, 0, false};
	static struct nvs_store_info info = {.size = sizeof(info)};
	static struct nvs_store_verdict verdict = {.size = sizeof(verdict)};
	static struct nvs_store_copy copy = {.size = sizeof(copy)};
	static struct nvs_store_tensor stored = {.size = sizeof(stored)};
	struct nvs_store *store;

	REFUSES(nvs_store_find(NULL, 0, &place, &error));
	REFUSES(nvs_store_find("/", 0, NULL, &error));
	REFUSES(nvs_store_open(NULL, 0, &store, &error));
	REFUSES(nvs_store_open(&place, 0, NULL, &error));
	REFUSES(nvs_store_open(&place, 1u << 30, &store, &error));
	place.paths = NULL;
	REFUSES(nvs_store_open(&place, 0, &store, &error));
	nvs_store_close(NULL);
	REFUSES(nvs_store_get_info(NULL, &info));
	REFUSES(nvs_store_get_copy(NULL, 0, &copy));
	REFUSES(nvs_store_get_tensor(NULL, 0, &stored));
	REFUSES(nvs_store_verify(NULL, aio, 0, 1, &verdict, &error));
	REFUSES(nvs_store_remove(NULL, &error));
	REFUSES(nvs_store_repair(NULL, 0, NULL, &error));
	REFUSES(nvs_store_repair(&place, 1u << 30, NULL, &error));
}

static void memory_functions(void)
{
	REFUSES(nvs_memory_alloc(NULL, 4096, NULL, NULL, &error));
	RETURNS_0(nvs_memory_free(NULL));
	RETURNS_0(nvs_memory_is_pinned(NULL, 1));
}

static void trace_functions(void)
{
	struct nvs_trace *opened;

	REFUSES(nvs_trace_open(NULL, 1, &error));
	REFUSES(nvs_trace_open(&opened, 0, &error));
	nvs_trace_close(NULL);
	nvs_trace_span(NULL, "x", 1, 2);
	nvs_trace_span(trace, NULL, 1, 2);
	REFUSES(nvs_trace_write(NULL, "x", NULL, &error));
	REFUSES(nvs_trace_write(trace, NULL, NULL, &error));
}

static void conversion_functions(void)
{
	struct nvs_state_conversion converted = {.size = sizeof(converted)};

	REFUSES(nvs_optimizer_convert(NULL, NVS_STATE_BF16, &converted, &error));
	REFUSES(nvs_optimizer_convert(config, NVS_STATE_BF16, NULL, &error));
}

static void gradient_functions(void)
{
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
	float data[4] = {0};
	void *nothing = NULL;

	REFUSES(nvs_optimizer_lend_gradients(NULL, 0, NVS_F32, data, &error));
	REFUSES(nvs_optimizer_lend_gradients(optimizer, 0, NVS_F32, NULL, &error));
	REFUSES(nvs_optimizer_lend_gradients(optimizer, 0, BAD, data, &error));
	REFUSES(nvs_optimizer_lend_gradients(optimizer, BAD, NVS_F32, data, &error));
	REFUSES(nvs_optimizer_add_gradients(NULL, 0, 0, 4, NVS_F32, data, NULL, &error));
	REFUSES(nvs_optimizer_add_gradients(optimizer, 0, 0, 4, NVS_F32, NULL, NULL, &error));
	REFUSES(nvs_optimizer_add_gradients(optimizer, 0, 0, 4, BAD, data, NULL, &error));
	REFUSES(nvs_optimizer_clear_gradients(NULL, &error));
	REFUSES(nvs_optimizer_sum_gradients(NULL, &sums, &error));
	REFUSES(nvs_optimizer_sum_gradients(optimizer, NULL, &error));
	REFUSES(nvs_optimizer_set_weights(NULL, &nothing, 1, &error));
	REFUSES(nvs_optimizer_set_weights(optimizer, NULL, 1, &error));
	REFUSES(nvs_optimizer_set_weights(optimizer, &nothing, 99, &error));
	REFUSES(nvs_optimizer_sum_groups(NULL, &sums.sum_squares, 1, &error));
	REFUSES(nvs_optimizer_sum_groups(optimizer, NULL, 1, &error));
	REFUSES(nvs_optimizer_sum_groups(optimizer, &sums.sum_squares, 99, &error));
}

static void state_functions(void)
{
	float data[4] = {0};

	REFUSES(nvs_optimizer_get(NULL, 0, NVS_MASTER, 0, 4, data, &error));
	REFUSES(nvs_optimizer_get(optimizer, 0, NVS_MASTER, 0, 4, NULL, &error));
	REFUSES(nvs_optimizer_get(optimizer, 0, BAD, 0, 4, data, &error));
	REFUSES(nvs_optimizer_set(NULL, 0, NVS_MASTER, 0, 4, data, &error));
	REFUSES(nvs_optimizer_set(optimizer, 0, NVS_MASTER, 0, 4, NULL, &error));
	REFUSES(nvs_optimizer_set(optimizer, 0, BAD, 0, 4, data, &error));
	REFUSES(nvs_optimizer_export(NULL, NULL, NULL, &error));
	REFUSES(nvs_optimizer_export(optimizer, NULL, NULL, &error));
	REFUSES(nvs_optimizer_import(NULL, NULL, NULL, &error));
	REFUSES(nvs_optimizer_import(optimizer, NULL, NULL, &error));
	REFUSES(nvs_optimizer_set_step(NULL, 1, &error));
	REFUSES(nvs_optimizer_get_weights(NULL, &error));
	REFUSES(nvs_optimizer_commit(NULL, &error));
	REFUSES(nvs_optimizer_set_note(NULL, "x", 1, &error));
	REFUSES(nvs_optimizer_get_note(NULL, NULL, NULL));
}

static void checkpoint_functions(void)
{
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_checkpoint_param param = {.size = sizeof(param), .name = "p", .numel = 1};
	struct nvs_checkpoint *checkpoint;

	REFUSES(nvs_checkpoint_open(NULL, "/nonexistent", &error));
	REFUSES(nvs_checkpoint_open(&checkpoint, NULL, &error));
	nvs_checkpoint_close(NULL);
	RETURNS_0(nvs_checkpoint_count(NULL));
	assert_int_equal(nvs_checkpoint_get(NULL, 0, NULL), -EINVAL);
	REFUSES(nvs_checkpoint_export(NULL, &item, 1, "a.safetensors", NULL, &error));
	REFUSES(nvs_checkpoint_export(engine, NULL, 1, "a.safetensors", NULL, &error));
	REFUSES(nvs_checkpoint_export(engine, &item, 1, "a.safetensors", NULL, &error));
	REFUSES(nvs_checkpoint_export(engine, &item, 0, "a.safetensors", NULL, &error));
	item.tensor = tensor;
	REFUSES(nvs_checkpoint_export(engine, &item, 1, NULL, NULL, &error));
	REFUSES(nvs_checkpoint_import(NULL, NULL, &item, 1, &error));
	REFUSES(nvs_checkpoint_import(engine, NULL, &item, 1, &error));
	REFUSES(nvs_checkpoint_export_optimizer(NULL, "a.safetensors", NULL, &error));
	REFUSES(nvs_checkpoint_export_optimizer(optimizer, NULL, NULL, &error));
	REFUSES(nvs_checkpoint_import_optimizer(NULL, NULL, NULL, &error));
	REFUSES(nvs_checkpoint_import_optimizer(optimizer, NULL, NULL, &error));
	REFUSES(nvs_checkpoint_export_universal(NULL, &param, 1, "tag", NULL, &error));
	REFUSES(nvs_checkpoint_export_universal(optimizer, NULL, 1, "tag", NULL, &error));
	REFUSES(nvs_checkpoint_export_universal(optimizer, &param, 1, NULL, NULL, &error));
	REFUSES(nvs_checkpoint_import_universal(NULL, &param, 1, "tag", &error));
	REFUSES(nvs_checkpoint_import_universal(optimizer, NULL, 1, "tag", &error));
	REFUSES(nvs_checkpoint_import_universal(optimizer, &param, 1, NULL, &error));
}

static void optimizer_functions(void)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group_info = {.size = sizeof(group_info)};
	struct nvs_group_spec group = {sizeof(group), "h", 4, NVS_F32, NULL};
	struct nvs_adam_update update = {.size = sizeof(update), .numel = 4, .step = 1};
	struct nvs_rule_update by_rule = {.size = sizeof(by_rule), .numel = 4, .step = 1};
	struct nvs_optimizer *opened;

	REFUSES(nvs_optimizer_open(NULL, config, &group, 1, NULL, &error));
	REFUSES(nvs_optimizer_open(&opened, NULL, &group, 1, NULL, &error));
	REFUSES(nvs_optimizer_open(&opened, config, NULL, 1, NULL, &error));
	group.name = NULL;
	REFUSES(nvs_optimizer_open(&opened, config, &group, 1, NULL, &error));
	group = (struct nvs_group_spec){sizeof(group), "h", 4, BAD, NULL};
	REFUSES(nvs_optimizer_open(&opened, config, &group, 1, NULL, &error));
	RETURNS_0(nvs_optimizer_close(NULL, &error));
	RETURNS_0(nvs_optimizer_abandon(NULL, &error));
	assert_null(nvs_optimizer_engine(NULL));
	REFUSES(nvs_optimizer_step(NULL, NULL, NULL, &error));
	RETURNS_0(nvs_optimizer_loss_scale(NULL));
	REFUSES(nvs_optimizer_get_info(NULL, &info, &error));
	REFUSES(nvs_optimizer_get_info(optimizer, NULL, &error));
	REFUSES(nvs_optimizer_get_group_info(NULL, 0, &group_info, &error));
	REFUSES(nvs_optimizer_get_group_info(optimizer, 0, NULL, &error));
	REFUSES(nvs_optimizer_get_group_info(optimizer, BAD, &group_info, &error));
	REFUSES(nvs_adam_update(NULL, &error));
	REFUSES(nvs_adam_update(&update, &error));
	REFUSES(nvs_rule_update(NULL, &error));
	REFUSES(nvs_rule_update(&by_rule, &error));
	by_rule.rule = (enum nvs_rule)BAD;
	REFUSES(nvs_rule_update(&by_rule, &error));
}

TEST(every_function_refuses_null_and_unknown_enumerators)
{
	static void (*const objects[])(void) = {aio_functions,
						file_functions,
						request_functions,
						config_functions,
						names,
						engine_functions,
						tensor_functions,
						latency_functions,
						machine_functions,
						memory_functions,
						store_functions,
						trace_functions,
						gradient_functions,
						conversion_functions,
						state_functions,
						optimizer_functions,
						checkpoint_functions};

	for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++)
		objects[i]();
}

static int start(void **state)
{
	(void)state;
	objects_open(4);
	return nvs_trace_open(&trace, 8, &error);
}

static int stop(void **state)
{
	(void)state;
	nvs_trace_close(trace);
	return objects_close();
}

AROUND_TESTS(start, stop)
