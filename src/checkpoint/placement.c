/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each tensor of a checkpoint to be written lies, and the headers that say so. Data begins at
 * a multiple of DATA_ALIGN in its file, and tensors of such sizes precede the others, so that most
 * data is written directly. Files have only what the safetensors format asks for: no holes, nothing
 * behind the last tensor.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json/write.h"
#include "base/little_endian.h"
#include "base/numbers.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"

#define DATA_ALIGN 4096u /* bytes within a file */
#define SUFFIX	   ".safetensors"
#define PATHS_MAX  99999u

static int no_memory(const char *path, struct nvs_error *error)
{
	return error_set(error, -ENOMEM, "no memory for the header of %s", path);
}

/*
 * Places a file's data, the entries of multiples of DATA_ALIGN first, and makes its header, which
 * is padded to a multiple of DATA_ALIGN and has its length before it.
 */
static int make_header(struct placement *placement, struct nvs_checkpoint *plan, size_t file)
{
	char *text = NULL, *header;
	size_t length = 0, nbytes;
	FILE *stream = open_memstream(&text, &length);
	struct json_writer json;
	uint64_t at = 0;
	int rc;

	if (!stream)
		return -ENOMEM;
	for (unsigned ragged = 0; ragged < 2; ragged++)
		for (size_t i = 0; i < plan->n; i++) {
			struct entry *entry = &plan->entries[i];

			if (entry->file != file || (entry->nbytes % DATA_ALIGN != 0) != ragged)
				continue;
			entry->offset = at;
			at += entry->nbytes;
		}
	json = json_to(stream, 0);
	json_open_object(&json, NULL);
	json_open_object(&json, "__metadata__");
	json_text(&json, "format", "pt");
	json_close_object(&json);
	for (size_t i = 0; i < plan->n; i++) {
		const struct entry *entry = &plan->entries[i];

		if (entry->file != file)
			continue;
		json_open_object(&json, entry->name);
		json_text(&json, "dtype", nvs_dtype_name(entry->dtype));
		json_open_list(&json, "shape");
		for (size_t j = 0; j < entry->ndim; j++)
			json_count(&json, NULL, entry->shape[j]);
		json_close_list(&json);
		json_open_list(&json, "data_offsets");
		json_count(&json, NULL, entry->offset);
		json_count(&json, NULL, entry->offset + entry->nbytes);
		json_close_list(&json);
		json_close_object(&json);
	}
	json_close_object(&json);
	rc = fclose(stream) ? -ENOMEM : length > HEADER_MAX - 2 * DATA_ALIGN ? -E2BIG : 0;
	nbytes = align_up(sizeof(uint64_t) + length, DATA_ALIGN);
	header = rc ? NULL : malloc(nbytes);
	if (header) {
		memset(header, ' ', nbytes);
		put_u64((uint8_t *)header, nbytes - sizeof(uint64_t));
		memcpy(header + sizeof(uint64_t), text, length);
		placement->headers[file] = header;
		placement->header_bytes[file] = nbytes;
		placement->file_bytes[file] = nbytes + at;
	} else if (!rc) {
		rc = -ENOMEM;
	}
	free(text);
	return rc;
}

/* Names the files: `path`, or BASE-00001-of-00003.safetensors, with `series` behind BASE. */
static int name_files(struct nvs_checkpoint *plan, const char *path, const char *series)
{
	size_t length = strlen(path) - (plan->nfiles > 1 ? strlen(SUFFIX) : 0);

	for (size_t i = 0; i < plan->nfiles; i++) {
		free(plan->paths[i]);
		plan->paths[i] = NULL;
		if (plan->nfiles == 1)
			plan->paths[i] = strdup(path);
		else if (asprintf(&plan->paths[i], "%.*s%s-%05zu-of-%05zu" SUFFIX, (int)length,
				  path, series, i + 1, plan->nfiles) < 0)
			plan->paths[i] = NULL;
		if (!plan->paths[i])
			return -ENOMEM;
	}
	return 0;
}

/*
 * Files of an index must not replace those of the index that is valid until the new one is. Their
 * names are the first that it does not name, which a call that was killed has used too: what it
 * left is replaced. An index that can't be read may name any file that is there.
 */
static int name_apart(struct nvs_checkpoint *plan, const char *path, const char *index)
{
	struct nvs_checkpoint before = {0};
	bool damaged = !access(index, F_OK) && index_load(&before, index, NULL), taken = true;
	char series[24] = "";
	int rc = 0;

	for (unsigned n = 1; !rc && taken; n++) {
		rc = name_files(plan, path, series);
		taken = !rc && !damaged && index_names_any(&before, plan);
		for (size_t i = 0; damaged && !rc && i < plan->nfiles; i++)
			taken |= !access(plan->paths[i], F_OK);
		snprintf(series, sizeof(series), "-nvswap-%u", n);
	}
	checkpoint_free(&before);
	return rc;
}

