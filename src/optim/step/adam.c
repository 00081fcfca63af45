/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels' updates of the caller's arrays. They keep nothing, allocate nothing and need no
 * optimizer.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "optim/optimizer.h"
#include "optim/state/header.h"

static int check_array(const char *name, const void *array, size_t size, struct nvs_error *error)
{
	if (!array)
		return error_about(error, -EINVAL, name, 0, 0, "%s is NULL", name);
	if ((uintptr_t)array % size)
		return error_about(error, -EINVAL, name, 0, 0,
				   "%s is not aligned to an element of %zu bytes", name, size);
	return 0;
}

static float *array_of(const struct nvs_rule_update *update, enum nvs_optimizer_part part)
{
	float *const arrays[] = {[NVS_MASTER] = update->master,
				 [NVS_EXP_AVG] = update->exp_avg,
				 [NVS_EXP_AVG_SQ] = update->exp_avg_sq,
				 [NVS_MOMENTUM_BUFFER] = update->momentum_buffer,
				 [NVS_SUM] = update->sum};

	return arrays[part];
}

static int check_update(const struct nvs_rule_update *update, struct nvs_error *error)
{
	const struct rule *rule = rule_at(update->rule);
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
	for (unsigned i = 0; i < rule->nparts && !rc; i++)
		rc = check_array(part_name(rule->parts[i]), array_of(update, rule->parts[i]),
				 sizeof(float), error);
	if (!rc)
		rc = check_array("gradients", update->gradients,
				 nvs_dtype_size(update->gradients_dtype), error);
	if (!rc && update->weights)
		rc = check_array("weights", update->weights, nvs_dtype_size(update->weights_dtype),
				 error);
	return rc;
}

/* `update` is a copy of the caller's, in the library's size. */
static int update_arrays(const struct nvs_rule_update *update, struct nvs_error *error)
{
	const struct optimizer_config config = {.lr = update->lr,
						.beta1 = update->beta1,
						.beta2 = update->beta2,
						.eps = update->eps,
						.weight_decay = update->weight_decay,
						.momentum = update->momentum,
						.dampening = update->dampening,
						.lr_decay = update->lr_decay,
						.adam_w_mode = update->adam_w_mode,
						.bias_correction = update->bias_correction,
						.nesterov = update->nesterov};
	const struct rule *rule;
	struct scalars scalars;
	int rc;

	if ((unsigned)update->rule >= RULES)
		return error_about(error, -EINVAL, "rule", 0, 0, "there is no rule %d",
				   (int)update->rule);
	rc = check_numbers(&config, update->rule, NAMED_AS_FIELDS, error);
	rc = rc ?: check_update(update, error);
	if (rc || !update->numel)
		return rc;
	rule = rule_at(update->rule);
	scalars = rule->scalars(&config, update->lr, update->step,
				update->grad_factor != 0 ? update->grad_factor : 1);
	kernel_best()->update[rule->id](&scalars, update->master, array_of(update, rule->parts[1]),
					rule->nparts > 2 ? array_of(update, rule->parts[2]) : NULL,
					update->gradients, update->gradients_dtype, update->weights,
					update->weights ? update->weights_dtype : NVS_F32,
					update->numel);
	return 0;
}

int nvs_rule_update(const struct nvs_rule_update *given, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_rule_update update;
	int rc = struct_in(&update, sizeof(update), given);

	return rc ? struct_refused(error, rc, "nvs_rule_update", "the update")
		  : update_arrays(&update, error);
}

int nvs_adam_update(const struct nvs_adam_update *given, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_adam_update adam;
	int rc = struct_in(&adam, sizeof(adam), given);

	if (rc)
		return struct_refused(error, rc, "nvs_adam_update", "the update");

	const struct nvs_rule_update update = {.size = sizeof(update),
					       .rule = NVS_RULE_ADAM,
					       .numel = adam.numel,
					       .step = adam.step,
					       .lr = adam.lr,
					       .beta1 = adam.beta1,
					       .beta2 = adam.beta2,
					       .eps = adam.eps,
					       .weight_decay = adam.weight_decay,
					       .adam_w_mode = adam.adam_w_mode,
					       .bias_correction = adam.bias_correction,
					       .gradients = adam.gradients,
					       .gradients_dtype = adam.gradients_dtype,
					       .grad_factor = adam.grad_factor,
					       .master = adam.master,
					       .exp_avg = adam.exp_avg,
					       .exp_avg_sq = adam.exp_avg_sq,
					       .weights_dtype = adam.weights_dtype,
					       .weights = adam.weights};

	return update_arrays(&update, error);
}
