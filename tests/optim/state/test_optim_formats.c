/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State in fewer bytes: the split master computes the bits of fp32; bf16 and 8bit compute the same
 * bits whatever the threads, tiles, cache and faults; and each moves the bytes that it promises.
 */
#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/tests.h"

TWO_OPTIMIZERS

/* Of mixed types within a tile, and all bf16. */
static const struct group five[] = {{"a", 20001, NVS_BF16},
				    {"b", 300, NVS_F32},
				    {"c", 9999, NVS_BF16},
				    {"d", 512, NVS_BF16},
				    {"e", 7001, NVS_F16}};
static const struct group halves[] = {
	{"a", 20 * 1024, NVS_BF16}, {"b", 4096, NVS_BF16}, {"c", 8192, NVS_BF16}};

#define STEPS 3

/* One of many ways to run, that all compute the same. */
static void begin(struct optim *on, const struct group *groups, size_t n,
		  enum nvs_optimizer_state state, unsigned way)
{
	optim_renew(on, groups, n);
	on->config.optimizer_state = state;
	on->config.gradient_clipping = 0.9;
	on->offload->ratio = way == 1 ? 0.6 : 1;
	on->config.optimizer_max_in_cpu = way == 2 ? 12000 : way == 3 ? 1000000 : 0;
	on->offload->fast_init = way != 4;
	on->offload->pipeline_read = on->offload->pipeline_write = way != 5;
	on->config.optimizer_threads = way == 5 ? 1 : way == 6 ? 4 : 2;
	if (way == 6)
		on->config.sub_group_size = 100000;
	if (way == 7)
		on->offload->device = NVS_DEVICE_CPU;
}

#define WAYS 8

static struct nvs_optimizer_info optimizer_info(struct optim *on)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	DOES(on, get_info, &info);
	return info;
}

/* ---- Split ---- */

static void compare_split(unsigned way, bool without_weights, bool added)
{
	void *left_out[2] = {NULL, NULL};

	begin(&optim, five, LENGTH(five), NVS_STATE_FP32, 0);
	begin(&other, five, LENGTH(five), NVS_STATE_SPLIT, way);
	if (without_weights) {
		left_out[0] = optim.specs[2].weights;
		left_out[1] = other.specs[2].weights;
		optim.specs[2].weights = other.specs[2].weights = NULL;
	}
	if (way == 3)
		optim.gradients_dtype = other.gradients_dtype = NVS_BF16;
	DONE(&optim, optim_open(&optim));
	DONE(&other, optim_open(&other));
	for (uint64_t step = 1; step <= STEPS; step++) {
		if (added) {
			optim_add(&optim, step, 2);
			optim_add(&other, step, 2);
			DONE(&optim, optim_step(&optim, step));
			DONE(&other, optim_step(&other, step));
		} else {
			optim_run(&optim, step, step);
			optim_run(&other, step, step);
		}
		IS_LIKE(&other, &optim);
	}
	if (without_weights) {
		optim.specs[2].weights = left_out[0];
		other.specs[2].weights = left_out[1];
	}
}

TEST(split_computes_the_bits_of_fp32)
{
	for (unsigned way = 0; way < WAYS; way++) {
		compare_split(way, false, false);
		compare_split(way, way % 2, true);
	}
}

/* Masters halfway between two bf16 weights, infinite and not a number. */
static void set_ties(void *arg, const struct nvs_update *update)
{
	(void)arg;
	for (uint64_t i = 0; i < update->numel; i++) {
		uint32_t at = (uint32_t)(update->offset + i);
		uint32_t low = at % 3 == 0 ? 0x8000 : at % 3 == 1 ? 0x7fff : 0x8001;
		uint32_t bits = at % 97 == 0 ? 0x7f7f8000u + (at & 0x80000000u)
					     : (at * 2654435761u & 0xbfff0000u) | low;

		memcpy(&update->master[i], &bits, sizeof(bits));
		update->exp_avg[i] = (float)at;
		update->exp_avg_sq[i] = (float)at / 3;
	}
}

