/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stores that the options choose, one after the other.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/numbers.h"
#include "cli/store/store.h"

static bool chosen(const struct store_job *job, const struct nvs_store_place *place)
{
	return (job->any_rank || place->rank == job->rank) &&
	       (job->kind == KIND_ANY || place->optimizer == (job->kind == KIND_OPTIMIZER));
}

/* The chosen place from number *index on; -ENODATA: there is none. */
static int next_chosen(const struct store_job *job, unsigned *index, struct nvs_store_place *place,
		       struct nvs_error *error)
{
	int rc;

	do {
		*place = (struct nvs_store_place){
			.size = sizeof(*place), .paths = job->paths, .npaths = job->npaths};
		rc = nvs_store_find(job->paths[job->look_at], (*index)++, place, error);
	} while (!rc && !chosen(job, place));
	return rc;
}

int store_each(struct store_job *job, store_fn *fn)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_store_place place;
	unsigned index = 0, n = 0;
	int status = 0, rc;

	while (!(rc = next_chosen(job, &index, &place, &error))) {
		int mine = fn(job, &place);

		status = mine > status ? mine : status;
		n++;
	}
	if (rc != -ENODATA) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	if (!n) {
		say("%s holds no store%s", job->paths[0],
		    job->any_rank && job->kind == KIND_ANY ? "" : " of that rank and kind");
		return STATUS_FAILED;
	}
	return status;
}

unsigned store_count(const struct store_job *job)
{
	struct nvs_store_place place;
	unsigned index = 0, n = 0;

	while (!next_chosen(job, &index, &place, NULL))
		n++;
	return n;
}

struct nvs_store *store_look(const struct nvs_store_place *place, unsigned flags,
			     struct nvs_store_info *info)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_store *store;

	*info = (struct nvs_store_info){.size = sizeof(*info)};
	if (nvs_store_open(place, flags, &store, &error)) {
		say("%s", error.text);
		return NULL;
	}
	nvs_store_get_info(store, info);
	return store;
}

const char *store_rank_text(const struct nvs_store_info *info, char text[48])
{
	snprintf(text, 48, "rank %u%s", info->rank, info->optimizer ? ", optimizer" : "");
	return text;
}

const char *store_state_name(enum nvs_store_state state)
{
	static const char *const names[] = {"kept", "temporary", "partial", "damaged"};

	return (unsigned)state < COUNT_OF(names) ? names[state] : "unknown";
}

const char *store_time_text(uint64_t seconds, char text[48])
{
	time_t then = (time_t)seconds;
	struct tm local;

	if (!seconds || !localtime_r(&then, &local) ||
	    !strftime(text, 48, "%Y-%m-%d %H:%M:%S", &local))
		snprintf(text, 48, "unknown");
	return text;
}

/* Its bytes in hexadecimal digits. */
static void put_note(struct json_writer *json, const struct nvs_store_info *info)
{
	const unsigned char *bytes = info->note;
	char *text = calloc(2, info->note_bytes + 1);

	for (uint64_t i = 0; i < info->note_bytes && text; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	if (text)
		json_text(json, "note", text);
	else
		json_null(json, "note");
	free(text);
}

void store_info_json(struct json_writer *json, const struct nvs_store_place *place,
		     const struct nvs_store_info *info)
{
	json_texts(json, "paths", place->paths, place->npaths);
	json_count(json, "rank", info->rank);
	json_text(json, "kind", info->optimizer ? "optimizer" : "parameters");
	json_text(json, "state", store_state_name(info->state));
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
	put_note(json, info);
	json_count(json, "data_bytes", info->data_bytes);
	json_count(json, "free_bytes", info->free_bytes);
	json_count(json, "copies", info->copies);
	json_count(json, "damaged_copies", info->damaged_copies);
	json_bool(json, "in_use", info->in_use);
	json_count(json, "owner", (uint64_t)info->owner);
	json_text(json, "owner_name", info->owner_name);
}
