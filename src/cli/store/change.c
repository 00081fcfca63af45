/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store remove` and `repair`: the two actions that write. They ask nothing, and say what
 * they did.
 */
#include <inttypes.h>

#include "cli/store/store.h"

/* Removes a store, or its empty folders; false with the error. */
static bool removed(struct store_job *job, const struct nvs_store_place *place, const char *what,
		    struct nvs_error *error)
{
	if (nvs_store_remove(place, error))
		return false;
	if (job->json) {
		store_open_json(job->json, place);
		json_close_object(job->json);
	} else {
		store_print_name(job->out, place->paths[0], place->rank, place->optimizer);
		fprintf(job->out, ": removed%s\n", what);
	}
	return true;
}

static int remove_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (removed(job, place, "", &error))
		return 0;
	say("%s", error.text);
	return STATUS_FAILED;
}

/* Several stores are never removed by one command that names none of them. */
int store_remove(struct store_job *job)
{
	const struct nvs_store_place place = {.size = sizeof(place),
					      .paths = job->paths,
					      .npaths = job->npaths,
					      .rank = (uint32_t)job->rank,
					      .optimizer = job->kind == KIND_OPTIMIZER};

	/* Of a store that has lost its first path, a later one has the rest. */
	while (job->look_at < job->npaths && !store_count(job))
		job->look_at++;
	if (job->look_at < job->npaths)
		return store_choice_open(job) ? STATUS_FAILED : store_each(job, remove_one);
	job->look_at = 0;
	/* A run that was killed may have left them. */
	return removed(job, &place, " empty folders", NULL) ? 0 : store_each(job, remove_one);
}

static int repair_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_repairs repairs = {.size = sizeof(repairs)};
	struct nvs_error error = {.size = sizeof(error)};
	struct json_writer *json = job->json;
	FILE *out = job->out;

	if (nvs_store_repair(place, job->rollback ? NVS_STORE_ROLLBACK : 0, &repairs, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	if (json) {
		store_open_json(json, place);
		json_count(json, "labels", repairs.labels);
		json_count(json, "manifests", repairs.manifests);
		json_count(json, "commit", repairs.commit);
		json_count(json, "lost_commit", repairs.lost);
		json_close_object(json);
		return 0;
	}
	store_print_name(out, place->paths[0], place->rank, place->optimizer);
	fputs(": ", out);
	if (repairs.lost)
		fprintf(out, "commit %" PRIu64 " is lost, went back to commit %" PRIu64 "; ",
			repairs.lost, repairs.commit);
	if (repairs.labels || repairs.manifests)
		fprintf(out, "copies written anew: %u of labels, %u of the manifest\n",
			repairs.labels, repairs.manifests);
	else
		fputs("nothing is damaged\n", out);
	return 0;
}

int store_repair(struct store_job *job)
{
	return store_each(job, repair_one);
}
