/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scale of fp16 training: a fixed one, or one that halves on overflow and doubles after
 * each window of steps without. Without fp16 it is 1.
 *
 * The rules are DeepSpeed's: deepspeed/runtime/fp16/loss_scaler.py, CreateLossScaler, LossScaler
 * and DynamicLossScaler.update_scale, with the arguments that dynamic_loss_scale_args makes of the
 * keys of "fp16" (runtime/precision_config.py; runtime/config.py before): 2^initial_scale_power as
 * init_scale, hysteresis as delayed_shift. There are two rules of the window. This is that of
 * revision 03365187: the scale doubles at the loss_scale_window-th step in a row without overflow,
 * and at each multiple of it. Revisions 18fd4c97 and 68ee9f83 do not count the first of these
 * steps, and double a step later.
 */
#ifndef OPTIM_SCALER_H
#define OPTIM_SCALER_H

#include "nvswap.h"

/* All of it is kept with the optimizer's state: fixed-size, no pointers, no padding. */
struct scaler {
	double scale;
	int64_t iteration;     /* updates so far */
	int64_t last_overflow; /* the iteration that had it; -1: none had */
	uint64_t hysteresis;   /* overflows that are still let pass, and one */
};

/* As a run begins with it. */
struct scaler scaler_init(const struct nvs_fp16_config *config);
/*
 * Takes note of a step that overflowed or did not. 0; -ERANGE: it overflowed at the least scale
 * with no hysteresis left, which is no longer training; the scale stays.
 */
int scaler_update(struct scaler *scaler, const struct nvs_fp16_config *config, bool overflow);

#endif
