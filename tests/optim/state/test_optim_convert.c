/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kept store's state is converted to another format: whole, or not at all; what both formats can
 * tell is the same to the bit, and the rest is rounded to nearest and counted.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/tests.h"

TWO_OPTIMIZERS

/* Of mixed types, with groups that end within a block and share tiles. */
static const struct group four[] = {
	{"a", 20001, NVS_BF16}, {"b", 300, NVS_F32}, {"c", 33000, NVS_BF16}, {"d", 7001, NVS_F16}};
#define MOMENTS (2 * (uint64_t)(20001 + 300 + 33000 + 7001))

#define STEPS 3
static const enum nvs_optimizer_state packed[] = {NVS_STATE_BF16, NVS_STATE_8BIT};

static void begin(struct optim *on, enum nvs_optimizer_state state)
{
	optim_renew(on, four, LENGTH(four));
	on->config.optimizer_state = state;
	on->config.keep = true;
	on->offload->ratio = 0.6;
}

/* A kept store of some steps, which is closed; optim_saved has its contents. */
static void make_store(struct optim *on, enum nvs_optimizer_state state)
{
	begin(on, state);
	optim_open_run(on, STEPS);
	optim_save(on);
	optim_shut(on);
}

static struct nvs_state_conversion convert(struct optim *on, enum nvs_optimizer_state state)
{
	struct nvs_state_conversion result = {.size = sizeof(result)};

	DONE(on, nvs_optimizer_convert(&on->config, state, &result, &on->error));
	assert_int_equal(result.to, state == NVS_STATE_SPLIT ? NVS_STATE_FP32 : state);
	assert_int_equal(result.numel, MOMENTS / 2);
	on->config.optimizer_state = state;
	return result;
}

TEST(state_converted_to_fp32_and_back_has_its_bits)
{
	for (size_t i = 0; i < LENGTH(packed); i++) {
		struct nvs_state_conversion done;

		make_store(&optim, packed[i]);
		make_store(&other, packed[i]);
		done = convert(&optim, i ? NVS_STATE_SPLIT : NVS_STATE_FP32);
		assert_int_equal(done.from, packed[i]);
		assert_int_equal(done.rounded, 0);
		assert_int_equal(done.step, STEPS);
		DONE(&optim, optim_open(&optim));
		IS_AS_SAVED(&optim);
		optim_shut(&optim);
		done = convert(&optim, packed[i]);
		assert_int_equal(done.rounded, 0);
		/* A further step rounds what was packed as if it had stayed. */
		DONE(&optim, optim_open(&optim));
		DONE(&other, optim_open(&other));
		IS_LIKE(&optim, &other);
		optim_run(&optim, STEPS + 1, STEPS + 2);
		optim_run(&other, STEPS + 1, STEPS + 2);
		IS_LIKE(&optim, &other);
	}
}

/* Whether a moment of the snapshot is another one in the optimizer. */
static uint64_t count_others(struct optim *on, const struct snapshot *was)
{
	static float values[33000];
	uint64_t n = 0;

	for (size_t i = 0; i < on->n; i++)
		for (unsigned part = NVS_EXP_AVG; part <= NVS_EXP_AVG_SQ; part++) {
			DOES(on, get, i, (enum nvs_optimizer_part)part, 0, on->specs[i].numel,
			     values);
			for (uint64_t k = 0; k < on->specs[i].numel; k++)
				n += values[k] != was->parts[i][part][k];
		}
	return n;
}

TEST(moments_are_rounded_to_nearest_as_set_ones_are_and_counted)
{
	for (size_t i = 0; i < LENGTH(packed); i++) {
		struct nvs_state_conversion done;

		make_store(&optim, NVS_STATE_FP32);
		done = convert(&optim, packed[i]);
		begin(&other, packed[i]);
		optim_open_run(&other, 1);
		for (size_t group = 0; group < optim.n; group++)
			for (unsigned part = 0; part <= NVS_EXP_AVG_SQ; part++)
				DOES(&other, set, group, (enum nvs_optimizer_part)part, 0,
				     optim.specs[group].numel, optim_saved.parts[group][part]);
		DOES(&other, get_weights);
		DONE(&optim, optim_open(&optim));
		optim.result.norm = other.result.norm;
		IS_LIKE(&optim, &other);
		assert_int_equal(done.rounded, count_others(&optim, &optim_saved));
		assert_in_range(done.rounded, MOMENTS / 2, MOMENTS);
	}
}

