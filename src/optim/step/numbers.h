/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of the rules' numbers, which are the same in the configuration, in a call and in a
 * kept store.
 */
#ifndef OPTIM_NUMBERS_H
#define OPTIM_NUMBERS_H

#include "config/config.h"
#include "nvswap.h"

/* Whether gradients and weights may have this type. */
static inline bool is_element(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 || dtype == NVS_BF16 || dtype == NVS_F16;
}

#define STEPS_MAX ((UINT64_C(1) << 53) - 1) /* whole numbers that a double has all of */

/* What an error calls a number. */
enum number_names {
	NAMED_AS_KEYS,	 /* by its key of the configuration */
	NAMED_AS_FIELDS, /* by its field of struct nvs_rule_update */
};

/* -EINVAL unless the numbers are within their bounds, those that the rule does not have too. */
int check_numbers(const struct optimizer_config *config, enum nvs_rule rule,
		  enum number_names names, struct nvs_error *error);
/* -EINVAL unless the value is 0 or above, and below the bound. */
int check_number(const char *name, double value, double below, struct nvs_error *error);

/*
 * The loss scale of fp16 training: fixed, or dynamic: it halves on overflow and doubles after a
 * window of steps without. Without fp16 it is 1.
 *
 * The rules are DeepSpeed's: deepspeed/runtime/fp16/loss_scaler.py, CreateLossScaler, LossScaler
 * and DynamicLossScaler.update_scale, with the arguments that dynamic_loss_scale_args makes of the
 * keys of "fp16" (runtime/precision_config.py; runtime/config.py before): 2^initial_scale_power as
 * init_scale, hysteresis as delayed_shift. There are two rules of the window. This is that of
 * revision 03365187: the scale doubles at the loss_scale_window-th step in a row without overflow,
 * and at each multiple of it. Revisions 18fd4c97 and 68ee9f83 do not count the first of these
 * steps, and double a step later.
 */
/* Gradients are divided by the scale in fp32. */
#define SCALE_MIN   0x1p-24
#define SCALE_MAX   0x1p127
#define UPDATES_MAX (INT64_C(1) << 53)

static inline bool is_scale(double scale)
{
	return scale >= SCALE_MIN && scale <= SCALE_MAX;
}

static inline bool is_dynamic(const struct fp16_config *config)
{
	return config->enabled && config->loss_scale == 0;
}

/* Stored with the optimizer's state, see header.h. */
struct scaler {
	double scale;
	int64_t iteration;     /* updates so far, up to UPDATES_MAX */
	int64_t last_overflow; /* the iteration of the last overflow; -1: none */
	uint64_t hysteresis;   /* overflows until the scale halves */
};

/* The initial loss scale. */
struct scaler scaler_init(const struct fp16_config *config);
/*
 * Updates the scale after a step. -ERANGE: the step overflowed at the minimum scale with no
 * hysteresis left; the scale is unchanged.
 */
int scaler_update(struct scaler *scaler, const struct fp16_config *config, bool overflow);

#endif
