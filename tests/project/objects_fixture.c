/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes the objects.
 */
#include "project/objects_fixture.h"

struct nvs_config *config;
struct nvs_engine *engine;
struct nvs_tensor *tensor;
struct nvs_optimizer *optimizer;
struct nvs_aio *aio;
struct nvs_file *file;

void objects_open(uint64_t numel)
{
	static const char text[] =
		"{\"offload_param\": {\"device\": \"cpu\", \"buffer_size\": 65536},"
		" \"offload_optimizer\": {\"device\": \"cpu\"},"
		" \"zero_optimization\": {\"sub_group_size\": 65536}}";
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_F32, .numel = numel};
	const struct nvs_group_spec group = {sizeof(group), "g", numel, NVS_F32, NULL};
	struct nvs_error error = {.size = sizeof(error)};

	SUCCEEDS(nvs_config_open(&config, &error), &error);
	SUCCEEDS(nvs_config_parse(config, text, strlen(text), "test", &error), &error);
	SUCCEEDS(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error), &error);
	SUCCEEDS(nvs_tensor_register(engine, &spec, 1, &tensor, &error), &error);
	SUCCEEDS(nvs_optimizer_open(&optimizer, config, &group, 1, NULL, &error), &error);
	SUCCEEDS(nvs_aio_open(&aio, config, &error), &error);
	SUCCEEDS(nvs_file_open(aio, path_in(temp_directory(), "file"),
			       NVS_FILE_WRITE | NVS_FILE_CREATE, &file, &error),
		 &error);
}

int objects_close(void)
{
	struct nvs_error error = {.size = sizeof(error)};

	nvs_file_close(file);
	nvs_aio_close(aio);
	SUCCEEDS(nvs_optimizer_close(optimizer, &error), &error);
	SUCCEEDS(nvs_engine_close(engine, &error), &error);
	nvs_config_close(config);
	return cleanup(NULL);
}
