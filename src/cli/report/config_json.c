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

enum form {
	LITERAL, /* numbers, true and false, and lists of them are written as they are read */
	TEXT,
	PATHS,
};

enum job_kind { EVERY_JOB, OF_PARAM, OF_OPTIMIZER, OF_STEP };

static const struct row {
	const char *key;
	enum form form;
	enum job_kind kind;
	const char *read; /* the key that has the value; NULL: `key` */
} rows[] = {
	{.key = "aio.block_size"},
	{.key = "aio.queue_depth"},
	{.key = "aio.thread_count"},
	{.key = "aio.single_submit"},
	{.key = "aio.overlap_events"},
	{.key = "aio.use_gds"},
	{"zero_optimization.offload_param.device", TEXT, OF_PARAM, NULL},
	{"zero_optimization.offload_param.nvme_path", PATHS, OF_PARAM, NULL},
	{"zero_optimization.offload_param.pin_memory", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.offload_param.buffer_count", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.offload_param.buffer_size", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.offload_param.max_in_cpu", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.offload_optimizer.device", TEXT, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.nvme_path", PATHS, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.pin_memory", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.buffer_count", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.buffer_size", LITERAL, OF_OPTIMIZER,
	 "zero_optimization.sub_group_size"},
	{"zero_optimization.offload_optimizer.fast_init", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.pipeline_read", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.pipeline_write", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.offload_optimizer.ratio", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.sub_group_size", LITERAL, OF_OPTIMIZER, NULL},
	{"zero_optimization.stage3_prefetch_bucket_size", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.stage3_max_live_parameters", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.stage3_max_reuse_distance", LITERAL, OF_PARAM, NULL},
	{"zero_optimization.stage3_param_persistence_threshold", LITERAL, OF_PARAM, NULL},
	{"optimizer.type", TEXT, OF_STEP, NULL},
	{"optimizer.params.lr", LITERAL, OF_STEP, NULL},
	{"optimizer.params.betas", LITERAL, OF_STEP, NULL},
	{"optimizer.params.eps", LITERAL, OF_STEP, NULL},
	{"optimizer.params.weight_decay", LITERAL, OF_STEP, NULL},
	{"optimizer.params.bias_correction", LITERAL, OF_STEP, NULL},
	{"optimizer.params.adam_w_mode", LITERAL, OF_STEP, NULL},
	{"gradient_clipping", LITERAL, OF_STEP, NULL},
	{"fp16.enabled", LITERAL, OF_STEP, NULL},
	{"fp16.loss_scale", LITERAL, OF_STEP, NULL},
	{"fp16.initial_scale_power", LITERAL, OF_STEP, NULL},
	{"fp16.loss_scale_window", LITERAL, OF_STEP, NULL},
	{"fp16.hysteresis", LITERAL, OF_STEP, NULL},
	{"fp16.consecutive_hysteresis", LITERAL, OF_STEP, NULL},
	{"fp16.min_loss_scale", LITERAL, OF_STEP, NULL},
	{"bf16.enabled", LITERAL, OF_STEP, NULL},
	{"data_types.grad_accum_dtype", TEXT, OF_STEP, NULL},
	{.key = "nvswap.ioengine", .form = TEXT},
	{.key = "nvswap.io_timeout_ms"},
	{.key = "nvswap.verify"},
	{.key = "nvswap.keep"},
	{.key = "nvswap.rank"},
	{.key = "nvswap.stripe_size"},
	{"nvswap.optimizer_max_in_cpu", LITERAL, OF_OPTIMIZER, NULL},
	{"nvswap.optimizer_threads", LITERAL, OF_OPTIMIZER, NULL},
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

static void put_paths(struct json_writer *json, const char *name, const struct bench_job *job)
{
	const char *path = nvs_config_get_path(job->config, job->block, 0);

	if (!path)
		return;
	json_open_list(json, name);
	for (unsigned i = 1; path; i++) {
		json_text(json, NULL, path);
		path = nvs_config_get_path(job->config, job->block, i);
	}
	json_close_list(json);
}

static void put_row(struct place *place, const struct row *row, const struct bench_job *job)
{
	const char *name = go_to(place, row->key);
	char text[TEXT_BYTES];
	int rc;

	if (row->form == PATHS) {
		put_paths(place->json, name, job);
		return;
	}
	rc = nvs_config_get(job->config, row->read ? row->read : row->key, text, sizeof(text),
			    NULL);
	assert(rc != -EINVAL && rc != -ERANGE);
	if (rc)
		json_null(place->json, name);
	else if (row->form == LITERAL)
		json_number(place->json, name, "%s", text);
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
