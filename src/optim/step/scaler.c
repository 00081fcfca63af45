/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scale by DeepSpeed's rules. It computes with powers of two, and its whole state is in
 * the structure, which is stored.
 */
#include "optim/step/scaler.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#define FACTOR 2.0

static bool is_dynamic(const struct fp16_config *config)
{
	return config->enabled && config->loss_scale == 0;
}

struct scaler scaler_init(const struct fp16_config *config)
{
	struct scaler scaler = {.scale = 1, .last_overflow = -1, .hysteresis = config->hysteresis};

	if (is_dynamic(config))
		scaler.scale = ldexp(1, (int)config->initial_scale_power);
	else if (config->enabled)
		scaler.scale = config->loss_scale;
	return scaler;
}

/* An overflow takes one unit of hysteresis, or halves the scale if none is left. */
static int lower_scale(struct scaler *scaler, const struct fp16_config *config)
{
	if (config->hysteresis > 1 && scaler->hysteresis > 1) {
		scaler->hysteresis--;
	} else {
		double least = fmax(config->min_loss_scale, SCALE_MIN);

		/* Only the exact minimum is an error; a scale that began below it is raised. */
		if (scaler->scale == least)
			return -ERANGE;
		scaler->scale = fmax(scaler->scale / FACTOR, least);
	}
	scaler->last_overflow = scaler->iteration;
	return 0;
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
	int rc = 0;

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
	if (overflow)
		rc = lower_scale(scaler, config);
	else {
		bool due = (scaler->iteration - scaler->last_overflow) %
				   config->loss_scale_window ==
			   0;

		if (config->consecutive_hysteresis || due)
			scaler->hysteresis = config->hysteresis;
		if (due)
			scaler->scale = fmin(scaler->scale * FACTOR, SCALE_MAX);
	}
	if (!rc)
		scaler->iteration++;
	scaler_check(scaler);
	return rc;
}
