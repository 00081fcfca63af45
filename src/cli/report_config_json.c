/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration that a job ran with, as it was resolved: a DeepSpeed file that says it all.
 */
#include "json_fields.h"
#include "report_json.h"

static void put_block(yajl_gen gen, const struct nvs_config *config, enum nvs_block block)
{
	const struct nvs_offload_config *offload = block == NVS_OFFLOAD_PARAM ? &config->param
									      : &config->optimizer;

	open_map(gen, block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer");
	text_field(gen, "device", nvs_device_name(offload->device));
	if (offload->npaths) {
		open_array(gen, "nvme_path");
		for (unsigned i = 0; i < offload->npaths; i++)
			put_text(gen, offload->nvme_path[i]);
		yajl_gen_array_close(gen);
	}
	bool_field(gen, "pin_memory", offload->pin_memory);
	count_field(gen, "buffer_count", offload->buffer_count);
	count_field(gen, "buffer_size", offload->buffer_size);
	if (block == NVS_OFFLOAD_PARAM) {
		count_field(gen, "max_in_cpu", offload->max_in_cpu);
	} else {
		bool_field(gen, "fast_init", offload->fast_init);
		bool_field(gen, "pipeline_read", offload->pipeline_read);
		bool_field(gen, "pipeline_write", offload->pipeline_write);
		real_field(gen, "ratio", offload->ratio);
	}
	yajl_gen_map_close(gen);
}

/* What the steps go by, beside the block. */
static void put_budgets(yajl_gen gen, const struct nvs_config *config, enum nvs_block block)
{
	if (block == NVS_OFFLOAD_OPTIMIZER) {
		count_field(gen, "sub_group_size", config->sub_group_size);
		return;
	}
	count_field(gen, "stage3_prefetch_bucket_size", config->prefetch_bucket_size);
	count_field(gen, "stage3_max_live_parameters", config->max_live_parameters);
	count_field(gen, "stage3_max_reuse_distance", config->max_reuse_distance);
	count_field(gen, "stage3_param_persistence_threshold", config->param_persistence_threshold);
}

static void put_adam(yajl_gen gen, const struct nvs_optimizer_config *adam)
{
	open_map(gen, "optimizer");
	text_field(gen, "type", *adam->type ? adam->type : "Adam");
	open_map(gen, "params");
	exact_field(gen, "lr", adam->lr);
	open_array(gen, "betas");
	put_exact(gen, adam->beta1);
	put_exact(gen, adam->beta2);
	yajl_gen_array_close(gen);
	exact_field(gen, "eps", adam->eps);
	exact_field(gen, "weight_decay", adam->weight_decay);
	bool_field(gen, "bias_correction", adam->bias_correction);
	bool_field(gen, "adam_w_mode", adam->adam_w_mode);
	yajl_gen_map_close(gen);
	yajl_gen_map_close(gen);
}

static void put_fp16(yajl_gen gen, const struct nvs_fp16_config *fp16)
{
	open_map(gen, "fp16");
	bool_field(gen, "enabled", fp16->enabled);
	exact_field(gen, "loss_scale", fp16->loss_scale);
	count_field(gen, "initial_scale_power", fp16->initial_scale_power);
	count_field(gen, "loss_scale_window", fp16->loss_scale_window);
	count_field(gen, "hysteresis", fp16->hysteresis);
	bool_field(gen, "consecutive_hysteresis", fp16->consecutive_hysteresis);
	exact_field(gen, "min_loss_scale", fp16->min_loss_scale);
	yajl_gen_map_close(gen);
}

/* What an optimizer's step computes, and on which types. */
static void put_training(yajl_gen gen, const struct nvs_config *config)
{
	put_adam(gen, &config->adam);
	exact_field(gen, "gradient_clipping", config->gradient_clipping);
	put_fp16(gen, &config->fp16);
	open_map(gen, "bf16");
	bool_field(gen, "enabled", config->bf16_enabled);
	yajl_gen_map_close(gen);
	open_map(gen, "data_types");
	text_field(gen, "grad_accum_dtype",
		   config->grad_accum_dtype == NVS_F32	 ? "fp32"
		   : config->grad_accum_dtype == NVS_F16 ? "fp16"
							 : "bf16");
	yajl_gen_map_close(gen);
}

void report_config_json(yajl_gen gen, const struct bench_job *job)
{
	const struct nvs_config *config = &job->config;
	const struct nvs_aio_config *aio = &config->aio;
	enum nvs_block block = job->block;

	open_map(gen, "config");
	open_map(gen, "aio");
	count_field(gen, "block_size", aio->block_size);
	count_field(gen, "queue_depth", aio->queue_depth);
	count_field(gen, "thread_count", aio->thread_count);
	bool_field(gen, "single_submit", aio->single_submit);
	bool_field(gen, "overlap_events", aio->overlap_events);
	bool_field(gen, "use_gds", aio->use_gds);
	yajl_gen_map_close(gen);
	open_map(gen, "zero_optimization");
	put_block(gen, config, block);
	put_budgets(gen, config, block);
	yajl_gen_map_close(gen);
	if (job->options.rw == RW_STEP)
		put_training(gen, config);
	open_map(gen, "nvswap");
	text_field(gen, "ioengine", nvs_ioengine_name(aio->ioengine));
	count_field(gen, "io_timeout_ms", aio->io_timeout_ms);
	bool_field(gen, "verify", config->verify);
	bool_field(gen, "keep", config->keep);
	count_field(gen, "rank", config->rank);
	count_field(gen, "stripe_size", config->stripe_size);
	if (block == NVS_OFFLOAD_OPTIMIZER) {
		count_field(gen, "optimizer_max_in_cpu", config->optimizer_max_in_cpu);
		count_field(gen, "optimizer_threads", config->optimizer_threads);
	}
	yajl_gen_map_close(gen);
	yajl_gen_map_close(gen);
}
