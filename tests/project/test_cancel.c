/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No call is a cancellation point: a thread that was cancelled before all of them returns from
 * each, and ends at its own next cancellation point.
 */
#include "project/objects_fixture.h"

#include <pthread.h>

#define NUMEL 65536u

static const char *at; /* the call that the thread is in */
static const char *directory, *safetensors, *data_file;
static int data_fd;
static unsigned logged;

/* A call that must return 0. */
#define CALL(call) must_return((at = #call, (long)(call)), __LINE__)

static struct nvs_error error = {.size = sizeof(error)};

static void must_return(long rc, int line)
{
	if (!rc)
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	fprintf(stderr, "%s:%d: %s: %ld: %s\n", __FILE__, line, at, rc, error.text);
	abort();
}

/* Functions of the caller that are cancellation points themselves. */
static void log_message(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg, (void)level, (void)text;
	logged++;
	pthread_testcancel();
}

static int take_state(void *arg, const struct nvs_state_run *run)
{
	(void)arg;
	for (uint64_t i = 0; i < run->numel; i++)
		run->master[i] = run->exp_avg[i] = run->exp_avg_sq[i] = 1;
	pthread_testcancel();
	return 0;
}

static int read_state(void *arg, const struct nvs_state_run *run)
{
	(void)arg, (void)run;
	pthread_testcancel();
	return 0;
}

static struct nvs_config *configure(void)
{
	static const char warned[] = "{\"offload_optimizer\": {\"super_offload\": true}}";
	struct nvs_config *made;

	CALL(nvs_config_open(&made, &error));
	nvs_config_set_log(made, log_message, NULL);
	CALL(nvs_config_set_paths(made, NVS_OFFLOAD_PARAM, &directory, 1, &error));
	CALL(nvs_config_set_paths(made, NVS_OFFLOAD_OPTIMIZER, &directory, 1, &error));
	CALL(nvs_config_load(made, path_in(directory, "config.json"), &error));
	CALL(nvs_config_parse(made, warned, strlen(warned), "text", &error));
	CALL(nvs_config_set(made, "nvswap.keep", "true", &error));
	CALL(nvs_config_set_number(made, "offload_param.buffer_size", NUMEL * 4, &error));
	CALL(nvs_config_read_rank(made, &error));
	return made;
}

static void call_aio(const struct nvs_config *settings)
{
	static char bytes[4096];
	struct nvs_transfer transfer = {.size = sizeof(transfer),
					.direction = NVS_WRITE,
					.data = bytes,
					.nbytes = sizeof(bytes)};
	struct nvs_request *requests[3];
	struct nvs_engine *opened;
	struct nvs_aio *made;
	struct nvs_file *first, *second;
	uint64_t completed;
	size_t index;
	void *memory;

	CALL(nvs_aio_open(&made, settings, &error));
	CALL(nvs_memory_alloc(made, 4096, NULL, &memory, &error));
	CALL(nvs_aio_register_memory(made, memory, 4096));
	at = "nvs_aio_unregister_memory";
	nvs_aio_unregister_memory(made, memory);
	CALL(nvs_file_open(made, data_file, NVS_FILE_WRITE | NVS_FILE_CREATE, &first, &error));
	CALL(nvs_aio_eventfd(made) < 0);
	transfer.file = first;
	CALL(nvs_aio_submit(made, &transfer, 1, &requests[0], &error));
	CALL(nvs_aio_pwrite(made, first, bytes, 512, 4096, &requests[1], &error));
	CALL(nvs_aio_pread(made, first, bytes, 512, 0, &requests[2], &error));
	CALL(nvs_aio_wait_any(made, requests, 3, -1, &index, &error));
	CALL(nvs_aio_wait(made, requests, 3, -1, &error));
	CALL(nvs_aio_wait_all(made, -1, &completed, &error));
	at = "nvs_aio_take";
	nvs_aio_take(made, requests, 0);
	for (unsigned i = 0; i < 3; i++)
		CALL(nvs_request_close(requests[i]));
	CALL(nvs_file_sync(first, &error));
	CALL(nvs_file_from_fd(made, data_fd, NVS_FILE_WRITE, &second, &error));
	at = "nvs_file_close";
	nvs_file_close(first);
	nvs_file_close(second);
	CALL(nvs_memory_free(memory));
	CALL(nvs_engine_open_on(&opened, made, settings, NVS_OFFLOAD_PARAM, &error));
	CALL(nvs_engine_abandon(opened, &error));
	CALL(nvs_aio_close(made));
}

/* With the file that call_engine() has exported. */
static void call_files(const struct nvs_config *settings)
{
	struct nvs_tensor_rows rows = {.size = sizeof(rows), .count = NUMEL};
	struct nvs_engine *opened;
	struct nvs_tensor *found;
	uint64_t pin;

	CALL(nvs_engine_open_files(&opened, settings, &safetensors, 1, NULL, &error));
	found = nvs_tensor_find(opened, "a");
	rows.tensor = found;
	CALL(nvs_tensor_register_rows(opened, &rows, 1, &found, &error));
	CALL(nvs_tensor_swap_in(opened, &found, 1, -1, &pin, &error));
	CALL(nvs_tensor_wait(opened, &found, 1, pin, -1, &error));
	CALL(nvs_tensor_release(opened, &found, 1, pin, NVS_CLEAN, &error));
	CALL(nvs_engine_close(opened, &error));
}

