/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that nvswap would pass over in silence: one that it knows in another place, such as `aio` in
 * `zero_optimization`, and a near miss of a block's name, such as `offload_optimiser`. DeepSpeed's own
 * keys are never taken for either. Objects that are not blocks of DeepSpeed are not looked into.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/nearest.h"
#include "config/reader.h"

#define NAME_BYTES 128

/* Beside those in config_keys. */
static const char *const top_keys[] = {
	"activation_checkpointing",
	"allgather_size",
	"amp",
	"autotuning",
	"checkpoint",
	"comet",
	"comms_logger",
	"communication_data_type",
	"compile",
	"compression_training",
	"csv_monitor",
	"curriculum_learning",
	"data_efficiency",
	"dataloader_drop_last",
	"datastates_ckpt",
	"ddp_bf16",
	"disable_allgather",
	"dump_state",
	"dynamic_batching",
	"eigenvalue",
	"elasticity",
	"expert_parallel",
	"flops_profiler",
	"gradient_accumulation_steps",
	"gradient_allreduce_op",
	"gradient_predivide_factor",
	"graph_harvesting",
	"hybrid_engine",
	"log_level",
	"managed_gradient_accumulation",
	"memory_breakdown",
	"monitor_config",
	"nebula",
	"pipeline",
	"prescale_gradients",
	"progressive_layer_drop",
	"quantize_training",
	"scheduler",
	"seq_parallel_communication_data_type",
	"sequence_parallel_size",
	"sparse_attention",
	"sparse_gradients",
	"steps_per_print",
	"tensor_parallel",
	"tensorboard",
	"timers",
	"torch_autocast",
	"train_batch_size",
	"train_micro_batch_size_per_gpu",
	"use_data_before_expert_parallelism",
	"vocabulary_size",
	"wall_clock_breakdown",
	"wandb",
	"weight_quantization",
	"zero_allow_untested_optimizer",
	"zero_force_ds_cpu_optimizer",
};

