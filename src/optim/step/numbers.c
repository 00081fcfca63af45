/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of the rules' numbers; and the loss scale by DeepSpeed's rules, which is halved and
 * doubled, and whose whole state is in the structure that is stored.
 */
#include "optim/step/numbers.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>

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

/* ---- The loss scale ---- */

#define FACTOR 2.0

struct scaler scaler_init(const struct fp16_config *config)
{
	struct scaler scaler = {.scale = 1, .last_overflow = -1, .hysteresis = config->hysteresis};

	if (is_dynamic(config))
		scaler.scale = ldexp(1, (int)config->initial_scale_power);
	else if (config->enabled)
		scaler.scale = config->loss_scale;
	return scaler;
}

static void scaler_check(const struct scaler *scaler)
{
	assert(is_scale(scaler->scale));
	assert(scaler->iteration >= 0 && scaler->iteration <= UPDATES_MAX);
	assert(scaler->last_overflow >= -1 && scaler->last_overflow <= scaler->iteration);
	assert(scaler->hysteresis);
}

int scaler_update(struct scaler *scaler, const struct fp16_config *config, bool overflow)
{
	double least = fmax(config->min_loss_scale, SCALE_MIN);
	bool due;

	if (!is_dynamic(config))
		return 0;
	assert(config->loss_scale_window);
	scaler_check(scaler);
	if (scaler->iteration == UPDATES_MAX) {
		int64_t window = config->loss_scale_window;
		int64_t since = (scaler->iteration - scaler->last_overflow) % window;

		/* Counts from the last overflow on, when the count has become too large for a
		 * header. The scale depends on the updates since then alone, modulo the window. */
		scaler->last_overflow = -1;
		scaler->iteration = (since ? since : window) - 1;
	}
	due = (scaler->iteration - scaler->last_overflow) % config->loss_scale_window == 0;
	if (overflow) {
		/* It takes one unit of hysteresis, or halves the scale if none is left. Only the
		 * exact minimum is an error; a scale that began below it is raised. */
		if (config->hysteresis > 1 && scaler->hysteresis > 1)
			scaler->hysteresis--;
		else if (scaler->scale == least)
			return -ERANGE;
		else
			scaler->scale = fmax(scaler->scale / FACTOR, least);
		scaler->last_overflow = scaler->iteration;
	} else {
		if (config->consecutive_hysteresis || due)
			scaler->hysteresis = config->hysteresis;
		if (due)
			scaler->scale = fmin(scaler->scale * FACTOR, SCALE_MAX);
	}
	scaler->iteration++;
	scaler_check(scaler);
	return 0;
}