TEST(split_keeps_masters_that_round_from_a_tie)
{
	for (enum nvs_optimizer_state kind = NVS_STATE_FP32; kind <= NVS_STATE_BF16; kind++) {
		struct snapshot all;

		begin(&optim, halves, LENGTH(halves), kind, 0);
		optim.options.update = set_ties;
		optim_open_run(&optim, 2);
		snapshot_take(&optim, &all);
		if (kind == NVS_STATE_FP32)
			optim_save(&optim);
		for (size_t i = 0; i < LENGTH(halves); i++) {
			assert_memory_equal(all.parts[i][NVS_MASTER],
					    optim_saved.parts[i][NVS_MASTER], 4 * all.numel[i]);
			assert_memory_equal(all.weights[i], optim_saved.weights[i],
					    2 * all.numel[i]);
		}
		snapshot_free(&all);
	}
}

TEST(a_skipped_step_changes_nothing_of_a_split_state)
{
	begin(&optim, halves, LENGTH(halves), NVS_STATE_SPLIT, 0);
	optim.config.fp16.enabled = true;
	optim.config.fp16.initial_scale_power = 4;
	optim_open_run(&optim, 1);
	optim_lend(&optim, 2, 1);
	((float *)optim.gradients[1])[7] = INFINITY;
	optim_save(&optim);
	DONE(&optim, optim_step(&optim, 2));
	assert_true(optim.result.skipped);
	optim.result.norm = optim_saved.norm;
	IS_AS_SAVED(&optim);
}

TEST(a_split_master_is_the_weight_and_its_remainder)
{
	uint16_t *weights;
	float master, before, two = 2;

	begin(&optim, halves, LENGTH(halves), NVS_STATE_SPLIT, 0);
	optim_open_run(&optim, 2);
	weights = optim.specs[0].weights;
	DOES(&optim, get, 0, NVS_MASTER, 5, 1, &before);
	/* A weight that the caller changes by 2^-7 of itself changes its master as much. */
	weights[5] ^= 1;
	DOES(&optim, get, 0, NVS_MASTER, 5, 1, &master);
	assert_true(master != before);
	weights[5] ^= 1;
	DOES(&optim, get, 0, NVS_MASTER, 5, 1, &master);
	assert_true(master == before);
	DOES(&optim, set, 0, NVS_MASTER, 5, 1, &two);
	assert_int_equal(weights[5], 0x4000);
	DOES(&optim, get_weights);
	assert_int_equal(weights[5], 0x4000);
}

TEST(every_setting_computes_the_same_bits_in_each_format)
{
	for (enum nvs_optimizer_state kind = NVS_STATE_BF16; kind <= NVS_STATE_8BIT; kind++) {
		for (unsigned way = 0; way < WAYS; way++) {
			begin(&optim, five, LENGTH(five), kind, way);
			DONE(&optim, optim_open(&optim));
			for (uint64_t step = 1; step <= STEPS; step++) {
				if (step % 2)
					optim_lend(&optim, step, 1);
				else
					optim_add(&optim, step, 2);
				DONE(&optim, optim_step(&optim, step));
			}
			if (!way)
				optim_save(&optim);
			IS_AS_SAVED(&optim);
		}
	}
}

TEST(an_interrupted_step_rounds_as_if_it_was_not)
{
	for (enum nvs_optimizer_state kind = NVS_STATE_SPLIT; kind <= NVS_STATE_8BIT; kind++) {
		begin(&other, halves, LENGTH(halves), kind, 0);
		optim_open_run(&other, 2);
		for (unsigned after = 1; after < 60; after += 13) {
			enum nvs_direction direction = after % 2 ? NVS_READ : NVS_WRITE;

			begin(&optim, halves, LENGTH(halves), kind, 0);
			optim_simulate(&optim);
			optim_open_run(&optim, 1);
			optim_lend(&optim, 2, 1);
			sim_fail(optim.sim, direction, after, EIO, SIM_ALWAYS);
			if (optim_step(&optim, 2)) {
				sim_no_faults(optim.sim);
				DONE(&optim, optim_step(&optim, 2));
			}
			sim_no_faults(optim.sim);
			optim.result.norm = other.result.norm;
			IS_LIKE(&optim, &other);
		}
	}
}

