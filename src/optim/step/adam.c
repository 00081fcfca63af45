/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels' Adam on the caller's arrays. It keeps nothing, allocates nothing and needs no
 * optimizer.
 */
#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "config/config.h"
#include "optim/rule.h"
#include "optim/state/header.h"
#include "optim/step/numbers.h"

/* An array must be there, and aligned to an element. */
static int check_array(const char *name, const void *array, size_t size, struct nvs_error *error)
{
	assert(size == sizeof(float) || size == sizeof(uint16_t));
	if (!array)
		return error_about(error, -EINVAL, name, 0, 0, "%s is NULL", name);
	if ((uintptr_t)array % size)
		return error_about(error, -EINVAL, name, 0, 0,
				   "%s is not aligned to an element of %zu bytes", name, size);
	return 0;
}

static int check_update(const struct nvs_adam_update *update, struct nvs_error *error)
{
	int rc = check_number("grad_factor", fabs(update->grad_factor), FLT_MAX, error);

	if (rc)
		return rc;
	if (!update->step || update->step > STEPS_MAX)
		return error_about(error, -EINVAL, "step", 0, 0,
				   "step is %" PRIu64 ": allowed are 1 to 2^53 - 1", update->step);
	if (!(is_element(update->gradients_dtype) &&
	      (update->weights ? is_element(update->weights_dtype)
			       : nvs_dtype_size(update->weights_dtype) > 0)))
		return error_set(error, -EINVAL, "gradients and weights are F32, BF16 or F16");
	if (update->numel > HEADER_NUMEL_MAX)
		return error_about(error, -EINVAL, "numel", 0, 0,
				   "numel is %" PRIu64 ": allowed are up to 2^56", update->numel);
	if (!update->numel)
		return 0;

	size_t gradient = nvs_dtype_size(update->gradients_dtype);

	rc = check_array("master", update->master, sizeof(float), error);
	if (!rc)
		rc = check_array("exp_avg", update->exp_avg, sizeof(float), error);
	if (!rc)
		rc = check_array("exp_avg_sq", update->exp_avg_sq, sizeof(float), error);
	if (!rc)
		rc = check_array("gradients", update->gradients, gradient, error);
	if (!rc && update->weights)
		rc = check_array("weights", update->weights, nvs_dtype_size(update->weights_dtype),
				 error);
	return rc;
}

int nvs_adam_update(const struct nvs_adam_update *given, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_adam_update update;
	int rc = struct_in(&update, sizeof(update), given);
	struct optimizer_config config;
	struct scalars adam;

	if (rc)
		return struct_refused(error, rc, "nvs_adam_update", "the update");
	config = (struct optimizer_config){.lr = update.lr,
					   .beta1 = update.beta1,
					   .beta2 = update.beta2,
					   .eps = update.eps,
					   .weight_decay = update.weight_decay,
					   .adam_w_mode = update.adam_w_mode,
					   .bias_correction = update.bias_correction};
	rc = check_adam(&config, NAMED_AS_FIELDS, error);
	if (!rc)
		rc = check_update(&update, error);
	if (rc || !update.numel)
		return rc;
	adam = rule_at(NVS_RULE_ADAM)->scalars(&config, update.lr, update.step,
			    update.grad_factor != 0 ? update.grad_factor : 1);
	kernel_best()->update[NVS_RULE_ADAM](&adam, update.master, update.exp_avg, update.exp_avg_sq,
			    update.gradients, update.gradients_dtype, update.weights,
			    update.weights ? update.weights_dtype : NVS_F32, update.numel);
	return 0;
}
