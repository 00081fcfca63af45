/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of rules.
 */
#include "optim/rule.h"

#include <assert.h>
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
	assert(adam.root_factor > 0 && isfinite(adam.root_factor));
	return adam;
}

static const struct rule rules[RULES] = {
	[NVS_RULE_ADAM] = {NVS_RULE_ADAM, 3, {"master", "exp_avg", "exp_avg_sq"}, adam_scalars},
};

static const struct {
	const char *type;
	enum nvs_rule rule;
} types[] = {{"Adam", NVS_RULE_ADAM}, {"AdamW", NVS_RULE_ADAM}, {"", NVS_RULE_ADAM}};

const struct rule *rule_at(enum nvs_rule id)
{
	assert((unsigned)id < RULES);
	return &rules[id];
}

const struct rule *rule_of_type(const char *type)
{
	for (size_t i = 0; i < COUNT_OF(types); i++)
		if (!strcasecmp(type, types[i].type))
			return rule_at(types[i].rule);
	return NULL;
}
