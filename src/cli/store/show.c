/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store list`, a line for each store below each path, and `show`, a store with the copies of
 * its metadata and its tensors. They read labels and manifests alone.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/store/store.h"

static const char *const copy_states[] = {"current", "older", "unused", "damaged"};

static const char *state_name(enum nvs_store_state state)
{
	static const char *const names[] = {"kept", "temporary", "partial", "damaged"};

	return (unsigned)state < COUNT_OF(names) ? names[state] : "unknown";
}

/* Local time, or "unknown". */
static const char *time_text(uint64_t seconds, char text[48])
{
	time_t then = (time_t)seconds;
	struct tm local;

	if (!seconds || !localtime_r(&then, &local) ||
	    !strftime(text, 48, "%Y-%m-%d %H:%M:%S", &local))
		snprintf(text, 48, "unknown");
	return text;
}

/* ---- Both, as JSON ---- */

static void text_or_null(struct json_writer *json, const char *key, const char *text)
{
	if (text)
		json_text(json, key, text);
	else
		json_null(json, key);
}

void store_info_json(struct json_writer *json, const struct nvs_store_place *place,
		     const struct nvs_store_info *info)
{
	const unsigned char *bytes = info->note;
	char *note = calloc(2, info->note_bytes + 1); /* in hexadecimal digits */

	for (uint64_t i = 0; i < info->note_bytes && note; i++)
		snprintf(note + 2 * i, 3, "%02x", bytes[i]);
	json_open_object(json, NULL);
	json_texts(json, "paths", place->paths, place->npaths);
	json_count(json, "rank", info->rank);
	json_text(json, "kind", info->optimizer ? "optimizer" : "parameters");
	json_text(json, "state", state_name(info->state));
	json_text(json, "problem", info->problem);
	json_bool(json, "truncated", info->truncated);
	json_text(json, "id", info->id);
	json_count(json, "member", info->member);
	json_count(json, "nmembers", info->nmembers);
	json_count(json, "unit", info->unit);
	json_count(json, "stripe_size", info->stripe_size);
	json_count(json, "commit", info->commit);
	json_count(json, "commit_time", info->commit_time);
	json_text(json, "writer", info->writer);
	json_count(json, "tensors", info->tensors);
	json_count(json, "tensor_bytes", info->tensor_bytes);
	text_or_null(json, "note", note);
	json_count(json, "data_bytes", info->data_bytes);
	json_count(json, "free_bytes", info->free_bytes);
	json_count(json, "copies", info->copies);
	json_count(json, "damaged_copies", info->damaged_copies);
	json_bool(json, "in_use", info->in_use);
	json_count(json, "owner", (uint64_t)info->owner);
	json_text(json, "owner_name", info->owner_name);
	free(note);
}

/* ---- List ---- */

/* One path of several is not damage. */
static int list_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);

	if (!store)
		return STATUS_FAILED;
	if (job->json) {
		store_info_json(job->json, place, &info);
		json_close_object(job->json);
	} else {
		char rank[48], made[48], size[32];

		snprintf(rank, sizeof(rank), "rank %u%s", info.rank,
			 info.optimizer ? ", optimizer" : "");
		fprintf(job->out, "  %-20s  %s", rank, state_name(info.state));
		if (info.nmembers > 1)
			fprintf(job->out, ", path %u of %u", info.member + 1, info.nmembers);
		if (info.commit)
			fprintf(job->out, ", commit %" PRIu64 " of %s, %" PRIu64 " tensor%s of %s",
				info.commit, time_text(info.commit_time, made), info.tensors,
				plural(info.tensors), size_text(info.tensor_bytes, size));
		if (info.damaged_copies)
			fprintf(job->out, ", %u of %u copies of the metadata damaged",
				info.damaged_copies, info.copies);
		if (info.in_use)
			fprintf(job->out, ", in use");
		if (info.owner) {
			fprintf(job->out, " by process %d (", info.owner);
			print_visible(job->out, info.owner_name);
			fputs(")", job->out);
		}
		if (info.state == NVS_STORE_DAMAGED) {
			fputs(": ", job->out);
			print_visible(job->out, info.problem);
		}
		fputs("\n", job->out);
	}
	nvs_store_close(store);
	return info.state == NVS_STORE_DAMAGED || info.damaged_copies ? STATUS_FAILED : 0;
}

int store_list(struct store_job *job)
{
	int status = 0;

	for (unsigned i = 0; i < job->npaths; i++) {
		struct store_job one = *job;
		int mine;

		one.paths = &job->paths[i];
		one.npaths = 1;
		if (!job->json) {
			print_visible(job->out, job->paths[i]);
			fputs("\n", job->out);
			fflush(job->out);
		}
		mine = store_each(&one, list_one);
		status = mine > status ? mine : status;
	}
	return status;
}

/* ---- Show ---- */

static void __attribute__((format(printf, 3, 4)))
print_row(FILE *out, const char *name, const char *format, ...)
{
	char text[768];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(out, "  %-12s  ", name);
	print_visible(out, text);
	fputs("\n", out);
}

static void print_info(FILE *out, const char *path, const struct nvs_store_info *info)
{
	char made[48], size[32], unused[32];

	store_print_name(out, path, info->rank, info->optimizer);
	fputs("\n", out);
	print_row(out, "state", "%s", state_name(info->state));
	if (info->problem[0])
		print_row(out, "problem", "%s", info->problem);
	if (info->in_use && info->owner)
		print_row(out, "in use", "by process %d (%s)", info->owner, info->owner_name);
	else if (info->in_use)
		print_row(out, "in use", "by an unknown process");
	print_row(out, "id", "%s", info->id[0] ? info->id : "unknown");
	print_row(out, "paths", "%u, units of %" PRIu32 " bytes, stripes of %" PRIu64 " bytes",
		  info->nmembers, info->unit, info->stripe_size);
	if (info->commit)
		print_row(out, "commit", "%" PRIu64 " of %s, by nvswap %s", info->commit,
			  time_text(info->commit_time, made),
			  info->writer[0] ? info->writer : "of an unknown version");
	else
		print_row(out, "commit", "none");
	print_row(out, "tensors", "%" PRIu64 " of %s", info->tensors,
		  size_text(info->tensor_bytes, size));
	/* Its beginning, if it is text. */
	if (info->note_bytes)
		print_row(out, "note", "%" PRIu64 " bytes: %.*s", info->note_bytes,
			  (int)min_u64(info->note_bytes, 64), (const char *)info->note);
	print_row(out, "space", "%s, %s of it free", size_text(info->data_bytes, size),
		  size_text(info->free_bytes, unused));
	fputs("\n  copies of the metadata\n", out);
}

static void show_copy(struct store_job *job, const struct nvs_store_copy *copy)
{
	const char *kind = copy->kind == NVS_STORE_LABEL ? "label" : "manifest";
	const char *path = copy->path ? copy->path : "";
	struct json_writer *json = job->json;
	FILE *out = job->out;

	if (json) {
		json_open_object(json, NULL);
		json_text(json, "kind", kind);
		json_text(json, "state", copy_states[copy->state]);
		json_text(json, "path", path);
		json_count(json, "offset", copy->offset);
		json_count(json, "commit", copy->commit);
		json_text(json, "problem", copy->problem);
		json_close_object(json);
		return;
	}
	fprintf(out, "  %-8s  %-7s  ", kind, copy_states[copy->state]);
	if (copy->commit)
		fprintf(out, "commit %-6" PRIu64 "  ", copy->commit);
	else
		fprintf(out, "%-15s", "");
	print_visible(out, path);
	fprintf(out, " at %" PRIu64 "%s", copy->offset, copy->problem[0] ? ": " : "");
	print_visible(out, copy->problem);
	fputs("\n", out);
}

static void show_tensor(struct store_job *job, const struct nvs_store_tensor *tensor)
{
	struct json_writer *json = job->json;
	FILE *out = job->out;

	if (json) {
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
		text_or_null(json, "path", tensor->path);
		json_count(json, "offset", tensor->offset);
		json_close_object(json);
		return;
	}
	fprintf(out, "  %-9s  %12" PRIu64 "  %14" PRIu64 "  %-16s  ", nvs_dtype_name(tensor->dtype),
		tensor->numel, tensor->nbytes,
		!tensor->written       ? "empty"
		: tensor->has_checksum ? "checksum"
				       : "without checksum");
	print_visible(out, tensor->name);
	fputs(" [", out);
	for (size_t i = 0; i < tensor->ndim; i++)
		fprintf(out, "%s%" PRIu64, i ? ", " : "", tensor->shape[i]);
	fputs("] at ", out);
	print_visible(out, tensor->path ? tensor->path : "a path that was not given");
	fprintf(out, " %" PRIu64 "\n", tensor->offset);
}

static int show_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_copy copy = {.size = sizeof(copy)};
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);
	struct json_writer *json = job->json;

	if (!store)
		return STATUS_FAILED;
	if (json) {
		store_info_json(json, place, &info);
		json_open_list(json, "metadata");
	} else {
		print_info(job->out, place->paths[0], &info);
	}
	for (unsigned i = 0; !nvs_store_get_copy(store, i, &copy); i++)
		show_copy(job, &copy);
	if (json) {
		json_close_list(json);
		json_open_list(json, "contents");
	} else if (info.tensors) {
		fprintf(job->out, "\n  %-9s  %12s  %14s  %-16s  %s\n", "type", "elements", "bytes",
			"contents", "name, shape and place");
	}
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		show_tensor(job, &tensor);
	if (json) {
		json_close_list(json);
		json_close_object(json);
	} else {
		fputs("\n", job->out);
	}
	nvs_store_close(store);
	return info.state == NVS_STORE_DAMAGED || info.damaged_copies ? STATUS_FAILED : 0;
}

int store_show(struct store_job *job)
{
	return store_each(job, show_one);
}
