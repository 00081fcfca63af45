/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resolved configuration of a job, as a complete DeepSpeed file.
 */
#include "base/json/write.h"
#include "cli/report/json.h"
#include "config/config.h"

static void put_block(struct json_writer *json, const struct nvs_config *config,
		      enum nvs_block block)
{
	const struct offload_config *offload = &config->offload[block];

	json_open_object(json, block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer");
	json_text(json, "device", nvs_device_name(offload->device));
	if (offload->npaths) {
		json_open_list(json, "nvme_path");
		for (unsigned i = 0; i < offload->npaths; i++)
			json_text(json, NULL, offload->nvme_path[i]);
		json_close_list(json);
	}
	json_bool(json, "pin_memory", offload->pin_memory);
	json_count(json, "buffer_count", offload->buffer_count);
	json_count(json, "buffer_size", offload->buffer_size);
	if (block == NVS_OFFLOAD_PARAM) {
		json_count(json, "max_in_cpu", offload->max_in_cpu);
	} else {
		json_bool(json, "fast_init", offload->fast_init);
		json_bool(json, "pipeline_read", offload->pipeline_read);
		json_bool(json, "pipeline_write", offload->pipeline_write);
		json_real(json, "ratio", offload->ratio);
	}
	json_close_object(json);
}

/* Keys outside the block that affect steps. */
static void put_budgets(struct json_writer *json, const struct nvs_config *config,
			enum nvs_block block)
{
	if (block == NVS_OFFLOAD_OPTIMIZER) {
		json_count(json, "sub_group_size", config->sub_group_size);
		return;
	}
	json_count(json, "stage3_prefetch_bucket_size", config->prefetch_bucket_size);
	json_count(json, "stage3_max_live_parameters", config->max_live_parameters);
	json_count(json, "stage3_max_reuse_distance", config->max_reuse_distance);
	json_count(json, "stage3_param_persistence_threshold", config->param_persistence_threshold);
}

static void put_adam(struct json_writer *json, const struct optimizer_config *adam)
{
	json_open_object(json, "optimizer");
	json_text(json, "type", *adam->type ? adam->type : "Adam");
	json_open_object(json, "params");
	json_exact(json, "lr", adam->lr);
	json_open_list(json, "betas");
	json_exact(json, NULL, adam->beta1);
	json_exact(json, NULL, adam->beta2);
	json_close_list(json);
	json_exact(json, "eps", adam->eps);
	json_exact(json, "weight_decay", adam->weight_decay);
	json_bool(json, "bias_correction", adam->bias_correction);
	json_bool(json, "adam_w_mode", adam->adam_w_mode);
	json_close_object(json);
	json_close_object(json);
}

static void put_fp16(struct json_writer *json, const struct fp16_config *fp16)
{
	json_open_object(json, "fp16");
	json_bool(json, "enabled", fp16->enabled);
	json_exact(json, "loss_scale", fp16->loss_scale);
	json_count(json, "initial_scale_power", fp16->initial_scale_power);
	json_count(json, "loss_scale_window", fp16->loss_scale_window);
	json_count(json, "hysteresis", fp16->hysteresis);
	json_bool(json, "consecutive_hysteresis", fp16->consecutive_hysteresis);
	json_exact(json, "min_loss_scale", fp16->min_loss_scale);
	json_close_object(json);
}

/* Arithmetic and types of an optimizer's step. */
static void put_training(struct json_writer *json, const struct nvs_config *config)
{
	put_adam(json, &config->adam);
	json_exact(json, "gradient_clipping", config->gradient_clipping);
	put_fp16(json, &config->fp16);
	json_open_object(json, "bf16");
	json_bool(json, "enabled", config->bf16_enabled);
	json_close_object(json);
	json_open_object(json, "data_types");
	json_text(json, "grad_accum_dtype",
		  config->grad_accum_dtype == NVS_F32	? "fp32"
		  : config->grad_accum_dtype == NVS_F16 ? "fp16"
							: "bf16");
	json_close_object(json);
}

void report_config_json(struct json_writer *json, const struct bench_job *job)
{
	const struct nvs_config *config = &job->config;
	const struct aio_config *aio = &config->aio;
	enum nvs_block block = job->block;

	json_open_object(json, "config");
	json_open_object(json, "aio");
	json_count(json, "block_size", aio->block_size);
	json_count(json, "queue_depth", aio->queue_depth);
	json_count(json, "thread_count", aio->thread_count);
	json_bool(json, "single_submit", aio->single_submit);
	json_bool(json, "overlap_events", aio->overlap_events);
	json_bool(json, "use_gds", aio->use_gds);
	json_close_object(json);
	json_open_object(json, "zero_optimization");
	put_block(json, config, block);
	put_budgets(json, config, block);
	json_close_object(json);
	if (job->options.rw == RW_STEP)
		put_training(json, config);
	json_open_object(json, "nvswap");
	json_text(json, "ioengine", nvs_ioengine_name(aio->ioengine));
	json_count(json, "io_timeout_ms", aio->io_timeout_ms);
	json_bool(json, "verify", config->verify);
	json_bool(json, "keep", config->keep);
	json_count(json, "rank", config->rank);
	json_count(json, "stripe_size", config->stripe_size);
	if (block == NVS_OFFLOAD_OPTIMIZER) {
		json_count(json, "optimizer_max_in_cpu", config->optimizer_max_in_cpu);
		json_count(json, "optimizer_threads", config->optimizer_threads);
	}
	json_close_object(json);
	json_close_object(json);
}
