/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of keys, and the functions that need nothing else. Names, units and defaults are
 * DeepSpeed's.
 */
#include "config/reader.h"

#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"

/* At 8 bytes per element, this many elements still fit into an off_t. */
#define ELEMENTS_MAX ((uint64_t)1000000000000000000)
/* The elements of an optimizer; with the default buffer_count a pool of such buffers is 2^60
 * bytes. */
#define SUB_GROUP_MAX ((uint64_t)1 << 56)
#define BUFFERS_MAX   ((uint64_t)1 << 20)
#define STRIPE_MAX    ((uint64_t)1 << 40)
#define BUDGET_MAX    ((uint64_t)1 << 60)
#define THREADS_MAX   1024
#define POWER_MAX     127 /* power of two that a float can represent */

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
#define CHOICE(block_, name_, choices_, field_, default_, text_, meaning_)                         \
	{                                                                                          \
		KEY(block_, name_, CHOICE, meaning_), AT(field_),                                  \
			.choices = &(choices_), .whole = (default_), .default_text = (text_)       \
	}
#define UNUSED(block_, name_, meaning_)                                                            \
	{                                                                                          \
		KEY(block_, name_, UNUSED, meaning_)                                               \
	}

static const char *const grad_names[] = {
	[NVS_F32] = "fp32", [NVS_F16] = "fp16", [NVS_BF16] = "bf16"};
static const char *const state_names[] = {[NVS_STATE_FP32] = "fp32",
					  [NVS_STATE_SPLIT] = "split",
					  [NVS_STATE_BF16] = "bf16",
					  [NVS_STATE_8BIT] = "8bit"};
static const char *const depth_names[] = {
	[DEEPSPEED_OPS] = "ops", [DEEPSPEED_SWAPPERS] = "swappers", [DEEPSPEED_STEP] = "step"};
static const struct config_choices grad_dtypes = {grad_names, COUNT_OF(grad_names), false};
static const struct config_choices optimizer_states = {state_names, COUNT_OF(state_names), true};
static const struct config_choices deepspeed_depths = {depth_names, COUNT_OF(depth_names), false};

