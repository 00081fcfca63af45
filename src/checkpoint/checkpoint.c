/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens checkpoints and lists their tensors. Reads headers only.
 */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"

int nvs_checkpoint_open(struct nvs_checkpoint **out, const char *path, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_checkpoint *checkpoint;
	bool is_torch = false;
	char *index = NULL;
	int rc;

	if (!out)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	*out = NULL;
	if (!path)
		return error_set(error, -EINVAL, "path is NULL");
	checkpoint = calloc(1, sizeof(*checkpoint));
	if (!checkpoint)
		return error_set(error, -ENOMEM, "no memory for the header of %s", path);
	/* The file, or the files of its index. */
	if (text_ends_with(path, INDEX_SUFFIX)) {
		rc = index_load(checkpoint, path, error);
	} else {
		rc = torch_load(checkpoint, path, &is_torch, error);
		if (!is_torch)
			rc = safetensors_load(checkpoint, path, error);
		if (rc == -ENOENT && !is_torch) {
			if (asprintf(&index, "%s" INDEX_SUFFIX, path) < 0) {
				index = NULL;
				rc = error_set(error, -ENOMEM, "no memory for the header of %s",
					       path);
			} else if (!access(index, F_OK)) {
				rc = index_load(checkpoint, index, error);
			}
		}
	}
	if (!rc)
		rc = checkpoint_sort(checkpoint, path, error);
	if (rc)
		nvs_checkpoint_close(checkpoint);
	else
		*out = checkpoint;
	free(index);
	return rc;
}

void nvs_checkpoint_close(struct nvs_checkpoint *checkpoint)
{
	if (!checkpoint)
		return;
	checkpoint_free(checkpoint);
	free(checkpoint);
}

size_t nvs_checkpoint_count(const struct nvs_checkpoint *checkpoint)
{
	return checkpoint ? checkpoint->n : 0;
}

int nvs_checkpoint_get(const struct nvs_checkpoint *checkpoint, size_t index,
		       struct nvs_checkpoint_tensor *tensor)
{
	const struct entry *entry;

	if (!checkpoint || !tensor)
		return -EINVAL;
	if (index >= checkpoint->n)
		return -ENOENT;
	entry = &checkpoint->entries[index];
	return struct_out(
		tensor,
		&(const struct nvs_checkpoint_tensor){
			.size = sizeof(*tensor),
			.name = entry->name,
			.dtype = entry->dtype,
			.numel = entry->numel,
			.nbytes = entry->nbytes,
			.ndim = entry->ndim,
			.shape = entry->shape,
			.path = checkpoint->has_data ? checkpoint->paths[entry->file] : NULL,
			.offset = entry->offset},
		sizeof(*tensor));
}
