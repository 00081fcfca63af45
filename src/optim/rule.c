/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of rules.
 */
#include "optim/optimizer.h"

#include <math.h>
#include <strings.h>

#include "base/numbers.h"

static struct scalars adam_scalars(const struct optimizer_config *config, double lr, uint64_t step,
				   double grad_factor)
{
	struct scalars adam = {
		.beta1 = (float)config->beta1,
		.beta2 = (float)config->beta2,
		.one_minus_beta1 = (float)(1 - config->beta1),
		.one_minus_beta2 = (float)(1 - config->beta2),
		.eps = (float)config->eps,
		.step_size = (float)lr,
		.root_factor = 1,
		.decay = (float)config->weight_decay,
		.decoupled = config->adam_w_mode,
		.grad_factor = (float)grad_factor,
	};

	/* The bias correction divides by 1 - beta^step. */
	assert(step > 0 && config->beta1 < 1 && config->beta2 < 1);
	if (config->bias_correction) {
		adam.step_size = (float)(lr / (1 - pow(config->beta1, (double)step)));
		adam.root_factor = (float)(1 / sqrt(1 - pow(config->beta2, (double)step)));
	}
	if (config->adam_w_mode)
		adam.decay = (float)(lr * config->weight_decay);
	return adam;
}

static struct scalars sgd_scalars(const struct optimizer_config *config, double lr, uint64_t step,
				  double grad_factor)
{
	return (struct scalars){
		.beta1 = (float)config->momentum,
		/* The first gradient is the first momentum_buffer. */
		.one_minus_beta1 = step > 1 ? (float)(1 - config->dampening) : 1,
		.step_size = (float)lr,
		.decay = (float)config->weight_decay,
		.nesterov = config->nesterov,
		.grad_factor = (float)grad_factor,
	};
}

static struct scalars adagrad_scalars(const struct optimizer_config *config, double lr,
				      uint64_t step, double grad_factor)
{
	assert(step > 0);
	return (struct scalars){
		.eps = (float)config->eps,
		.step_size = (float)(lr / (1 + (double)(step - 1) * config->lr_decay)),
		.decay = (float)config->weight_decay,
		.grad_factor = (float)grad_factor,
	};
}

static struct scalars lion_scalars(const struct optimizer_config *config, double lr, uint64_t step,
				   double grad_factor)
{
	(void)step;
	return (struct scalars){
		.beta1 = (float)config->beta1,
		.beta2 = (float)config->beta2,
		.one_minus_beta1 = (float)(1 - config->beta1),
		.one_minus_beta2 = (float)(1 - config->beta2),
		.step_size = (float)lr,
		.decay = (float)(lr * config->weight_decay),
		.decoupled = true,
		.grad_factor = (float)grad_factor,
	};
}

static const struct rule rules[RULES] = {
	{NVS_RULE_ADAM, "Adam", true, 3, {NVS_MASTER, NVS_EXP_AVG, NVS_EXP_AVG_SQ}, adam_scalars},
	{NVS_RULE_SGD, "SGD", false, 2, {NVS_MASTER, NVS_MOMENTUM_BUFFER}, sgd_scalars},
	{NVS_RULE_ADAGRAD, "Adagrad", false, 2, {NVS_MASTER, NVS_SUM}, adagrad_scalars},
	{NVS_RULE_LION, "Lion", false, 2, {NVS_MASTER, NVS_EXP_AVG}, lion_scalars},
};

const struct rule *rule_at(enum nvs_rule id)
{
	assert((unsigned)id < RULES && rules[id].id == id);
	return &rules[id];
}

const struct rule *rule_of_type(const char *type)
{
	if (!*type || !strcasecmp(type, "AdamW"))
		type = "Adam";
	for (size_t i = 0; i < RULES; i++)
		if (!strcasecmp(type, rules[i].name))
			return &rules[i];
	return NULL;
}

int rule_part(const struct rule *rule, enum nvs_optimizer_part part)
{
	for (unsigned i = 0; i < rule->nparts; i++)
		if (rule->parts[i] == part)
			return (int)i;
	return -1;
}

const char *part_name(enum nvs_optimizer_part part)
{
	static const char *const names[] = {[NVS_MASTER] = "master",
					    [NVS_EXP_AVG] = "exp_avg",
					    [NVS_EXP_AVG_SQ] = "exp_avg_sq",
					    [NVS_MOMENTUM_BUFFER] = "momentum_buffer",
					    [NVS_SUM] = "sum"};

	assert((unsigned)part < COUNT_OF(names));
	return names[part];
}

float rule_initial(const struct rule *rule, const struct optimizer_config *config, unsigned i)
{
	assert(i < rule->nparts);
	return rule->parts[i] == NVS_SUM ? (float)config->initial_accumulator_value : 0;
}
