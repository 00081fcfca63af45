/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels' Adam on the caller's arrays. It keeps nothing, allocates nothing and needs no
 * optimizer.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "config/config.h"
#include "optim/kernels/kernel.h"
#include "optim/state/header.h"
#include "optim/step/numbers.h"

static bool is_element(enum nvs_dtype dtype)
{
	return dtype == NVS_F32 || dtype == NVS_BF16 || dtype == NVS_F16;
}

static int check_arrays(const struct nvs_adam_update *update, struct nvs_error *error)
{
	if (!is_element(update->gradients_dtype) ||
	    (update->weights && !is_element(update->weights_dtype)))
		return error_set(error, -EINVAL, "gradients and weights are F32, BF16 or F16");
	if (update->numel > HEADER_NUMEL_MAX)
		return error_about(error, -EINVAL, "numel", 0, 0,
				   "numel is %" PRIu64 ": allowed are up to 2^56", update->numel);
	if (update->numel &&
	    (!update->gradients || !update->master || !update->exp_avg || !update->exp_avg_sq))
		return error_set(error, -EINVAL,
				 "gradients, master, exp_avg or exp_avg_sq is NULL");
	return 0;
}

int nvs_adam_update(const struct nvs_adam_update *given, struct nvs_error *error)
{
	struct nvs_adam_update update;
	int rc = struct_in(&update, sizeof(update), given);
	struct optimizer_config config;
	struct adam adam;

	if (rc)
		return error_set(error, rc,
				 given ? "the size of the update is not that of a struct "
					 "nvs_adam_update"
				       : "the update is NULL");
	config = (struct optimizer_config){.lr = update.lr,
					   .beta1 = update.beta1,
					   .beta2 = update.beta2,
					   .eps = update.eps,
					   .weight_decay = update.weight_decay,
					   .adam_w_mode = update.adam_w_mode,
					   .bias_correction = update.bias_correction};
	rc = check_adam(&config, NAMED_AS_FIELDS, error);
	if (!rc)
		rc = check_number("grad_factor", update.grad_factor, FLT_MAX, error);
	if (!rc && (!update.step || update.step > HEADER_COUNTS_MAX))
		rc = error_about(error, -EINVAL, "step", 0, 0,
				 "step is %" PRIu64 ": allowed are 1 to 2^53", update.step);
	if (!rc)
		rc = check_arrays(&update, error);
	if (rc || !update.numel)
		return rc;
	adam = adam_factors(&config, update.lr, update.step,
			    update.grad_factor > 0 ? update.grad_factor : 1);
	kernel_best()->adam(&adam, update.master, update.exp_avg, update.exp_avg_sq,
			    update.gradients, update.gradients_dtype, update.weights,
			    update.weights ? update.weights_dtype : NVS_F32, update.numel);
	return 0;
}
