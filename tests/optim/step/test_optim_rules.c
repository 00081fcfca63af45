/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGD, Adagrad and Lion: their steps follow the formulas of torch and DeepSpeed, in double
 * arithmetic; they move the bytes of their one state; and a kept store is opened by its own rule.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/tests.h"

TWO_OPTIMIZERS

static const struct group four[] = {
	{"a", 20001, NVS_BF16}, {"b", 300, NVS_F32}, {"c", 9999, NVS_F16}, {"d", 7001, NVS_F32}};

#define STEPS	3u
#define LONGEST 20001u

/* A configuration of a rule. */
struct numbers {
	const char *type;
	double weight_decay, momentum, dampening, lr_decay, initial;
	bool nesterov, maximize;
};

static const struct numbers all_numbers[] = {
	{"SGD", 0, 0, 0, 0, 0, false, false},	    {"sgd", 0.01, 0.9, 0, 0, 0, false, false},
	{"SGD", 0.01, 0.9, 0.5, 0, 0, false, true}, {"SGD", 0, 0.9, 0, 0, 0, true, false},
	{"Adagrad", 0, 0, 0, 0, 0, false, false},   {"adagrad", 0.01, 0, 0, 0.1, 0.25, false, true},
	{"Lion", 0, 0, 0, 0, 0, false, false},	    {"lion", 0.1, 0, 0, 0, 0, false, true},
};

static void choose(struct optim *on, const struct numbers *numbers)
{
	struct optimizer_config *config = &on->config.adam;

	strcpy(config->type, numbers->type);
	config->weight_decay = numbers->weight_decay;
	config->momentum = numbers->momentum;
	config->dampening = numbers->dampening;
	config->lr_decay = numbers->lr_decay;
	config->initial_accumulator_value = numbers->initial;
	config->nesterov = numbers->nesterov;
	config->maximize = numbers->maximize;
	config->beta2 = 0.99;
}

static void begin(struct optim *on, const struct numbers *numbers)
{
	optim_renew(on, four, LENGTH(four));
	choose(on, numbers);
}

static enum nvs_optimizer_part state_of(const struct optim *on)
{
	return rule_of_type(on->config.adam.type)->parts[1];
}

/* ---- The formulas ---- */

static double sign_of(double x)
{
	return (x > 0) - (x < 0);
}

/* As torch.optim.SGD and torch.optim.Adagrad, and as Lion's authors have it. */
static void step_in_double(const struct optim *on, uint64_t step, double g, double *w, double *s)
{
	const struct optimizer_config *c = &on->config.adam;
	double lr = optim_lr(step), u;

	if (c->maximize)
		g = -g;
	if (rule_of_type(c->type)->id != NVS_RULE_LION)
		g += c->weight_decay * *w;
	switch (rule_of_type(c->type)->id) {
	case NVS_RULE_SGD:
		if (c->momentum != 0) {
			*s = step == 1 ? g : c->momentum * *s + (1 - c->dampening) * g;
			g = c->nesterov ? g + c->momentum * *s : *s;
		}
		*w -= lr * g;
		break;
	case NVS_RULE_ADAGRAD:
		*s += g * g;
		*w -= lr / (1 + (double)(step - 1) * c->lr_decay) * g / (sqrt(*s) + c->eps);
		break;
	default:
		u = c->beta1 * *s + (1 - c->beta1) * g;
		*w = *w * (1 - lr * c->weight_decay) - lr * sign_of(u);
		*s = c->beta2 * *s + (1 - c->beta2) * g;
	}
}

