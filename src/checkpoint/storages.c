/* SPDX-License-Identifier: Apache-2.0 */
/* Storages of a file of torch.save that the caller has in memory, behind those of the tensors. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch/zip.h"

#define NAME_ROOM 40

static int read_storage(struct nvs_checkpoint_storage *storage,
			const struct nvs_checkpoint_options *options, size_t i,
			struct nvs_error *error)
{
	int rc = struct_in_at(storage, sizeof(*storage), options->storages, i);

	if (rc)
		return struct_refused(error, rc, "nvs_checkpoint_storage", "storages[%zu]", i);
	if (!storage->data && storage->nbytes)
		return error_set(error, -EINVAL, "storages[%zu]: data is NULL", i);
	return 0;
}

int storages_plan(struct nvs_checkpoint *plan, const struct nvs_checkpoint_options *options,
		  struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < options->nstorages && !rc; i++) {
		struct nvs_checkpoint_storage storage;
		char name[NAME_ROOM];

		rc = read_storage(&storage, options, i, error);
		if (!rc && storage.nbytes > DATA_MAX - plan->nbytes)
			rc = error_set(error, -EINVAL, "the storages have more than %llu bytes",
				       DATA_MAX);
		snprintf(name, sizeof(name), "storages[%zu]", i);
		if (!rc &&
		    entry_make(&plan->entries[plan->n], name, NVS_U8, storage.nbytes, NULL, 0))
			rc = error_set(error, -ENOMEM, "no memory for the names of storages");
		if (!rc) {
			plan->nbytes += storage.nbytes;
			plan->n++;
		}
	}
	return rc;
}

int storages_write(struct writing *writing, const struct nvs_checkpoint_options *options,
		   struct nvs_error *error)
{
	size_t first = writing->plan.n - options->nstorages;
	int rc = 0;

	assert(options->nstorages <= writing->plan.n);
	for (size_t i = 0; i < options->nstorages && !rc; i++) {
		struct nvs_checkpoint_storage storage;

		rc = read_storage(&storage, options, i, error);
		if (!rc)
			rc = sink_write_now(&writing->drafts[0].sink, writing->aio, storage.data,
					    storage.nbytes, writing->plan.entries[first + i].offset,
					    error);
		if (!rc)
			writing->torch.crcs[first + i] = zip_crc32(storage.data, storage.nbytes);
	}
	return rc;
}