/* ---- Bytes ---- */

TEST(a_step_moves_the_bytes_of_its_format)
{
	static const double due[] = {24, 20, 12, 8.125};
	uint64_t numel = 0;

	for (size_t i = 0; i < LENGTH(halves); i++)
		numel += halves[i].numel;
	for (enum nvs_optimizer_state kind = NVS_STATE_FP32; kind <= NVS_STATE_8BIT; kind++) {
		struct nvs_optimizer_info info;

		begin(&optim, halves, LENGTH(halves), kind, 0);
		optim_open_run(&optim, 2);
		info = optimizer_info(&optim);
		assert_int_equal(info.state, kind);
		assert_int_equal(info.numel, numel);
		assert_int_equal(info.split_numel, kind == NVS_STATE_FP32 ? 0 : numel);
		assert_true(info.step_bytes == due[kind]);
		uint64_t tile = (numel + optim.result.tiles - 1) / optim.result.tiles;

		assert_true((double)(optim.result.io.read_bytes + optim.result.io.written_bytes) ==
			    due[kind] * (double)(optim.result.tiles * tile));
	}
}

TEST(state_in_host_memory_takes_the_bytes_of_its_format)
{
	static const uint64_t due[] = {12 * 1024, 10 * 1024, 6 * 1024, 4160};

	for (enum nvs_optimizer_state kind = NVS_STATE_FP32; kind <= NVS_STATE_8BIT; kind++) {
		begin(&optim, halves, LENGTH(halves), kind, 0);
		optim.offload->ratio = 0;
		optim_open_run(&optim, 1);
		assert_true(optim.result.host_bytes >= 32 * due[kind]);
		assert_true(optim.result.host_bytes <= 34 * due[kind]);
	}
}

TEST(a_master_without_bf16_weights_stays_whole)
{
	void *left_out;

	begin(&optim, five, LENGTH(five), NVS_STATE_BF16, 0);
	left_out = optim.specs[2].weights;
	optim.specs[2].weights = NULL;
	DONE(&optim, optim_open(&optim));
	assert_in_range(optimizer_info(&optim).split_numel, 15000, 20001 + 512);
	optim.specs[2].weights = left_out;
	optim_close(&optim);
	/* Ties of 8-bit state are lost with a remainder: all groups have one, or none. */
	begin(&optim, five, LENGTH(five), NVS_STATE_8BIT, 0);
	DONE(&optim, optim_open(&optim));
	assert_int_equal(optimizer_info(&optim).split_numel, 0);
	assert_true(optimizer_info(&optim).step_bytes == 12.125);
}

/* ---- Out and in ---- */

TEST(what_is_read_comes_back_as_it_was)
{
	static float values[20001];

	for (enum nvs_optimizer_state kind = NVS_STATE_SPLIT; kind <= NVS_STATE_8BIT; kind++)
		for (unsigned way = 0; way < 4; way++) {
			uint64_t at, n;

			begin(&optim, five, LENGTH(five), kind, way);
			optim_open_run(&optim, 3);
			optim_save(&optim);
			for (size_t i = 0; i < LENGTH(five); i++)
				for (at = 0, n = 1; at < five[i].numel; at += n, n = n * 3 + 1)
					for (int part = 0; part < 3; part++) {
						uint64_t most = five[i].numel - at;

						n = n < most ? n : most;
						DOES(&optim, get, i, (enum nvs_optimizer_part)part,
						     at, n, values);
						DOES(&optim, set, i, (enum nvs_optimizer_part)part,
						     at, n, values);
					}
			IS_AS_SAVED(&optim);
		}
}

static float *copies[LENGTH(five)][3];

static int copy_out(void *arg, const struct nvs_state_run *run)
{
	(void)arg;
	memcpy(copies[run->group][0] + run->offset, run->master, 4 * run->numel);
	memcpy(copies[run->group][1] + run->offset, run->exp_avg, 4 * run->numel);
	memcpy(copies[run->group][2] + run->offset, run->exp_avg_sq, 4 * run->numel);
	return 0;
}