const char *optimizer_state_name(enum nvs_optimizer_state state)
{
	assert((unsigned)state < COUNT_OF(state_names));
	return state_names[state];
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
	     "maximum norm of the gradients of an optimizer step; 0: no clipping. DeepSpeed's own "
	     "default is 1.0 from 0.19.3 on"),

	WHOLE(AIO, "block_size", 32, aio.block_size, 1048576, NVS_BLOCK_SIZE_MIN,
	      NVS_BLOCK_SIZE_MAX, 512, "bytes per I/O"),
	WHOLE(AIO, "queue_depth", 32, aio.queue_depth, 8, 1, NVS_QUEUE_DEPTH_MAX, 0,
	      "I/Os in flight per worker; with the posix engine at most 256"),
	WHOLE(AIO, "thread_count", 32, aio.thread_count, 1, 1, NVS_THREAD_COUNT_MAX, 0,
	      "I/O threads"),
	WHOLE(AIO, "intra_op_parallelism", 32, aio.thread_count, 1, 1, NVS_THREAD_COUNT_MAX, 0,
	      "alias of `thread_count`"),
	WHOLE(AIO, "num_threads", 32, aio.thread_count, 1, 1, NVS_THREAD_COUNT_MAX, 0,
	      "alias of `thread_count`, as ds_nvme_tune prints it"),
	BOOL(AIO, "single_submit", aio.single_submit, false, "submit one I/O per system call"),
	BOOL(AIO, "overlap_events", aio.overlap_events, true,
	     "submit I/Os while earlier ones are in flight; false: fill the queue, drain it, "
	     "repeat"),
	BOOL(AIO, "use_gds", aio.use_gds, false,
	     "GPUDirect Storage; not supported: opening an engine fails with the reason"),

	BLOCK(ZERO, "offload_param", PARAM),
	BLOCK(ZERO, "offload_optimizer", OPTIMIZER),
	WHOLE(ZERO, "sub_group_size", 64, sub_group_size, 1000000000, 1, SUB_GROUP_MAX, 0,
	      "maximum elements of an optimizer group; elements per buffer of the optimizer's "
	      "pool"),
	WHOLE(ZERO, "stage3_prefetch_bucket_size", 64, prefetch_bucket_size, 50000000, 0,
	      ELEMENTS_MAX, 0, "elements that the plan prefetches"),
	WHOLE(ZERO, "prefetch_bucket_size", 64, prefetch_bucket_size, 50000000, 0, ELEMENTS_MAX, 0,
	      "alias of `stage3_prefetch_bucket_size`"),
	WHOLE(ZERO, "stage3_max_live_parameters", 64, max_live_parameters, 1000000000, 0,
	      ELEMENTS_MAX, 0,
	      "elements in the pool, pinned or not, up to which the plan prefetches and keeps "
	      "tensors"),
	WHOLE(ZERO, "max_live_parameters", 64, max_live_parameters, 1000000000, 0, ELEMENTS_MAX, 0,
	      "alias of `stage3_max_live_parameters`"),
	WHOLE(ZERO, "stage3_max_reuse_distance", 64, max_reuse_distance, 1000000000, 0,
	      ELEMENTS_MAX, 0,
	      "tensors that the plan needs again within this many elements stay in the pool, in "
	      "addition to `max_in_cpu`"),
	WHOLE(ZERO, "max_reuse_distance", 64, max_reuse_distance, 1000000000, 0, ELEMENTS_MAX, 0,
	      "alias of `stage3_max_reuse_distance`"),
	WHOLE(ZERO, "stage3_param_persistence_threshold", 64, param_persistence_threshold, 100000,
	      0, ELEMENTS_MAX, 0,
	      "tensors of the plan with fewer elements stay in the pool between steps, in addition "
	      "to `max_in_cpu`, if half of it holds them"),
	WHOLE(ZERO, "param_persistence_threshold", 64, param_persistence_threshold, 100000, 0,
	      ELEMENTS_MAX, 0, "alias of `stage3_param_persistence_threshold`"),
	UNUSED(ZERO, "cpu_offload",
	       "set \"offload_optimizer\": {\"device\": \"cpu\"} to offload the optimizer"),
	UNUSED(ZERO, "cpu_offload_param",
	       "set \"offload_param\": {\"device\": \"cpu\"} to offload parameters"),
	UNUSED(ZERO, "cpu_offload_params",
	       "set \"offload_param\": {\"device\": \"cpu\"} to offload parameters"),
	UNUSED(ZERO, "cpu_offload_use_pin_memory",
	       "set \"pin_memory\" in `offload_param` and `offload_optimizer`"),

	CHOICE(PARAM, "device", config_devices, offload[NVS_OFFLOAD_PARAM].device, NVS_DEVICE_NONE,
	       "\"none\"", "where parameters are stored"),
	{KEY(PARAM, "nvme_path", PATHS, "directories or raw block devices"),
	 AT(offload[NVS_OFFLOAD_PARAM])},
	BOOL(PARAM, "pin_memory", offload[NVS_OFFLOAD_PARAM].pin_memory, false,
	     "true: lock the whole pool or fail to open; false: lock as much as the system allows"),
	WHOLE(PARAM, "buffer_count", 32, offload[NVS_OFFLOAD_PARAM].buffer_count, 5, 1, BUFFERS_MAX,
	      0, "buffers in the pool"),
	WHOLE(PARAM, "buffer_size", 64, offload[NVS_OFFLOAD_PARAM].buffer_size, 100000000, 1,
	      ELEMENTS_MAX, 0, "elements per buffer"),
	WHOLE(PARAM, "max_in_cpu", 64, offload[NVS_OFFLOAD_PARAM].max_in_cpu, 1000000000, 0,
	      ELEMENTS_MAX, 0, "elements of unpinned tensors that may stay in the pool"),

	CHOICE(OPTIMIZER, "device", config_devices, offload[NVS_OFFLOAD_OPTIMIZER].device,
	       NVS_DEVICE_NONE, "\"none\"", "where optimizer state is stored"),
	{KEY(OPTIMIZER, "nvme_path", PATHS, "directories or raw block devices"),
	 AT(offload[NVS_OFFLOAD_OPTIMIZER])},
	BOOL(OPTIMIZER, "pin_memory", offload[NVS_OFFLOAD_OPTIMIZER].pin_memory, false,
	     "true: lock the whole pool or fail to open; false: lock as much as the system allows"),
	WHOLE(OPTIMIZER, "buffer_count", 32, offload[NVS_OFFLOAD_OPTIMIZER].buffer_count, 4, 1,
	      BUFFERS_MAX, 0, "buffers in the pool"),
	BOOL(OPTIMIZER, "fast_init", offload[NVS_OFFLOAD_OPTIMIZER].fast_init, false,
	     "initialize the state in the first step; false: write it when the optimizer is "
	     "opened"),
	REAL(OPTIMIZER, "ratio", offload[NVS_OFFLOAD_OPTIMIZER].ratio, 1, 1,
	     "fraction of elements whose state is offloaded, in whole groups; the rest stays in "
	     "memory"),
	BOOL(OPTIMIZER, "pipeline_read", offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read, false,
	     "read tiles while earlier ones are computed; false: read a tile after the previous "
	     "one is computed"),
	BOOL(OPTIMIZER, "pipeline_write", offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write, false,
	     "write tiles while later ones are computed; false: write a tile before the next one "
	     "is computed"),
	UNUSED(OPTIMIZER, "pipeline", "set \"pipeline_read\" and \"pipeline_write\""),
	UNUSED(OPTIMIZER, "buffer_size",
	       "zero_optimization.sub_group_size is the size of a buffer"),
	UNUSED(OPTIMIZER, "super_offload", "only DeepSpeed's own CPU optimizer uses it"),
	UNUSED(OPTIMIZER, "cpuadam_cores_perc", "only DeepSpeed's own CPU optimizer uses it"),
	UNUSED(OPTIMIZER, "convert_grad_on_cpu", "only DeepSpeed's own CPU optimizer uses it"),

	BOOL(FP16, "enabled", fp16.enabled, false, "float16 parameters, and a loss scale"),
	REAL(FP16, "loss_scale", fp16.loss_scale, 0, DBL_MAX,
	     "fixed loss scale, by which gradients are divided; 0: dynamic loss scale"),
	WHOLE(FP16, "initial_scale_power", 32, fp16.initial_scale_power, 16, 0, POWER_MAX, 0,
	      "initial dynamic loss scale, as a power of 2"),
	WHOLE(FP16, "loss_scale_window", 32, fp16.loss_scale_window, 1000, 1, UINT32_MAX, 0,
	      "consecutive steps without overflow after which the dynamic loss scale doubles"),
	WHOLE(FP16, "hysteresis", 32, fp16.hysteresis, 2, 1, UINT32_MAX, 0,
	      "first overflow, counted from 1, that halves the dynamic loss scale, as all later "
	      "ones do"),
	BOOL(FP16, "consecutive_hysteresis", fp16.consecutive_hysteresis, false,
	     "a step without overflow resets the hysteresis; false: only a doubling of the loss "
	     "scale does"),
	REAL(FP16, "min_loss_scale", fp16.min_loss_scale, 1, DBL_MAX,
	     "lower bound of the dynamic loss scale, which is 2^-24 at least; an overflow at the "
	     "bound is an error"),
	BOOL(FP16, "fp16_master_weights_and_grads", fp16.master_weights, false,
	     "master weights and gradients in float16; not supported: opening an optimizer fails"),
	BOOL(BF16, "enabled", bf16_enabled, false, "bfloat16 parameters"),
	BOOL(BF16, "bf16_master_weights_and_grads", bf16_master_weights, false,
	     "master weights and gradients in bfloat16; not supported: opening an optimizer fails"),
	BOOL(BF16, "bf16_optimizer_states", bf16_optimizer_states, false,
	     "optimizer state in bfloat16: a DeepSpeed job has optimizer_state \"bf16\"; elsewhere "
	     "opening an optimizer fails"),
	CHOICE(DATA_TYPES, "grad_accum_dtype", grad_dtypes, grad_accum_dtype, 0,
	       "the parameters' type", "element type in which gradients are accumulated"),

	{KEY(ADAM, "type", NAME,
	     "\"Adam\" (used if the key is absent), \"AdamW\", \"SGD\", \"Adagrad\" or \"Lion\", "
	     "case-insensitive; any other needs the program's own update function"),
	 AT(adam.type)},
	BLOCK(ADAM, "params", ADAM_PARAMS),
	REAL(ADAM_PARAMS, "lr", adam.lr, 1e-3, DBL_MAX,
	     "learning rate, unless a step is given another; the default of Adagrad is 1e-2"),
	{KEY(ADAM_PARAMS, "betas", BETAS,
	     "decay rates of the running averages; the default of Lion is [0.9, 0.99]"),
	 AT(adam.beta1), .real = 0.9, .second = 0.999, .default_text = "[0.9, 0.999]"},
	REAL(ADAM_PARAMS, "eps", adam.eps, 1e-8, DBL_MAX,
	     "added to the denominator; the default of Adagrad is 1e-10"),
	REAL(ADAM_PARAMS, "weight_decay", adam.weight_decay, 0, DBL_MAX, "weight decay"),
	BOOL(ADAM_PARAMS, "bias_correction", adam.bias_correction, true,
	     "correct the bias of the first steps"),
	BOOL(ADAM_PARAMS, "amsgrad", adam.amsgrad, false,
	     "AMSGrad; not supported: opening an optimizer fails"),
	BOOL(ADAM_PARAMS, "adam_w_mode", adam.adam_w_mode, true,
	     "decoupled weight decay of Adam; always on with \"type\": \"AdamW\""),
	REAL(ADAM_PARAMS, "momentum", adam.momentum, 0, DBL_MAX, "momentum of SGD"),
	REAL(ADAM_PARAMS, "dampening", adam.dampening, 0, DBL_MAX,
	     "what of a gradient SGD's momentum leaves out"),
	BOOL(ADAM_PARAMS, "nesterov", adam.nesterov, false, "Nesterov momentum of SGD"),
	BOOL(ADAM_PARAMS, "maximize", adam.maximize, false,
	     "step along the gradients, to maximize"),
	REAL(ADAM_PARAMS, "lr_decay", adam.lr_decay, 0, DBL_MAX,
	     "Adagrad divides lr by 1 + (step - 1) x this"),
	REAL(ADAM_PARAMS, "initial_accumulator_value", adam.initial_accumulator_value, 0, DBL_MAX,
	     "Adagrad's sum before the first step"),

	CHOICE(NVSWAP, "ioengine", config_ioengines, aio.ioengine, NVS_IOENGINE_AUTO, "\"auto\"",
	       "I/O engine"),
	WHOLE(NVSWAP, "io_timeout_ms", 32, aio.io_timeout_ms, 0, 0, NVS_IO_TIMEOUT_MS_MAX, 0,
	      "milliseconds after which an I/O that has not completed is reported; 0: never"),
	{KEY(NVSWAP, "verify", VERIFY, "checksum every tensor, and check it at each swap-in"),
	 AT(verify), .whole = VERIFY_IF_KEPT, .default_text = "`keep`"},
	BOOL(NVSWAP, "keep", keep, false,
	     "keep the store for the next engine; it takes twice the space of its tensors"),
	BOOL(NVSWAP, "read_only", read_only, false,
	     "open a kept store for reading: several engines may, and nothing is written"),
	BOOL(NVSWAP, "scrub", scrub, false,
	     "while nothing moves, read what is on the drive alone and compare its checksums"),
	BOOL(NVSWAP, "rollback", rollback, false,
	     "open a kept store whose last commit is lost to damage as of the commit before it"),
	WHOLE(NVSWAP, "rank", 32, rank, 0, 0, UINT32_MAX, 0,
	      "number of the store under the paths, or the name of the environment variable that "
	      "has it; see nvs_config_read_rank"),
	{KEY(NVSWAP, "param_nvme_path", PATHS,
	     "`nvme_path` of offload_param, in its place: DeepSpeed takes no list there"),
	 AT(offload[NVS_OFFLOAD_PARAM])},
	{KEY(NVSWAP, "optimizer_nvme_path", PATHS,
	     "`nvme_path` of offload_optimizer, in its place"),
	 AT(offload[NVS_OFFLOAD_OPTIMIZER])},
	WHOLE(NVSWAP, "stripe_size", 64, stripe_size, 0, 0, STRIPE_MAX, 512,
	      "bytes per stripe; 0: block_size or, in a kept store, its own"),
	{KEY(NVSWAP, "write_budget", U64,
	     "bytes that all runs with this key may write below each path: a warning at nine "
	     "tenths, and no run starts beyond; 0: any number"),
	 AT(write_budget), .suffix = true, .default_text = "0", .max = BUDGET_MAX},
	WHOLE(NVSWAP, "optimizer_max_in_cpu", 64, optimizer_max_in_cpu, 0, 0, ELEMENTS_MAX, 0,
	      "elements whose optimizer state stays in the pool between steps"),
	WHOLE(NVSWAP, "optimizer_threads", 32, optimizer_threads, 0, 0, THREADS_MAX, 0,
	      "threads that compute optimizer steps; 0: one per core near the drive"),
	CHOICE(NVSWAP, "optimizer_state", optimizer_states, optimizer_state, NVS_STATE_FP32,
	       "\"fp32\"",
	       "format of the optimizer's state: master weights and moments in fp32, or in fewer "
	       "bytes; see docs/state-formats.md"),
	BOOL(NVSWAP, "overlap_step", overlap_step, false,
	     "every step goes through the state from the first group to the last, and a DeepSpeed "
	     "job's goes on behind its next forward"),
	BOOL(NVSWAP, "progress", progress, true,
	     "a DeepSpeed job says on standard error how far its stores are filled, and at its end "
	     "what was moved; false: nothing"),
	BOOL(NVSWAP, "strict", strict, false,
	     "a block in the wrong place, and a near miss of a block's name, is an error; false: a "
	     "warning"),
	CHOICE(NVSWAP, "deepspeed", deepspeed_depths, deepspeed, DEEPSPEED_STEP, "\"step\"",
	       "what the Python package replaces in DeepSpeed"),
};

