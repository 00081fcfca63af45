/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All files of a checkpoint that is written, from creating to renaming them. Storages of a file of
 * torch.save that the caller has in memory lie behind those of the tensors. Files of an index take
 * effect when the index has its name, which is last.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "checkpoint/torch/torch.h"
#include "checkpoint/torch/zip.h"

int options_in(struct nvs_checkpoint_options *into, const struct nvs_checkpoint_options *options,
	       struct nvs_error *error)
{
	int rc = 0;

	*into = (struct nvs_checkpoint_options){.size = sizeof(*into)};
	if (options)
		rc = struct_in(into, sizeof(*into), options);
	if (rc)
		return struct_refused(error, rc, "nvs_checkpoint_options", "the options");
	if (into->pickle_bytes && !into->pickle)
		return error_set(error, -EINVAL, "a pickle of %zu bytes, but pickle is NULL",
				 into->pickle_bytes);
	if (into->nstorages && (!into->pickle || !into->storages))
		return error_set(error, -EINVAL, "the options have %zu storages, but %s is NULL",
				 into->nstorages, into->pickle ? "storages" : "pickle");
	if (into->pickle && (!into->pickle_bytes || into->pickle_bytes > HEADER_MAX))
		return error_set(error, -EINVAL, "a pickle of %zu bytes; allowed are 1 to %u",
				 into->pickle_bytes, HEADER_MAX);
	return into->nstorages <= ENTRIES_MAX
		       ? 0
		       : error_set(error, -EINVAL, "%zu storages; allowed are up to %u",
				   into->nstorages, ENTRIES_MAX);
}

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

/* Writes them. They are the last of the plan, which is placed. */
static int write_storages(struct writing *writing, const struct nvs_checkpoint_options *options,
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

bool writes_torch(const char *path, const struct nvs_checkpoint_options *options)
{
	return options->pickle || text_ends_with(path, ".pt");
}

int writing_begin(struct writing *writing, struct nvs_aio *aio, const char *path,
		  const struct nvs_checkpoint_options *options, const struct torch_count *count,
		  struct nvs_error *error)
{
	struct nvs_checkpoint *plan = &writing->plan;
	struct placement *placement = &writing->placement;
	int rc = 0;

	writing->aio = aio;
	if (writes_torch(path, options)) {
		struct torch *torch = &writing->torch;

		/* Adds the caller's storages to the plan, whose entries have room for them. */
		for (size_t i = 0; i < options->nstorages && !rc; i++) {
			struct nvs_checkpoint_storage storage;
			char name[40];

			rc = read_storage(&storage, options, i, error);
			if (!rc && storage.nbytes > DATA_MAX - plan->nbytes)
				rc = error_set(error, -EINVAL,
					       "the storages have more than %llu bytes", DATA_MAX);
			snprintf(name, sizeof(name), "storages[%zu]", i);
			if (!rc && entry_make(&plan->entries[plan->n], name, NVS_U8, storage.nbytes,
					      NULL, 0))
				rc = error_set(error, -ENOMEM,
					       "no memory for the names of storages");
			if (!rc) {
				plan->nbytes += storage.nbytes;
				plan->n++;
			}
		}
		if (!rc)
			rc = placement_make_single(placement, plan, path, !options->pickle, error);
		if (!rc && options->shard_bytes)
			rc = error_set(error, -EINVAL, "%s: a file of torch.save has no shards",
				       path);
		if (!rc)
			rc = options->pickle
				     ? torch_place_pickle(torch, plan, options->pickle,
							  options->pickle_bytes, path, error)
				     : torch_place(torch, plan, count, path, error);
		if (rc)
			return rc;
		placement->headers[0] = torch->lead;
		torch->lead = NULL;
		placement->header_bytes[0] = torch->lead_bytes;
		placement->file_bytes[0] = torch->file_bytes;
	} else {
		rc = placement_make(placement, plan, path, options->shard_bytes, error);
		if (rc)
			return rc;
	}
	writing->drafts = calloc(plan->nfiles, sizeof(*writing->drafts));
	if (!writing->drafts)
		return error_set(error, -ENOMEM, "no memory for the files of %s", plan->paths[0]);
	for (size_t i = 0; i < plan->nfiles; i++)
		writing->drafts[i].fd = -1;
	for (size_t i = 0; i < plan->nfiles && !rc; i++) {
		rc = draft_open(&writing->drafts[i], aio, plan->paths[i], placement->file_bytes[i],
				error);
		if (!rc)
			rc = sink_write_now(&writing->drafts[i].sink, aio, placement->headers[i],
					    placement->header_bytes[i], 0, error);
	}
	return rc ? rc : write_storages(writing, options, error);
}

int writing_commit(struct writing *writing, struct nvs_error *error)
{
	const struct placement *placement = &writing->placement;
	const struct nvs_checkpoint *plan = &writing->plan;
	const char *index = placement->index_path, *other = placement->other_path;
	struct nvs_checkpoint before = {0};
	int rc = 0, directory;

	if (writing->torch.crcs)
		rc = torch_finish(&writing->torch, plan, &writing->drafts[0].sink, plan->paths[0],
				  writing->aio, error);
	for (size_t i = 0; i < plan->nfiles && !rc; i++)
		rc = draft_sync(&writing->drafts[i], error);
	if (rc)
		return rc;
	/* A call that writes the other form at the same time must not remove what this one has
	 * renamed. */
	directory = lock_directory(plan->paths[0], error);
	if (directory < 0)
		return directory;
	/* The index that is replaced, of either form. A damaged one names no files. */
	if ((index || other) && !access(index ? index : other, F_OK))
		rc = index_load(&before, index ? index : other, error);
	if (rc == -EINVAL || rc == -ENOENT || rc == -ENODATA)
		rc = 0;
	/* Since the files of this one were named. */
	if (!rc && index && index_names_any(&before, plan))
		rc = error_set(error, -EBUSY, "another call has written %s", index);
	for (size_t i = 0; i < plan->nfiles && !rc; i++)
		rc = draft_rename(&writing->drafts[i], error);
	if (!rc)
		rc = sync_directory(plan->paths[0], error);
	if (!rc && index) {
		rc = draft_write(writing->aio, index, placement->index, placement->index_bytes,
				 error);
		writing->complete = !rc;
		if (!rc)
			rc = sync_directory(index, error);
	}
	/*
	 * Some readers look for the single file first and some for the index, so the one that is
	 * replaced by the other may not stay. Each reader finds the old checkpoint or the new one,
	 * whole, at any time.
	 */
	if (!rc && other) {
		rc = remove_durably(other, error);
		if (!rc)
			index_remove_files(&before, plan);
	}
	checkpoint_free(&before);
	close(directory);
	return rc;
}

void writing_end(struct writing *writing)
{
	for (size_t i = 0; writing->drafts && i < writing->plan.nfiles; i++) {
		/* Files that no index names are removed. */
		if (writing->plan.nfiles > 1 && !writing->complete && writing->drafts[i].renamed)
			unlink(writing->plan.paths[i]);
		draft_close(&writing->drafts[i]);
	}
	free(writing->drafts);
	placement_free(&writing->placement, &writing->plan);
	torch_free(&writing->torch);
	checkpoint_free(&writing->plan);
	*writing = (struct writing){0};
}
