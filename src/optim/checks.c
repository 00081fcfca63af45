/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning and the end of every call on an optimizer, one at a time, and the checks of its
 * arguments: the configuration on open, ranges of groups, and whether an unfinished step or a store
 * that is only read forbids the call. No check changes anything. The caller's functions run on the
 * compute threads of the optimizer, within a call that has the lock until they have returned.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "base/error.h"
#include "optim/internal.h"

int check_type(const struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const char *type = optimizer->config.adam.type;

	/* Nothing is updated. */
	if (optimizer->options.update || optimizer->read_only)
		return 0;
	if (optimizer->config.adam.amsgrad && optimizer->rule->id == NVS_RULE_ADAM)
		return error_about(error, -ENOTSUP, "optimizer.params.amsgrad", 0, 0,
				   "optimizer.params.amsgrad is true, but nvswap's Adam keeps no "
				   "maximum of exp_avg_sq: set it to false, or provide an update "
				   "function");
	if (rule_of_type(type))
		return 0;
	return error_about(error, -ENOTSUP, "optimizer.type", 0, 0,
			   "optimizer.type is %s, but nvswap has only Adam, AdamW, SGD, Adagrad "
			   "and Lion: set one of them, or provide an update function",
			   type);
}

int check_format(const struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	const struct rule *rule = optimizer->rule;

	/* Of a store that gives its rule or its format, the configured one does not count. */
	if (optimizer->state == NVS_STATE_FP32 || rule->packs || optimizer->takes_rule ||
	    optimizer->takes_state)
		return 0;
	return error_about(
		error, -ENOTSUP, "nvswap.optimizer_state", 0, 0,
		"nvswap.optimizer_state is %s, but only the state of Adam and AdamW is "
		"kept in fewer bytes: set it to \"fp32\" for %s, whose one state takes 8 "
		"bytes a parameter with the master weight",
		optimizer_state_name(optimizer->state), rule->name);
}

static int check_fp16(const struct fp16_config *config, struct nvs_error *error)
{
	if (!config->enabled)
		return 0;
	if (config->loss_scale != 0 && !is_scale(config->loss_scale))
		return error_about(error, -EINVAL, "fp16.loss_scale", 0, 0,
				   "fp16.loss_scale is %g: allowed are 0 (dynamic) and 2^-24 to "
				   "2^127",
				   config->loss_scale);
	if (!is_scale(config->min_loss_scale) && config->min_loss_scale != 0)
		return error_about(error, -EINVAL, "fp16.min_loss_scale", 0, 0,
				   "fp16.min_loss_scale is %g: allowed are 0 and 2^-24 to 2^127",
				   config->min_loss_scale);
	if (!config->loss_scale_window || !config->hysteresis || config->initial_scale_power > 127)
		return error_about(error, -EINVAL, "fp16", 0, 0,
				   "fp16.loss_scale_window and fp16.hysteresis must be at least 1, "
				   "fp16.initial_scale_power at most 127");
	return 0;
}

int check_values(const struct nvs_config *config, enum nvs_rule rule, struct nvs_error *error)
{
	enum nvs_dtype dtype = config->grad_accum_dtype;
	int rc;

	if (!is_element(dtype))
		return error_about(error, -EINVAL, "data_types.grad_accum_dtype", 0, 0,
				   "gradients are accumulated in F32, BF16 or F16, not %s",
				   nvs_dtype_name(dtype));
	if (!(config->offload[NVS_OFFLOAD_OPTIMIZER].ratio >= 0 &&
	      config->offload[NVS_OFFLOAD_OPTIMIZER].ratio <= 1))
		return error_about(error, -EINVAL, "offload_optimizer.ratio", 0, 0,
				   "offload_optimizer.ratio is %g: allowed are 0 to 1",
				   config->offload[NVS_OFFLOAD_OPTIMIZER].ratio);
	if (!(config->gradient_clipping >= 0))
		return error_about(error, -EINVAL, "gradient_clipping", 0, 0,
				   "gradient_clipping is %g: allowed are 0 (none) and above",
				   config->gradient_clipping);
	if (!config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_count)
		return error_about(error, -EINVAL, "offload_optimizer.buffer_count", 0, 0,
				   "offload_optimizer.buffer_count is 0: a pool needs at least one "
				   "buffer");
	rc = check_numbers(&config->adam, rule, NAMED_AS_KEYS, error);
	rc = rc ?: check_fp16(&config->fp16, error);
	if (!rc) {
		const char *key = config->fp16.master_weights ? "fp16.fp16_master_weights_and_grads"
				  : config->bf16_master_weights
					  ? "bf16.bf16_master_weights_and_grads"
				  : config->bf16_optimizer_states ? "bf16.bf16_optimizer_states"
								  : NULL;

		/* DeepSpeed's keys mean formats without stochastic rounding. */
		if (key && !config->read_only)
			rc = error_about(error, -ENOTSUP, key, 0, 0,
					 "%s is true, but nvswap.optimizer_state chooses the "
					 "format of nvswap's state: set that, and this to false",
					 key);
	}
	if (rc)
		return rc;
	if (!config->read_only || config->offload[NVS_OFFLOAD_OPTIMIZER].device == NVS_DEVICE_NVME)
		return 0;
	return error_about(error, -ENODATA, "read_only", 0, 0,
			   "nvswap.read_only is true, but offload_optimizer.device is not nvme: "
			   "there is no kept store to read");
}