const unsigned config_key_count = COUNT_OF(config_keys);

_Static_assert(COUNT_OF(config_keys) <= CONFIG_KEYS_MAX, "seen[] is short");
_Static_assert(offsetof(struct optimizer_config, beta2) ==
		       offsetof(struct optimizer_config, beta1) + sizeof(double),
	       "KEY_BETAS writes both");

const struct block_traits config_blocks[BLOCK_COUNT] = {
	[BLOCK_ROOT] = {"", .takes_auto = true},
	[BLOCK_AIO] = {"aio", .strict = true, .is_model = true},
	[BLOCK_ZERO] = {"zero_optimization", .takes_auto = true, .is_model = true},
	[BLOCK_PARAM] = {"offload_param", .strict = true, .takes_auto = true, .is_model = true},
	[BLOCK_OPTIMIZER] = {"offload_optimizer", .strict = true, .takes_auto = true,
			     .is_model = true},
	[BLOCK_FP16] = {"fp16", .takes_auto = true, .is_model = true},
	[BLOCK_BF16] = {"bf16", .takes_auto = true, .is_model = true},
	[BLOCK_DATA_TYPES] = {"data_types", .takes_auto = true},
	[BLOCK_ADAM] = {"optimizer", .takes_auto = true},
	[BLOCK_ADAM_PARAMS] = {"optimizer.params", .takes_auto = true},
	[BLOCK_NVSWAP] = {"nvswap", .strict = true},
};

