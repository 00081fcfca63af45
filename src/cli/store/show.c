/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap store list`, `show` and `verify`, which change nothing. verify goes on after damage. */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/numbers.h"
#include "cli/store/store.h"

static const char *const copy_states[] = {"current", "older", "unused", "damaged"};
static const char *const state_names[] = {"kept", "temporary", "partial", "damaged"};

static const char *time_text(uint64_t seconds, char text[48])
{
	time_t then = (time_t)seconds;
	struct tm local;

	if (!seconds || !localtime_r(&then, &local) ||
	    !strftime(text, 48, "%Y-%m-%d %H:%M:%S", &local))
		snprintf(text, 48, "unknown");
	return text;
}

static void text_or_null(struct json_writer *json, const char *key, const char *text)
{
	if (text)
		json_text(json, key, text);
	else
		json_null(json, key);
}

static void put_summary(struct json_writer *json, const struct nvs_store_place *place,
			const struct nvs_store_info *info)
{
	char made[48];

	json_texts(json, "paths", place->paths, place->npaths);
	json_count(json, "rank", info->rank);
	json_text(json, "kind", info->optimizer ? "optimizer" : "parameters");
	json_text(json, "state", state_names[info->state]);
	json_count(json, "member", info->member);
	json_count(json, "nmembers", info->nmembers);
	json_count(json, "commit", info->commit);
	json_text(json, "committed", time_text(info->commit_time, made));
	json_count(json, "tensors", info->tensors);
	json_count(json, "tensor_bytes", info->tensor_bytes);
	json_count(json, "copies", info->copies);
	json_count(json, "damaged_copies", info->damaged_copies);
	json_bool(json, "in_use", info->in_use);
	json_count(json, "owner", (uint64_t)info->owner);
	json_text(json, "owner_name", info->owner_name);
	json_text(json, "problem", info->problem);
}

static void put_rest(struct json_writer *json, const struct nvs_store_info *info)
{
	const unsigned char *bytes = info->note;
	/* In hexadecimal digits, which are of no use in text. */
	char *note = json->plain ? NULL : calloc(2, info->note_bytes + 1);
	char text[65];
	uint64_t n = min_u64(info->note_bytes, sizeof(text) - 1);

	for (uint64_t i = 0; i < info->note_bytes && note; i++)
		snprintf(note + 2 * i, 3, "%02x", bytes[i]);
	/* Before a character of UTF-8 that the end would cut. */
	while (n && n < info->note_bytes && (bytes[n] & 0xc0) == 0x80)
		n--;
	snprintf(text, sizeof(text), "%.*s", (int)n, n ? (const char *)info->note : "");
	json_bool(json, "truncated", info->truncated);
	json_text(json, "id", info->id);
	json_count(json, "unit", info->unit);
	json_count(json, "stripe_size", info->stripe_size);
	json_count(json, "commit_time", info->commit_time);
	json_text(json, "writer", info->writer);
	text_or_null(json, "note", note);
	json_text(json, "note_begins", text);
	json_count(json, "data_bytes", info->data_bytes);
	json_count(json, "free_bytes", info->free_bytes);
	free(note);
}

static void store_info_json(struct json_writer *json, const struct nvs_store_place *place,
			    const struct nvs_store_info *info)
{
	json_open_object(json, NULL);
	put_summary(json, place, info);
	put_rest(json, info);
}

/* One path of several is not damage. */
static int list_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);

	if (!store)
		return STATUS_FAILED;
	json_open_row(job->json);
	put_summary(job->json, place, &info);
	if (!job->json->plain)
		put_rest(job->json, &info);
	json_close_object(job->json);
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
		mine = store_each(&one, list_one);
		status = mine > status ? mine : status;
	}
	return status;
}

static void show_tensor(struct json_writer *json, const struct nvs_store_tensor *tensor)
{
	char digits[17];

	snprintf(digits, sizeof(digits), "%016" PRIx64, tensor->checksum);
	json_open_row(json);
	json_text(json, "name", tensor->name);
	json_text(json, "dtype", nvs_dtype_name(tensor->dtype));
	json_count(json, "numel", tensor->numel);
	json_open_list(json, "shape");
	for (size_t i = 0; i < tensor->ndim; i++)
		json_count(json, NULL, tensor->shape[i]);
	json_close_list(json);
	json_count(json, "nbytes", tensor->nbytes);
	json_bool(json, "written", tensor->written);
	text_or_null(json, "checksum", tensor->has_checksum ? digits : NULL);
	text_or_null(json, "path", tensor->path);
	json_count(json, "offset", tensor->offset);
	json_close_object(json);
}

int store_show(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_copy copy = {.size = sizeof(copy)};
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);
	struct json_writer *json = job->json;

	if (!store)
		return STATUS_FAILED;
	store_info_json(json, place, &info);
	json_open_list(json, "metadata");
	for (unsigned i = 0; !nvs_store_get_copy(store, i, &copy); i++) {
		json_open_row(json);
		json_text(json, "kind", copy.kind == NVS_STORE_LABEL ? "label" : "manifest");
		json_text(json, "state", copy_states[copy.state]);
		json_text(json, "path", copy.path ? copy.path : "");
		json_count(json, "offset", copy.offset);
		json_count(json, "commit", copy.commit);
		json_text(json, "problem", copy.problem);
		json_close_object(json);
	}
	json_close_list(json);
	json_open_list(json, "contents");
	for (uint64_t i = 0; !nvs_store_get_tensor(store, i, &tensor); i++)
		show_tensor(json, &tensor);
	json_close_list(json);
	json_close_object(json);
	nvs_store_close(store);
	return info.state == NVS_STORE_DAMAGED || info.damaged_copies ? STATUS_FAILED : 0;
}

/* ---- verify ---- */

#define BATCH 256u /* tensors; between two batches a signal ends the command */

struct tally {
	uint64_t tensors, nbytes, unchecked, damaged;
};

static struct nvs_aio *open_aio(const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_config *config = NULL;
	struct nvs_aio *aio = NULL;
	int rc = store_settings(place, false, &(struct store_size){0}, &config, &error);

	rc = rc ?: nvs_aio_open(&aio, config, &error);
	if (rc)
		say("%s", error.text);
	nvs_config_close(config);
	return aio;
}

static int read_all(struct store_job *job, struct nvs_store *store, struct nvs_aio *aio,
		    const struct nvs_store_info *info, struct tally *tally)
{
	static struct nvs_store_verdict verdicts[BATCH];
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_error error = {.size = sizeof(error)};
	int rc = 0;

	progress_begin("verifying", info->tensor_bytes);
	for (uint64_t at = 0; at < info->tensors && !stop_signal() && !rc; at += BATCH) {
		size_t n = info->tensors - at < BATCH ? (size_t)(info->tensors - at) : BATCH;

		for (size_t i = 0; i < n; i++)
			verdicts[i] = (struct nvs_store_verdict){.size = sizeof(verdicts[i])};
		rc = nvs_store_verify(store, aio, at, n, verdicts, &error);
		for (size_t i = 0; i < n && !rc; i++) {
			nvs_store_get_tensor(store, at + i, &tensor);
			tally->tensors++;
			tally->nbytes += verdicts[i].finding == NVS_STORE_EMPTY ? 0 : tensor.nbytes;
			tally->unchecked += verdicts[i].finding == NVS_STORE_UNCHECKED;
			if (!verdicts[i].problem[0])
				continue;
			tally->damaged++;
			json_open_row(job->json);
			json_text(job->json, "tensor", tensor.name);
			json_text(job->json, "path", tensor.path);
			json_count(job->json, "offset", tensor.offset);
			json_text(job->json, "problem", verdicts[i].problem);
			json_close_object(job->json);
		}
		progress_update(tally->nbytes, tally->nbytes);
	}
	progress_end();
	if (rc)
		say("%s", error.text);
	return rc ? STATUS_FAILED : stop_signal() ? 128 + stop_signal() : 0;
}

static int verify_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, NVS_STORE_LOCK, &info);
	struct json_writer *json = job->json;
	struct tally tally = {.tensors = 0};
	struct nvs_aio *aio = NULL;
	int status = STATUS_FAILED;

	if (!store)
		return status;
	if (info.state != NVS_STORE_KEPT)
		say("%s", info.problem[0] ? info.problem : "the store is not kept");
	if (info.state == NVS_STORE_KEPT || info.truncated)
		aio = open_aio(place);
	if (!aio) {
		nvs_store_close(store);
		return status;
	}
	store_info_json(json, place, &info);
	json_open_list(json, "damaged");
	status = read_all(job, store, aio, &info, &tally);
	json_close_list(json);
	json_count(json, "verified_tensors", tally.tensors);
	json_count(json, "verified_bytes", tally.nbytes);
	json_count(json, "without_checksum", tally.unchecked);
	json_close_object(json);
	if (!status && (tally.damaged || info.damaged_copies || info.truncated))
		status = STATUS_FAILED;
	nvs_store_close(store);
	nvs_aio_close(aio);
	return status;
}

int store_verify(struct store_job *job)
{
	stop_catch_signals(NULL);
	return store_each(job, verify_one);
}
