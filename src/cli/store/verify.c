/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store verify`: reads every byte of the last commit and names each damaged tensor. It goes
 * on after damage.
 */
#include "cli/progress.h"
#include "cli/stop.h"
#include "cli/store/store.h"

#define BATCH 256u /* tensors; between two batches a signal ends the command */

struct tally {
	uint64_t tensors, nbytes, unchecked, damaged;
};

static struct nvs_aio *open_aio(void)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_config *config = NULL;
	struct nvs_aio *aio = NULL;
	int rc = nvs_config_open(&config, &error);

	if (!rc)
		rc = nvs_config_set_number(config, "aio.block_size", 1 << 20, &error);
	if (!rc)
		rc = nvs_config_set_number(config, "aio.queue_depth", 32, &error);
	if (!rc)
		rc = nvs_aio_open(&aio, config, &error);
	if (rc)
		say("%s", error.text);
	nvs_config_close(config);
	return aio;
}

static void count(struct store_job *job, const struct nvs_store *store, uint64_t index,
		  const struct nvs_store_verdict *verdict, struct tally *tally)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};

	nvs_store_get_tensor(store, index, &tensor);
	tally->tensors++;
	tally->nbytes += verdict->finding == NVS_STORE_EMPTY ? 0 : tensor.nbytes;
	tally->unchecked += verdict->finding == NVS_STORE_UNCHECKED;
	if (!verdict->problem[0])
		return;
	tally->damaged++;
	json_open_row(job->json);
	json_text(job->json, "tensor", tensor.name);
	json_text(job->json, "path", tensor.path);
	json_count(job->json, "offset", tensor.offset);
	json_text(job->json, "problem", verdict->problem);
	json_close_object(job->json);
}

static int read_all(struct store_job *job, struct nvs_store *store, struct nvs_aio *aio,
		    const struct nvs_store_info *info, struct tally *tally)
{
	static struct nvs_store_verdict verdicts[BATCH];
	struct nvs_error error = {.size = sizeof(error)};
	int rc = 0;

	progress_begin("verifying", info->tensor_bytes);
	for (uint64_t at = 0; at < info->tensors && !stop_signal() && !rc; at += BATCH) {
		size_t n = info->tensors - at < BATCH ? (size_t)(info->tensors - at) : BATCH;

		for (size_t i = 0; i < n; i++)
			verdicts[i] = (struct nvs_store_verdict){.size = sizeof(verdicts[i])};
		rc = nvs_store_verify(store, aio, at, n, verdicts, &error);
		for (size_t i = 0; i < n && !rc; i++)
			count(job, store, at + i, &verdicts[i], tally);
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
		aio = open_aio();
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
	stop_catch_signals();
	return store_each(job, verify_one);
}
