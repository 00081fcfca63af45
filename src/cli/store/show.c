/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store show`: a store, the copies of its metadata and its tensors.
 */
#include <inttypes.h>

#include "base/error.h"
#include "cli/store/store.h"

static const char *const copy_states[] = {"current", "older", "unused", "damaged"};

/* ---- Text ---- */

static void print_row(FILE *out, const char *name, const char *text)
{
	fprintf(out, "  %-12s  ", name);
	print_visible(out, text);
	fputs("\n", out);
}

static void print_use(FILE *out, const struct nvs_store_info *info)
{
	char text[128];

	if (!info->in_use)
		return;
	if (info->owner)
		snprintf(text, sizeof(text), "by process %d (%s)", info->owner, info->owner_name);
	else
		snprintf(text, sizeof(text), "by an unknown process");
	print_row(out, "in use", text);
}

/* Its beginning, if it is text. */
static void print_note(FILE *out, const struct nvs_store_info *info)
{
	int n = info->note_bytes < 64 ? (int)info->note_bytes : 64;
	char text[128];

	snprintf(text, sizeof(text), "%" PRIu64 " bytes: %.*s", info->note_bytes, n,
		 (const char *)info->note);
	print_row(out, "note", text);
}

static void print_commit(FILE *out, const struct nvs_store_info *info)
{
	char text[128], made[48], size[32], unused[32];

	if (!info->commit) {
		print_row(out, "commit", "none");
	} else {
		snprintf(text, sizeof(text), "%" PRIu64 " of %s, by nvswap %s", info->commit,
			 store_time_text(info->commit_time, made),
			 info->writer[0] ? info->writer : "of an unknown version");
		print_row(out, "commit", text);
	}
	snprintf(text, sizeof(text), "%" PRIu64 " of %s", info->tensors,
		 size_text(info->tensor_bytes, size));
	print_row(out, "tensors", text);
	if (info->note_bytes)
		print_note(out, info);
	snprintf(text, sizeof(text), "%s, %s of it free", size_text(info->data_bytes, size),
		 size_text(info->free_bytes, unused));
	print_row(out, "space", text);
}

static void print_copy(FILE *out, const struct nvs_store_copy *copy)
{
	fprintf(out, "  %-8s  %-7s  ", copy->kind == NVS_STORE_LABEL ? "label" : "manifest",
		copy_states[copy->state]);
	if (copy->commit)
		fprintf(out, "commit %-6" PRIu64 "  ", copy->commit);
	else
		fprintf(out, "%-15s", "");
	print_visible(out, copy->path ? copy->path : "");
	fprintf(out, " at %" PRIu64 "%s", copy->offset, copy->problem[0] ? ": " : "");
	print_visible(out, copy->problem);
	fputs("\n", out);
}

static void print_shape(FILE *out, const struct nvs_store_tensor *tensor)
{
	fputs(" [", out);
	for (size_t i = 0; i < tensor->ndim; i++)
		fprintf(out, "%s%" PRIu64, i ? ", " : "", tensor->shape[i]);
	fputs("]", out);
}

static void print_tensor(FILE *out, const struct nvs_store_tensor *tensor)
{
	fprintf(out, "  %-9s  %12" PRIu64 "  %14" PRIu64 "  %-16s  ", nvs_dtype_name(tensor->dtype),
		tensor->numel, tensor->nbytes,
		!tensor->written       ? "empty"
		: tensor->has_checksum ? "checksum"
				       : "without checksum");
	print_visible(out, tensor->name);
	print_shape(out, tensor);
	fputs(" at ", out);
	print_visible(out, tensor->path ? tensor->path : "a path that was not given");
	fprintf(out, " %" PRIu64 "\n", tensor->offset);
}

static void print_all(struct store_job *job, const struct nvs_store_place *place,
		      const struct nvs_store *store, const struct nvs_store_info *info)
{
	char text[128], rank[48];
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_copy copy = {.size = sizeof(copy)};

	print_visible(job->out, place->paths[0]);
	fprintf(job->out, "  %s\n", store_rank_text(info, rank));
	print_row(job->out, "state", store_state_name(info->state));
	if (info->problem[0])
		print_row(job->out, "problem", info->problem);
	print_use(job->out, info);
	print_row(job->out, "id", info->id[0] ? info->id : "unknown");
	snprintf(text, sizeof(text), "%u, units of %" PRIu32 " bytes, stripes of %" PRIu64 " bytes",
		 info->nmembers, info->unit, info->stripe_size);
	print_row(job->out, "paths", text);
	print_commit(job->out, info);
	fputs("\n  copies of the metadata\n", job->out);
	for (unsigned i = 0; !nvs_store_get_copy(store, i, &copy); i++)
		print_copy(job->out, &copy);
	if (info->tensors)
		fprintf(job->out, "\n  %-9s  %12s  %14s  %-16s  %s\n", "type", "elements", "bytes",
			"contents", "name, shape and place");
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		print_tensor(job->out, &tensor);
	fputs("\n", job->out);
}

/* ---- JSON ---- */

static void put_copy(struct json_writer *json, const struct nvs_store_copy *copy)
{
	json_open_object(json, NULL);
	json_text(json, "kind", copy->kind == NVS_STORE_LABEL ? "label" : "manifest");
	json_text(json, "state", copy_states[copy->state]);
	json_text(json, "path", copy->path ? copy->path : "");
	json_count(json, "offset", copy->offset);
	json_count(json, "commit", copy->commit);
	json_text(json, "problem", copy->problem);
	json_close_object(json);
}

static void put_tensor(struct json_writer *json, const struct nvs_store_tensor *tensor)
{
	json_open_object(json, NULL);
	json_text(json, "name", tensor->name);
	json_text(json, "dtype", nvs_dtype_name(tensor->dtype));
	json_count(json, "numel", tensor->numel);
	json_open_list(json, "shape");
	for (size_t i = 0; i < tensor->ndim; i++)
		json_count(json, NULL, tensor->shape[i]);
	json_close_list(json);
	json_count(json, "nbytes", tensor->nbytes);
	json_bool(json, "written", tensor->written);
	if (tensor->has_checksum)
		json_number(json, "checksum", "\"%016" PRIx64 "\"", tensor->checksum);
	else
		json_null(json, "checksum");
	if (tensor->path)
		json_text(json, "path", tensor->path);
	else
		json_null(json, "path");
	json_count(json, "offset", tensor->offset);
	json_close_object(json);
}

static void put_all(struct json_writer *json, const struct nvs_store_place *place,
		    const struct nvs_store *store, const struct nvs_store_info *info)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_copy copy = {.size = sizeof(copy)};

	json_open_object(json, NULL);
	store_info_json(json, place, info);
	json_open_list(json, "metadata");
	for (unsigned i = 0; !nvs_store_get_copy(store, i, &copy); i++)
		put_copy(json, &copy);
	json_close_list(json);
	json_open_list(json, "contents");
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		put_tensor(json, &tensor);
	json_close_list(json);
	json_close_object(json);
}

/* ---- The action ---- */

static int show_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);

	if (!store)
		return STATUS_FAILED;
	if (job->json)
		put_all(job->json, place, store, &info);
	else
		print_all(job, place, store, &info);
	nvs_store_close(store);
	return info.state == NVS_STORE_DAMAGED || info.damaged_copies ? STATUS_FAILED : 0;
}

int store_show(struct store_job *job)
{
	return store_each(job, show_one);
}