const struct config_key *config_key_find(enum config_block block, const char *name, size_t length)
{
	for (unsigned i = 0; i < config_key_count; i++)
		if (config_keys[i].block == block && strlen(config_keys[i].name) == length &&
		    !memcmp(config_keys[i].name, name, length))
			return &config_keys[i];
	return NULL;
}

const char *config_choice_name(const struct config_choices *choices, uint64_t value)
{
	return value < choices->n ? choices->names[value] : NULL;
}

const char *config_key_home(enum config_block block, const char *name, size_t length,
			    char text[256])
{
	size_t used = 0;

	if (config_key_find(BLOCK_ROOT, name, length) &&
	    !config_key_find(BLOCK_ZERO, name, length) && block != BLOCK_ROOT)
		return "it belongs at the top of the file";
	for (unsigned i = 0; i < BLOCK_COUNT; i++) {
		const struct config_key *key = config_key_find((enum config_block)i, name, length);

		if (i != (unsigned)block && i != BLOCK_ROOT && key && key->type != KEY_UNUSED)
			used += (size_t)snprintf(text + used, 256 - used, "%s `%s`",
						 used ? " and of" : "it is a key of",
						 config_blocks[i].name);
	}
	return used ? text : NULL;
}

const char *config_key_suggest(enum config_block block, const char *name, size_t length,
			       char text[256])
{
	const char *home = config_key_home(block, name, length, text), *near;
	size_t used;

	if (home)
		return home;

	const char *names[CONFIG_KEYS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < config_key_count; i++)
		if (config_keys[i].block == block && config_keys[i].type != KEY_UNUSED)
			names[n++] = config_keys[i].name;
	near = nearest_name(name, names, n);
	if (near) {
		snprintf(text, 256, "did you mean `%s`?", near);
		return text;
	}
	used = (size_t)snprintf(text, 256, "the keys are");
	for (unsigned i = 0; i < n && used < 256; i++)
		used += (size_t)snprintf(text + used, 256 - used, " `%s`", names[i]);
	return text;
}