static void call_engine(const struct nvs_config *settings)
{
	static float values[NUMEL];
	const struct nvs_tensor_spec specs[] = {{sizeof(*specs), "a", NVS_F32, NUMEL, NULL, 0},
						{sizeof(*specs), "b", NVS_F32, NUMEL, NULL, 0}};
	const void *from[] = {values};
	void *to[] = {values};
	struct nvs_step_io io = {.size = sizeof(io)};
	struct nvs_checkpoint *checkpoint;
	struct nvs_engine *opened;
	struct nvs_tensor *t[2];
	uint64_t pin;

	CALL(nvs_engine_open(&opened, settings, NVS_OFFLOAD_PARAM, &error));
	CALL(nvs_tensor_register(opened, specs, 2, t, &error));
	CALL(nvs_engine_step_begin(opened, &error));
	CALL(nvs_tensor_pin(opened, t, 2, -1, &pin, &error));
	CALL(nvs_tensor_release(opened, t, 2, pin, NVS_DIRTY, &error));
	CALL(nvs_tensor_swap_out(opened, t, 2, &error));
	CALL(nvs_tensor_wait(opened, t, 2, 0, -1, &error));
	CALL(nvs_tensor_prefetch(opened, t, 1, &error) < 0);
	CALL(nvs_tensor_swap_in(opened, t, 1, -1, &pin, &error));
	CALL(nvs_tensor_wait(opened, t, 1, pin, -1, &error));
	CALL(nvs_tensor_release(opened, t, 1, pin, NVS_CLEAN, &error));
	CALL(nvs_engine_step_end(opened, &io, &error));

	struct nvs_tensor_range range = {sizeof(range), t[0], 100, 512, values};

	CALL(nvs_tensor_write(opened, &range, 1, -1, &error));
	CALL(nvs_tensor_read(opened, &range, 1, &error));
	CALL(nvs_tensor_wait(opened, t, 1, 0, -1, &error));
	CALL(nvs_tensor_swap_out_from(opened, t, from, 1, &error));
	CALL(nvs_tensor_wait(opened, t, 1, 0, -1, &error));
	CALL(nvs_tensor_swap_in_to(opened, t, to, 1, &error));
	CALL(nvs_tensor_wait(opened, t, 1, 0, -1, &error));

	const struct nvs_checkpoint_item items[] = {{sizeof(*items), t[0], NULL, NULL, 0},
						    {sizeof(*items), t[1], NULL, NULL, 0}};

	for (unsigned i = 0; i < 2; i++) {
		const char *path = i ? path_in(directory, "model.pt") : safetensors;

		CALL(nvs_checkpoint_export(opened, items, 2, path, NULL, &error));
		CALL(nvs_checkpoint_open(&checkpoint, path, &error));
		CALL(nvs_checkpoint_import(opened, checkpoint, items, 2, &error));
		nvs_checkpoint_close(checkpoint);
	}
	call_files(settings);
	CALL(nvs_tensor_rename(opened, t[1], "c", &error));
	CALL(nvs_tensor_forget(opened, t + 1, 1, &error));
	CALL(nvs_engine_set_note(opened, "note", 4, &error));
	CALL(nvs_engine_commit(opened, &error));
	CALL(nvs_engine_keep_place(opened, true, &error));
	CALL(nvs_engine_keep_place(opened, false, &error));
	CALL(nvs_engine_close(opened, &error));
}

static void call_store(const struct nvs_config *settings)
{
	struct nvs_store_place place = {.size = sizeof(place), .paths = &directory, .npaths = 1};
	struct nvs_store_repairs repairs = {.size = sizeof(repairs)};
	struct nvs_store_verdict verdict = {.size = sizeof(verdict)};
	struct nvs_store *store;
	struct nvs_aio *made;

	CALL(nvs_aio_open(&made, settings, &error));
	CALL(nvs_store_find(directory, 0, &place, &error));
	CALL(nvs_store_open(&place, NVS_STORE_LOCK, &store, &error));
	CALL(nvs_store_verify(store, made, 0, 1, &verdict, &error));
	at = "nvs_store_close";
	nvs_store_close(store);
	CALL(nvs_store_repair(&place, 0, &repairs, &error));
	CALL(nvs_store_remove(&place, &error));
	CALL(nvs_aio_close(made));
}

