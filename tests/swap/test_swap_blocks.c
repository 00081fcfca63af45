/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters and optimizer state under one nvme_path: most users name the same drive in both
 * blocks.
 */
#include "support/tests.h"
#include "swap/swap_fixture.h"

#define NBYTES 70000

static struct nvs_tensor *open_block(struct fixture *fixture, enum nvs_block block,
				     struct nvs_engine **engine, char fill)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "same", .dtype = NVS_U8, .numel = NBYTES};
	struct nvs_tensor *tensor;

	OK(fixture, nvs_engine_open(engine, &fixture->config, block, &fixture->error));
	OK(fixture, nvs_tensor_register(*engine, &spec, 1, &tensor, &fixture->error));
	OK(fixture, sole_pin(*engine, &tensor, 1, -1, &fixture->error));
	memset(nvs_tensor_data(tensor), fill, NBYTES);
	OK(fixture, sole_release(*engine, &tensor, 1, NVS_DIRTY, &fixture->error));
	OK(fixture, nvs_tensor_swap_out(*engine, &tensor, 1, &fixture->error));
	OK(fixture, sole_wait(*engine, &tensor, 1, -1, &fixture->error));
	return tensor;
}

static void expect_fill(struct fixture *fixture, struct nvs_engine *engine,
			struct nvs_tensor *tensor, char fill)
{
	const char *data;

	OK(fixture, sole_swap_in(engine, &tensor, 1, -1, &fixture->error));
	OK(fixture, sole_wait(engine, &tensor, 1, -1, &fixture->error));
	data = nvs_tensor_data(tensor);
	for (size_t i = 0; i < NBYTES; i++)
		assert_int_equal(data[i], fill);
	OK(fixture, sole_release(engine, &tensor, 1, NVS_CLEAN, &fixture->error));
}

TEST(both_blocks_may_name_one_path)
{
	struct fixture fixture;
	struct nvs_engine *param, *optimizer;
	struct nvs_tensor *weights, *moments;

	INIT(&fixture, .place = PLACE_DISK, .verify = true);
	OK(&fixture,
	   nvs_config_set_paths(
		   &fixture.config, NVS_OFFLOAD_OPTIMIZER,
		   (const char *const *)fixture.config.offload[NVS_OFFLOAD_PARAM].nvme_path,
		   fixture.config.offload[NVS_OFFLOAD_PARAM].npaths, &fixture.error));
	fixture.config.offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = MIB / 4;
	weights = open_block(&fixture, NVS_OFFLOAD_PARAM, &param, 'w');
	moments = open_block(&fixture, NVS_OFFLOAD_OPTIMIZER, &optimizer, 'm');
	expect_fill(&fixture, param, weights, 'w');
	expect_fill(&fixture, optimizer, moments, 'm');
	OK(&fixture, nvs_engine_close(param, &fixture.error));
	OK(&fixture, nvs_engine_close(optimizer, &fixture.error));
	fixture_close(&fixture);
}
