/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled against headers whose structures lack their last fields. It passes arrays of them to the
 * library. Results stay within such sizes by test_sizes.c, and fields behind them are 0 by
 * test_extremes.c.
 */
#include <nvswap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMEL 1000

#define CHECK(holds)                                                                               \
	do {                                                                                       \
		if (!(holds)) {                                                                    \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds);        \
			exit(EXIT_FAILURE);                                                        \
		}                                                                                  \
	} while (0)

static struct nvs_config *config;
static char memory[8192] __attribute__((aligned(4096)));

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
	nvs_file_close(file);
	nvs_aio_close(aio);
	remove(path);
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
	CHECK(nvs_checkpoint_import(engine, checkpoint, items, 2, NULL) == 0);
	nvs_checkpoint_close(checkpoint);
	CHECK(nvs_engine_close(engine, NULL) == 0);
	remove(path);
}

static void optimize(void)
{
	static float gradients[NUMEL] = {1};
	struct nvs_group_spec groups[2] = {
		{.size = sizeof(groups[0]), .name = "a", .numel = NUMEL, .dtype = NVS_F32},
		{.size = sizeof(groups[0]), .name = "b", .numel = NUMEL, .dtype = NVS_F32}};
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};
	struct nvs_step_options step = {.size = sizeof(step), .lr = 0.5, .sums = &sums};
	struct nvs_optimizer *optimizer;

	CHECK(nvs_optimizer_open(&optimizer, config, groups, 2, NULL, NULL) == 0);
	CHECK(nvs_optimizer_lend_gradients(optimizer, 1, NVS_F32, gradients, NULL) == 0);
	CHECK(nvs_optimizer_sum_gradients(optimizer, &sums, NULL) == 0 && sums.sum_squares == 1);
	CHECK(nvs_optimizer_step(optimizer, &step, NULL, NULL) == 0);
	CHECK(nvs_optimizer_close(optimizer, NULL) == 0);
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
	move(argv[1]);
	save(argv[1]);
	optimize();
	nvs_config_close(config);
	return EXIT_SUCCESS;
}
