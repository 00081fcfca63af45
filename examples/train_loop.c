/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training loop over a model larger than the pool: while one layer is computed, the next is read
 * and the previous one written. At the end it compares every weight with the expected value, and
 * exits with 1 if one differs.
 *
 *     train_loop DIRECTORY      makes its store there, and removes it
 */
#include <nvswap.h>
#include <stdio.h>

enum { LAYERS = 12, STEPS = 3, PARTS = 2 };

static const char *const part_name[PARTS] = {"weight", "bias"};
static const uint64_t part_numel[PARTS] = {1024 * 1024, 1023};

/* The same as in ds_config.json: a pool of five buffers, each of which holds a layer. */
static const char settings[] =
	"{ \"aio\": { \"block_size\": 1048576, \"queue_depth\": 8, \"thread_count\": 1 },"
	"  \"zero_optimization\": { \"offload_param\": {"
	"      \"buffer_count\": 5, \"buffer_size\": 1100000, \"max_in_cpu\": 0 } } }";

/* Each function below returns 0, or a negative errno with the reason in model->error. */
struct model {
	struct nvs_engine *engine;
	struct nvs_tensor *layers[LAYERS][PARTS];
	struct nvs_error error;
	uint64_t wrong;
};

/* Tensors registered together lie together in the store, so register them in the order of use. */
static int register_layer(struct model *model, unsigned layer)
{
	struct nvs_tensor_spec specs[PARTS];
	char names[PARTS][32];

	for (unsigned p = 0; p < PARTS; p++) {
		snprintf(names[p], sizeof(names[p]), "layer.%u.%s", layer, part_name[p]);
		specs[p] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = names[p],
						    .dtype = NVS_F32,
						    .numel = part_numel[p]};
	}
	return nvs_tensor_register(model->engine, specs, PARTS, model->layers[layer],
				   &model->error);
}

/* Pins memory for the first contents, and releases it as dirty. */
static int initialise_layer(struct model *model, unsigned layer)
{
	struct nvs_tensor **tensors = model->layers[layer];
	uint64_t pin;
	int status = nvs_tensor_pin(model->engine, tensors, PARTS, -1, &pin, &model->error);

	if (status)
		return status;
	for (unsigned p = 0; p < PARTS; p++) {
		float *value = nvs_tensor_data(tensors[p]);

		for (uint64_t i = 0; i < part_numel[p]; i++)
			value[i] = (float)(layer + i % 1000);
	}
	return nvs_tensor_release(model->engine, tensors, PARTS, pin, NVS_DIRTY, &model->error);
}

static int use_layer(struct model *model, unsigned layer, uint64_t *pin)
{
	struct nvs_tensor **tensors = model->layers[layer];
	int status = nvs_tensor_swap_in(model->engine, tensors, PARTS, -1, pin, &model->error);

	return status ? status
		      : nvs_tensor_wait(model->engine, tensors, PARTS, *pin, -1, &model->error);
}

/* Reads the layer, starts reading the next, computes (adds 1), and starts writing back. */
static int train_layer(struct model *model, unsigned layer)
{
	struct nvs_tensor **tensors = model->layers[layer];
	struct nvs_tensor **next = model->layers[(layer + 1) % LAYERS];
	uint64_t pin;
	int status = use_layer(model, layer, &pin);

	if (status)
		return status;
	if (nvs_tensor_prefetch(model->engine, next, PARTS, &model->error) < 0)
		return model->error.code;

	for (unsigned p = 0; p < PARTS; p++) {
		float *value = nvs_tensor_data(tensors[p]);

		for (uint64_t i = 0; i < part_numel[p]; i++)
			value[i] += 1;
	}
	status = nvs_tensor_release(model->engine, tensors, PARTS, pin, NVS_DIRTY, &model->error);
	return status ? status : nvs_tensor_swap_out(model->engine, tensors, PARTS, &model->error);
}

static int check_layer(struct model *model, unsigned layer)
{
	struct nvs_tensor **tensors = model->layers[layer];
	uint64_t pin;
	int status = use_layer(model, layer, &pin);

	if (status)
		return status;
	for (unsigned p = 0; p < PARTS; p++) {
		const float *value = nvs_tensor_data(tensors[p]);

		for (uint64_t i = 0; i < part_numel[p]; i++)
			model->wrong += value[i] != (float)(layer + i % 1000 + STEPS);
	}
	return nvs_tensor_release(model->engine, tensors, PARTS, pin, NVS_CLEAN, &model->error);
}

static int for_each_layer(struct model *model, int (*visit)(struct model *, unsigned layer))
{
	int status = 0;

	for (unsigned layer = 0; layer < LAYERS && status == 0; layer++)
		status = visit(model, layer);
	return status;
}

static int train(struct model *model)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	int status = for_each_layer(model, register_layer);

	if (status == 0)
		status = for_each_layer(model, initialise_layer);
	for (unsigned step = 0; step < STEPS && status == 0; step++)
		status = for_each_layer(model, train_layer);
	if (status == 0)
		status = for_each_layer(model, check_layer);

	nvs_engine_get_stats(model->engine, &stats);
	printf("%s: %.1f MiB of tensors through a pool of %.1f MiB, %.1f MiB out, %.1f MiB in\n",
	       stats.aio.ioengine, (double)stats.tensor_bytes / 0x1p20,
	       (double)stats.pool.bytes / 0x1p20, (double)stats.swapped_out / 0x1p20,
	       (double)stats.swapped_in / 0x1p20);
	return status;
}

static int open_engine(struct model *model, const char *directory)
{
	struct nvs_error *error = &model->error;
	struct nvs_config *config;
	int status;

	status = nvs_config_open(&config, error);
	if (status)
		return status;
	status = nvs_config_parse(config, settings, sizeof(settings) - 1, "settings", error);
	if (status == 0)
		status = nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, &directory, 1, error);
	if (status == 0)
		status = nvs_engine_open(&model->engine, config, NVS_OFFLOAD_PARAM, error);
	nvs_config_close(config);
	return status;
}

int main(int argc, char **argv)
{
	static struct model model = {.error = {.size = sizeof(model.error)}};
	int status;

	if (argc != 2) {
		fprintf(stderr, "usage: train_loop DIRECTORY\n");
		return 2;
	}
	status = open_engine(&model, argv[1]);
	if (status == 0) {
		status = train(&model);
		if (nvs_engine_close(model.engine, status ? NULL : &model.error) && status == 0)
			status = model.error.code;
	}
	if (status) {
		fprintf(stderr, "train_loop: %s\n", model.error.text);
		return 1;
	}
	if (model.wrong) {
		fprintf(stderr, "train_loop: %llu weights are wrong\n",
			(unsigned long long)model.wrong);
		return 1;
	}
	printf("%d layers, %d steps: every weight is what it should be\n", LAYERS, STEPS);
	return 0;
}
