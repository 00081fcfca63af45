/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers that are open read-only: the state of a kept store can be read, by several at once;
 * nothing changes it or the files.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>

ONE_OPTIMIZER

static const struct group five[] = {{"layers.0", 20001, NVS_BF16},
				    {"layers.1", 9999, NVS_F16},
				    {"norm", 1, NVS_F32},
				    {"layers.2", 14337, NVS_BF16},
				    {"head", 4096, NVS_F32}};

/* Leaves a kept store with the state after two steps, closed; the next open only reads. */
static void make_store(double ratio, uint64_t cached, struct snapshot *snapshot)
{
	optim_renew(o, five, LENGTH(five));
	o->config.keep = true;
	o->offload->ratio = ratio;
	o->config.optimizer_max_in_cpu = cached;
	optim_open_run(o, 2);
	o->result = (struct nvs_step_result){.size = sizeof(o->result)};
	if (snapshot)
		snapshot_take(o, snapshot);
	optim_shut(o);
	optim_spoil_weights(o);
	o->config.keep = false;
	o->config.read_only = true;
}

/* ---- What can be read ---- */

/* Counts the elements of a group that are handed out, by group; atomic. */
static int count_run(void *arg, const struct nvs_state_run *run)
{
	uint64_t *counts = arg;

	__atomic_add_fetch(&counts[run->group], run->numel, __ATOMIC_RELAXED);
	return 0;
}

static void exports_all(void)
{
	uint64_t counts[LENGTH(five)] = {0};

	DOES(o, export, count_run, counts);
	for (size_t i = 0; i < o->n; i++)
		assert_true(counts[i] == five[i].numel);
}

static void is_read_without_changes(double ratio, uint64_t cached)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct snapshot snapshot;
	uint64_t before;

	make_store(ratio, cached, &snapshot);
	before = sum_of_files(o->path, true);
	DONE(o, optim_open(o));
	DOES(o, get_info, &info);
	assert_true(info.step == 2 && info.kept && info.generation == 1);
	exports_all();
	DOES(o, get_weights);
	IS_AS(o, &snapshot);
	exports_all();
	assert_true(sum_of_files(o->path, true) == before);
	optim_shut(o);
	assert_true(sum_of_files(o->path, true) == before);
	snapshot_free(&snapshot);
}

TEST(the_state_is_read_and_nothing_of_the_store_changes)
{
	is_read_without_changes(1, 0);
	is_read_without_changes(0.5, 0);
	is_read_without_changes(0, 0);
	is_read_without_changes(1, 10000);
}

TEST(several_optimizers_read_a_store_at_once)
{
	struct nvs_optimizer *first;
	struct snapshot snapshot;

	make_store(1, 0, &snapshot);
	DONE(o, optim_open(o));
	first = o->optimizer;
	DONE(o, optim_open(o));
	assert_ptr_not_equal(o->optimizer, first);
	DONE(o, nvs_optimizer_get_weights(first, &o->error));
	IS_AS(o, &snapshot);
	DONE(o, nvs_optimizer_close(first, &o->error));
	snapshot_free(&snapshot);
}

/* The type says how state is updated, which no reader does. */
TEST(an_optimizer_of_any_type_can_be_read)
{
	make_store(1, 0, NULL);
	snprintf(o->config.adam.type, sizeof(o->config.adam.type), "Lion");
	DONE(o, optim_open(o));
	exports_all();
}

TEST(added_gradients_of_a_kept_store_are_summed)
{
	static const float ones[100] = {[0 ... 99] = 1};
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};

	optim_renew(o, five, LENGTH(five));
	o->config.keep = true;
	DONE(o, optim_open(o));
	DOES(o, add_gradients, 1, 7, 100, NVS_F32, ones, NULL);
	optim_shut(o);
	o->config.read_only = true;
	DONE(o, optim_open(o));
	DOES(o, sum_gradients, &sums);
	assert_true(sums.sum_squares == 100);
}

/* ---- What is refused ---- */

static int fill_zeros(void *arg, const struct nvs_state_run *run)
{
	(void)arg;
	memset(run->master, 0, run->numel * sizeof(float));
	return 0;
}

TEST(calls_that_would_change_the_state_are_refused)
{
	static const float data[20001];
	struct snapshot snapshot;
	uint64_t before;

	make_store(1, 0, &snapshot);
	before = sum_of_files(o->path, true);
	DONE(o, optim_open(o));
	REFUSES(o, -EROFS, "read_only", lend_gradients, 0, NVS_F32, data);
	REFUSES(o, -EROFS, "read_only", add_gradients, 0, 0, 10, NVS_F32, data, NULL);
	REFUSES(o, -EROFS, "read_only", clear_gradients);
	REFUSES(o, -EROFS, "read_only", step, NULL, NULL);
	REFUSES(o, -EROFS, "read_only", set, 0, NVS_MASTER, 0, 10, data);
	REFUSES(o, -EROFS, "read_only", import, fill_zeros, NULL);
	REFUSES(o, -EROFS, "read_only", set_step, 7);
	REFUSES(o, -EROFS, "read_only", commit);
	REFUSES(o, -EROFS, "read_only", set_note, "n", 1);
	DOES(o, get_weights);
	IS_AS(o, &snapshot);
	DOES(o, abandon);
	o->optimizer = NULL;
	assert_true(sum_of_files(o->path, true) == before);
	snapshot_free(&snapshot);
}

/* A store with tensors of a caller and no optimizer's header. */
static void make_other_store(void)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_F32, .numel = 100};
	struct nvs_tensor *tensor;
	struct nvs_engine *engine;

	o->config.keep = true;
	o->config.read_only = false;
	DONE(o, nvs_engine_open(&engine, &o->config, NVS_OFFLOAD_OPTIMIZER, &o->error));
	DONE(o, nvs_tensor_register(engine, &spec, 1, &tensor, &o->error));
	DONE(o, nvs_engine_close(engine, &o->error));
	o->config.read_only = true;
}

TEST(a_path_without_an_optimizers_state_is_refused)
{
	uint64_t before;

	optim_renew(o, five, LENGTH(five));
	o->config.read_only = true;
	REFUSED(o, optim_open(o), -ENODATA, "");
	make_other_store();
	before = sum_of_files(o->path, true);
	REFUSED(o, optim_open(o), -ENODATA, "no state of an optimizer");
	assert_true(sum_of_files(o->path, true) == before);
	o->offload->device = NVS_DEVICE_CPU;
	REFUSED(o, optim_open(o), -ENODATA, "no kept store");
}