static void call_optimizer(const struct nvs_config *settings)
{
	static float weights[NUMEL], gradients[NUMEL], state[3 * NUMEL];
	const struct nvs_group_spec group = {sizeof(group), "g", NUMEL, NVS_F32, weights};
	struct nvs_adam_update update = {.size = sizeof(update),
					 .numel = NUMEL,
					 .step = 1,
					 .beta1 = 0.9,
					 .beta2 = 0.9,
					 .eps = 1e-8,
					 .gradients = gradients,
					 .gradients_dtype = NVS_F32,
					 .master = state,
					 .exp_avg = state + NUMEL,
					 .exp_avg_sq = state + 2 * NUMEL};
	struct nvs_rule_update by_rule = {.size = sizeof(by_rule),
					  .rule = NVS_RULE_SGD,
					  .numel = NUMEL,
					  .step = 1,
					  .gradients = gradients,
					  .gradients_dtype = NVS_F32,
					  .master = state,
					  .momentum_buffer = state + NUMEL};
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
	struct nvs_state_conversion converted = {.size = sizeof(converted)};
	struct nvs_checkpoint *checkpoint;
	struct nvs_optimizer *opened;
	const char *state_file = path_in(directory, "state.pt");
	void *moved[] = {weights};
	double square;

	CALL(nvs_optimizer_open(&opened, settings, &group, 1, NULL, &error));
	CALL(nvs_optimizer_lend_gradients(opened, 0, NVS_F32, gradients, &error));
	CALL(nvs_optimizer_clear_gradients(opened, &error));
	CALL(nvs_optimizer_add_gradients(opened, 0, 0, NUMEL, NVS_F32, gradients, NULL, &error));
	CALL(nvs_optimizer_sum_gradients(opened, &sums, &error));
	CALL(nvs_optimizer_sum_groups(opened, &square, 1, &error));
	CALL(nvs_optimizer_step(opened, NULL, NULL, &error));
	CALL(nvs_optimizer_get(opened, 0, NVS_MASTER, 0, NUMEL, state, &error));
	CALL(nvs_optimizer_set(opened, 0, NVS_MASTER, 0, NUMEL, state, &error));
	CALL(nvs_optimizer_import(opened, take_state, NULL, &error));
	CALL(nvs_optimizer_export(opened, read_state, NULL, &error));
	CALL(nvs_optimizer_set_step(opened, 7, &error));
	CALL(nvs_optimizer_get_weights(opened, &error));
	CALL(nvs_optimizer_set_weights(opened, moved, 1, &error));
	CALL(nvs_optimizer_set_note(opened, "note", 4, &error));
	CALL(nvs_checkpoint_export_optimizer(opened, state_file, NULL, &error));
	CALL(nvs_checkpoint_open(&checkpoint, state_file, &error));
	CALL(nvs_checkpoint_import_optimizer(opened, checkpoint, NULL, &error));
	nvs_checkpoint_close(checkpoint);
	CALL(nvs_optimizer_commit(opened, &error));
	CALL(nvs_optimizer_close(opened, &error));
	CALL(nvs_optimizer_open(&opened, settings, &group, 1, NULL, &error));
	CALL(nvs_optimizer_abandon(opened, &error));
	CALL(nvs_optimizer_convert(settings, NVS_STATE_BF16, &converted, &error));
	CALL(nvs_adam_update(&update, &error));
	CALL(nvs_rule_update(&by_rule, &error));
}

static __attribute__((noinline)) void make_calls(void)
{
	struct nvs_machine_info machine = {.size = sizeof(machine)};
	struct nvs_path_info path = {.size = sizeof(path)};
	struct nvs_config *settings;
	struct nvs_trace *made;

	/* What this thread may be cancelled at from here on are the calls. */
	pthread_cancel(pthread_self());
	settings = configure();
	CALL(nvs_machine_get_info(&machine, &error));
	CALL(nvs_path_get_info(directory, &path, &error));
	call_aio(settings);
	call_engine(settings);
	call_store(settings);
	call_optimizer(settings);
	nvs_config_close(settings);
	CALL(nvs_trace_open(&made, 4, &error));
	nvs_trace_span(made, "span", 1, 2);
	CALL(nvs_trace_write(made, path_in(directory, "trace.json"), NULL, &error));
	nvs_trace_close(made);
}

/* A thread that ends by cancellation leaves the frames that it is in to AddressSanitizer: it is in
 * none with arrays. */
static void *call_all(void *arg)
{
	make_calls();
	at = NULL;
	pthread_testcancel();
	return arg;
}

TEST(no_call_is_a_cancellation_point)
{
	pthread_t thread;
	void *result;

	directory = temp_directory();
	data_file = path_in(directory, "file");
	safetensors = path_in(directory, "model.safetensors");
	write_text(path_in(directory, "config.json"),
		   "{\"offload_param\": {\"device\": \"nvme\"},"
		   " \"offload_optimizer\": {\"device\": \"nvme\"}}");
	data_fd = open(data_file, O_RDWR | O_CREAT, 0600);
	assert_true(data_fd >= 0 && !ftruncate(data_fd, 8192));
	assert_int_equal(pthread_create(&thread, NULL, call_all, NULL), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	if (at)
		fail_msg("the thread was cancelled in %s", at);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_true(logged > 0);
	close(data_fd);
	cleanup(NULL);
}
