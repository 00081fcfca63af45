/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens checkpoints and lists their tensors. Reads headers only.
 */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"

int checkpoint_find_path(const char *path, bool of_torch, char found[PATH_MAX],
			 struct nvs_error *error)
{
	/* The names of models in the folders of Hugging Face's tools. */
	static const char *const names[] = {"model.safetensors", "pytorch_model.bin",
					    "adapter_model.safetensors", "adapter_model.bin",
					    "diffusion_pytorch_model.safetensors"};
	struct stat status;
	bool is_folder = !stat(path, &status) && S_ISDIR(status.st_mode);

	if (!is_folder && (size_t)snprintf(found, PATH_MAX, "%s", path) < PATH_MAX)
		return 0;
	for (size_t i = 0; i < 2 * COUNT_OF(names) && is_folder; i++) {
		if (text_ends_with(names[i / 2], ".bin") && (i % 2 || !of_torch))
			continue;
		if ((size_t)snprintf(found, PATH_MAX, "%s/%s%s", path, names[i / 2],
				     i % 2 ? INDEX_SUFFIX : "") >= PATH_MAX)
			is_folder = false;
		else if (!access(found, F_OK))
			return 0;
	}
	if (!is_folder)
		return error_set(error, -ENAMETOOLONG, "%s: %s", path, nvs_strerror(-ENAMETOOLONG));
	return error_set(error, -ENOENT,
			 "%s has no %s, %s or %s, nor the index of one%s: name the files", path,
			 names[0], names[2], names[4],
			 of_torch ? ", nor pytorch_model.bin or adapter_model.bin" : "");
}

int nvs_checkpoint_open(struct nvs_checkpoint **out, const char *given, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_checkpoint *checkpoint;
	char path[PATH_MAX], index[PATH_MAX];
	bool is_torch = false;
	int rc;

	if (!out)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	*out = NULL;
	if (!given)
		return error_set(error, -EINVAL, "path is NULL");
	rc = checkpoint_find_path(given, true, path, error);
	if (rc)
		return rc;
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
		if (rc == -ENOENT && !is_torch &&
		    (size_t)snprintf(index, sizeof(index), "%s" INDEX_SUFFIX, path) <
			    sizeof(index) &&
		    !access(index, F_OK))
			rc = index_load(checkpoint, index, error);
	}
	if (!rc)
		rc = checkpoint_sort(checkpoint, path, error);
	if (rc)
		nvs_checkpoint_close(checkpoint);
	else
		*out = checkpoint;
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