const char *config_key_allows(const struct config_key *key, char text[160])
{
	unsigned left = 0;
	int used = 0;

	switch (key->type) {
	case KEY_U32:
	case KEY_U64:
		used = snprintf(text, 160, "a whole number from %llu to %llu",
				(unsigned long long)key->min, (unsigned long long)key->max);
		if (key->multiple_of)
			snprintf(text + used, 160 - (size_t)used, ", a multiple of %llu",
				 (unsigned long long)key->multiple_of);
		if (key->suffix)
			snprintf(text + used, 160 - (size_t)used,
				 ", or a string such as \"50T\", of units of 1024");
		return text;
	case KEY_CHOICE: /* "a", "b" or "c" */
		for (unsigned i = 0; i < key->choices->n; i++)
			left += key->choices->names[i] != NULL;
		for (unsigned i = 0; i < key->choices->n; i++)
			if (key->choices->names[i])
				used += snprintf(text + used, 160 - (size_t)used, "\"%s\"%s",
						 key->choices->names[i],
						 --left > 1 ? ", "
						 : left	    ? " or "
							    : "");
		assert(used < 160);
		return text;
	case KEY_BLOCK:
		return "an object";
	case KEY_BOOL:
	case KEY_VERIFY:
		return "true or false";
	case KEY_REAL:
		return key->real_max < DBL_MAX ? "a number from 0 to 1" : "a number, 0 or more";
	case KEY_BETAS:
		return "a list of two numbers, each from 0 to less than 1";
	case KEY_NAME:
		return "a string of up to 31 bytes";
	case KEY_PATHS:
		return "a path or a list of 1 to 16 paths";
	case KEY_UNUSED:
		break;
	}
	return "anything";
}