TEST(each_rule_follows_its_formula)
{
	static double w[LENGTH(four)][LONGEST], s[LENGTH(four)][LONGEST];
	struct snapshot now;

	for (size_t which = 0; which < LENGTH(all_numbers); which++) {
		begin(&optim, &all_numbers[which]);
		for (size_t i = 0; i < optim.n; i++)
			for (uint64_t j = 0; j < four[i].numel; j++) {
				w[i][j] = element_get(four[i].dtype, optim.specs[i].weights, j);
				s[i][j] = all_numbers[which].initial;
			}
		DONE(&optim, optim_open(&optim));
		for (uint64_t step = 1; step <= STEPS; step++) {
			optim_run(&optim, step, step);
			for (size_t i = 0; i < optim.n; i++)
				for (uint64_t j = 0; j < four[i].numel; j++)
					step_in_double(&optim, step,
						       element_get(NVS_F32, optim.gradients[i], j),
						       &w[i][j], &s[i][j]);
		}
		snapshot_take(&optim, &now);
		for (size_t i = 0; i < optim.n; i++)
			for (uint64_t j = 0; j < four[i].numel; j++) {
				element_near((double)now.parts[i][0][j], w[i][j],
					     4 * (double)FLT_EPSILON * (fabs(w[i][j]) + 1),
					     "the weight", j);
				element_near((double)now.parts[i][1][j], s[i][j],
					     4 * (double)FLT_EPSILON * (fabs(s[i][j]) + 1),
					     "the state", j);
				assert_true(
					element_get(four[i].dtype, now.weights[i], j) ==
					element_rounded(four[i].dtype, (double)now.parts[i][0][j]));
			}
		snapshot_free(&now);
	}
}

TEST(where_lion_has_no_sign_the_weight_stays)
{
	static const float none[300];
	struct snapshot before, after;

	optim_renew(&optim, four + 1, 1);
	choose(&optim, &all_numbers[6]);
	DONE(&optim, optim_open(&optim));
	snapshot_take(&optim, &before);
	DOES(&optim, lend_gradients, 0, NVS_F32, none);
	DONE(&optim, optim_step(&optim, 1));
	snapshot_take(&optim, &after);
	after.norm = before.norm;
	SAME(&after, &before);
	snapshot_free(&before);
	snapshot_free(&after);
}

TEST(the_bits_of_a_rule_depend_on_no_tile_cache_or_thread)
{
	for (size_t which = 0; which < LENGTH(all_numbers); which++) {
		begin(&optim, &all_numbers[which]);
		optim.offload->device = NVS_DEVICE_CPU;
		optim.config.optimizer_threads = 1;
		optim_open_run(&optim, STEPS);
		for (unsigned way = 0; way < 4; way++) {
			begin(&other, &all_numbers[which]);
			other.offload->fast_init = way != 1;
			other.offload->ratio = way == 2 ? 0.6 : 1;
			other.config.optimizer_max_in_cpu = way == 3 ? 12000 : 0;
			optim_open_run(&other, STEPS);
			IS_LIKE(&other, &optim);
		}
	}
}

TEST(a_call_on_arrays_gives_the_bits_of_a_step)
{
	static float w[LONGEST], s[LONGEST];
	struct snapshot now;

	for (size_t which = 0; which < LENGTH(all_numbers); which++) {
		const struct numbers *numbers = &all_numbers[which];
		struct nvs_rule_update update;

		optim_renew(&optim, four + 3, 1);
		choose(&optim, numbers);
		for (uint64_t j = 0; j < four[3].numel; j++) {
			w[j] = ((const float *)optim.specs[0].weights)[j];
			s[j] = (float)numbers->initial;
		}
		DONE(&optim, optim_open(&optim));
		for (uint64_t step = 1; step <= STEPS; step++) {
			optim_run(&optim, step, step);
			update = (struct nvs_rule_update){
				.size = sizeof(update),
				.rule = rule_of_type(numbers->type)->id,
				.numel = four[3].numel,
				.step = step,
				.lr = optim_lr(step),
				.beta1 = optim.config.adam.beta1,
				.beta2 = optim.config.adam.beta2,
				.eps = optim.config.adam.eps,
				.weight_decay = numbers->weight_decay,
				.momentum = numbers->momentum,
				.dampening = numbers->dampening,
				.lr_decay = numbers->lr_decay,
				.nesterov = numbers->nesterov,
				.gradients = optim.gradients[0],
				.gradients_dtype = NVS_F32,
				.grad_factor = numbers->maximize ? -1 : 1,
				.master = w,
				.weights_dtype = NVS_F32,
			};
			*(state_of(&optim) == NVS_SUM		    ? &update.sum
			  : state_of(&optim) == NVS_MOMENTUM_BUFFER ? &update.momentum_buffer
								    : &update.exp_avg) = s;
			DONE(&optim, nvs_rule_update(&update, &optim.error));
		}
		snapshot_take(&optim, &now);
		assert_memory_equal(now.parts[0][0], w, four[3].numel * sizeof(float));
		assert_memory_equal(now.parts[0][1], s, four[3].numel * sizeof(float));
		snapshot_free(&now);
	}
}

