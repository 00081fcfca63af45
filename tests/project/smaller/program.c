/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled against headers whose structures lack their last fields. It passes each to the library
 * with bytes behind it that must stay.
 */
#include <nvswap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMEL 1000
#define GUARD 0xa5

#define CHECK(holds)                                                                               \
	do {                                                                                       \
		if (!(holds)) {                                                                    \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds);        \
			exit(EXIT_FAILURE);                                                        \
		}                                                                                  \
	} while (0)

/* A structure with a guard behind it. `call` is an expression on `it`, which must be 0. */
#define FILLS(type, call, holds)                                                                   \
	do {                                                                                       \
		static struct {                                                                    \
			struct type known;                                                         \
			unsigned char guard[32768];                                                \
		} place;                                                                           \
		struct type *it = &place.known;                                                    \
                                                                                                   \
		memset(&place, GUARD, sizeof(place));                                              \
		memset(it, 0, sizeof(*it));                                                        \
		it->size = sizeof(*it);                                                            \
		CHECK((call) == 0);                                                                \
		CHECK(holds);                                                                      \
		CHECK(it->size == sizeof(*it));                                                    \
		for (size_t i = 0; i < sizeof(place.guard); i++)                                   \
			CHECK(place.guard[i] == GUARD);                                            \
	} while (0)

static struct nvs_config *config;
static char memory[8192] __attribute__((aligned(4096)));

static void describe(void)
{
	static struct nvs_machine_info machine = {.size = sizeof(machine)};

	FILLS(nvs_error, nvs_config_load(config, "/nonexistent", it) == it->code ? 0 : 1,
	      it->code < 0 && it->subject[0] == '\0');
	FILLS(nvs_machine_info, nvs_machine_get_info(it, NULL), it->cpus > 0);
	FILLS(nvs_path_info, nvs_path_get_info(".", it, NULL), it->total_bytes > 0);
	CHECK(nvs_machine_get_info(&machine, NULL) == 0);
	FILLS(nvs_advice, nvs_machine_advise(&machine, NULL, it), it->count <= 16);
}

static void move(const char *directory)
{
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_transfer transfers[2] = {
		{.size = sizeof(transfers[0]), .data = memory, .nbytes = 4096},
		{.size = sizeof(transfers[0]),
		 .data = memory + 4096,
		 .nbytes = 4096,
		 .offset = 4096}};
	char path[4096];

	snprintf(path, sizeof(path), "%s/file", directory);
	CHECK(nvs_aio_open(&aio, config, NULL) == 0);
	CHECK(nvs_file_open(aio, path, NVS_FILE_WRITE | NVS_FILE_CREATE, &file, NULL) == 0);
	for (unsigned i = 0; i < 2; i++) {
		transfers[i].file = file;
		transfers[i].direction = NVS_WRITE;
	}
	CHECK(nvs_aio_submit(aio, transfers, 2, NULL, NULL) == 0);
	CHECK(nvs_aio_wait_all(aio, -1, NULL, NULL) == 0);
	FILLS(nvs_aio_stats, nvs_aio_get_stats(aio, it), it->workers == 1);
	FILLS(nvs_latency, nvs_aio_get_latency(aio, NVS_WRITE, NVS_LAT, it), it->count > 0);
	nvs_file_close(file);
	nvs_aio_close(aio);
	remove(path);
}

static void swap(void)
{
	struct nvs_tensor_spec specs[2] = {
		{.size = sizeof(specs[0]), .name = "a", .dtype = NVS_F32},
		{.size = sizeof(specs[0]), .name = "b", .dtype = NVS_F16}};
	struct nvs_tensor *tensors[2];
	struct nvs_engine *engine;
	uint64_t pin;

	CHECK(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, NULL) == 0);
	CHECK(nvs_tensor_register(engine, specs, 2, tensors, NULL) == 0);
	CHECK(nvs_engine_step_begin(engine, NULL) == 0);
	CHECK(nvs_tensor_pin(engine, tensors, 2, -1, &pin, NULL) == 0);
	CHECK(nvs_tensor_release(engine, tensors, 2, pin, NVS_DIRTY, NULL) == 0);
	FILLS(nvs_step_io, nvs_engine_step_end(engine, it, NULL), it->wall_ns > 0);
	FILLS(nvs_tensor_info, nvs_tensor_get_info(engine, tensors[1], it), it->dtype == NVS_F16);
	FILLS(nvs_engine_stats, nvs_engine_get_stats(engine, it), it->tensors == 2);
	CHECK(nvs_engine_close(engine, NULL) == 0);
}

static void keep(const char *directory)
{
	const char *const paths[] = {directory};
	struct nvs_tensor_spec spec = {.size = sizeof(spec), .name = "a", .dtype = NVS_F32};
	struct nvs_engine *engine;
	struct nvs_tensor *tensor;
	struct nvs_config *kept;

	CHECK(nvs_config_open(&kept, NULL) == 0);
	CHECK(nvs_config_set_paths(kept, NVS_OFFLOAD_PARAM, paths, 1, NULL) == 0);
	CHECK(nvs_config_set(kept, "nvswap.keep", "true", NULL) == 0);
	CHECK(nvs_config_set(kept, "offload_param.buffer_size", "65536", NULL) == 0);
	CHECK(nvs_engine_open(&engine, kept, NVS_OFFLOAD_PARAM, NULL) == 0);
	CHECK(nvs_tensor_register(engine, &spec, 1, &tensor, NULL) == 0);
	CHECK(nvs_engine_close(engine, NULL) == 0);
	nvs_config_close(kept);
}

