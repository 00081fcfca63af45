/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an optimizer says of itself: its progress, which gradients it has, and the caller's note in
 * its commits. Its engine keeps the note: the optimizer's own header is a tensor of the store.
 */
#include <errno.h>
#include <inttypes.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "optim/internal.h"
#include "optim/step/numbers.h"

static int copy_out(void *info, const void *full, size_t nbytes, struct nvs_error *error)
{
	int rc = struct_out(info, full, nbytes);

	return rc ? error_set(error, rc, "info is NULL, or its size is not set") : 0;
}

int nvs_optimizer_get_info(struct nvs_optimizer *optimizer, struct nvs_optimizer_info *info,
			   struct nvs_error *error)
{
	struct nvs_optimizer_info full;
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	full = (struct nvs_optimizer_info){
		.step = optimizer->step,
		.loss_scale = optimizer->scaler.scale,
		.ngroups = optimizer->ngroups,
		.kept = optimizer->keep,
		.unfinished = is_unfinished(optimizer),
		.generation = nvs_engine_generation(optimizer->engine),
		.state = optimizer->state,
		.numel = optimizer->numel,
		.split_numel = optimizer->split_numel,
		.step_bytes = 2 * (double)optimizer->state_bytes /
			      ((double)optimizer->ntiles * (double)optimizer->tile_numel),
		.rule = optimizer->rule->id,
	};
	call_end(optimizer);
	return copy_out(info, &full, sizeof(full), error);
}

int nvs_optimizer_get_group_info(struct nvs_optimizer *optimizer, size_t group,
				 struct nvs_group_info *info, struct nvs_error *error)
{
	struct nvs_group_info full;
	int rc = call_begin(optimizer, 0, error);

	if (rc)
		return rc;
	rc = check_range(optimizer, group, 0, 0, error);
	if (!rc) {
		const struct group *which = &optimizer->groups[group];

		group_check(optimizer, which);
		full = (struct nvs_group_info){
			.name = which->name,
			.numel = which->numel,
			.dtype = which->dtype,
			.gradients = which->gradients,
			.gradients_numel = which->gradients == NVS_GRADIENTS_LENT ? which->numel
										  : which->added,
		};
	}
	call_end(optimizer);
	return rc ? rc : copy_out(info, &full, sizeof(full), error);
}

int nvs_optimizer_set_step(struct nvs_optimizer *optimizer, uint64_t step, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc;

	if (step > STEPS_MAX)
		return error_about(error, -EINVAL, "step", 0, 0,
				   "step is %" PRIu64 ": allowed are 0 to 2^53 - 1", step);
	rc = call_begin(optimizer, CALL_CHANGES | CALL_BETWEEN_STEPS, error);
	if (rc)
		return rc;
	optimizer->step = step;
	optimizer_check(optimizer);
	call_end(optimizer);
	return 0;
}

int nvs_optimizer_set_note(struct nvs_optimizer *optimizer, const void *note, size_t nbytes,
			   struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_given(optimizer, "optimizer", error);

	return rc ? rc : engine_set_note(optimizer->engine, note, nbytes, error);
}

int nvs_optimizer_get_note(struct nvs_optimizer *optimizer, void *note, size_t *nbytes)
{
	return optimizer ? nvs_engine_get_note(optimizer->engine, note, nbytes) : -EINVAL;
}
