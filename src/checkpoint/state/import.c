/* SPDX-License-Identifier: Apache-2.0 */
/* Imports the state of an optimizer from .safetensors and .pt files. */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "checkpoint/state/groups.h"
#include "checkpoint/torch/torch.h"

/* `names` NULL: the tensor is called as the group and the part. */
static int find_part(struct groups *groups, size_t i, const char *const *names,
		     struct nvs_error *error)
{
	char own[GROUP_PART_ROOM];
	const char *name = names ? names[i] : own;
	const struct entry *entry;
	uint64_t numel;

	groups_name(groups, i, own, &numel);
	if (!name)
		return 0;
	entry = checkpoint_find(groups->reading->checkpoint, name);
	groups->entries[i] = entry;
	if (!entry)
		return checkpoint_lacks(groups->reading->checkpoint, name, error);
	if (entry->dtype != NVS_F32 || entry->numel != numel)
		return error_about(error, -ESTALE, name, 0, 0,
				   "%s: tensor %s has %llu elements of %s, the optimizer's group "
				   "%llu of F32",
				   groups->reading->checkpoint->paths[entry->file], name,
				   (unsigned long long)entry->numel, nvs_dtype_name(entry->dtype),
				   (unsigned long long)numel);
	return 0;
}

/* ---- The number of steps ---- */

static int read_tensor(const struct groups *groups, uint64_t *step, struct nvs_error *error)
{
	const struct entry *entry = checkpoint_find(groups->reading->checkpoint, STEP_NAME);
	struct nvs_request *request;
	uint8_t bytes[sizeof(*step)];
	int rc;

	if (!entry)
		return checkpoint_lacks(groups->reading->checkpoint, STEP_NAME, error);
	if (entry->dtype != NVS_U64 || entry->numel != 1)
		return error_about(error, -ESTALE, STEP_NAME, 0, 0,
				   "%s: tensor " STEP_NAME " must be one element of U64",
				   groups->reading->checkpoint->paths[entry->file]);
	rc = nvs_aio_pread(groups->aio, groups->reading->files[entry->file], bytes, sizeof(bytes),
			   entry->offset, &request, error);
	if (!rc)
		rc = requests_finish(groups->aio, &request, 1, error);
	if (!rc)
		*step = get_u64(bytes);
	return rc;
}

/* A value of the dictionary of a file of torch.save, which has no numbers in its list of
 * tensors. */
static int read_number(const struct groups *groups, uint64_t *step, struct nvs_error *error)
{
	static const char *const keys[] = {STEP_NAME, NULL};
	const struct nvs_checkpoint *checkpoint = groups->reading->checkpoint;
	int rc, fd = reading_open(checkpoint, 0, error);

	if (fd < 0)
		return fd;
	rc = torch_read_count(fd, checkpoint->paths[0], keys, step, error);
	close(fd);
	return rc;
}

/* ---- All state ---- */

static int check_sums(const struct groups *groups, struct nvs_error *error)
{
	for (size_t i = 0; i < groups->n * PARTS; i++) {
		const struct entry *entry = groups->entries[i];

		if (entry && entry->has_crc && groups->sums[i] != entry->crc)
			return error_about(error, -EBADMSG, entry->name, 0, entry->offset,
					   "%s: tensor %s: its bytes do not have the checksum that "
					   "the file states",
					   groups->reading->checkpoint->paths[entry->file],
					   entry->name);
	}
	return 0;
}

int nvs_checkpoint_import_optimizer(struct nvs_optimizer *optimizer,
				    const struct nvs_checkpoint *checkpoint,
				    const char *const *names, struct nvs_error *error)
{
	struct reading reading = {0};
	struct groups groups = {.reading = &reading};
	int rc;

	if (!checkpoint)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	rc = groups_begin(&groups, optimizer, error);
	if (!rc) {
		uint64_t step = 0;

		rc = reading_begin(groups.reading, groups.aio, checkpoint, error);

		for (size_t i = 0; i < groups.n * PARTS && !rc; i++)
			rc = find_part(&groups, i, names, error);
		if (!rc && !names) {
			rc = groups.reading->checkpoint->of_torch
				     ? read_number(&groups, &step, error)
				     : read_tensor(&groups, &step, error);
			if (!rc && step > STEPS_MAX)
				rc = error_about(error, -ERANGE, STEP_NAME, 0, 0,
						 "the checkpoint counts %llu steps; allowed are up "
						 "to 2^53 - 1",
						 (unsigned long long)step);
		}
		for (size_t i = 0; i < groups.n * PARTS && !rc; i++)
			if (groups.entries[i])
				rc = reading_check(groups.reading, groups.entries[i], error);
		if (!rc)
			rc = groups_move(&groups, error);
		if (!rc)
			rc = check_sums(&groups, error);
		if (!rc)
			rc = check_step_since(groups.optimizer, groups.step, error);
		rc = rc || names ? rc : nvs_optimizer_set_step(groups.optimizer, step, error);
		reading_end(&reading);
	}
	groups_end(&groups);
	return rc;
}