TEST(gradients_note_and_loss_scale_stay_and_the_same_format_changes_nothing)
{
	struct nvs_group_info group = {.size = sizeof(group)};
	struct nvs_state_conversion first, second;
	char note[8] = "";
	size_t nbytes = sizeof(note);
	double scale;

	begin(&optim, NVS_STATE_FP32);
	optim.config.fp16.enabled = true;
	optim.config.fp16.initial_scale_power = 12;
	optim.config.fp16.loss_scale_window = 1;
	optim.config.fp16.hysteresis = 1;
	DONE(&optim, optim_open(&optim));
	optim_lend(&optim, 1, 4096);
	DONE(&optim, optim_step(&optim, 1));
	scale = nvs_optimizer_loss_scale(optim.optimizer);
	DOES(&optim, add_gradients, 2, 0, 1000, NVS_F32, optim.gradients[2], NULL);
	DOES(&optim, set_note, "note", 5);
	optim_shut(&optim);
	first = convert(&optim, NVS_STATE_8BIT);
	second = convert(&optim, NVS_STATE_8BIT);
	assert_int_equal(second.from, NVS_STATE_8BIT);
	assert_int_equal(second.generation, first.generation);
	DONE(&optim, optim_open(&optim));
	assert_true(scale != 4096 && nvs_optimizer_loss_scale(optim.optimizer) == scale);
	DOES(&optim, get_group_info, 2, &group);
	assert_int_equal(group.gradients_numel, 1000);
	assert_int_equal(nvs_optimizer_get_note(optim.optimizer, note, &nbytes), 0);
	assert_string_equal(note, "note");
}

/* A step rounds moments after it has used them, so master weights are those of a step in bf16. */
TEST(an_unfinished_step_is_finished_in_the_other_format)
{
	struct nvs_state_conversion result = {.size = sizeof(result)};
	static float left[33000], right[33000];

	begin(&other, NVS_STATE_BF16);
	optim_open_run(&other, 2);
	begin(&optim, NVS_STATE_BF16);
	optim.offload->ratio = 1;
	optim_simulate(&optim);
	optim_open_run(&optim, 1);
	optim_fail(&optim, 2, NVS_READ, 9);
	sim_no_faults(optim.sim);
	optim_shut(&optim);
	DONE(&optim, optimizer_convert_with(&optim.config, NVS_STATE_FP32, &result, &engine_sim,
					    optim.sim, &optim.error));
	optim.config.optimizer_state = NVS_STATE_FP32;
	DONE(&optim, optim_open(&optim));
	optim_lend(&optim, 2, 1);
	DONE(&optim, optim_step(&optim, 2));
	assert_int_equal(optim.result.step, 2);
	for (size_t i = 0; i < optim.n; i++) {
		uint64_t numel = optim.specs[i].numel;

		DOES(&optim, get, i, NVS_MASTER, 0, numel, left);
		DOES(&other, get, i, NVS_MASTER, 0, numel, right);
		assert_memory_equal(left, right, numel * sizeof(float));
	}
}

