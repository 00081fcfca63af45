/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scale by DeepSpeed's rules. It computes with powers of two, and its whole state is in
 * the structure, which is stored.
 */
#include "optim/step/scaler.h"
#include "config/config.h"

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
static int lower(struct scaler *scaler, const struct fp16_config *config)
{
	if (config->hysteresis > 1 && scaler->hysteresis > 1) {
		scaler->hysteresis--;
	} else {
		/* Only the exact minimum is an error; a scale that began below it is raised. */
		if (scaler->scale == config->min_loss_scale)
			return -ERANGE;
		scaler->scale = fmax(scaler->scale / FACTOR, config->min_loss_scale);
	}
	scaler->last_overflow = scaler->iteration;
	return 0;
}

static void raise_if_due(struct scaler *scaler, const struct fp16_config *config)
{
	bool due = (scaler->iteration - scaler->last_overflow) % config->loss_scale_window == 0;

	if (config->consecutive_hysteresis || due)
		scaler->hysteresis = config->hysteresis;
	if (due)
		scaler->scale *= FACTOR;
}

int scaler_update(struct scaler *scaler, const struct fp16_config *config, bool overflow)
{
	int rc = 0;

	if (!is_dynamic(config))
		return 0;
	assert(config->loss_scale_window && scaler->hysteresis);
	if (overflow)
		rc = lower(scaler, config);
	else
		raise_if_due(scaler, config);
	if (!rc)
		scaler->iteration++;
	return rc;
}