static int copy_in(void *arg, const struct nvs_state_run *run)
{
	(void)arg;
	memcpy(run->master, copies[run->group][0] + run->offset, 4 * run->numel);
	memcpy(run->exp_avg, copies[run->group][1] + run->offset, 4 * run->numel);
	memcpy(run->exp_avg_sq, copies[run->group][2] + run->offset, 4 * run->numel);
	return 0;
}

TEST(an_imported_state_continues_with_the_same_bits)
{
	for (size_t i = 0; i < LENGTH(five); i++)
		for (int part = 0; part < 3; part++)
			copies[i][part] = calloc(five[i].numel, 4);
	for (enum nvs_optimizer_state kind = NVS_STATE_SPLIT; kind <= NVS_STATE_8BIT; kind++) {
		begin(&optim, five, LENGTH(five), kind, 0);
		begin(&other, five, LENGTH(five), kind, 1);
		DONE(&optim, optim_open(&optim));
		DONE(&other, optim_open(&other));
		optim_run(&optim, 1, 3);
		DOES(&optim, export, copy_out, NULL);
		DOES(&other, import, copy_in, NULL);
		DOES(&other, set_step, 3);
		optim_run(&optim, 4, 5);
		optim_run(&other, 4, 5);
		IS_LIKE(&other, &optim);
	}
	for (size_t i = 0; i < LENGTH(five); i++)
		for (int part = 0; part < 3; part++)
			free(copies[i][part]);
}

/* ---- Kept stores ---- */

TEST(a_kept_store_resumes_with_the_same_bits)
{
	for (enum nvs_optimizer_state kind = NVS_STATE_SPLIT; kind <= NVS_STATE_8BIT; kind++)
		for (unsigned way = 0; way < 3; way++) {
			begin(&other, halves, LENGTH(halves), kind, way);
			other.config.keep = true;
			optim_open_run(&other, 4);
			begin(&optim, halves, LENGTH(halves), kind, way);
			optim.config.keep = true;
			optim_open_run(&optim, 2);
			optim_reopen(&optim);
			assert_int_equal(optimizer_info(&optim).split_numel, 0);
			assert_int_equal(optimizer_info(&optim).state, kind);
			optim_run(&optim, 3, 4);
			IS_LIKE(&optim, &other);
		}
}

TEST(a_kept_split_store_is_one_of_fp32)
{
	begin(&optim, halves, LENGTH(halves), NVS_STATE_FP32, 0);
	optim.config.keep = true;
	optim_open_run(&optim, 2);
	optim_save(&optim);
	optim.config.optimizer_state = NVS_STATE_SPLIT;
	optim_reopen(&optim);
	optim.result.norm = optim_saved.norm;
	IS_AS_SAVED(&optim);
}

TEST(the_state_of_the_options_is_chosen_before_that_of_the_configuration)
{
	enum nvs_optimizer_state asked;

	for (asked = NVS_STATE_FP32; asked <= NVS_STATE_8BIT; asked++) {
		begin(&optim, halves, LENGTH(halves),
		      (enum nvs_optimizer_state)(NVS_STATE_8BIT - asked), 0);
		optim.options = (struct nvs_optimizer_options){.size = sizeof(optim.options),
							       .state = &asked};
		DONE(&optim, optim_open(&optim));
		assert(optimizer_info(&optim).state == asked);
	}
	begin(&optim, halves, LENGTH(halves), NVS_STATE_FP32, 0);
	optim.options = (struct nvs_optimizer_options){.size = sizeof(optim.options),
						       .state = &asked};
	REFUSED(&optim, optim_open(&optim), -EINVAL, "the options' state is 4");
}

