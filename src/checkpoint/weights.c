/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens engines on .safetensors files: finds the files, reads their headers, and opens them again
 * for the engine, which reads the tensors where they lie.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "base/weights.h"
#include "checkpoint/checkpoint.h"
#include "swap/swap.h"

static int add_path(struct nvs_checkpoint *all, const char *path, const struct nvs_log *log,
		    struct nvs_error *error)
{
	struct nvs_checkpoint part = {0};
	char found[PATH_MAX];
	size_t nunread;
	int rc = checkpoint_find_path(path, false, found, error);

	if (rc)
		return rc;
	rc = text_ends_with(found, INDEX_SUFFIX) ? index_load(&part, found, error)
						 : safetensors_load(&part, found, error);
	if (rc)
		return rc;
	nunread = part.nunread;
	if (!part.has_data)
		rc = error_set(error, -EINVAL, "%s is a header without data", found);
	else
		rc = checkpoint_append(all, &part, found, error);
	if (!rc && nunread)
		log_say(log, NVS_LOG_WARNING,
			"%s: %zu of its tensors are left out, whose names have no bytes, more than "
			"%d, or a NUL",
			found, nunread, NVS_NAME_MAX);
	checkpoint_free(&part);
	return rc;
}

static int open_weights(struct nvs_engine **engine, const struct nvs_config *config,
			const struct nvs_checkpoint *all, struct nvs_aio *aio,
			struct nvs_error *error)
{
	struct weights_file *files = calloc(all->nfiles, sizeof(*files));
	struct weights_tensor *tensors = calloc(all->n + 1, sizeof(*tensors));
	const struct weights weights = {files, all->nfiles, tensors, all->n};
	size_t nopen = 0;
	int rc = 0;

	if (!files || !tensors) {
		free(files);
		free(tensors);
		return error_set(error, -ENOMEM, "no memory for the tensors of %s", all->paths[0]);
	}
	for (; nopen < all->nfiles && !rc; nopen++) {
		int fd = reading_open(all, nopen, error);

		if (fd < 0) {
			rc = fd;
			break;
		}
		files[nopen] = (struct weights_file){all->paths[nopen], fd, all->stamps[nopen]};
	}
	for (size_t i = 0; i < all->n && !rc; i++) {
		const struct entry *entry = &all->entries[i];

		tensors[i] = (struct weights_tensor){.name = entry->name,
						     .dtype = entry->dtype,
						     .numel = entry->numel,
						     .nbytes = entry->nbytes,
						     .shape = entry->shape,
						     .ndim = entry->ndim,
						     .file = entry->file,
						     .offset = entry->offset,
						     .has_checksum = entry->has_xxh3,
						     .checksum = entry->xxh3};
	}
	if (!rc)
		rc = engine_open_weights(engine, config, &weights, aio, error);
	while (nopen--)
		close(files[nopen].fd);
	free(files);
	free(tensors);
	return rc;
}

int nvs_engine_open_files(struct nvs_engine **engine, const struct nvs_config *config,
			  const char *const *paths, size_t n,
			  const struct nvs_files_options *options, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_files_options chosen = {.size = sizeof(chosen)};
	struct nvs_checkpoint all = {0};
	int rc = 0;

	if (engine)
		*engine = NULL;
	if (!engine || !config || !paths || !n)
		return error_set(error, -EINVAL, "%s",
				 !engine   ? "engine is NULL"
				 : !config ? "config is NULL"
					   : "no paths: name a file, an index or a folder");
	if (options)
		rc = struct_in(&chosen, sizeof(chosen), options);
	if (rc)
		return struct_refused(error, rc, "nvs_files_options", "the options");
	for (size_t i = 0; i < n && !rc; i++)
		rc = paths[i] ? add_path(&all, paths[i], &config->log, error)
			      : error_set(error, -EINVAL, "paths[%zu] is NULL", i);
	if (!rc)
		rc = checkpoint_sort(&all, paths[0], error);
	if (config->verify == VERIFY_ON && !(chosen.checksums && !*chosen.checksums))
		for (size_t i = 0; i < all.nfiles && !rc; i++)
			rc = checksums_load(&all, i, chosen.checksums, error);
	if (!rc)
		rc = open_weights(engine, config, &all, chosen.aio, error);
	checkpoint_free(&all);
	return rc;
}
