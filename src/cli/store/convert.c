/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store convert` gives the state of an optimizer another format, and says what that has rounded.
 */
#include "base/clock.h"
#include "cli/store/store.h"

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
	if (store_opened(place, rc, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
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
	if (job->state == STATE_NONE) {
		say("store convert needs --optimizer-state FORMAT, such as --optimizer-state bf16");
		return STATUS_USAGE;
	}
	if (job->kind == KIND_PARAMETERS) {
		say("convert changes the state of an optimizer: leave out --kind parameters");
		return STATUS_USAGE;
	}
	job->kind = KIND_OPTIMIZER;
	return store_choice_open(job) ? STATUS_FAILED : store_each(job, convert_one);
}
