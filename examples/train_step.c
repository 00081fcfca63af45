/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three AdamW steps over two groups of parameters with fp32 state on the drive. Weights and
 * gradients are bf16 in this program's memory. Prints the bytes moved in each step, and the share
 * of I/O hidden behind the arithmetic.
 *
 * train_step DIRECTORY      makes its store there, and removes it
 */
#include <nvswap.h>
#include <stdio.h>
#include <stdlib.h>

enum { GROUPS = 2, STEPS = 3 };

static const char *const group_name[GROUPS] = {"decoder", "embedding"};
static const uint64_t group_numel[GROUPS] = {8 * 1024 * 1024, 3 * 1024 * 1024 + 5};

/* The same as in ds_config.json. */
static const char settings[] =
	"{ \"bf16\": { \"enabled\": true }, \"gradient_clipping\": 1.0,"
	"  \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 1e-3 } },"
	"  \"aio\": { \"block_size\": 1048576, \"queue_depth\": 16 },"
	"  \"zero_optimization\": { \"sub_group_size\": 10000000, \"offload_optimizer\": {"
	"      \"buffer_count\": 4, \"fast_init\": true,"
	"      \"pipeline_read\": true, \"pipeline_write\": true } } }";

struct model {
	struct nvs_optimizer *optimizer;
	uint16_t *weights[GROUPS], *gradients[GROUPS]; /* bf16: the upper half of a float */
	struct nvs_error error;
};

static int make_model(struct model *model)
{
	for (unsigned g = 0; g < GROUPS; g++) {
		model->weights[g] = calloc(group_numel[g], sizeof(uint16_t));
		model->gradients[g] = calloc(group_numel[g], sizeof(uint16_t));
		if (!model->weights[g] || !model->gradients[g])
			return -1;
	}
	return 0;
}

static void free_model(struct model *model)
{
	for (unsigned g = 0; g < GROUPS; g++) {
		free(model->weights[g]);
		free(model->gradients[g]);
	}
}

/* Each function below returns 0, or a negative errno with the reason in model->error. */
static int open_optimizer(struct model *model, const char *directory)
{
	struct nvs_error *error = &model->error;
	struct nvs_group_spec groups[GROUPS];
	struct nvs_config *config;
	int status;

	for (unsigned g = 0; g < GROUPS; g++)
		groups[g] = (struct nvs_group_spec){sizeof(struct nvs_group_spec), group_name[g],
						    group_numel[g], NVS_BF16, model->weights[g]};
	status = nvs_config_open(&config, error);
	if (status)
		return status;
	status = nvs_config_parse(config, settings, sizeof(settings) - 1, "settings", error);
	if (status == 0)
		status = nvs_config_set_paths(config, NVS_OFFLOAD_OPTIMIZER, &directory, 1, error);
	if (status == 0)
		status = nvs_optimizer_open(&model->optimizer, config, groups, GROUPS, NULL, error);
	nvs_config_close(config);
	return status;
}

/* Instead of a backward pass: the gradient is 0.5 for even elements and -0.5 for odd ones. */
static void backward(struct model *model)
{
	for (unsigned g = 0; g < GROUPS; g++)
		for (uint64_t i = 0; i < group_numel[g]; i++)
			model->gradients[g][i] = i % 2 ? 0xbf00 : 0x3f00;
}

static void print_step(const struct nvs_step_result *result)
{
	const struct nvs_step_io *io = &result->io;

	printf("step %llu: %.1f ms, drive %.1f ms, arithmetic %.1f ms, %.1f ms of both at once\n",
	       (unsigned long long)result->step, (double)io->wall_ns / 1e6, (double)io->io_ns / 1e6,
	       (double)io->compute_ns / 1e6, (double)io->hidden_ns / 1e6);
	printf("        %.1f MiB read, %.1f MiB written in %llu tiles; norm %.3f, clipped by %.5f; "
	       "%s on %u threads\n",
	       (double)io->read_bytes / 0x1p20, (double)io->written_bytes / 0x1p20,
	       (unsigned long long)result->tiles, result->norm, result->clip, result->kernel,
	       result->threads);
}

static int step(struct model *model)
{
	const struct nvs_step_options options = {.size = sizeof(options), .lr = -1, .norm = true};
	struct nvs_step_result result = {.size = sizeof(result)};
	int status = 0;

	backward(model);
	for (unsigned g = 0; g < GROUPS && status == 0; g++)
		status = nvs_optimizer_lend_gradients(model->optimizer, g, NVS_BF16,
						      model->gradients[g], &model->error);
	if (status == 0)
		status = nvs_optimizer_step(model->optimizer, &options, &result, &model->error);
	if (status == 0)
		print_step(&result);
	return status;
}

static int train(struct model *model, const char *directory)
{
	int status = open_optimizer(model, directory);

	if (status)
		return status;
	for (unsigned i = 0; i < STEPS && status == 0; i++)
		status = step(model);
	/* An error in training takes precedence over one in closing. */
	if (nvs_optimizer_close(model->optimizer, status ? NULL : &model->error) && status == 0)
		status = model->error.code;
	return status;
}

/* AdamW moves a weight against its gradient: even elements go down, odd ones up. */
static uint64_t wrong_weights(const struct model *model)
{
	uint64_t wrong = 0;

	for (unsigned g = 0; g < GROUPS; g++)
		for (uint64_t i = 0; i < group_numel[g]; i++)
			wrong += (model->weights[g][i] >> 15) != (i % 2 ? 0 : 1);
	return wrong;
}

int main(int argc, char **argv)
{
	static struct model model = {.error = {.size = sizeof(model.error)}};
	int status = 1;

	if (argc != 2) {
		fprintf(stderr, "usage: train_step DIRECTORY\n");
		return 2;
	}
	if (make_model(&model))
		fprintf(stderr, "train_step: out of memory\n");
	else if (train(&model, argv[1]))
		fprintf(stderr, "train_step: %s\n", model.error.text);
	else if (wrong_weights(&model))
		fprintf(stderr, "train_step: %llu weights moved in the wrong direction\n",
			(unsigned long long)wrong_weights(&model));
	else
		status = 0;
	free_model(&model);
	return status;
}
