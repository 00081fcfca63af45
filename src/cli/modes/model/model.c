/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a model's file, as the library finds them in its header. Data is read with pread,
 * never mapped, so a file that is truncated during a read is an error and not a signal.
 */
#include "cli/modes/model/model.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static int no_memory(const char *path, struct nvs_error *error)
{
	return error_set(error, -ENOMEM, "no memory for the header of %s", path);
}

static int add_tensor(struct model *model, const struct nvs_checkpoint_tensor *from)
{
	struct model_tensor *tensor = &model->tensors[model->n];

	*tensor = (struct model_tensor){.name = strdup(from->name),
					.dtype = from->dtype,
					.numel = from->numel,
					.nbytes = from->nbytes,
					.rows = from->ndim > 1 ? from->shape[0] : 0,
					.file_offset = from->offset};
	if (!tensor->name)
		return -ENOMEM;
	model->n++;
	model->nbytes += from->nbytes;
	return 0;
}

static int open_data(struct model *model, struct nvs_error *error)
{
	model->fd = open(model->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	return model->fd >= 0 ? 0
			      : error_set(error, -errno, "can't open the model %s: %s", model->path,
					  nvs_strerror(-errno));
}

static int take(struct model *model, const struct nvs_checkpoint *checkpoint,
		struct nvs_error *error)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	int rc = 0;

	model->tensors = calloc(nvs_checkpoint_count(checkpoint) + 1, sizeof(*model->tensors));
	if (!model->tensors)
		return no_memory(model->path, error);
	for (size_t i = 0; !rc && !nvs_checkpoint_get(checkpoint, i, &tensor); i++)
		rc = add_tensor(model, &tensor);
	if (rc)
		return no_memory(model->path, error);
	if (tensor.path && strcmp(tensor.path, model->path) != 0)
		return error_set(error, -EINVAL, "%s: an index of several files; name one of them",
				 model->path);
	return tensor.path ? open_data(model, error) : 0;
}

/* One file: the command reads no index. */
int model_load(struct model *model, const char *path, struct nvs_error *error)
{
	struct nvs_checkpoint *checkpoint;
	int rc = nvs_checkpoint_open(&checkpoint, path, error);

	*model = (struct model){.path = path, .fd = -1};
	if (!rc)
		rc = take(model, checkpoint, error);
	nvs_checkpoint_close(checkpoint);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	if (rc)
		model_free(model);
	return rc;
}

static int read_at(const struct model *model, uint64_t offset, void *data, size_t nbytes,
		   struct nvs_error *error)
{
	char *to = data;

	while (nbytes) {
		ssize_t got = pread(model->fd, to, nbytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return error_set(error, -errno, "%s: reading at byte %llu: %s", model->path,
					 (unsigned long long)offset, nvs_strerror(-errno));
		if (!got)
			return error_set(
				error, -ENODATA,
				"%s: ends at byte %llu: it was truncated while it was read",
				model->path, (unsigned long long)offset);
		to += got;
		offset += (uint64_t)got;
		nbytes -= (size_t)got;
	}
	return 0;
}

void model_free(struct model *model)
{
	for (size_t i = 0; i < model->n && model->tensors; i++)
		free(model->tensors[i].name);
	free(model->tensors);
	if (model->fd >= 0)
		close(model->fd);
	*model = (struct model){.fd = -1};
}

void model_limit(struct model *model, uint64_t nbytes)
{
	uint64_t kept = 0;
	size_t n = 0;

	while (n < model->n &&
	       (!n || (kept <= nbytes && model->tensors[n].nbytes <= nbytes - kept)))
		kept += model->tensors[n++].nbytes;
	for (size_t i = n; i < model->n; i++)
		free(model->tensors[i].name);
	model->n = n;
	model->nbytes = kept;
}

const struct model_tensor *model_largest(const struct model *model)
{
	const struct model_tensor *largest = &model->tensors[0];

	for (size_t i = 1; i < model->n; i++)
		if (model->tensors[i].nbytes > largest->nbytes)
			largest = &model->tensors[i];
	return largest;
}

int model_read(const struct model *model, const struct model_tensor *tensor, uint64_t offset,
	       void *data, size_t nbytes, struct nvs_error *error)
{
	assert(model->fd >= 0 && offset + nbytes <= tensor->nbytes);
	return read_at(model, tensor->file_offset + offset, data, nbytes, error);
}