TEST(a_step_of_one_state_reads_and_writes_8_bytes_a_parameter)
{
	static const struct group whole[] = {{"a", 64 * 1024, NVS_F32}};
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	for (size_t which = 0; which < LENGTH(all_numbers); which++) {
		optim_renew(&optim, whole, 1);
		choose(&optim, &all_numbers[which]);
		optim_open_run(&optim, 2);
		DOES(&optim, get_info, &info);
		assert_int_equal(info.rule, rule_of_type(all_numbers[which].type)->id);
		assert_true(info.step_bytes == 16);
		assert_int_equal(optim.result.io.read_bytes, 8 * whole[0].numel);
		assert_int_equal(optim.result.io.written_bytes, 8 * whole[0].numel);
	}
}

/* ---- State by name ---- */

TEST(state_has_the_names_of_its_rule)
{
	float values[2] = {3, 4}, found[2];

	begin(&optim, &all_numbers[5]);
	DONE(&optim, optim_open(&optim));
	/* Before the first step. */
	DOES(&optim, get, 1, NVS_SUM, 298, 2, found);
	assert_true(found[0] == 0.25f && found[1] == 0.25f);
	DOES(&optim, set, 1, NVS_SUM, 7, 2, values);
	DOES(&optim, get, 1, NVS_SUM, 7, 2, found);
	assert_memory_equal(found, values, sizeof(found));
	REFUSES(&optim, -EINVAL, "Adagrad has no exp_avg: its state is sum", get, 1, NVS_EXP_AVG, 0,
		2, found);
	REFUSES(&optim, -EINVAL, "Adagrad has no momentum_buffer", set, 1, NVS_MOMENTUM_BUFFER, 0,
		2, values);
	REFUSES(&optim, -EINVAL, "no part 5", get, 1, (enum nvs_optimizer_part)5, 0, 2, found);
	optim_shut(&optim);
	choose(&optim, &(struct numbers){.type = "AdamW"});
	DONE(&optim, optim_open(&optim));
	REFUSES(&optim, -EINVAL, "Adam has no sum: its state is exp_avg and exp_avg_sq", get, 1,
		NVS_SUM, 0, 2, found);
}

static int take_lion(void *arg, const struct nvs_state_run *run)
{
	assert_true(run->master && run->exp_avg);
	assert_true(!run->exp_avg_sq && !run->momentum_buffer && !run->sum);
	__atomic_fetch_add((uint64_t *)arg, run->numel, __ATOMIC_RELAXED);
	return 0;
}

TEST(an_export_has_the_states_of_the_rule)
{
	uint64_t numel = 0;

	begin(&optim, &all_numbers[7]);
	DONE(&optim, optim_open(&optim));
	DOES(&optim, export, take_lion, &numel);
	assert_int_equal(numel, 20001 + 300 + 9999 + 7001);
}

static void update_sgd(void *arg, const struct nvs_update *update)
{
	(void)arg;
	assert_true(update->momentum_buffer && !update->exp_avg && !update->exp_avg_sq);
	for (uint64_t i = 0; i < update->numel; i++) {
		update->momentum_buffer[i] += update->gradients[i];
		update->master[i] -= (float)update->lr * update->momentum_buffer[i];
	}
}

TEST(an_update_function_has_the_states_of_the_rule_that_it_names)
{
	begin(&optim, &(struct numbers){.type = "SGD", .momentum = 1});
	begin(&other, &(struct numbers){.type = "of the program"});
	other.options.update = update_sgd;
	other.options.rule = NVS_RULE_SGD;
	DONE(&optim, optim_open(&optim));
	DONE(&other, optim_open(&other));
	optim_run(&optim, 1, STEPS);
	optim_run(&other, 1, STEPS);
	IS_LIKE(&other, &optim);
	optim_shut(&other);
	other.options.rule = (enum nvs_rule)4;
	REFUSED(&other, optim_open(&other), -EINVAL, "rule");
}

