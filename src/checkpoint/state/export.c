/* SPDX-License-Identifier: Apache-2.0 */
/* Exports the state of an optimizer to .safetensors and .pt files. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "checkpoint/state/groups.h"

static int plan_tensor(struct nvs_checkpoint *plan, const char *name, enum nvs_dtype dtype,
		       uint64_t numel)
{
	int rc = entry_make(&plan->entries[plan->n], name, dtype, numel, NULL, 0);

	if (!rc)
		plan->nbytes += plan->entries[plan->n++].nbytes;
	return rc;
}

/* The number of steps comes last, as a tensor; a file of torch.save has it as a number. */
static int plan(const struct groups *groups, bool with_step, size_t nstorages,
		struct nvs_error *error)
{
	struct nvs_checkpoint *plan = &groups->writing->plan;
	char name[GROUP_PART_ROOM];
	size_t n = groups->n * PARTS;
	uint64_t numel;
	int rc = 0;

	plan->entries = calloc(n + nstorages + 1, sizeof(struct entry));
	if (!plan->entries)
		rc = -ENOMEM;
	for (size_t i = 0; i < n && !rc; i++) {
		groups_name(groups, i, name, &numel);
		rc = plan_tensor(plan, name, NVS_F32, numel);
	}
	if (!rc && with_step)
		rc = plan_tensor(plan, STEP_NAME, NVS_U64, 1);
	return rc ? error_set(error, rc, "no memory for the names of tensors") : 0;
}

static int write_step(const struct groups *groups, struct nvs_error *error)
{
	const struct writing *writing = groups->writing;
	const struct entry *entry = &writing->plan.entries[writing->plan.n - 1];
	uint8_t bytes[sizeof(groups->step)];

	assert(entry->dtype == NVS_U64 && entry->numel == 1);
	put_u64(bytes, groups->step);
	return sink_write_now(&writing->drafts[entry->file].sink, groups->aio, bytes, sizeof(bytes),
			      entry->offset, error);
}

static int export(struct groups *groups, struct nvs_error *error)
{
	struct writing *writing = groups->writing;
	size_t n = groups->n * PARTS;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		groups->entries[i] = &writing->plan.entries[i];
	if (!writing->torch.crcs)
		rc = write_step(groups, error);
	if (!rc)
		rc = groups_move(groups, error);
	if (!rc)
		rc = check_step_since(groups->optimizer, groups->step, error);
	if (!rc && writing->torch.crcs)
		memcpy(writing->torch.crcs, groups->sums, n * sizeof(*groups->sums));
	return rc ? rc : writing_commit(writing, error);
}

int nvs_checkpoint_export_optimizer(struct nvs_optimizer *optimizer, const char *path,
				    const struct nvs_checkpoint_options *options,
				    struct nvs_error *error)
{
	struct writing writing = {0};
	struct groups groups = {.writing = &writing};
	struct torch_count step = {.name = STEP_NAME};
	struct nvs_checkpoint_options chosen;
	int rc;

	if (!path)
		return error_set(error, -EINVAL, "path is NULL");
	rc = options_in(&chosen, options, error);
	if (rc)
		return rc;
	rc = groups_begin(&groups, optimizer, error);
	step.value = groups.step;
	if (!rc)
		rc = plan(&groups, !writes_torch(path, &chosen), chosen.nstorages, error);
	if (!rc)
		rc = writing_begin(&writing, groups.aio, path, &chosen, &step, error);
	if (!rc)
		rc = export(&groups, error);
	writing_end(&writing);
	groups_end(&groups);
	return rc;
}