TEST(what_can_t_be_converted_is_refused)
{
	struct nvs_state_conversion result = {.size = sizeof(result)};

#define REFUSES_TO(state, code, words)                                                             \
	REFUSED(&optim, nvs_optimizer_convert(&optim.config, state, &result, &optim.error), code,  \
		words)
	begin(&optim, NVS_STATE_FP32);
	REFUSES_TO(NVS_STATE_8BIT, -ENODATA, "no");
	optim_close(&optim);
	make_store(&optim, NVS_STATE_FP32);
	REFUSES_TO((enum nvs_optimizer_state)4, -EINVAL, "the state is 4");
	optim.config.read_only = true;
	REFUSES_TO(NVS_STATE_8BIT, -EROFS, "read-only");
	optim.config.read_only = false;
	DONE(&optim, optim_open(&optim));
	REFUSES_TO(NVS_STATE_8BIT, -EBUSY, "has locked the store");
	optim_shut(&optim);
	optim.config.keep = false;
	REFUSES_TO(NVS_STATE_8BIT, -EINVAL, "nvswap.keep");
	optim.config.keep = true;
	DONE(&optim, optim_open(&optim));
	IS_AS_SAVED(&optim);
}

TEST(state_of_another_rule_than_adam_stays_in_fp32)
{
	static const char *const types[] = {"SGD", "Adagrad", "Lion"};
	struct nvs_state_conversion result = {.size = sizeof(result)};

	for (size_t i = 0; i < LENGTH(types); i++) {
		begin(&optim, NVS_STATE_FP32);
		strcpy(optim.config.adam.type, types[i]);
		optim_open_run(&optim, STEPS);
		optim_save(&optim);
		optim_shut(&optim);
		REFUSES_TO(NVS_STATE_BF16, -ENOTSUP, types[i]);
		/* As the command, which has no configuration. */
		optim.config.adam.type[0] = '\0';
		REFUSES_TO(NVS_STATE_8BIT, -ENOTSUP, types[i]);
		assert_int_equal(convert(&optim, NVS_STATE_SPLIT).from, NVS_STATE_FP32);
		strcpy(optim.config.adam.type, types[i]);
		optim.config.optimizer_state = NVS_STATE_FP32;
		DONE(&optim, optim_open(&optim));
		IS_AS_SAVED(&optim);
	}
}

/* Converts in a child, which is killed after that time; whether it had ended. */
static bool killed_in(struct optim *on, enum nvs_optimizer_state state, uint64_t after_ns)
{
	struct timespec moment = {.tv_nsec = (long)after_ns};
	struct nvs_state_conversion result = {.size = sizeof(result)};
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid)
		_exit(nvs_optimizer_convert(&on->config, state, &result, NULL) != 0);
	nanosleep(&moment, NULL);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) || !WEXITSTATUS(status));
	return !WIFSIGNALED(status);
}

/* fp32 has the values of bf16, so whichever of the two the store has, they are the same. */
TEST(a_conversion_that_is_killed_leaves_the_old_format_or_the_new_one)
{
	enum nvs_optimizer_state now = NVS_STATE_BF16, wanted;
	unsigned rounds = at_length(200, 12), ended = 0, changed = 0;
	uint64_t seed = seed_of_run(), took;

	make_store(&optim, now);
	took = clock_ns();
	convert(&optim, NVS_STATE_FP32);
	took = clock_ns() - took;
	now = NVS_STATE_FP32;
	for (unsigned i = 0; i < rounds; i++) {
		struct nvs_optimizer_info info = {.size = sizeof(info)};

		wanted = now == NVS_STATE_FP32 ? NVS_STATE_BF16 : NVS_STATE_FP32;
		ended += killed_in(&optim, wanted, random_below(&seed, 2 * took));
		/* With the store's format and groups. */
		do
			optim.error.code = nvs_optimizer_open(&optim.optimizer, &optim.config, NULL,
							      0, NULL, &optim.error);
		while (optim.error.code == -EBUSY); /* until the kernel has closed its files */
		DONE(&optim, optim.error.code);
		DOES(&optim, get_info, &info);
		assert_true(info.state == now || info.state == wanted);
		assert_int_equal(info.step, STEPS);
		changed += info.state == wanted;
		now = info.state;
		optim_shut(&optim);
		optim.config.optimizer_state = now;
		DONE(&optim, optim_open(&optim));
		IS_AS_SAVED(&optim);
		optim_shut(&optim);
	}
	assert_true(changed >= ended);
	print_message("%u of %u ended, %u have changed the format\n", ended, rounds, changed);
}
