/* SPDX-License-Identifier: Apache-2.0 */
/* Checks between settings, whichever file set them, and computes settings that depend on others. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/numbers.h"
#include "base/text.h"
#include "config/reader.h"

/* The value in the file for the setting at this offset of struct nvs_config, or NULL. */
static const struct json_value *seen_at(const struct reader *r, size_t place)
{
	for (unsigned i = 0; i < config_key_count; i++)
		if (r->seen[i] && config_keys[i].place == place)
			return r->seen[i];
	return NULL;
}

static int one_half_precision(struct reader *r)
{
	const struct json_value *fp16 = seen_at(r, offsetof(struct nvs_config, fp16.enabled));
	const struct json_value *bf16 = seen_at(r, offsetof(struct nvs_config, bf16_enabled));
	const struct json_value *last = fp16 && bf16 ? fp16->raw > bf16->raw ? fp16 : bf16
					: fp16	     ? fp16
						     : bf16;

	if (!r->config.fp16.enabled || !r->config.bf16_enabled)
		return 0;
	if (fp16 && bf16)
		return reader_complain(
			r, &last->place, last == bf16 ? "bf16.enabled" : "fp16.enabled",
			"fp16 (line %u) and bf16 (line %u) are both enabled; parameters "
			"have one type, so disable one",
			fp16->place.line, bf16->place.line);
	return reader_complain(
		r, last ? &last->place : NULL, last == bf16 ? "bf16.enabled" : "fp16.enabled",
		"fp16 and bf16 are both enabled, one of them by an earlier configuration; "
		"parameters have one type, so disable one");
}

static const char *const block_names[] = {"offload_param", "offload_optimizer"};

/* The offset of a field of the block in struct nvs_config. */
#define PLACE(block, field)                                                                        \
	(offsetof(struct nvs_config, offload) + (block) * sizeof(struct offload_config) +          \
	 offsetof(struct offload_config, field))

static int nvme_has_path(struct reader *r, enum nvs_block block)
{
	const struct offload_config *offload = &r->config.offload[block];
	const struct json_value *device = seen_at(r, PLACE(block, device));

	/* After nvs_config_set the path can still follow; opening an engine checks it. */
	if (r->from_call || offload->device != NVS_DEVICE_NVME || offload->npaths)
		return 0;
	return reader_complain(r, device ? &device->place : NULL,
			       block == NVS_OFFLOAD_PARAM ? "offload_param.nvme_path"
							  : "offload_optimizer.nvme_path",
			       "%s.device is \"nvme\", but nvme_path is not set; set it to a "
			       "directory on the drive, a raw block device, or a list of 1 to %d "
			       "of these",
			       block_names[block], NVS_PATHS_MAX);
}

/* Paths that no drive is asked for, such as accelerate's "none" beside "cpu", may be any. */
static int paths_are_written_out(struct reader *r, enum nvs_block block)
{
	const struct offload_config *offload = &r->config.offload[block];
	const struct json_value *at = NULL;
	char shown[SHOWN_BYTES + 8], name[64];

	snprintf(name, sizeof(name), "%s.nvme_path", block_names[block]);
	/* The last in the table, of the nvswap block, is in place of the others. */
	for (unsigned i = 0; i < config_key_count; i++) {
		if (!r->seen[i] || config_keys[i].type != KEY_PATHS ||
		    config_keys[i].place + offsetof(struct offload_config, device) !=
			    PLACE(block, device))
			continue;
		at = r->seen[i];
		snprintf(name, sizeof(name), "%s.%s", config_blocks[config_keys[i].block].name,
			 config_keys[i].name);
	}
	for (unsigned i = 0; offload->device == NVS_DEVICE_NVME && i < offload->npaths; i++) {
		const char *path = offload->nvme_path[i], *why = path_stands_for(path);

		if (why)
			return reader_complain(r, at ? &at->place : NULL, name, "%s \"%s\" %s",
					       name, reader_show(path, strlen(path), shown), why);
	}
	return 0;
}

static uint64_t element_bytes(const struct nvs_config *config, enum nvs_block block)
{
	/* Optimizer state is always float32. */
	return nvs_dtype_size(block == NVS_OFFLOAD_PARAM ? config->param_dtype : NVS_F32);
}

/* Per element: master weight, exp_avg and exp_avg_sq. */
#define STATE_BYTES (3 * sizeof(float))

static uint64_t buffer_bytes(const struct nvs_config *config, enum nvs_block block)
{
	const struct offload_config *offload = &config->offload[block];
	uint64_t nbytes;

	if (__builtin_mul_overflow(offload->buffer_size, offload->buffer_count, &nbytes) ||
	    __builtin_mul_overflow(nbytes, element_bytes(config, block), &nbytes))
		return UINT64_MAX;
	return nbytes;
}

uint64_t nvs_config_pool_bytes(const struct nvs_config *config, enum nvs_block block)
{
	uint64_t cache = 0, nbytes;

	if (!config || !block_exists(block))
		return 0;
	if (block == NVS_OFFLOAD_OPTIMIZER &&
	    __builtin_mul_overflow(config->optimizer_max_in_cpu, STATE_BYTES, &cache))
		return UINT64_MAX;
	if (__builtin_add_overflow(buffer_bytes(config, block), cache, &nbytes))
		return UINT64_MAX;
	return nbytes;
}

