/* SPDX-License-Identifier: Apache-2.0 */
/* All state of an optimizer to .safetensors files and back. */
#include <errno.h>
#include <unistd.h>

#include "optim/optim_fixture.h"
#include "support/support.h"

static const struct group groups[] = {
	{"embed", 100000, NVS_F32}, {"layers", 300001, NVS_BF16}, {"head", 7, NVS_F16}};

static const char *export_after(struct optim *optim, uint64_t steps, uint64_t shard_bytes)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = shard_bytes};
	const char *path = path_in(temp_directory(), "state.safetensors");

	optim_init(optim, groups, COUNT(groups));
	DONE(optim, optim_open(optim));
	optim_run(optim, 1, steps);
	DONE(optim,
	     nvs_checkpoint_export_optimizer(optim->optimizer, path, &options, &optim->error));
	return path;
}

/* Four steps, export, import into a new optimizer, four steps: the bits of eight in one run. */
static void steps_after_an_import_have_the_bits_of_one_run(void **state)
{
	struct nvs_checkpoint *checkpoint;
	struct snapshot expected;
	struct optim optim, other;

	(void)state;
	for (uint64_t shard = 0; shard <= 500000; shard += 500000) {
		const char *path = export_after(&optim, 4, shard);

		optim_run(&optim, 5, 8);
		snapshot_take(&optim, &expected);
		optim_close(&optim);
		optim_init(&other, groups, COUNT(groups));
		DONE(&other, optim_open(&other));
		DONE(&other, nvs_checkpoint_open(&checkpoint, path, &other.error));
		assert_int_equal(nvs_checkpoint_count(checkpoint), 10);
		DONE(&other,
		     nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, &other.error));
		optim_run(&other, 5, 8);
		IS_AS(&other, &expected);
		nvs_checkpoint_close(checkpoint);
		snapshot_free(&expected);
		optim_close(&other);
	}
}

/* More groups in a tile than its transfers may have requests. */
static void many_small_groups_are_exported_and_imported(void **state)
{
	enum { GROUPS = 60, NUMEL = 1001 };
	static float weights[GROUPS][NUMEL], due[NUMEL], got[NUMEL];
	static char names[GROUPS][16];
	struct nvs_group_spec specs[GROUPS];
	struct nvs_checkpoint *checkpoint;
	struct optim optim;
	const char *path = path_in(temp_directory(), "small.safetensors");

	(void)state;
	optim_init(&optim, groups, COUNT(groups));
	for (size_t i = 0; i < GROUPS; i++) {
		snprintf(names[i], sizeof(names[i]), "group%zu", i);
		for (size_t k = 0; k < NUMEL; k++)
			weights[i][k] = (float)element_value(i, k);
		specs[i] = (struct nvs_group_spec){.size = sizeof(specs[i]),
						   .name = names[i],
						   .numel = NUMEL,
						   .dtype = NVS_F32,
						   .weights = weights[i]};
	}
	DONE(&optim, nvs_optimizer_open(&optim.optimizer, &optim.config, specs, GROUPS, NULL,
					&optim.error));
	DONE(&optim, nvs_checkpoint_export_optimizer(optim.optimizer, path, NULL, &optim.error));
	memset(weights, 0, sizeof(weights));
	DONE(&optim, nvs_checkpoint_open(&checkpoint, path, &optim.error));
	DONE(&optim, nvs_checkpoint_import_optimizer(optim.optimizer, checkpoint, &optim.error));
	nvs_checkpoint_close(checkpoint);
	for (size_t i = 0; i < GROUPS; i++) {
		for (size_t k = 0; k < NUMEL; k++)
			due[k] = (float)element_value(i, k);
		assert_memory_equal(weights[i], due, sizeof(due));
		DONE(&optim, nvs_optimizer_get(optim.optimizer, i, NVS_MASTER, 0, NUMEL, got,
					       &optim.error));
		assert_memory_equal(got, due, sizeof(due));
	}
	optim_close(&optim);
}

/* The drive's error is the call's, and no state has changed. */
static void a_file_that_cannot_be_read_ends_the_import(void **state)
{
	struct nvs_checkpoint *checkpoint;
	struct optim optim, other;
	const char *path = export_after(&optim, 1, 0);

	(void)state;
	DONE(&optim, nvs_checkpoint_open(&checkpoint, path, &optim.error));
	optim_close(&optim);
	assert_int_equal(truncate(path, 1000000), 0);
	optim_init(&other, groups, COUNT(groups));
	DONE(&other, optim_open(&other));
	REFUSED(&other, nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, &other.error),
		-ENODATA, "state.safetensors");
	nvs_checkpoint_close(checkpoint);
	optim_run(&other, 1, 1);
	optim_close(&other);
}

static void state_of_other_groups_is_refused(void **state)
{
	static const struct group fewer[] = {{"embed", 100000, NVS_F32},
					     {"layers", 300000, NVS_BF16}};
	static const struct group others[] = {{"embed", 100000, NVS_F32}, {"body", 7, NVS_F32}};
	struct nvs_checkpoint *checkpoint;
	struct optim optim, other;
	const char *path;

	(void)state;
	path = export_after(&optim, 1, 0);
	DONE(&optim, nvs_checkpoint_open(&checkpoint, path, &optim.error));
	optim_close(&optim);
	optim_init(&other, fewer, COUNT(fewer));
	DONE(&other, optim_open(&other));
	REFUSED(&other, nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, &other.error),
		-ESTALE, "layers.fp32");
	optim_close(&other);
	optim_init(&other, others, COUNT(others));
	DONE(&other, optim_open(&other));
	REFUSED(&other, nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, &other.error),
		-ENOENT, "body.fp32");
	optim_close(&other);
	nvs_checkpoint_close(checkpoint);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(steps_after_an_import_have_the_bits_of_one_run),
		test(many_small_groups_are_exported_and_imported),
		test(a_file_that_cannot_be_read_ends_the_import),
		test(state_of_other_groups_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, places_leave_all);
}
