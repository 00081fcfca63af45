/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that nvswap would pass over in silence: one that it knows in another place, such as `aio`
 * in `zero_optimization`, and a near miss of a block's name, such as `offload_optimiser`. No key of
 * DeepSpeed is near enough to be taken for one. Objects that are no blocks of DeepSpeed are not
 * looked into.
 */
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "config/reader.h"

/* Blocks of DeepSpeed that nvswap does not read, beside those in config_keys. */
static const char other_blocks[] =
	"activation_checkpointing,amp,autotuning,checkpoint,comet,comms_logger,compile,"
	"compression_training,csv_monitor,curriculum_learning,data_efficiency,datastates_ckpt,"
	"dynamic_batching,eigenvalue,elasticity,expert_parallel,flops_profiler,hybrid_engine,"
	"monitor_config,nebula,pipeline,progressive_layer_drop,quantize_training,scheduler,"
	"sparse_attention,tensor_parallel,tensorboard,timers,torch_autocast,wandb,"
	"weight_quantization";

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
	near = nearest_name(lower, names, COUNT_OF(names));
	length = near ? strlen(near) : 0;
	if (length && length < 5 && n > length + 1) /* audio */
		return NULL;
	if (near && n > length + 1 &&
	    ((!strncmp(lower, near, length) && lower[length] == '_') ||
	     (!strcmp(lower + n - length, near) && lower[n - length - 1] == '_')))
		return NULL;
	return near;
}

static int report(struct reader *r, const struct json_value *member, const char *path,
		  const char *why)
{
	char name[NAME_BYTES], shown[SHOWN_BYTES + 8], text[NAME_BYTES + 512];

	snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "",
		 reader_show(member->key, member->key_length, shown));
	snprintf(text, sizeof(text), "%s is nothing that nvswap reads there; %s", name, why);
	if (r->config.strict)
		return reader_complain(r, &member->key_place, name, "%s", text);
	reader_say(r, NVS_LOG_WARNING, &member->key_place, "%s", text);
	return 0;
}

/* A member of the file or of zero_optimization that is no key there. */
static int examine_unknown(struct reader *r, enum config_block block,
			   const struct json_value *member, const char *path)
{
	char room[256], why[128];
	bool top = block == BLOCK_ROOT;
	const char *home = config_key_home(block, member->key, member->key_length, room), *near;

	/* At the top other programs may have keys; no other has a path of this name. */
	if (home && (!top || !strcmp(member->key, "nvme_path")))
		return report(r, member, path, home);
	near = member->type == JSON_OBJECT ? near_block(member->key) : NULL;
	if (!top && member->type == JSON_STRING && !near) {
		static const char *const names[] = {"nvme_path"};

		near = nearest_name(member->key, names, 1);
	}
	if (!near)
		return 0;
	snprintf(why, sizeof(why), "did you mean `%s`?", near);
	return report(r, member, path, why);
}

/* A block of nvswap in another block, where a brace is missing before it. */
static int examine_within(struct reader *r, const struct json_value *object, const char *path)
{
	static const char ours[] = "aio,zero_optimization,offload_param,offload_optimizer,nvswap";
	char room[256];
	int rc = 0;

	if (object->type != JSON_OBJECT)
		return 0;
	for (const struct json_value *member = object->first; member && !rc; member = member->next)
		if (member->type == JSON_OBJECT && text_lists(ours, member->key))
			rc = report(r, member, path,
				    config_key_home(BLOCK_COUNT, member->key, member->key_length,
						    room));
	return rc;
}

int misplaced_report(struct reader *r, const struct json_value *root)
{
	int rc = 0;

	for (const struct json_value *member = root->first; member && !rc; member = member->next) {
		const struct config_key *key = config_key_find(BLOCK_ROOT, member->key,
							       member->key_length);
		const struct json_value *params = json_member(member, "params");

		if (!key && !text_lists(other_blocks, member->key)) {
			rc = examine_unknown(r, BLOCK_ROOT, member, "");
			continue;
		}
		if (key && key->type == KEY_BLOCK && key->child == BLOCK_ZERO)
			for (const struct json_value *zero = member->first; zero && !rc;
			     zero = zero->next)
				rc = config_key_find(BLOCK_ZERO, zero->key, zero->key_length)
					     ? 0
					     : examine_unknown(r, BLOCK_ZERO, zero, member->key);
		else if (!key || (key->type == KEY_BLOCK && !config_blocks[key->child].strict))
			rc = examine_within(r, member, member->key);
		if (!rc && params && key && key->child == BLOCK_ADAM)
			rc = examine_within(r, params, "optimizer.params");
	}
	return rc;
}