uint64_t config_key_whole(const struct config_key *key, const struct nvs_config *config)
{
	const void *at = config_key_at(config, key);

	if (key->type == KEY_U64)
		return *(const uint64_t *)at;
	return key->type == KEY_BOOL ? *(const bool *)at : *(const uint32_t *)at;
}

void config_key_set_whole(const struct config_key *key, struct nvs_config *config, uint64_t whole)
{
	void *at = config_key_at(config, key);

	if (key->type == KEY_U64)
		*(uint64_t *)at = whole;
	else if (key->type == KEY_BOOL)
		*(bool *)at = whole;
	else
		*(uint32_t *)at = (uint32_t)whole;
}

void config_key_set_default(const struct config_key *key, struct nvs_config *config)
{
	double *real = config_key_at(config, key);

	switch (key->type) {
	case KEY_BOOL:
	case KEY_VERIFY:
	case KEY_U32:
	case KEY_U64:
	case KEY_CHOICE:
		config_key_set_whole(key, config,
				     key->choices == &grad_dtypes ? config->param_dtype
								  : key->whole);
		break;
	case KEY_BETAS:
		real[1] = key->second;
		real[0] = key->real;
		break;
	case KEY_REAL:
		*real = key->real;
		break;
	case KEY_NAME:
		*(char *)real = '\0';
		break;
	case KEY_BLOCK:
	case KEY_PATHS:
	case KEY_UNUSED:
		break;
	}
}