/* The first gradients of a group in the optimizer's second step are damped. */
TEST(dampening_leaves_out_the_gradients_of_the_optimizers_first_step_alone)
{
	const struct numbers numbers = {.type = "SGD", .momentum = 0.9, .dampening = 0.75};
	float gradients[2] = {2, -4}, buffer[2];

	begin(&optim, &numbers);
	DONE(&optim, optim_open(&optim));
	for (size_t group = 1; group < 3; group++) {
		float all[9999];

		for (size_t i = 0; i < four[group].numel; i++)
			all[i] = gradients[i % 2];
		DOES(&optim, lend_gradients, group, NVS_F32, all);
		DOES(&optim, step, NULL, NULL);
		DOES(&optim, get, group, NVS_MOMENTUM_BUFFER, 0, 2, buffer);
		assert_float_equal(buffer[0], group == 1 ? 2 : 0.5F, 0);
		assert_float_equal(buffer[1], group == 1 ? -4 : -1, 0);
	}
}

/* ---- What is refused ---- */

TEST(fewer_bytes_are_refused_where_the_rule_is_not_adam)
{
	for (int format = NVS_STATE_SPLIT; format <= NVS_STATE_8BIT; format++) {
		begin(&optim, &all_numbers[6]);
		optim.config.optimizer_state = (enum nvs_optimizer_state)format;
		REFUSED(&optim, optim_open(&optim), -ENOTSUP, "set it to \"fp32\" for Lion");
	}
	begin(&optim, &(struct numbers){.type = "Muon"});
	REFUSED(&optim, optim_open(&optim), -ENOTSUP, "SGD, Adagrad and Lion");
	choose(&optim, &(struct numbers){
			       .type = "SGD", .momentum = 0.9, .dampening = 0.1, .nesterov = true});
	REFUSED(&optim, optim_open(&optim), -EINVAL, "nesterov");
}

TEST(a_kept_store_is_opened_by_its_own_rule)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	for (size_t which = 0; which < LENGTH(all_numbers); which++) {
		const struct rule *rule = rule_of_type(all_numbers[which].type);

		begin(&optim, &all_numbers[which]);
		optim.config.keep = true;
		optim_open_run(&optim, STEPS);
		optim_save(&optim);
		optim_reopen(&optim);
		IS_AS_SAVED(&optim);
		optim_shut(&optim);
		/* By others it is not changed. */
		for (unsigned k = 0; k < RULES; k++) {
			if (k == (unsigned)rule->id)
				continue;
			strcpy(optim.config.adam.type, rule_at((enum nvs_rule)k)->name);
			REFUSED(&optim, optim_open(&optim), -ESTALE, "set optimizer.type to");
		}
		/* A reader, and one that takes the groups of the store, take its rule too. */
		optim.config.read_only = true;
		DONE(&optim, optim_open(&optim));
		IS_AS_SAVED(&optim);
		optim_shut(&optim);
		optim.config.read_only = false;
		optim.config.adam.type[0] = '\0';
		DONE(&optim, nvs_optimizer_open(&optim.optimizer, &optim.config, NULL, 0, NULL,
						&optim.error));
		DOES(&optim, get_info, &info);
		assert_int_equal(info.rule, rule->id);
		assert_int_equal(info.step, STEPS);
	}
}

TEST(a_store_that_gives_its_groups_gives_the_format_too)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	begin(&optim, &all_numbers[6]);
	optim.config.keep = true;
	optim_open_run(&optim, STEPS);
	optim_save(&optim);
	optim_shut(&optim);
	optim.config.optimizer_state = NVS_STATE_8BIT;
	DONE(&optim,
	     nvs_optimizer_open(&optim.optimizer, &optim.config, NULL, 0, NULL, &optim.error));
	DOES(&optim, get_info, &info);
	assert_int_equal(info.rule, NVS_RULE_LION);
	assert_int_equal(info.state, NVS_STATE_FP32);
}