TEST(a_kept_store_of_another_format_is_refused)
{
	static const char *const names[] = {"\"fp32\"", "", "\"bf16\"", "\"8bit\""};

	for (enum nvs_optimizer_state kind = NVS_STATE_FP32; kind <= NVS_STATE_8BIT; kind++) {
		if (kind == NVS_STATE_SPLIT)
			continue;
		begin(&optim, halves, LENGTH(halves), kind, 0);
		optim.config.keep = true;
		optim_open_run(&optim, 2);
		optim_save(&optim);
		optim_shut(&optim);
		for (unsigned wrong = 0; wrong <= NVS_STATE_8BIT; wrong++) {
			int rc;

			if (wrong == kind || (kind == NVS_STATE_FP32 && wrong == NVS_STATE_SPLIT))
				continue;
			optim.config.optimizer_state = (enum nvs_optimizer_state)wrong;
			rc = optim_open(&optim);
			REFUSED(&optim, rc, -ESTALE, names[kind]);
		}
		optim.config.optimizer_state = kind;
		DONE(&optim, optim_open(&optim));
		optim.result.norm = optim_saved.norm;
		IS_AS_SAVED(&optim);
	}
}

TEST(a_reader_without_groups_takes_the_format_of_the_store)
{
	struct nvs_optimizer *reader = NULL;
	float due[100], is[100];

	for (enum nvs_optimizer_state kind = NVS_STATE_FP32; kind <= NVS_STATE_8BIT; kind++) {
		begin(&optim, halves, LENGTH(halves), kind, 0);
		optim.config.keep = true;
		optim_open_run(&optim, 2);
		DOES(&optim, get, 1, NVS_EXP_AVG, 130, 100, due);
		optim_shut(&optim);
		optim.config.optimizer_state = NVS_STATE_FP32;
		optim.config.read_only = true;
		DONE(&optim,
		     nvs_optimizer_open(&reader, &optim.config, NULL, 0, NULL, &optim.error));
		DONE(&optim, nvs_optimizer_get(reader, 1, NVS_EXP_AVG, 130, 100, is, &optim.error));
		assert_memory_equal(is, due, sizeof(due));
		DONE(&optim, nvs_optimizer_close(reader, &optim.error));
	}
}

/* The remedy for a store of another format: a checkpoint holds float32, whatever the format. */
TEST(a_checkpoint_takes_state_from_one_format_to_another)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options)};
	struct snapshot due, is;
	char path[512];

	for (enum nvs_optimizer_state kind = NVS_STATE_FP32; kind <= NVS_STATE_8BIT; kind++) {
		struct nvs_checkpoint *checkpoint = NULL;

		begin(&optim, halves, LENGTH(halves), kind, 0);
		begin(&other, halves, LENGTH(halves),
		      (enum nvs_optimizer_state)(NVS_STATE_8BIT - kind), 1);
		optim.config.keep = other.config.keep = true;
		DONE(&optim, optim_open(&optim));
		DONE(&other, optim_open(&other));
		optim_run(&optim, 1, 3);
		snprintf(path, sizeof(path), "%s/state.safetensors", optim.path);
		DONE(&optim, nvs_checkpoint_export_optimizer(optim.optimizer, path, &options,
							     &optim.error));
		DONE(&other, nvs_checkpoint_open(&checkpoint, path, &other.error));
		DONE(&other, nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, NULL,
							     &other.error));
		nvs_checkpoint_close(checkpoint);
		unlink(path);
		assert_int_equal(optimizer_info(&other).step, 3);
		snapshot_take(&optim, &due);
		snapshot_take(&other, &is);
		for (size_t i = 0; i < LENGTH(halves); i++) {
			assert_memory_equal(is.parts[i][NVS_MASTER], due.parts[i][NVS_MASTER],
					    4 * halves[i].numel);
			assert_memory_equal(is.weights[i], due.weights[i], 2 * halves[i].numel);
			for (uint64_t j = 0; j < halves[i].numel; j++)
				assert_true(fabsf(is.parts[i][NVS_EXP_AVG][j] -
						  due.parts[i][NVS_EXP_AVG][j]) < 4e-3f);
		}
		snapshot_free(&due);
		snapshot_free(&is);
	}
}