static int buffers_are_countable(struct reader *r, enum nvs_block block)
{
	bool param = block == NVS_OFFLOAD_PARAM;
	const struct offload_config *offload = &r->config.offload[block];
	const struct json_value *at = seen_at(
		r, param ? PLACE(block, buffer_size) : offsetof(struct nvs_config, sub_group_size));

	if (offload->device == NVS_DEVICE_NONE || buffer_bytes(&r->config, block) <= INT64_MAX)
		return 0;
	if (!at)
		at = seen_at(r, PLACE(block, buffer_count));
	return reader_complain(
		r, at ? &at->place : NULL,
		param ? "offload_param.buffer_size" : "zero_optimization.sub_group_size",
		"a pool of %s.buffer_count %u x %s %llu elements of %llu bytes exceeds 2^63 bytes; "
		"lower one of them",
		block_names[block], offload->buffer_count,
		param ? "buffer_size" : "zero_optimization.sub_group_size",
		(unsigned long long)offload->buffer_size,
		(unsigned long long)element_bytes(&r->config, block));
}

void config_derive(struct nvs_config *config)
{
	struct offload_config *optimizer = &config->offload[NVS_OFFLOAD_OPTIMIZER];

	config->param_dtype = config->bf16_enabled   ? NVS_BF16
			      : config->fp16.enabled ? NVS_F16
						     : NVS_F32;
	/* offload_optimizer has no keys for these: a buffer holds one sub-group, and the whole pool
	 * may stay resident. */
	optimizer->buffer_size = config->sub_group_size;
	if (__builtin_mul_overflow(optimizer->buffer_size, optimizer->buffer_count,
				   &optimizer->max_in_cpu))
		optimizer->max_in_cpu = UINT64_MAX;
	/* As in DeepSpeed, the type AdamW overrides adam_w_mode. */
	if (!strcasecmp(config->adam.type, "AdamW"))
		config->adam.adam_w_mode = true;
}

/* Numbers whose defaults depend on optimizer.type, which are DeepSpeed's: of Adam and other types
 * first. */
static const struct defaults {
	const char *type;
	double lr, beta1, beta2, eps;
} defaults[] = {
	{"Adam", 1e-3, 0.9, 0.999, 1e-8},
	{"Lion", 1e-3, 0.9, 0.99, 1e-8},
	{"Adagrad", 1e-2, 0.9, 0.999, 1e-10},
};

static const struct defaults *defaults_of(const struct optimizer_config *config)
{
	for (size_t i = 1; i < COUNT_OF(defaults); i++)
		if (!strcasecmp(config->type, defaults[i].type))
			return &defaults[i];
	return &defaults[0];
}

/* A number that is the default of the type before becomes that of the present one. */
static void follow_type(struct reader *r)
{
	const struct defaults *was = defaults_of(&r->caller->adam),
			      *is = defaults_of(&r->config.adam);
	struct optimizer_config *config = &r->config.adam;
	const struct {
		size_t key; /* of the first number of the key */
		double *number, was, is;
	} numbers[] = {
		{offsetof(struct nvs_config, adam.lr), &config->lr, was->lr, is->lr},
		{offsetof(struct nvs_config, adam.beta1), &config->beta1, was->beta1, is->beta1},
		{offsetof(struct nvs_config, adam.beta1), &config->beta2, was->beta2, is->beta2},
		{offsetof(struct nvs_config, adam.eps), &config->eps, was->eps, is->eps},
	};

	for (size_t i = 0; i < COUNT_OF(numbers); i++) {
		const struct json_value *at = seen_at(r, numbers[i].key);

		if (at ? json_is_string(at, "auto") : *numbers[i].number == numbers[i].was)
			*numbers[i].number = numbers[i].is;
	}
}

int rules_apply(struct reader *r)
{
	bool grad_follows = !r->grad_named && r->config.grad_accum_dtype == r->caller->param_dtype;
	int result = one_half_precision(r);

	if (result)
		return result;
	config_derive(&r->config);
	follow_type(r);
	if (grad_follows)
		r->config.grad_accum_dtype = r->config.param_dtype;
	for (int i = NVS_OFFLOAD_PARAM; i <= NVS_OFFLOAD_OPTIMIZER && !result; i++) {
		const enum nvs_block block = (enum nvs_block)i;

		result = nvme_has_path(r, block) ?: paths_are_written_out(r, block)
						 ?: buffers_are_countable(r, block);
	}
	if (!result) {
		const struct json_value *at =
			seen_at(r, offsetof(struct nvs_config, optimizer_max_in_cpu));

		if (r->config.offload[NVS_OFFLOAD_OPTIMIZER].device != NVS_DEVICE_NONE &&
		    nvs_config_pool_bytes(&r->config, NVS_OFFLOAD_OPTIMIZER) > INT64_MAX)
			result = reader_complain(
				r, at ? &at->place : NULL, "nvswap.optimizer_max_in_cpu",
				"nvswap.optimizer_max_in_cpu %llu elements of %zu bytes and the "
				"buffers of offload_optimizer together exceed 2^63 bytes; lower it",
				(unsigned long long)r->config.optimizer_max_in_cpu, STATE_BYTES);
	}
	return result;
}
