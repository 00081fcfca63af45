/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of Adam's numbers.
 */
#include "optim/step/numbers.h"

#include <assert.h>
#include <errno.h>
#include <float.h>

#include "base/error.h"
#include "base/numbers.h"

int check_number(const char *name, double value, double below, struct nvs_error *error)
{
	assert(below > 0);
	if (value >= 0 && value < below)
		return 0;
	return error_about(error, -EINVAL, name, 0, 0,
			   "%s is %g: allowed are 0 and above, below %g", name, value, below);
}

int check_adam(const struct optimizer_config *adam, enum number_names names,
	       struct nvs_error *error)
{
	/* Infinity also stands for values that overflow fp32. */
	const struct {
		const char *name[2];
		double value, below;
	} numbers[] = {
		{{"optimizer.params.lr", "lr"}, adam->lr, FLT_MAX},
		{{"optimizer.params.betas", "beta1"}, adam->beta1, 1},
		{{"optimizer.params.betas", "beta2"}, adam->beta2, 1},
		{{"optimizer.params.eps", "eps"}, adam->eps, FLT_MAX},
		{{"optimizer.params.weight_decay", "weight_decay"}, adam->weight_decay, FLT_MAX},
	};
	int rc = 0;

	for (size_t i = 0; i < COUNT_OF(numbers) && !rc; i++)
		rc = check_number(numbers[i].name[names], numbers[i].value, numbers[i].below,
				  error);
	return rc;
}
