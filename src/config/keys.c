/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table, and what is told from it alone. Names, units and defaults are DeepSpeed's; it reads
 * no file.
 */
#include "config/keys.h"

#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

/* So that the bytes of that many elements, of eight bytes each, fit an off_t. */
#define ELEMENTS_MAX ((uint64_t)1000000000000000000)
#define BUFFERS_MAX  ((uint64_t)1 << 20)
#define STRIPE_MAX   ((uint64_t)1 << 40)
#define THREADS_MAX  1024
#define POWER_MAX    127 /* of two, in a float */

#define AT(field) .place = offsetof(struct nvs_config, field)
#define KEY(block_, name_, type_, meaning_)                                                        \
	.block = BLOCK_##block_, .name = (name_), .type = KEY_##type_, .meaning = (meaning_)
#define BLOCK(block_, name_, child_)                                                               \
	{                                                                                          \
		KEY(block_, name_, BLOCK, ""), .child = BLOCK_##child_                             \
	}
#define BOOL(block_, name_, field_, default_, meaning_)                                            \
	{                                                                                          \
		KEY(block_, name_, BOOL, meaning_), AT(field_), .whole = (default_),               \
								.default_text = #default_          \
	}
#define WHOLE(block_, name_, bits_, field_, default_, min_, max_, multiple_, meaning_)             \
	{                                                                                          \
		KEY(block_, name_, U##bits_, meaning_), AT(field_),                                \
			.whole = (default_), .default_text = #default_, .min = (min_),             \
			.max = (max_), .multiple_of = (multiple_)                                  \
	}
#define REAL(block_, name_, field_, default_, max_, meaning_)                                      \
	{                                                                                          \
		KEY(block_, name_, REAL, meaning_), AT(field_),                                    \
			.real = (default_), .default_text = #default_, .real_max = (max_)          \
	}
#define ENUM(block_, name_, type_, field_, default_, text_, meaning_)                              \
	{                                                                                          \
		KEY(block_, name_, type_, meaning_), AT(field_), .whole = (default_),              \
								 .default_text = (text_)           \
	}
#define UNUSED(block_, name_, meaning_)                                                            \
	{                                                                                          \
		KEY(block_, name_, UNUSED, meaning_)                                               \
	}

const struct config_key config_keys[] = {
	BLOCK(ROOT, "aio", AIO),
	BLOCK(ROOT, "zero_optimization", ZERO),
	BLOCK(ROOT, "offload_param", PARAM),
	BLOCK(ROOT, "offload_optimizer", OPTIMIZER),
	BLOCK(ROOT, "fp16", FP16),
	BLOCK(ROOT, "bf16", BF16),
	BLOCK(ROOT, "bfloat16", BF16),
	BLOCK(ROOT, "data_types", DATA_TYPES),
	BLOCK(ROOT, "optimizer", ADAM),
	BLOCK(ROOT, "nvswap", NVSWAP),
	REAL(ROOT, "gradient_clipping", gradient_clipping, 0, DBL_MAX,
	     "the norm that an optimizer step clips gradients to; 0: they are not clipped"),

	WHOLE(AIO, "block_size", 32, aio.block_size, 1048576, NVS_BLOCK_SIZE_MIN,
	      NVS_BLOCK_SIZE_MAX, 512, "bytes in one I/O"),
	WHOLE(AIO, "queue_depth", 32, aio.queue_depth, 8, 1, NVS_QUEUE_DEPTH_MAX, 0,
	      "I/Os in flight on each worker"),
	WHOLE(AIO, "thread_count", 32, aio.thread_count, 1, 1, NVS_THREAD_COUNT_MAX, 0, "workers"),
	WHOLE(AIO, "intra_op_parallelism", 32, aio.thread_count, 1, 1, NVS_THREAD_COUNT_MAX, 0,
	      "another name of `thread_count`"),
	BOOL(AIO, "single_submit", aio.single_submit, false, "one I/O in each submission call"),
	BOOL(AIO, "overlap_events", aio.overlap_events, true,
	     "submit I/Os while earlier ones are in flight; false: fill the queue, drain it, fill "
	     "it again"),
	BOOL(AIO, "use_gds", aio.use_gds, false,
	     "direct to GPU memory; refused when an engine is opened, with the reason"),

	BLOCK(ZERO, "offload_param", PARAM),
	BLOCK(ZERO, "offload_optimizer", OPTIMIZER),
	WHOLE(ZERO, "sub_group_size", 64, sub_group_size, 1000000000, 1, ELEMENTS_MAX, 0,
	      "elements that a group of the optimizer may have, and that one buffer of its pool "
	      "has"),
	WHOLE(ZERO, "stage3_prefetch_bucket_size", 64, prefetch_bucket_size, 50000000, 0,
	      ELEMENTS_MAX, 0, "elements that the plan fetches ahead of their use"),
	WHOLE(ZERO, "prefetch_bucket_size", 64, prefetch_bucket_size, 50000000, 0, ELEMENTS_MAX, 0,
	      "another name of `stage3_prefetch_bucket_size`"),
	WHOLE(ZERO, "stage3_max_live_parameters", 64, max_live_parameters, 1000000000, 0,
	      ELEMENTS_MAX, 0,
	      "elements in the pool, in use or not, up to which the plan fetches and keeps"),
	WHOLE(ZERO, "max_live_parameters", 64, max_live_parameters, 1000000000, 0, ELEMENTS_MAX, 0,
	      "another name of `stage3_max_live_parameters`"),
	WHOLE(ZERO, "stage3_max_reuse_distance", 64, max_reuse_distance, 1000000000, 0,
	      ELEMENTS_MAX, 0,
	      "what the plan needs again within so many elements stays, beside `max_in_cpu`"),
	WHOLE(ZERO, "max_reuse_distance", 64, max_reuse_distance, 1000000000, 0, ELEMENTS_MAX, 0,
	      "another name of `stage3_max_reuse_distance`"),
	WHOLE(ZERO, "stage3_param_persistence_threshold", 64, param_persistence_threshold, 100000,
	      0, ELEMENTS_MAX, 0,
	      "tensors of the plan with fewer elements stay from step to step, beside "
	      "`max_in_cpu`"),
	WHOLE(ZERO, "param_persistence_threshold", 64, param_persistence_threshold, 100000, 0,
	      ELEMENTS_MAX, 0, "another name of `stage3_param_persistence_threshold`"),
	UNUSED(ZERO, "cpu_offload",
	       "write \"offload_optimizer\": {\"device\": \"cpu\"} to offload the optimizer"),
	UNUSED(ZERO, "cpu_offload_param",
	       "write \"offload_param\": {\"device\": \"cpu\"} to offload parameters"),
	UNUSED(ZERO, "cpu_offload_params",
	       "write \"offload_param\": {\"device\": \"cpu\"} to offload parameters"),
	UNUSED(ZERO, "cpu_offload_use_pin_memory",
	       "write \"pin_memory\" in `offload_param` and `offload_optimizer`"),

	ENUM(PARAM, "device", DEVICE, param.device, NVS_DEVICE_NONE, "\"none\"",
	     "where parameters are kept"),
	{KEY(PARAM, "nvme_path", PATHS, "directories or raw block devices"), AT(param)},
	BOOL(PARAM, "pin_memory", param.pin_memory, false,
	     "true: the whole pool is locked, or opening fails; false: as much as may be"),
	WHOLE(PARAM, "buffer_count", 32, param.buffer_count, 5, 1, BUFFERS_MAX, 0,
	      "buffers in the pool"),
	WHOLE(PARAM, "buffer_size", 64, param.buffer_size, 100000000, 1, ELEMENTS_MAX, 0,
	      "elements in one buffer"),
	WHOLE(PARAM, "max_in_cpu", 64, param.max_in_cpu, 1000000000, 0, ELEMENTS_MAX, 0,
	      "elements that may stay in the pool while nobody uses them"),

	ENUM(OPTIMIZER, "device", DEVICE, optimizer.device, NVS_DEVICE_NONE, "\"none\"",
	     "where optimizer state is kept"),
	{KEY(OPTIMIZER, "nvme_path", PATHS, "directories or raw block devices"), AT(optimizer)},
	BOOL(OPTIMIZER, "pin_memory", optimizer.pin_memory, false,
	     "true: the whole pool is locked, or opening fails; false: as much as may be"),
	WHOLE(OPTIMIZER, "buffer_count", 32, optimizer.buffer_count, 4, 1, BUFFERS_MAX, 0,
	      "buffers in the pool"),
	BOOL(OPTIMIZER, "fast_init", optimizer.fast_init, false,
	     "state is made in the first step, without reading it; false: it is written at the "
	     "start"),
	REAL(OPTIMIZER, "ratio", optimizer.ratio, 1, 1,
	     "the share of elements whose state is offloaded, in whole groups; the rest stays in "
	     "memory"),
	BOOL(OPTIMIZER, "pipeline_read", optimizer.pipeline_read, false,
	     "read tiles ahead of the computation; false: each when those before it are computed"),
	BOOL(OPTIMIZER, "pipeline_write", optimizer.pipeline_write, false,
	     "write tiles behind the computation; false: each before the next is computed"),
	UNUSED(OPTIMIZER, "pipeline", "write \"pipeline_read\" and \"pipeline_write\""),
	UNUSED(OPTIMIZER, "buffer_size",
	       "a buffer is as large as zero_optimization.sub_group_size"),
	UNUSED(OPTIMIZER, "super_offload", "it is for DeepSpeed's own CPU optimizer"),
	UNUSED(OPTIMIZER, "cpuadam_cores_perc", "it is for DeepSpeed's own CPU optimizer"),
	UNUSED(OPTIMIZER, "convert_grad_on_cpu", "it is for DeepSpeed's own CPU optimizer"),

	BOOL(FP16, "enabled", fp16.enabled, false,
	     "parameters are float16, and gradients have a loss scale"),
	REAL(FP16, "loss_scale", fp16.loss_scale, 0, DBL_MAX,
	     "what gradients are divided by; 0: a dynamic loss scale"),
	WHOLE(FP16, "initial_scale_power", 32, fp16.initial_scale_power, 16, 0, POWER_MAX, 0,
	      "a dynamic loss scale begins at 2 to this power"),
	WHOLE(FP16, "loss_scale_window", 32, fp16.loss_scale_window, 1000, 1, UINT32_MAX, 0,
	      "steps in a row without overflow that double a dynamic loss scale"),
	WHOLE(FP16, "hysteresis", 32, fp16.hysteresis, 2, 1, UINT32_MAX, 0,
	      "the overflow that halves a dynamic loss scale: 1: each, 2: the second"),
	BOOL(FP16, "consecutive_hysteresis", fp16.consecutive_hysteresis, false,
	     "a step without overflow gives the hysteresis back; false: a doubling does"),
	REAL(FP16, "min_loss_scale", fp16.min_loss_scale, 1, DBL_MAX,
	     "a dynamic loss scale is never less; a step that overflows at it is an error"),
	BOOL(BF16, "enabled", bf16_enabled, false, "parameters are bfloat16"),
	ENUM(DATA_TYPES, "grad_accum_dtype", GRAD, grad_accum_dtype, 0, "that of parameters",
	     "element type that gradients are added up in"),

	{KEY(ADAM, "type", NAME,
	     "\"Adam\" or \"AdamW\", in any case; without it Adam; another needs an update "
	     "function of the program's"),
	 AT(adam.type)},
	BLOCK(ADAM, "params", ADAM_PARAMS),
	REAL(ADAM_PARAMS, "lr", adam.lr, 1e-3, DBL_MAX,
	     "learning rate, where a step is given no other"),
	{KEY(ADAM_PARAMS, "betas", BETAS, "decay of the running averages"), AT(adam.beta1),
	 .real = 0.9, .second = 0.999, .default_text = "[0.9, 0.999]"},
	REAL(ADAM_PARAMS, "eps", adam.eps, 1e-8, DBL_MAX, "added to the denominator"),
	REAL(ADAM_PARAMS, "weight_decay", adam.weight_decay, 0, DBL_MAX, "weight decay"),
	BOOL(ADAM_PARAMS, "bias_correction", adam.bias_correction, true,
	     "correct the bias of the first steps"),
	BOOL(ADAM_PARAMS, "amsgrad", adam.amsgrad, false,
	     "Adam with the maximum of exp_avg_sq, which nvswap refuses when an optimizer is "
	     "opened"),
	BOOL(ADAM_PARAMS, "adam_w_mode", adam.adam_w_mode, true,
	     "decoupled weight decay, which \"type\": \"AdamW\" has in any case"),

	ENUM(NVSWAP, "ioengine", IOENGINE, aio.ioengine, NVS_IOENGINE_AUTO, "\"auto\"",
	     "the I/O engine"),
	WHOLE(NVSWAP, "io_timeout_ms", 32, aio.io_timeout_ms, 0, 0, NVS_IO_TIMEOUT_MS_MAX, 0,
	      "milliseconds after which an I/O that has not completed is reported; 0: never"),
	BOOL(NVSWAP, "verify", verify, false, "a checksum per tensor, compared at each swap-in"),
	BOOL(NVSWAP, "keep", keep, false,
	     "the store outlives the engine, is found again, and takes twice the space of its "
	     "tensors"),
	WHOLE(NVSWAP, "rank", 32, rank, 0, 0, UINT32_MAX, 0, "which store under the paths"),
	WHOLE(NVSWAP, "stripe_size", 64, stripe_size, 0, 0, STRIPE_MAX, 512,
	      "bytes on one path before the next; 0: one block_size"),
	WHOLE(NVSWAP, "optimizer_max_in_cpu", 64, optimizer_max_in_cpu, 0, 0, ELEMENTS_MAX, 0,
	      "elements whose optimizer state stays in memory from step to step"),
	WHOLE(NVSWAP, "optimizer_threads", 32, optimizer_threads, 0, 0, THREADS_MAX, 0,
	      "threads that compute optimizer steps; 0: one on each core near the drive"),
};

const unsigned config_key_count = sizeof(config_keys) / sizeof(config_keys[0]);

_Static_assert(sizeof(config_keys) / sizeof(config_keys[0]) <= CONFIG_KEYS_MAX, "seen[] is short");
_Static_assert(offsetof(struct nvs_optimizer_config, beta2) ==
		       offsetof(struct nvs_optimizer_config, beta1) + sizeof(double),
	       "KEY_BETAS writes both");

static const struct {
	const char *name;
	bool strict;
} blocks[BLOCK_COUNT] = {
	[BLOCK_ROOT] = {"", false},
	[BLOCK_AIO] = {"aio", true},
	[BLOCK_ZERO] = {"zero_optimization", false},
	[BLOCK_PARAM] = {"offload_param", true},
	[BLOCK_OPTIMIZER] = {"offload_optimizer", true},
	[BLOCK_FP16] = {"fp16", false},
	[BLOCK_BF16] = {"bf16", false},
	[BLOCK_DATA_TYPES] = {"data_types", false},
	[BLOCK_ADAM] = {"optimizer", false},
	[BLOCK_ADAM_PARAMS] = {"optimizer.params", false},
	[BLOCK_NVSWAP] = {"nvswap", true},
};

const char *config_block_name(enum config_block block)
{
	return blocks[block].name;
}

bool config_block_is_strict(enum config_block block)
{
	return blocks[block].strict;
}

const struct config_key *config_key_find(enum config_block block, const char *name, size_t length)
{
	for (unsigned i = 0; i < config_key_count; i++)
		if (config_keys[i].block == block && strlen(config_keys[i].name) == length &&
		    !memcmp(config_keys[i].name, name, length))
			return &config_keys[i];
	return NULL;
}

#define NAME_MAX_COMPARED 48

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* How many letters to put in, leave out, change or swap with the next, to get from one name to the
 * other. */
static unsigned distance(const char *a, size_t na, const char *b, size_t nb)
{
	unsigned rows[3][NAME_MAX_COMPARED + 1];
	unsigned *before = rows[0], *last = rows[1], *row = rows[2], *spare;

	assert(na <= NAME_MAX_COMPARED && nb <= NAME_MAX_COMPARED);
	for (unsigned j = 0; j <= nb; j++)
		before[j] = last[j] = row[j] = j;
	for (size_t i = 1; i <= na; i++) {
		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			row[j] = least(least(last[j], row[j - 1]) + 1,
				       last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least(row[j], before[j - 2] + 1);
		}
		spare = before;
		before = last;
		last = row;
		row = spare;
	}
	return last[nb];
}

static const struct config_key *nearest(enum config_block block, const char *name, size_t length)
{
	unsigned best = (unsigned)length / 3 > 1 ? (unsigned)length / 3 + 1 : 2;
	const struct config_key *key = NULL;

	if (length > NAME_MAX_COMPARED)
		return NULL;
	for (unsigned i = 0; i < config_key_count; i++) {
		const char *known = config_keys[i].name;
		unsigned away;

		if (config_keys[i].block != block || config_keys[i].type == KEY_UNUSED)
			continue;
		away = distance(name, length, known, strlen(known));
		if (away < best) {
			best = away;
			key = &config_keys[i];
		}
	}
	return key;
}

/* A block other than this one that has the key. */
static const struct config_key *elsewhere(enum config_block block, const char *name, size_t length)
{
	for (unsigned i = 0; i < BLOCK_COUNT; i++) {
		const struct config_key *key = config_key_find((enum config_block)i, name, length);

		if (i != (unsigned)block && i != BLOCK_ROOT && key && key->type != KEY_UNUSED)
			return key;
	}
	return NULL;
}

const char *config_key_suggest(enum config_block block, const char *name, size_t length,
			       char text[256])
{
	const struct config_key *key = nearest(block, name, length);
	size_t used;

	if (key) {
		snprintf(text, 256, "did you mean `%s`?", key->name);
		return text;
	}
	key = elsewhere(block, name, length);
	if (key) {
		snprintf(text, 256, "it is a key of `%s`", blocks[key->block].name);
		return text;
	}
	used = (size_t)snprintf(text, 256, "known are");
	for (unsigned i = 0; i < config_key_count; i++)
		if (config_keys[i].block == block && config_keys[i].type != KEY_UNUSED &&
		    used < 256)
			used += (size_t)snprintf(text + used, 256 - used, " `%s`",
						 config_keys[i].name);
	return text;
}

static void whole_numbers(const struct config_key *key, char text[160])
{
	int used = snprintf(text, 160, "a whole number from %llu to %llu",
			    (unsigned long long)key->min, (unsigned long long)key->max);

	if (key->multiple_of)
		snprintf(text + used, 160 - (size_t)used, ", a multiple of %llu",
			 (unsigned long long)key->multiple_of);
}

static const char *other_values(const struct config_key *key)
{
	switch (key->type) {
	case KEY_BLOCK:
		return "an object";
	case KEY_BOOL:
		return "true or false";
	case KEY_REAL:
		return key->real_max < DBL_MAX ? "a number from 0 to 1" : "a number, 0 or more";
	case KEY_BETAS:
		return "a list of two numbers, each from 0 to less than 1";
	case KEY_DEVICE:
		return "\"none\", \"cpu\" or \"nvme\"";
	case KEY_IOENGINE:
		return "\"auto\", \"io_uring\", \"libaio\" or \"posix\"";
	case KEY_GRAD:
		return "\"fp32\", \"fp16\" or \"bf16\"";
	case KEY_NAME:
		return "a string of up to 31 bytes";
	case KEY_PATHS:
		return "a path or a list of 1 to 16 paths";
	default:
		return "anything";
	}
}

const char *config_key_allows(const struct config_key *key, char text[160])
{
	if (key->type == KEY_U32 || key->type == KEY_U64)
		whole_numbers(key, text);
	else
		snprintf(text, 160, "%s", other_values(key));
	return text;
}

void config_key_set_default(const struct config_key *key, struct nvs_config *config)
{
	char *at = (char *)config + key->place;

	switch (key->type) {
	case KEY_BOOL:
		*(bool *)at = key->whole;
		break;
	case KEY_U32:
		*(uint32_t *)(void *)at = (uint32_t)key->whole;
		break;
	case KEY_U64:
		*(uint64_t *)(void *)at = key->whole;
		break;
	case KEY_REAL:
		*(double *)(void *)at = key->real;
		break;
	case KEY_BETAS:
		((double *)(void *)at)[0] = key->real;
		((double *)(void *)at)[1] = key->second;
		break;
	case KEY_DEVICE:
		*(enum nvs_device *)(void *)at = (enum nvs_device)key->whole;
		break;
	case KEY_IOENGINE:
		*(enum nvs_ioengine *)(void *)at = (enum nvs_ioengine)key->whole;
		break;
	case KEY_GRAD:
		*(enum nvs_dtype *)(void *)at = config->param_dtype;
		break;
	case KEY_NAME:
		*at = '\0';
		break;
	case KEY_BLOCK:
	case KEY_PATHS:
	case KEY_UNUSED:
		break;
	}
}
