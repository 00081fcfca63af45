/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resolved configuration of a job, as a complete DeepSpeed file: a table of the keys that have
 * an effect on it, in the order of the file.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/json/write.h"
#include "base/numbers.h"
#include "cli/report/json.h"

#define KEY_BYTES  128
#define TEXT_BYTES 128

enum job_kind { EVERY_JOB, OF_PARAM, OF_OPTIMIZER, OF_STEP };

static const struct row {
	const char *key;
	enum job_kind kind;
} rows[] = {
	{"aio.block_size", EVERY_JOB},
	{"aio.queue_depth", EVERY_JOB},
	{"aio.thread_count", EVERY_JOB},
	{"aio.single_submit", EVERY_JOB},
	{"aio.overlap_events", EVERY_JOB},
	{"aio.use_gds", EVERY_JOB},
	{"zero_optimization.offload_param.device", OF_PARAM},
	{"zero_optimization.offload_param.nvme_path", OF_PARAM},
	{"zero_optimization.offload_param.pin_memory", OF_PARAM},
	{"zero_optimization.offload_param.buffer_count", OF_PARAM},
	{"zero_optimization.offload_param.buffer_size", OF_PARAM},
	{"zero_optimization.offload_param.max_in_cpu", OF_PARAM},
	{"zero_optimization.offload_optimizer.device", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.nvme_path", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.pin_memory", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.buffer_count", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.buffer_size", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.fast_init", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.pipeline_read", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.pipeline_write", OF_OPTIMIZER},
	{"zero_optimization.offload_optimizer.ratio", OF_OPTIMIZER},
	{"zero_optimization.sub_group_size", OF_OPTIMIZER},
	{"zero_optimization.stage3_prefetch_bucket_size", OF_PARAM},
	{"zero_optimization.stage3_max_live_parameters", OF_PARAM},
	{"zero_optimization.stage3_max_reuse_distance", OF_PARAM},
	{"zero_optimization.stage3_param_persistence_threshold", OF_PARAM},
	{"optimizer.type", OF_STEP},
	{"optimizer.params.lr", OF_STEP},
	{"optimizer.params.betas", OF_STEP},
	{"optimizer.params.eps", OF_STEP},
	{"optimizer.params.weight_decay", OF_STEP},
	{"optimizer.params.bias_correction", OF_STEP},
	{"optimizer.params.adam_w_mode", OF_STEP},
	{"gradient_clipping", OF_STEP},
	{"fp16.enabled", OF_STEP},
	{"fp16.loss_scale", OF_STEP},
	{"fp16.initial_scale_power", OF_STEP},
	{"fp16.loss_scale_window", OF_STEP},
	{"fp16.hysteresis", OF_STEP},
	{"fp16.consecutive_hysteresis", OF_STEP},
	{"fp16.min_loss_scale", OF_STEP},
	{"bf16.enabled", OF_STEP},
	{"data_types.grad_accum_dtype", OF_STEP},
	{"nvswap.ioengine", EVERY_JOB},
	{"nvswap.io_timeout_ms", EVERY_JOB},
	{"nvswap.verify", EVERY_JOB},
	{"nvswap.keep", EVERY_JOB},
	{"nvswap.rank", EVERY_JOB},
	{"nvswap.stripe_size", EVERY_JOB},
	{"nvswap.optimizer_max_in_cpu", OF_OPTIMIZER},
	{"nvswap.optimizer_threads", OF_OPTIMIZER},
};

static bool has_effect(const struct row *row, const struct bench_job *job)
{
	switch (row->kind) {
	case OF_PARAM:
		return job->block == NVS_OFFLOAD_PARAM;
	case OF_OPTIMIZER:
		return job->block == NVS_OFFLOAD_OPTIMIZER;
	case OF_STEP:
		return job->options.rw == RW_STEP;
	default:
		return true;
	}
}

/* ---- Objects ---- */

/* The objects that are open, with a dot behind each: "zero_optimization.offload_param.". */
struct place {
	struct json_writer *json;
	char open[KEY_BYTES];
};

static void close_last(struct place *place)
{
	char *end = place->open + strlen(place->open) - 1;

	*end = '\0';
	end = strrchr(place->open, '.');
	(end ? end + 1 : place->open)[0] = '\0';
	json_close_object(place->json);
}

/* Closes the objects that the key is not in, opens those that it is in, and returns its name. */
static const char *go_to(struct place *place, const char *key)
{
	const char *name, *dot;

	while (strncmp(key, place->open, strlen(place->open)) != 0)
		close_last(place);
	for (name = key + strlen(place->open); (dot = strchr(name, '.')); name = dot + 1) {
		char object[KEY_BYTES] = "";

		memcpy(object, name, (size_t)(dot - name));
		json_open_object(place->json, object);
		memcpy(place->open, key, (size_t)(dot + 1 - key));
		place->open[dot + 1 - key] = '\0';
	}
	return name;
}

/* ---- Values ---- */

static void put_row(struct place *place, const struct row *row, const struct bench_job *job)
{
	const char *name = go_to(place, row->key), *paths[NVS_PATHS_MAX], *key = row->key;
	unsigned npaths = setting_path_count(job->config, job->block);
	char text[TEXT_BYTES];
	int rc;

	if (!strcmp(name, "nvme_path")) {
		for (unsigned i = 0; i < npaths; i++)
			paths[i] = nvs_config_get_path(job->config, job->block, i);
		if (npaths)
			json_texts(place->json, name, paths, npaths);
		return;
	}
	if (row->kind == OF_OPTIMIZER && !strcmp(name, "buffer_size"))
		key = "zero_optimization.sub_group_size"; /* which has its value */
	rc = nvs_config_get(job->config, key, text, sizeof(text), NULL);
	assert(rc != -EINVAL && rc != -ERANGE);
	if (rc)
		json_null(place->json, name);
	else if (strchr("0123456789-[", *text) && *text)
		json_number(place->json, name, "%s", text);
	else if (!strcmp(text, "true") || !strcmp(text, "false"))
		json_bool(place->json, name, *text == 't');
	else
		/* Without a type the optimizer is Adam. */
		json_text(place->json, name, *text ? text : "Adam");
}

void report_config_json(struct json_writer *json, const struct bench_job *job)
{
	struct place place = {.json = json};

	json_open_object(json, "config");
	for (size_t i = 0; i < COUNT_OF(rows); i++)
		if (has_effect(&rows[i], job))
			put_row(&place, &rows[i], job);
	while (*place.open)
		close_last(&place);
	json_close_object(json);
}