static int make_index(struct placement *placement, const struct nvs_checkpoint *plan)
{
	FILE *stream = open_memstream(&placement->index, &placement->index_bytes);
	struct json_writer json;

	if (!stream)
		return -ENOMEM;
	json = json_to(stream, 2);
	json_open_object(&json, NULL);
	json_open_object(&json, "metadata");
	json_count(&json, "total_size", plan->nbytes);
	json_close_object(&json);
	json_open_object(&json, "weight_map");
	for (size_t i = 0; i < plan->n; i++) {
		const char *file = plan->paths[plan->entries[i].file];
		const char *slash = strrchr(file, '/');

		json_text(&json, plan->entries[i].name, slash ? slash + 1 : file);
	}
	json_close_object(&json);
	json_close_object(&json);
	return fclose(stream) ? -ENOMEM : 0;
}

static int allocate(struct placement *placement, struct nvs_checkpoint *plan, size_t nfiles)
{
	plan->paths = calloc(nfiles, sizeof(*plan->paths));
	placement->headers = calloc(nfiles, sizeof(*placement->headers));
	placement->header_bytes = calloc(nfiles, sizeof(*placement->header_bytes));
	placement->file_bytes = calloc(nfiles, sizeof(*placement->file_bytes));
	if (!plan->paths || !placement->headers || !placement->header_bytes ||
	    !placement->file_bytes)
		return -ENOMEM;
	plan->nfiles = nfiles;
	return 0;
}

static int check_plan(struct nvs_checkpoint *plan, const char *path, bool named,
		      struct nvs_error *error)
{
	if (!plan->n)
		return error_set(error, -EINVAL, "%s: there is no tensor to write", path);
	for (size_t i = 0; i < plan->n && named; i++) {
		const char *name = plan->entries[i].name;

		if (!*name || strlen(name) > NVS_NAME_MAX || !strcmp(name, "__metadata__"))
			return error_about(error, -EINVAL, name, 0, 0,
					   "%s: a tensor can't be named \"%s\"", path, name);
		if (!text_is_utf8(name))
			return error_about(error, -EINVAL, name, 0, 0,
					   "%s: the name of a tensor, %s, is not UTF-8", path,
					   name);
	}
	return named ? checkpoint_sort(plan, path, error) : 0;
}

int placement_make(struct placement *placement, struct nvs_checkpoint *checkpoint, const char *path,
		   uint64_t shard_bytes, struct nvs_error *error)
{
	uint64_t filled = 0;
	size_t file = 0;
	char **index;
	int rc;

	*placement = (struct placement){0};
	if (!text_ends_with(path, SUFFIX) || strlen(path) == strlen(SUFFIX))
		return error_set(error, -EINVAL, "%s: the name must end with " SUFFIX " or .pt",
				 path);
	rc = check_plan(checkpoint, path, true, error);
	if (rc)
		return rc;
	/* Numbers the files that the entries go to, in their order. */
	for (size_t i = 0; i < checkpoint->n; i++) {
		struct entry *entry = &checkpoint->entries[i];

		if (shard_bytes && filled &&
		    (filled > shard_bytes || entry->nbytes > shard_bytes - filled)) {
			file++;
			filled = 0;
		}
		entry->file = file;
		filled += entry->nbytes;
	}
	if (file + 1 > PATHS_MAX)
		return error_set(error, -EINVAL, "%s: shards of %llu bytes make %zu files", path,
				 (unsigned long long)shard_bytes, file + 1);
	/* The names of both forms of the checkpoint. */
	index = file ? &placement->index_path : &placement->other_path;
	if (asprintf(index, "%s" INDEX_SUFFIX, path) < 0)
		*index = NULL;
	if (file)
		placement->other_path = strdup(path);
	rc = *index && placement->other_path ? allocate(placement, checkpoint, file + 1) : -ENOMEM;
	if (!rc)
		rc = file ? name_apart(checkpoint, path, *index) : name_files(checkpoint, path, "");
	for (size_t i = 0; i <= file && !rc; i++)
		rc = make_header(placement, checkpoint, i);
	for (size_t i = 0; i < checkpoint->n && !rc; i++)
		checkpoint->entries[i].offset +=
			placement->header_bytes[checkpoint->entries[i].file];
	if (!rc && file)
		rc = make_index(placement, checkpoint);
	if (rc == -E2BIG)
		return error_set(error, rc, "%s: the header exceeds %u bytes", path, HEADER_MAX);
	return rc ? no_memory(path, error) : 0;
}

int placement_make_single(struct placement *placement, struct nvs_checkpoint *checkpoint,
			  const char *path, bool named, struct nvs_error *error)
{
	int rc = check_plan(checkpoint, path, named, error);

	*placement = (struct placement){0};
	if (rc)
		return rc;
	rc = allocate(placement, checkpoint, 1);
	if (!rc)
		rc = name_files(checkpoint, path, "");
	return rc ? no_memory(path, error) : 0;
}

void placement_free(struct placement *placement, const struct nvs_checkpoint *checkpoint)
{
	for (size_t i = 0; placement->headers && i < checkpoint->nfiles; i++)
		free(placement->headers[i]);
	free(placement->headers);
	free(placement->header_bytes);
	free(placement->file_bytes);
	free(placement->index_path);
	free(placement->other_path);
	free(placement->index);
	*placement = (struct placement){0};
}
