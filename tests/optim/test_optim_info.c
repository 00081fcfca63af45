/* SPDX-License-Identifier: Apache-2.0 */
/* nvs_optimizer_get_info, also after an earlier run. */
#include "optim/optim_fixture.h"
#include "support/tests.h"

#include <errno.h>

ONE_OPTIMIZER

static const struct group pair[] = {{"a", 12345, NVS_BF16}, {"b", 7001, NVS_F32}};

static struct nvs_optimizer_info progress_of(void)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	DOES(o, get_info, &info);
	assert_int_equal(info.size, sizeof(info));
	assert_int_equal(info.ngroups, LENGTH(pair));
	return info;
}

static void has_gradients_of(size_t group, enum nvs_gradients gradients, uint64_t numel)
{
	struct nvs_group_info info = {.size = sizeof(info)};

	DOES(o, get_group_info, group, &info);
	assert_string_equal(info.name, pair[group].name);
	assert_true(info.numel == pair[group].numel && info.dtype == pair[group].dtype);
	assert_int_equal(info.gradients, gradients);
	assert_int_equal(info.gradients_numel, numel);
}

static void add(uint64_t offset, uint64_t numel)
{
	DOES(o, add_gradients, 0, offset, numel, NVS_F32, o->gradients[0], NULL);
}

TEST(info_has_the_step_and_the_gradients)
{
	optim_begin(o, pair, LENGTH(pair));
	assert_true(progress_of().step == 0 && progress_of().loss_scale == 1 &&
		    !progress_of().kept);
	has_gradients_of(0, NVS_GRADIENTS_NONE, 0);
	optim_lend(o, 1, 1);
	has_gradients_of(1, NVS_GRADIENTS_LENT, pair[1].numel);
	DONE(o, optim_step(o, 1));
	assert_true(progress_of().step == 1 && !progress_of().unfinished);
	has_gradients_of(1, NVS_GRADIENTS_NONE, 0);
	add(5, 100);
	add(5, 20);
	has_gradients_of(0, NVS_GRADIENTS_ADDED, 120);
	has_gradients_of(1, NVS_GRADIENTS_NONE, 0);
	DOES(o, clear_gradients);
	has_gradients_of(0, NVS_GRADIENTS_NONE, 0);
}

/* A program pairs the stores of parameters and optimizer by them. */
TEST(commits_have_a_number_and_the_callers_note)
{
	char found[16] = "";
	size_t nbytes = sizeof(found);

	optim_renew(o, pair, LENGTH(pair));
	o->config.keep = true;
	DONE(o, optim_open(o));
	assert_true(progress_of().generation == 0);
	optim_run(o, 1, 1);
	DOES(o, set_note, "step 1", 6);
	DOES(o, commit);
	assert_true(progress_of().generation == 1);
	optim_reopen(o);
	assert_true(progress_of().generation >= 1 && progress_of().step == 1);
	assert_int_equal(nvs_optimizer_get_note(o->optimizer, found, &nbytes), 0);
	assert_string_equal(found, "step 1");
	assert_int_equal(nbytes, 6);
}

TEST(info_has_the_state_of_an_earlier_run)
{
	optim_renew(o, pair, LENGTH(pair));
	o->config.keep = true;
	o->config.fp16.enabled = true;
	o->config.fp16.initial_scale_power = 4;
	optim_open_run(o, 3);
	add(7, 1000);
	optim_reopen(o);
	assert_true(progress_of().step == 3 && progress_of().kept &&
		    progress_of().loss_scale == 16);
	has_gradients_of(0, NVS_GRADIENTS_ADDED, 1000);
	has_gradients_of(1, NVS_GRADIENTS_NONE, 0);
}

TEST(an_unfinished_step_of_an_earlier_run_is_reported)
{
	optim_renew(o, pair, LENGTH(pair));
	optim_simulate(o);
	o->config.keep = true;
	optim_open_run(o, 1);
	optim_fail(o, 2, NVS_WRITE, 1);
	sim_no_faults(o->sim);
	assert_true(progress_of().unfinished && progress_of().step == 1);
	optim_reopen(o);
	assert_true(progress_of().unfinished && progress_of().step == 1);
	has_gradients_of(0, NVS_GRADIENTS_OWED, 0);
	optim_run(o, 2, 2);
	assert_true(!progress_of().unfinished && progress_of().step == 2);
}

#define STEPS_MAX ((UINT64_C(1) << 53) - 1)

/* The count is at most what nvs_optimizer_set_step accepts, also in a kept store. */
TEST(a_step_beyond_the_largest_count_is_refused)
{
	optim_renew(o, pair, LENGTH(pair));
	o->config.keep = true;
	DONE(o, optim_open(o));
	REFUSES(o, -EINVAL, "step", set_step, STEPS_MAX + 1);
	DOES(o, set_step, STEPS_MAX - 1);
	optim_lend(o, 1, 1);
	DONE(o, optim_step(o, 1));
	assert_true(progress_of().step == STEPS_MAX);
	o->result = (struct nvs_step_result){.size = sizeof(o->result)};
	optim_save(o);
	optim_lend(o, 2, 1);
	REFUSED(o, optim_step(o, 2), -EOVERFLOW, "9007199254740991 steps");
	assert_true(progress_of().step == STEPS_MAX && !progress_of().unfinished);
	has_gradients_of(0, NVS_GRADIENTS_LENT, pair[0].numel);
	o->result = (struct nvs_step_result){.size = sizeof(o->result)};
	IS_AS_SAVED(o);
	optim_reopen(o);
	assert_true(progress_of().step == STEPS_MAX);
	DOES(o, set_step, STEPS_MAX);
}