/* Parts and gradients of unequal lengths may leave the free memory of a small pool in pieces. */
TEST(a_small_pool_has_room_for_gradients_beside_held_tiles)
{
	static const struct group small[] = {{"a", 2048, NVS_BF16}, {"b", 2048, NVS_BF16},
					     {"c", 2000, NVS_BF16}, {"d", 2048, NVS_BF16},
					     {"e", 2048, NVS_F32},  {"f", 2048, NVS_BF16},
					     {"g", 1500, NVS_BF16}, {"h", 2048, NVS_BF16}};

	for (enum nvs_optimizer_state kind = NVS_STATE_SPLIT; kind <= NVS_STATE_8BIT; kind++) {
		unsigned opened = 0;

		begin(&other, small, LENGTH(small), kind, 0);
		DONE(&other, optim_open(&other));
		for (uint64_t step = 1; step <= 3; step++) {
			optim_add(&other, step, 2);
			DONE(&other, optim_step(&other, step));
		}
		for (uint64_t numel = 2048; numel <= 8192; numel += 2048) {
			begin(&optim, small, LENGTH(small), kind, 0);
			optim.config.sub_group_size = numel;
			optim.config.optimizer_max_in_cpu = 9 * 1024;
			optim_simulate(&optim);
			if (!optim_open(&optim)) {
				opened++;
				for (uint64_t step = 1; step <= 3; step++) {
					optim_add(&optim, step, 2);
					DONE(&optim, optim_step(&optim, step));
				}
				IS_LIKE(&optim, &other);
			}
		}
		assert_true(opened >= 2);
	}
}

/* Memory that is free, but in pieces too short for any part of a tile. */
TEST(held_tiles_make_room_where_free_memory_is_in_pieces)
{
	static const struct group ten[] = {{"a", 10 * 3072, NVS_BF16}};
	static struct nvs_tensor *fillers[1024];
	static uint64_t pins[1024];
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_engine *engine;
	float is[100], due[100];
	size_t n = 0;

	for (int beside = 0; beside < 2; beside++) {
		struct optim *on = beside ? &optim : &other;

		begin(on, ten, LENGTH(ten), NVS_STATE_BF16, 0);
		on->config.sub_group_size = 18 * 3072;
		on->config.optimizer_max_in_cpu = 4 * 3072;
		DONE(on, optim_open(on));
		optim_run(on, 1, 1);
	}
	engine = nvs_optimizer_engine(optim.optimizer);
	nvs_engine_get_stats(engine, &stats);
	assert_true(stats.pool.bytes / engine_unit(engine) <= LENGTH(fillers));
	/*
	 * Fills what the held tiles leave with tensors of one unit, and takes every second one
	 * away.
	 */
	for (;; n++) {
		char name[32];
		const struct nvs_tensor_spec spec = {.size = sizeof(spec),
						     .name = name,
						     .dtype = NVS_U8,
						     .numel = engine_unit(engine)};

		snprintf(name, sizeof(name), "filler %zu", n);
		assert_int_equal(batch_register(engine, &spec, 1, &fillers[n], NULL), 0);
		if (batch_pin(engine, &fillers[n], 1, 0, &pins[n], NULL))
			break;
	}
	for (size_t i = 0; i < n; i += 2)
		assert_int_equal(batch_release(engine, &fillers[i], 1, pins[i], NVS_CLEAN, NULL),
				 0);
	nvs_engine_get_stats(engine, &stats);
	assert_true(stats.pool.bytes - stats.pool.used > 6 * 3072);
	assert_int_equal(stats.pool.largest_free, engine_unit(engine));
	DOES(&optim, get, 0, NVS_EXP_AVG, 0, LENGTH(is), is);
	DOES(&other, get, 0, NVS_EXP_AVG, 0, LENGTH(due), due);
	assert_memory_equal(is, due, sizeof(is));
	for (size_t i = 1; i < n; i += 2)
		assert_int_equal(batch_release(engine, &fillers[i], 1, pins[i], NVS_CLEAN, NULL),
				 0);
	optim_run(&optim, 2, 2);
	optim_run(&other, 2, 2);
	assert_int_equal(other.result.io.hits, 4);
	assert_int_equal(optim.result.io.hits, 3);
	IS_LIKE(&optim, &other);
	optim_close(&optim);
	optim_close(&other);
}