static const char *const zero_keys[] = {
	"allgather_bucket_size",
	"allgather_partitions",
	"allgather_sequential",
	"compute_grad_norm",
	"contiguous_gradients",
	"elastic_checkpoint",
	"enable_sanity_checks",
	"gather_16bit_weights_on_model_save",
	"gather_fp16_weights_on_model_save",
	"grad_hooks",
	"ignore_unused_parameters",
	"leaf_module",
	"legacy_stage1",
	"load_from_fp32_weights",
	"log_trace_cache_warnings",
	"memory_efficient_linear",
	"mics_hierarchical_params_gather",
	"mics_shard_size",
	"model_persistence_threshold",
	"module_granularity_threshold",
	"overlap_comm",
	"override_module_apply",
	"parameter_alignment",
	"pipeline_loading_checkpoint",
	"reduce_bucket_size",
	"reduce_scatter",
	"round_robin_gradients",
	"save_muon_momentum_buffer_in_memory",
	"stage",
	"stage3_allgather_sequential",
	"stage3_gather_16bit_weights_on_model_save",
	"stage3_gather_fp16_weights_on_model_save",
	"stage3_model_persistence_threshold",
	"stage3_module_granularity_threshold",
	"stage3_use_all_reduce_for_fetch_params",
	"use_all_reduce_for_fetch_params",
	"use_multi_rank_bucket_allreduce",
	"zenflow",
	"zero_hpz_partition_size",
	"zero_quantized_gradients",
	"zero_quantized_nontrainable_weights",
	"zero_quantized_weights",
	"zeropp_loco_param",
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static bool is_listed(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

/* The block whose name is nearly this one; NULL: none. A further word makes another name, such as
 * optimizer_d. */
static const char *near_block(const char *name)
{
	static const char *const names[] = {"aio",  "zero_optimization", "offload_param",
					    "fp16", "offload_optimizer", "data_types",
					    "bf16", "optimizer",	 "nvswap"};
	char lower[64];
	const char *near;
	size_t n = 0, length;

	for (; n < sizeof(lower) - 1 && name[n]; n++)
		lower[n] = name[n] >= 'A' && name[n] <= 'Z' ? (char)(name[n] | 0x20) : name[n];
	lower[n] = '\0';
	near = nearest_name(lower, names, LENGTH(names));
	length = near ? strlen(near) : 0;
	if (length && length < 5 && n > length + 1) /* audio */
		return NULL;
	if (near && n > length + 1 &&
	    ((!strncmp(lower, near, length) && lower[length] == '_') ||
	     (!strcmp(lower + n - length, near) && lower[n - length - 1] == '_')))
		return NULL;
	return near;
}

static int report(struct reader *r, bool strict, const struct json_value *member, const char *path,
		  const char *why)
{
	char name[NAME_BYTES], shown[SHOWN_BYTES + 8], text[NAME_BYTES + 512];

	snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "",
		 reader_show(member->key, member->key_length, shown));
	if (strict)
		return reader_complain(r, &member->key_place, name,
				       "%s is nothing that nvswap reads there; %s", name, why);
	snprintf(text, sizeof(text), "%s is nothing that nvswap reads there; %s", name, why);
	reader_say(r, NVS_LOG_WARNING, &member->key_place, text);
	return 0;
}

/* A member of the file or of zero_optimization that is no key there. */
static int examine_unknown(struct reader *r, bool strict, enum config_block block,
			   const struct json_value *member, const char *path)
{
	char room[256], why[128];
	bool top = block == BLOCK_ROOT;
	const char *home = config_key_home(block, member->key, member->key_length, room), *near;

	/* At the top other programs may have keys; no other has a path of this name. */
	if (home && (!top || !strcmp(member->key, "nvme_path")))
		return report(r, strict, member, path, home);
	near = member->type == JSON_OBJECT ? near_block(member->key) : NULL;
	if (!top && member->type == JSON_STRING && !near) {
		static const char *const names[] = {"nvme_path"};

		near = nearest_name(member->key, names, 1);
	}
	if (!near)
		return 0;
	snprintf(why, sizeof(why), "did you mean `%s`?", near);
	return report(r, strict, member, path, why);
}

/* A block of nvswap in another block, where a brace is missing before it. */
static int examine_within(struct reader *r, bool strict, const struct json_value *object,
			  const char *path)
{
	static const char *const names[] = {"aio", "zero_optimization", "offload_param",
					    "offload_optimizer", "nvswap"};
	char room[256];
	int rc = 0;

	if (object->type != JSON_OBJECT)
		return 0;
	for (const struct json_value *member = object->first; member && !rc; member = member->next)
		if (member->type == JSON_OBJECT && is_listed(member->key, names, LENGTH(names)))
			rc = report(r, strict, member, path,
				    config_key_home(BLOCK_COUNT, member->key, member->key_length,
						    room));
	return rc;
}

static int examine_zero(struct reader *r, bool strict, const struct json_value *zero)
{
	int rc = 0;

	for (const struct json_value *member = zero->first; member && !rc; member = member->next)
		if (!config_key_find(BLOCK_ZERO, member->key, member->key_length) &&
		    !is_listed(member->key, zero_keys, LENGTH(zero_keys)))
			rc = examine_unknown(r, strict, BLOCK_ZERO, member, zero->key);
	return rc;
}

int misplaced_report(struct reader *r, const struct json_value *root, bool strict)
{
	int rc = 0;

	for (const struct json_value *member = root->first; member && !rc; member = member->next) {
		const struct config_key *key = config_key_find(BLOCK_ROOT, member->key,
							       member->key_length);
		const struct json_value *params = json_member(member, "params");

		if (!key && !is_listed(member->key, top_keys, LENGTH(top_keys))) {
			rc = examine_unknown(r, strict, BLOCK_ROOT, member, "");
			continue;
		}
		if (key && key->type == KEY_BLOCK && key->child == BLOCK_ZERO)
			rc = examine_zero(r, strict, member);
		else if (!key || (key->type == KEY_BLOCK && !config_block_is_strict(key->child)))
			rc = examine_within(r, strict, member, member->key);
		if (!rc && params && key && key->child == BLOCK_ADAM)
			rc = examine_within(r, strict, params, "optimizer.params");
	}
	return rc;
}