int check_given(const void *argument, const char *name, struct nvs_error *error)
{
	return argument ? 0 : error_set(error, -EINVAL, "%s is NULL", name);
}

int check_step(const struct nvs_optimizer *optimizer, const struct nvs_step_options *options,
	       struct nvs_error *error)
{
	double sum = options->sums ? options->sums->sum_squares : 0;

	/* Both are copies of the caller's structures, in the library's size. */
	assert(options->size == sizeof(*options));
	assert(!options->sums || options->sums->size == sizeof(*options->sums));
	if (!isfinite(options->lr) || options->lr > (double)FLT_MAX)
		return error_about(error, -EINVAL, "lr", 0, 0,
				   "lr is %g: a learning rate is finite in fp32", options->lr);
	/* With fp16 a sum that is inf or nan is an overflow, which skips the step. */
	if (sum < 0 || (!isfinite(sum) && !optimizer->config.fp16.enabled))
		return error_about(error, -EINVAL, "sum_squares", 0, 0,
				   "sum_squares is %g: a sum of squares is finite and not "
				   "negative; inf and nan are allowed with fp16 only, where they "
				   "skip the step",
				   sum);
	return 0;
}

int refuse_unfinished(const struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	if (!is_unfinished(optimizer))
		return 0;
	return error_set(error, -EBUSY,
			 "step %" PRIu64 " has failed and is not finished: call "
			 "nvs_optimizer_step again to finish it",
			 optimizer->step + 1);
}

int call_begin(struct nvs_optimizer *optimizer, unsigned needs, struct nvs_error *error)
{
	int rc = check_given(optimizer, "optimizer", error);

	if (rc)
		return rc;
	if (threads_have_caller(optimizer->threads) ||
	    pthread_mutex_lock(&optimizer->lock) == EDEADLK)
		return error_set(
			error, -EDEADLK,
			"the optimizer is called within a call on it, by its update, "
			"weights_final or state function: make this call when that one has "
			"returned");
	if (needs & CALL_CHANGES && optimizer->read_only)
		rc = error_about(
			error, -EROFS, "read_only", 0, 0,
			"the optimizer is open read-only (\"nvswap\": {\"read_only\": true}): its "
			"state can be read and exported, but not changed, stepped or committed");
	else if (needs & CALL_BETWEEN_STEPS)
		rc = refuse_unfinished(optimizer, error);
	if (rc)
		call_end(optimizer);
	return rc;
}

void call_end(struct nvs_optimizer *optimizer)
{
	int rc;

	optimizer_check(optimizer);
	rc = pthread_mutex_unlock(&optimizer->lock);
	assert(!rc);
	(void)rc;
}

int check_ngroups(const struct nvs_optimizer *optimizer, size_t n, struct nvs_error *error)
{
	if (n == optimizer->ngroups)
		return 0;
	return error_about(error, -EINVAL, "n", 0, 0, "n is %zu, and there are %zu groups", n,
			   optimizer->ngroups);
}

int check_range(const struct nvs_optimizer *optimizer, size_t group, uint64_t offset,
		uint64_t numel, struct nvs_error *error)
{
	const struct group *which = optimizer->groups + (group < optimizer->ngroups ? group : 0);

	if (group >= optimizer->ngroups)
		return error_set(error, -EINVAL, "there is no group %zu: the optimizer has %zu",
				 group, optimizer->ngroups);
	if (offset > which->numel || numel > which->numel - offset)
		return error_about(error, -EINVAL, which->name, 0, 0,
				   "%" PRIu64 " elements from %" PRIu64
				   " on go beyond the end of group %s, which has %" PRIu64,
				   numel, offset, which->name, which->numel);
	return 0;
}
