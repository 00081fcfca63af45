/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of the rules' numbers.
 */
#include "optim/step/numbers.h"

#include <assert.h>
#include <errno.h>
#include <float.h>

#include "base/error.h"
#include "base/numbers.h"

int check_number(const char *name, double value, double below, struct nvs_error *error)
{
	if (value >= 0 && value < below)
		return 0;
	return error_about(error, -EINVAL, name, 0, 0,
			   "%s is %g: allowed are 0 and above, below %g", name, value, below);
}

int check_numbers(const struct optimizer_config *config, enum nvs_rule rule,
		  enum number_names names, struct nvs_error *error)
{
	/* Infinity also stands for values that overflow fp32. */
	const struct {
		const char *name[2];
		double value, below;
	} numbers[] = {
		{{"optimizer.params.lr", "lr"}, config->lr, FLT_MAX},
		{{"optimizer.params.betas", "beta1"}, config->beta1, 1},
		{{"optimizer.params.betas", "beta2"}, config->beta2, 1},
		{{"optimizer.params.eps", "eps"}, config->eps, FLT_MAX},
		{{"optimizer.params.weight_decay", "weight_decay"}, config->weight_decay, FLT_MAX},
		{{"optimizer.params.momentum", "momentum"}, config->momentum, FLT_MAX},
		{{"optimizer.params.dampening", "dampening"}, config->dampening, FLT_MAX},
		{{"optimizer.params.lr_decay", "lr_decay"}, config->lr_decay, FLT_MAX},
		{{"optimizer.params.initial_accumulator_value", "initial_accumulator_value"},
		 config->initial_accumulator_value,
		 FLT_MAX},
	};
	int rc = 0;

	for (size_t i = 0; i < COUNT_OF(numbers) && !rc; i++)
		rc = check_number(numbers[i].name[names], numbers[i].value, numbers[i].below,
				  error);
	if (!rc && rule == NVS_RULE_SGD && config->nesterov &&
	    (config->momentum == 0 || config->dampening != 0))
		rc = error_about(error, -EINVAL,
				 names == NAMED_AS_KEYS ? "optimizer.params.nesterov" : "nesterov",
				 0, 0, "nesterov needs momentum above 0 and no dampening");
	return rc;
}
