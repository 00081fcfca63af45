/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap store remove`, `repair` and `convert`. They ask nothing, and say what they did. */
#include "base/clock.h"
#include "cli/store/store.h"

/* Removes a store, or its empty folders; false with the error. */
static bool removed(struct store_job *job, const struct nvs_store_place *place, const char *what,
		    struct nvs_error *error)
{
	if (nvs_store_remove(place, error))
		return false;
	store_open_json(job->json, place);
	json_text(job->json, "removed", what);
	json_close_object(job->json);
	return true;
}

static int remove_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (removed(job, place, "store", &error))
		return 0;
	return REFUSE(STATUS_FAILED, "%s", error.text);
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
	return removed(job, &place, "empty folders", NULL) ? 0 : store_each(job, remove_one);
}

int store_repair(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_repairs repairs = {.size = sizeof(repairs)};
	struct nvs_error error = {.size = sizeof(error)};
	struct json_writer *json = job->json;

	if (nvs_store_repair(place, job->rollback ? NVS_STORE_ROLLBACK : 0, &repairs, &error))
		return REFUSE(STATUS_FAILED, "%s", error.text);
	store_open_json(json, place);
	json_count(json, "labels", repairs.labels);
	json_count(json, "manifests", repairs.manifests);
	json_count(json, "commit", repairs.commit);
	json_count(json, "lost_commit", repairs.lost);
	json_close_object(json);
	return 0;
}

static int convert_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_state_conversion done = {.size = sizeof(done)};
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_config *config = NULL;
	struct json_writer *json = job->json;
	uint64_t begun = clock_ns();
	struct store_size size;
	int rc;

	if (!store_measure(place, &size))
		return STATUS_FAILED;
	rc = store_settings(place, true, &size, &config, &error);
	if (!rc)
		rc = nvs_optimizer_convert(config, (enum nvs_optimizer_state)job->state, &done,
					   &error);
	nvs_config_close(config);
	if (store_opened(place, rc, &error))
		return REFUSE(STATUS_FAILED, "%s", error.text);
	store_open_json(json, place);
	json_count(json, "commit", done.generation);
	json_count(json, "step", done.step);
	json_text(json, "from", store_formats[done.from]);
	json_text(json, "to", store_formats[done.to]);
	json_count(json, "moments", 2 * done.numel);
	json_count(json, "rounded", done.rounded);
	json_real(json, "seconds", (double)(clock_ns() - begun) / 1e9);
	json_close_object(json);
	return 0;
}

int store_convert(struct store_job *job)
{
	if (job->state == STATE_NONE)
		return REFUSE(STATUS_USAGE, "store convert needs --optimizer-state FORMAT, such as "
					    "--optimizer-state bf16");
	if (job->kind == KIND_PARAMETERS)
		return REFUSE(
			STATUS_USAGE,
			"convert changes the state of an optimizer: leave out --kind parameters");
	job->kind = KIND_OPTIMIZER;
	return store_choice_open(job) ? STATUS_FAILED : store_each(job, convert_one);
}
