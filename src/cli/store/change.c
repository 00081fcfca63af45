/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store remove` and `repair`: the two actions that write. They ask nothing, and say what
 * they did.
 */
#include <inttypes.h>

#include "cli/store/store.h"

static void say_place(struct store_job *job, const struct nvs_store_place *place, const char *what)
{
	if (job->json) {
		json_text(job->json, "path", place->paths[0]);
		json_count(job->json, "rank", place->rank);
		json_text(job->json, "kind", place->optimizer ? "optimizer" : "parameters");
		return;
	}
	print_visible(job->out, place->paths[0]);
	fprintf(job->out, "  rank %" PRIu32 "%s: %s", place->rank,
		place->optimizer ? ", optimizer" : "", what);
}

static int remove_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (nvs_store_remove(place, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	if (job->json)
		json_open_object(job->json, NULL);
	say_place(job, place, "removed\n");
	if (job->json)
		json_close_object(job->json);
	return 0;
}

/* Of a store that has lost its first path, a later one has the rest. */
static unsigned path_with_stores(const struct store_job *job)
{
	struct store_job other = *job;

	for (other.look_at = 0; other.look_at < job->npaths; other.look_at++)
		if (store_count(&other))
			return other.look_at;
	return 0;
}

/* The folders of a store that is not there; whether any was. */
static bool remove_empty(struct store_job *job)
{
	const struct nvs_store_place place = {.size = sizeof(place),
					      .paths = job->paths,
					      .npaths = job->npaths,
					      .rank = job->rank,
					      .optimizer = job->kind == KIND_OPTIMIZER};

	if (nvs_store_remove(&place, NULL))
		return false;
	if (job->json)
		json_open_object(job->json, NULL);
	say_place(job, &place, "removed empty folders\n");
	if (job->json)
		json_close_object(job->json);
	return true;
}

/* Several stores are never removed by one command that names none of them. */
int store_remove(struct store_job *job)
{
	job->look_at = path_with_stores(job);
	if (store_count(job) > 1) {
		say("%s holds several stores: choose one by --rank and --kind (nvswap store list)",
		    job->paths[job->look_at]);
		return STATUS_FAILED;
	}
	if (!store_count(job) && remove_empty(job))
		return 0;
	return store_each(job, remove_one);
}

static void put_repairs(struct store_job *job, const struct nvs_store_repairs *repairs)
{
	if (job->json) {
		json_count(job->json, "labels", repairs->labels);
		json_count(job->json, "manifests", repairs->manifests);
		json_count(job->json, "commit", repairs->commit);
		json_count(job->json, "lost_commit", repairs->lost);
		return;
	}
	if (repairs->lost)
		fprintf(job->out, "commit %" PRIu64 " is lost, went back to commit %" PRIu64 "; ",
			repairs->lost, repairs->commit);
	if (repairs->labels || repairs->manifests)
		fprintf(job->out, "copies written anew: %u of labels, %u of the manifest\n",
			repairs->labels, repairs->manifests);
	else
		fputs("nothing is damaged\n", job->out);
}

static int repair_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_repairs repairs = {.size = sizeof(repairs)};
	struct nvs_error error = {.size = sizeof(error)};

	if (nvs_store_repair(place, job->rollback ? NVS_STORE_ROLLBACK : 0, &repairs, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	if (job->json)
		json_open_object(job->json, NULL);
	say_place(job, place, "");
	put_repairs(job, &repairs);
	if (job->json)
		json_close_object(job->json);
	return 0;
}

int store_repair(struct store_job *job)
{
	return store_each(job, repair_one);
}
