/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a model's file, as the library finds them in its header. Data is read with pread,
 * never mapped, so a file that is truncated during a read is an error and not a signal.
 */
#include "cli/modes/model/model.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers.h"

static int no_memory(const char *path, struct nvs_error *error)
{
	return error_set(error, -ENOMEM, "no memory for the header of %s", path);
}

static int add_tensor(struct model *model, const struct nvs_checkpoint_tensor *from, size_t file)
{
	struct model_tensor *tensor = &model->tensors[model->n];

	*tensor = (struct model_tensor){.name = strdup(from->name),
					.dtype = from->dtype,
					.numel = from->numel,
					.nbytes = from->nbytes,
					.rows = from->ndim > 1 ? from->shape[0] : 0,
					.file = file,
					.file_offset = from->offset};
	if (!tensor->name)
		return -ENOMEM;
	model->n++;
	model->nbytes += from->nbytes;
	return 0;
}

/* Finds the file among those that are open, or opens it. */
static int open_data(struct model *model, const char *path, size_t *file, struct nvs_error *error)
{
	struct model_file *files;
	int fd;

	for (*file = 0; *file < model->nfiles; ++*file)
		if (!strcmp(model->files[*file].path, path))
			return 0;
	files = reallocarray(model->files, model->nfiles + 1, sizeof(*files));
	if (!files)
		return no_memory(path, error);
	model->files = files;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return error_set(error, -errno, "can't open the model %s: %s", path,
				 nvs_strerror(-errno));
	files[*file] = (struct model_file){.path = strdup(path), .fd = fd};
	if (files[*file].path)
		model->nfiles++;
	else
		close(fd);
	return files[*file].path ? 0 : no_memory(path, error);
}

static int take(struct model *model, const struct nvs_checkpoint *checkpoint,
		struct nvs_error *error)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	int rc = 0;

	model->tensors = calloc(nvs_checkpoint_count(checkpoint) + 1, sizeof(*model->tensors));
	if (!model->tensors)
		return no_memory(model->path, error);
	for (size_t i = 0; !rc && !nvs_checkpoint_get(checkpoint, i, &tensor); i++) {
		size_t file = 0;

		rc = tensor.path ? open_data(model, tensor.path, &file, error) : 0;
		if (!rc && add_tensor(model, &tensor, file))
			rc = no_memory(model->path, error);
	}
	return rc;
}

/* In a folder as Hugging Face's tools make it; the library finds an index by the file's name. */
static int open_headers(struct nvs_checkpoint **checkpoint, const char *path,
			struct nvs_error *error)
{
	static const char *const names[] = {"model.safetensors", "pytorch_model.bin",
					    "adapter_model.safetensors", "adapter_model.bin"};
	struct stat status;

	*checkpoint = NULL;
	if (stat(path, &status) || !S_ISDIR(status.st_mode))
		return nvs_checkpoint_open(checkpoint, path, error);
	for (size_t i = 0; i < COUNT_OF(names); i++) {
		char file[PATH_MAX], index[PATH_MAX];

		if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, names[i]) >= sizeof(file) ||
		    (size_t)snprintf(index, sizeof(index), "%s.index.json", file) >= sizeof(index))
			return error_set(error, -ENAMETOOLONG, "%s: %s", path,
					 nvs_strerror(-ENAMETOOLONG));
		/* An index is one of .safetensors files. */
		if (!access(file, F_OK) || (!i && !access(index, F_OK)))
			return nvs_checkpoint_open(checkpoint, file, error);
	}
	return error_set(error, -ENOENT, "%s has no %s (or its index), %s, %s or %s: name a file",
			 path, names[0], names[1], names[2], names[3]);
}

int model_load(struct model *model, const char *path, struct nvs_error *error)
{
	struct nvs_checkpoint *checkpoint;
	int rc = open_headers(&checkpoint, path, error);

	*model = (struct model){.path = path};
	if (!rc)
		rc = take(model, checkpoint, error);
	nvs_checkpoint_close(checkpoint);
	model->n_whole = model->n;
	model->nbytes_whole = model->nbytes;
	if (rc)
		model_free(model);
	return rc;
}

static int read_at(const struct model_file *file, uint64_t offset, void *data, size_t nbytes,
		   struct nvs_error *error)
{
	char *to = data;

	while (nbytes) {
		ssize_t got = pread(file->fd, to, nbytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return error_set(error, -errno, "%s: reading at byte %llu: %s", file->path,
					 (unsigned long long)offset, nvs_strerror(-errno));
		if (!got)
			return error_set(
				error, -ENODATA,
				"%s: ends at byte %llu: it was truncated while it was read",
				file->path, (unsigned long long)offset);
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
	for (size_t i = 0; i < model->nfiles; i++) {
		close(model->files[i].fd);
		free(model->files[i].path);
	}
	free(model->files);
	*model = (struct model){.path = NULL};
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
	assert(tensor->file < model->nfiles && offset + nbytes <= tensor->nbytes);
	return read_at(&model->files[tensor->file], tensor->file_offset + offset, data, nbytes,
		       error);
}