static void look(const char *directory)
{
	const char *const paths[] = {directory};
	struct nvs_store_place store_place = {
		.size = sizeof(store_place), .paths = paths, .npaths = 1};
	struct nvs_store *store;
	struct nvs_aio *aio;

	keep(directory);
	FILLS(nvs_store_place, nvs_store_find(directory, 0, it, NULL), it->rank == 0);
	CHECK(nvs_store_open(&store_place, NVS_STORE_LOCK, &store, NULL) == 0);
	CHECK(nvs_aio_open(&aio, config, NULL) == 0);
	FILLS(nvs_store_info, nvs_store_get_info(store, it), it->tensors == 1);
	FILLS(nvs_store_copy, nvs_store_get_copy(store, 0, it), it->path);
	FILLS(nvs_store_tensor, nvs_store_get_tensor(store, 0, it), strcmp(it->name, "a") == 0);
	FILLS(nvs_store_verdict, nvs_store_verify(store, aio, 0, 1, it, NULL),
	      it->finding != NVS_STORE_CORRUPT);
	nvs_store_close(store);
	nvs_aio_close(aio);
	FILLS(nvs_store_repairs, nvs_store_repair(&store_place, 0, it, NULL), it->commit > 0);
	CHECK(nvs_store_remove(&store_place, NULL) == 0);
}

static void save(const char *directory)
{
	struct nvs_tensor_spec specs[2] = {
		{.size = sizeof(specs[0]), .name = "a", .dtype = NVS_F32},
		{.size = sizeof(specs[0]), .name = "b", .dtype = NVS_F16}};
	struct nvs_checkpoint_item items[2] = {{.size = sizeof(items[0])},
					       {.size = sizeof(items[0]), .name = "c"}};
	struct nvs_checkpoint *checkpoint;
	struct nvs_tensor *tensors[2];
	struct nvs_engine *engine;
	char path[4096];
	uint64_t pin;

	snprintf(path, sizeof(path), "%s/model.safetensors", directory);
	CHECK(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, NULL) == 0);
	CHECK(nvs_tensor_register(engine, specs, 2, tensors, NULL) == 0);
	for (unsigned i = 0; i < 2; i++)
		items[i].tensor = tensors[i];
	CHECK(nvs_tensor_pin(engine, tensors, 2, -1, &pin, NULL) == 0);
	CHECK(nvs_tensor_release(engine, tensors, 2, pin, NVS_DIRTY, NULL) == 0);
	CHECK(nvs_checkpoint_export(engine, items, 2, path, NULL, NULL) == 0);
	CHECK(nvs_checkpoint_open(&checkpoint, path, NULL) == 0);
	FILLS(nvs_checkpoint_tensor, nvs_checkpoint_get(checkpoint, 1, it),
	      strcmp(it->name, "c") == 0);
	CHECK(nvs_checkpoint_import(engine, checkpoint, items, 2, NULL) == 0);
	nvs_checkpoint_close(checkpoint);
	CHECK(nvs_engine_close(engine, NULL) == 0);
	remove(path);
}

static void optimize(void)
{
	static float gradients[NUMEL] = {1}, master[NUMEL], means[NUMEL], squares[NUMEL];
	struct nvs_group_spec groups[2] = {
		{.size = sizeof(groups[0]), .name = "a", .numel = NUMEL, .dtype = NVS_F32},
		{.size = sizeof(groups[0]), .name = "b", .numel = NUMEL, .dtype = NVS_F32}};
	struct nvs_optimizer_options options = {.size = sizeof(options)};
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
	struct nvs_step_options step = {.size = sizeof(step), .lr = 0.5, .sums = &sums};
	struct nvs_optimizer *optimizer;

	CHECK(nvs_optimizer_open(&optimizer, config, groups, 2, &options, NULL) == 0);
	CHECK(nvs_optimizer_lend_gradients(optimizer, 1, NVS_F32, gradients, NULL) == 0);
	CHECK(nvs_optimizer_sum_gradients(optimizer, &sums, NULL) == 0 && sums.sum_squares == 1);
	step.sums = &sums;
	FILLS(nvs_step_result, nvs_optimizer_step(optimizer, &step, it, NULL), it->step == 1);
	FILLS(nvs_optimizer_info, nvs_optimizer_get_info(optimizer, it, NULL), it->ngroups == 2);
	FILLS(nvs_group_info, nvs_optimizer_get_group_info(optimizer, 1, it, NULL),
	      it->numel == NUMEL);
	CHECK(nvs_optimizer_close(optimizer, NULL) == 0);
	FILLS(nvs_adam_update,
	      (it->numel = NUMEL, it->step = 1, it->lr = 0.5, it->beta1 = 0.9, it->beta2 = 0.999,
	       it->eps = 1e-8, it->gradients = gradients, it->gradients_dtype = NVS_F32,
	       it->master = master, it->exp_avg = means, it->exp_avg_sq = squares,
	       it->weights_dtype = NVS_F32, nvs_adam_update(it, NULL)),
	      means[0] > 0);
}

int main(int argc, char **argv)
{
	static const char text[] =
		"{\"offload_param\": {\"device\": \"cpu\", \"buffer_size\": 65536},"
		" \"offload_optimizer\": {\"device\": \"cpu\"},"
		" \"zero_optimization\": {\"sub_group_size\": 65536}}";

	CHECK(argc == 2);
	CHECK(nvs_config_open(&config, NULL) == 0);
	CHECK(nvs_config_parse(config, text, strlen(text), "text", NULL) == 0);
	describe();
	move(argv[1]);
	swap();
	look(argv[1]);
	save(argv[1]);
	optimize();
	nvs_config_close(config);
	return EXIT_SUCCESS;
}
