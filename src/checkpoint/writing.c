/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All files of a checkpoint that is written, from creating to renaming them. Files of an index take
 * effect when the index has its name, which is last.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "base/text.h"
#include "checkpoint/torch/torch.h"

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

static int begin_files(struct writing *writing, struct nvs_error *error)
{
	const struct nvs_checkpoint *plan = &writing->plan;
	int rc = 0;

	writing->drafts = calloc(plan->nfiles, sizeof(*writing->drafts));
	if (!writing->drafts)
		return error_set(error, -ENOMEM, "no memory for the files of %s", plan->paths[0]);
	for (size_t i = 0; i < plan->nfiles; i++)
		writing->drafts[i].fd = -1;
	for (size_t i = 0; i < plan->nfiles && !rc; i++) {
		rc = draft_open(&writing->drafts[i], writing->aio, plan->paths[i],
				writing->placement.file_bytes[i], error);
		if (!rc)
			rc = sink_write_now(&writing->drafts[i].sink, writing->aio,
					    writing->placement.headers[i],
					    writing->placement.header_bytes[i], 0, error);
	}
	return rc;
}

bool writes_torch(const char *path, const struct nvs_checkpoint_options *options)
{
	return options->pickle || text_ends_with(path, ".pt");
}

static int begin_torch(struct writing *writing, const char *path,
		       const struct nvs_checkpoint_options *options,
		       const struct torch_count *count, struct nvs_error *error)
{
	int rc = storages_plan(&writing->plan, options, error);

	if (!rc)
		rc = placement_make_single(&writing->placement, &writing->plan, path,
					   !options->pickle, error);
	if (!rc && options->shard_bytes)
		rc = error_set(error, -EINVAL, "%s: a file of torch.save has no shards", path);
	if (!rc && options->pickle)
		rc = torch_place_pickle(&writing->torch, &writing->plan, options->pickle,
					options->pickle_bytes, path, error);
	else if (!rc)
		rc = torch_place(&writing->torch, &writing->plan, count, path, error);
	if (rc)
		return rc;
	writing->placement.headers[0] = writing->torch.lead;
	writing->torch.lead = NULL;
	writing->placement.header_bytes[0] = writing->torch.lead_bytes;
	writing->placement.file_bytes[0] = writing->torch.file_bytes;
	return 0;
}

int writing_begin(struct writing *writing, struct nvs_aio *aio, const char *path,
		  const struct nvs_checkpoint_options *options, const struct torch_count *count,
		  struct nvs_error *error)
{
	int rc;

	writing->aio = aio;
	if (writes_torch(path, options))
		rc = begin_torch(writing, path, options, count, error);
	else
		rc = placement_make(&writing->placement, &writing->plan, path, options->shard_bytes,
				    error);
	if (!rc)
		rc = begin_files(writing, error);
	return rc ? rc : storages_write(writing, options, error);
}

/* The index that is replaced. A damaged one names no files. */
static int load_before(struct nvs_checkpoint *before, const struct placement *placement,
		       struct nvs_error *error)
{
	const char *path = placement->index_path ? placement->index_path : placement->other_path;
	int rc = !path || access(path, F_OK) ? 0 : index_load(before, path, error);

	return rc == -EINVAL || rc == -ENOENT || rc == -ENODATA ? 0 : rc;
}

int writing_commit(struct writing *writing, struct nvs_error *error)
{
	int rc = 0, directory;

	if (writing->torch.crcs)
		rc = torch_finish(&writing->torch, &writing->plan, &writing->drafts[0].sink,
				  writing->plan.paths[0], writing->aio, error);
	for (size_t i = 0; i < writing->plan.nfiles && !rc; i++)
		rc = draft_sync(&writing->drafts[i], error);
	if (rc)
		return rc;
	/* A call that writes the other form at the same time must not remove what this one has
	 * renamed. */
	directory = lock_directory(writing->plan.paths[0], error);
	if (directory < 0)
		return directory;

	const struct placement *placement = &writing->placement;
	struct nvs_checkpoint before = {0};

	/* Replaces the checkpoint of before, whichever of the two forms it has. */
	rc = load_before(&before, placement, error);

	/* Since the files of this one were named. */
	if (!rc && placement->index_path && index_names_any(&before, &writing->plan))
		rc = error_set(error, -EBUSY, "another call has written %s", placement->index_path);
	if (!rc) {
		for (size_t i = 0; i < writing->plan.nfiles && !rc; i++)
			rc = draft_rename(&writing->drafts[i], error);
		rc = rc ? rc : sync_directory(writing->plan.paths[0], error);
	}
	if (!rc && placement->index_path) {
		struct draft draft = {.fd = -1};

		rc = draft_open(&draft, writing->aio, placement->index_path, placement->index_bytes,
				error);
		if (!rc)
			rc = sink_write_now(&draft.sink, writing->aio, placement->index,
					    placement->index_bytes, 0, error);
		if (!rc)
			rc = draft_sync(&draft, error);
		if (!rc)
			rc = draft_rename(&draft, error);
		writing->complete = !rc;
		if (!rc)
			rc = sync_directory(placement->index_path, error);
		draft_close(&draft);
	}
	if (!rc && placement->other_path) {
		/* Some readers look for the single file first and some for the index, so the one
		 * that is replaced by the other may not stay. Each reader finds the old checkpoint
		 * or the new one, whole, at any time. */
		rc = remove_durably(writing->placement.other_path, error);
		if (!rc)
			index_remove_files(&before, &writing->plan);
	}
	checkpoint_free(&before);

	close(directory);
	return rc;
}

void writing_end(struct writing *writing)
{
	if (writing->drafts && writing->plan.nfiles > 1 && !writing->complete) {
		/* Files that no index names are removed. */
		for (size_t i = 0; i < writing->plan.nfiles; i++)
			if (writing->drafts[i].renamed)
				unlink(writing->plan.paths[i]);
	}
	for (size_t i = 0; writing->drafts && i < writing->plan.nfiles; i++)
		draft_close(&writing->drafts[i]);
	free(writing->drafts);
	placement_free(&writing->placement, &writing->plan);
	torch_free(&writing->torch);
	checkpoint_free(&writing->plan);
	*writing = (struct writing){0};
}
