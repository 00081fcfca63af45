/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap bench`: its options, and the configuration and the model that they come to. The run
 * itself is in bench_run.c, what is told of it in bench_text.c and bench_json.c.
 */
#include "bench.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "bench_report.h"
#include "commands.h"
#include "layers.h"
#include "parameters.h"

#define POOL_MIN_BYTES (256u << 20)
#define STEPS	       3    /* their least, mean and most are told */
#define THREADS_MAX    1024 /* as its key has it */
#define FIELD(name)    offsetof(struct bench_options, name)

static const char *const rw_names[] = {"swapout", "swapin", "swap", "step", "params", NULL};
static const char *const ioengine_names[] = {"auto", "io_uring", "libaio", "posix", NULL};
static const char *const format_names[] = {"normal", "json", NULL};
static const char *const not_with_model[] = {"tensors", "tensor-size", NULL};
static const char *const not_with_runtime[] = {"loops", NULL};
static const char *const not_with_scale[] = {"size-limit", NULL};

static const struct option_spec option_specs[] = {
	{"config", "FILE", OPTION_STRING, FIELD(config),
	 .help = "a DeepSpeed JSON configuration, whole or only its blocks"},
	{"nvme-path", "DIR", OPTION_LIST, FIELD(nvme_path),
	 .help = "where the store goes: a directory or a raw block device; give it\n"
		 "several times to stripe over several drives. The store is removed\n"
		 "at the end"},
	{"model", "FILE", OPTION_STRING, FIELD(model), .excludes = not_with_model,
	 .help = "a .safetensors file, whose tensors are the data, or a JSON file in the\n"
		 "form of its header, for the shapes alone"},
	{"tensors", "N", OPTION_COUNT, FIELD(tensors), .min = 1, .max = MODEL_TENSORS_MAX,
	 .help = "made-up tensors instead of a model (16)"},
	{"tensor-size", "SIZE", OPTION_SIZE, FIELD(tensor_size), .min = 1, .max = 1ull << 50,
	 .help = "bytes in each of them (64m); with --rw step, of its weights"},
	{"scale", "SHARE", OPTION_SHARE, FIELD(scale), .excludes = not_with_scale,
	 .help = "only the model's first tensors, up to this share of its bytes, such\n"
		 "as 0.25; at least one"},
	{"size-limit", "SIZE", OPTION_SIZE, FIELD(size_limit), .min = 1, .max = 1ull << 60,
	 .help = "only the model's first tensors, up to so many bytes; at least one"},
	{"rw", "MODE", OPTION_CHOICE, FIELD(rw), .choices = rw_names,
	 .help = "swapout writes the tensors, swapin reads them, swap reads, changes and\n"
		 "writes back. step: optimizer steps over state on the drive. params:\n"
		 "forward and backward over the layers (swap)"},
	{"loops", "N", OPTION_COUNT, FIELD(loops), .min = 1, .max = 1000000000,
	 .help = "times through the model (1); with --rw step or params, steps (3)"},
	{"runtime", "TIME", OPTION_DURATION, FIELD(runtime_ms), .min = 1, .max = 31536000000,
	 .excludes = not_with_runtime, .help = "instead of loops: go on for 30, 500ms, 5m, 1h"},
	{"ramp-loops", "N", OPTION_COUNT, FIELD(ramp_loops), .max = 1000000000,
	 .help = "times through the model, or steps, before the measuring begins (0)"},
	{"bs", "SIZE", OPTION_SIZE, FIELD(bs), .min = NVS_BLOCK_SIZE_MIN, .max = NVS_BLOCK_SIZE_MAX,
	 .multiple = 512, .help = "aio.block_size: bytes in one I/O"},
	{"iodepth", "N", OPTION_COUNT, FIELD(iodepth), .min = 1, .max = NVS_QUEUE_DEPTH_MAX,
	 .help = "aio.queue_depth: I/Os in flight on each worker"},
	{"numjobs", "N", OPTION_COUNT, FIELD(numjobs), .min = 1, .max = NVS_THREAD_COUNT_MAX,
	 .help = "aio.thread_count: workers"},
	{"ioengine", "ENGINE", OPTION_CHOICE, FIELD(ioengine), .choices = ioengine_names,
	 .help = "auto takes the first of the others that works here (auto)"},
	{"pool", "SIZE", OPTION_SIZE, FIELD(pool), .min = 4096, .max = 1ull << 50,
	 .help = "bytes of the pool, for buffer_count x buffer_size. Without it and\n"
		 "--config: 256m, or twice the longest tensor if that is more; with\n"
		 "--rw params three times the longest layer, with --rw step 256m. It\n"
		 "must hold the longest tensor, and with --rw params the longest layer.\n"
		 "With --rw step it sets sub_group_size too, and is beside --max-in-cpu"},
	{"max-in-cpu", "ELEMENTS", OPTION_COUNT, FIELD(max_in_cpu), .max = 1ull << 50,
	 .help = "--rw step: elements whose state stays in memory from step to step,\n"
		 "nvswap.optimizer_max_in_cpu. --rw params: offload_param.max_in_cpu.\n"
		 "No other mode"},
	{"compute-us", "N", OPTION_COUNT, FIELD(compute_us), .max = 3600000000,
	 .help = "microseconds that each visit of a layer computes (0); --rw params alone"},
	{"threads", "N", OPTION_COUNT, FIELD(threads), .min = 1, .max = THREADS_MAX,
	 .help = "nvswap.optimizer_threads: that compute; --rw step alone"},
	{"verify", NULL, OPTION_FLAG, FIELD(verify),
	 .help = "compare every byte that was swapped in with what was swapped out,\n"
		 "new contents each time; rates include that work, CPU per GiB does not.\n"
		 "With --rw step: compare a sample of each group, up to four runs of 4096\n"
		 "elements, with a scalar Adam in double, to within the rounding of fp32"},
	{"seed", "N", OPTION_COUNT, FIELD(seed), .max = UINT64_MAX,
	 .help = "of the data of tensors that no file gives, and of all data of --rw step,\n"
		 "which takes shapes alone from a model (1)"},
	{"trace", "FILE", OPTION_STRING, FIELD(trace),
	 .help = "a timeline of the run, for Perfetto or chrome://tracing"},
	{"output-format", "FORMAT", OPTION_CHOICE, FIELD(format), .choices = format_names,
	 .help = "a table, or JSON in the shape of fio's (normal)"},
	{"output", "FILE", OPTION_STRING, FIELD(output),
	 .help = "where the result goes (standard output)"},
};

static const struct command_spec command = {
	.name = "bench",
	.summary =
		"Swaps the tensors of a model between a pinned pool in host memory and NVMe,\n"
		"batch by batch, measures it, and verifies it if asked. Options override the\n"
		"configuration. Modes swapin and swap begin with a swap-out of all, which is not\n"
		"measured with the rest. Modes step and params run training steps instead, and\n"
		"begin with one that is not measured: it makes the optimizer's state, or records\n"
		"the order in which layers are used.",
	.notes = "Sizes are in bytes or with k, m, g or t, of 1024: 4096, 4k, 1M, 1g. Other "
		 "numbers\n"
		 "may be written as in the configuration: 1e9, 2.5e7.\n"
		 "The exit status is 0 only if every byte was moved and, with --verify, compared\n"
		 "equal; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.options = option_specs,
	.noptions = sizeof(option_specs) / sizeof(*option_specs),
};

/* What there is to run without a configuration. */
static const char step_defaults[] =
	"{\"bf16\": {\"enabled\": true},"
	" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
	" \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"none\","
	"  \"pipeline_read\": true, \"pipeline_write\": true, \"fast_init\": true}}}";

/* Options that do something in some modes alone. */
static const struct {
	const char *name, *modes;
	unsigned rw[2];
} limited[] = {
	{"compute-us", "--rw params", {RW_PARAMS, RW_PARAMS}},
	{"threads", "--rw step", {RW_STEP, RW_STEP}},
	{"max-in-cpu", "--rw step and --rw params", {RW_STEP, RW_PARAMS}},
};

static bool was_given(const struct options_given *given, const char *name)
{
	for (unsigned i = 0; i < command.noptions; i++)
		if (!strcmp(command.options[i].name, name))
			return given->text[i] != NULL;
	assert(!"an option of this command");
	return false;
}

static struct nvs_offload_config *own_block(struct nvs_config *config, enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? &config->param : &config->optimizer;
}

static int check_modes(const struct bench_options *options, const struct options_given *given)
{
	for (size_t i = 0; i < sizeof(limited) / sizeof(*limited); i++) {
		if (!was_given(given, limited[i].name) || options->rw == limited[i].rw[0] ||
		    options->rw == limited[i].rw[1])
			continue;
		say("--%s does nothing with --rw %s: it is for %s", limited[i].name,
		    rw_names[options->rw], limited[i].modes);
		return -EINVAL;
	}
	return 0;
}

static int load_model(const struct bench_options *options, const struct options_given *given,
		      struct model *model, struct nvs_error *error)
{
	int rc = options->model ? model_load(model, options->model, error)
				: model_make(model, options->tensors, options->tensor_size, error);

	if (rc)
		return rc;
	if (was_given(given, "scale"))
		model_limit(model, (uint64_t)((double)model->nbytes * options->scale));
	if (was_given(given, "size-limit"))
		model_limit(model, options->size_limit);
	return 0;
}

static void take_options(const struct bench_options *options, const struct options_given *given,
			 struct nvs_config *config)
{
	if (options->bs)
		config->aio.block_size = (uint32_t)options->bs;
	if (options->iodepth)
		config->aio.queue_depth = (uint32_t)options->iodepth;
	if (options->numjobs)
		config->aio.thread_count = (uint32_t)options->numjobs;
	if (was_given(given, "ioengine"))
		nvs_ioengine_parse(ioengine_names[options->ioengine], &config->aio.ioengine);
	if (options->threads)
		config->optimizer_threads = (uint32_t)options->threads;
	if (was_given(given, "max-in-cpu") && options->rw == RW_STEP)
		config->optimizer_max_in_cpu = options->max_in_cpu;
	if (was_given(given, "max-in-cpu") && options->rw == RW_PARAMS)
		config->param.max_in_cpu = options->max_in_cpu;
}

static int load_config(const struct bench_options *options, const struct options_given *given,
		       struct nvs_config *config, struct nvs_error *error)
{
	int rc;

	config->log.fn = say_log;
	if (options->config)
		rc = nvs_config_load(config, options->config, error);
	else if (options->rw == RW_STEP)
		rc = nvs_config_parse(config, step_defaults, sizeof(step_defaults) - 1,
				      "the defaults of --rw step", error);
	else
		rc = 0;
	if (rc)
		return rc;
	take_options(options, given, config);
	/* A benchmark's data are worth nothing, and must never replace those of a kept store. */
	if (config->keep)
		say_log(NULL, NVS_LOG_WARNING,
			"\"keep\" is ignored: bench neither keeps a store nor uses a kept one");
	config->keep = false;
	return 0;
}
/*
 * The block that says where to: that of the mode, or parameters before optimizer; paths by option
 * make one.
 */
static int choose_block(const struct bench_options *options, struct nvs_config *config,
			enum nvs_block *block, struct nvs_error *error)
{
	bool optimizer = config->param.device == NVS_DEVICE_NONE &&
			 config->optimizer.device != NVS_DEVICE_NONE;

	if (options->rw == RW_STEP || options->rw == RW_PARAMS)
		optimizer = options->rw == RW_STEP;
	*block = optimizer ? NVS_OFFLOAD_OPTIMIZER : NVS_OFFLOAD_PARAM;
	if (options->nvme_path.n)
		return nvs_config_set_paths(own_block(config, *block), options->nvme_path.items,
					    options->nvme_path.n, error);
	return 0;
}

static uint64_t element_bytes(const struct nvs_config *config, enum nvs_block block)
{
	struct nvs_config one = *config;

	own_block(&one, block)->buffer_count = 1;
	own_block(&one, block)->buffer_size = 1;
	one.optimizer_max_in_cpu = 0;
	return nvs_config_pool_bytes(&one, block);
}

/* Keeps the number of buffers where they make up the pool exactly. */
static void set_pool(struct nvs_config *config, enum nvs_block block, uint64_t nbytes)
{
	struct nvs_offload_config *offload = own_block(config, block);
	uint64_t element = element_bytes(config, block);

	if (!offload->buffer_count || nbytes % (offload->buffer_count * element))
		offload->buffer_count = 1;
	offload->buffer_size = (nbytes / offload->buffer_count + element - 1) / element;
}

/* Twice, and what rounding the tensors up to whole pages may add; of layers three, so that one can
 * be read and one be given up while one is in use. */
static uint64_t default_pool(const struct bench_options *options, const struct model *model)
{
	uint64_t largest = model_largest(model), nbytes = largest;

	if (options->rw == RW_STEP)
		return POOL_MIN_BYTES;
	if (options->rw == RW_PARAMS)
		largest = layers_largest(model);
	if (largest <= UINT64_MAX / 4)
		nbytes = (options->rw == RW_PARAMS ? 3 : 2) * largest + (1u << 20);
	return nbytes > POOL_MIN_BYTES ? nbytes : POOL_MIN_BYTES;
}

/* No larger than what there is: elements of the pool's type. */
static uint64_t needed_numel(const struct bench_options *options, const struct model *model,
			     const struct nvs_config *config, uint64_t element)
{
	return options->rw == RW_STEP ? parameters_numel(model, config->param_dtype)
				      : (model->nbytes + element - 1) / element;
}

static void size_pool(const struct bench_options *options, const struct model *model,
		      struct nvs_config *config, enum nvs_block block)
{
	uint64_t element = element_bytes(config, block);
	uint64_t numel = needed_numel(options, model, config, element);
	struct nvs_offload_config *offload = own_block(config, block);

	if (options->pool || !options->config) {
		set_pool(config, block,
			 options->pool ? options->pool : default_pool(options, model));
		/* Groups follow, for a buffer takes one. */
		if (options->rw == RW_STEP)
			config->sub_group_size = offload->buffer_size;
	} else if (block == NVS_OFFLOAD_OPTIMIZER) {
		offload->buffer_size = config->sub_group_size < numel ? config->sub_group_size
								      : numel;
	}
}

static int write_report(struct output *output, const struct bench_report *report)
{
	int rc = 0;

	if (report->options->format == FORMAT_JSON) {
		rc = output_begin(output);
		if (!rc && bench_report_json(output->file, report)) {
			say("no memory for the report");
			rc = STATUS_FAILED;
		}
	} else if (report->result->measured) {
		rc = output_begin(output);
		if (!rc)
			bench_report_text(output->file, report);
	}
	return output_close(output) ? STATUS_FAILED : rc;
}

static int exit_status(const struct bench_result *result)
{
	if (!result->error.code)
		return 0;
	say("%s", result->error.text);
	return result->signal ? 128 + result->signal : STATUS_FAILED;
}

/* Everything after the options were understood; the report has whatever it came to. */
static int bench(const struct bench_options *options, const struct options_given *given,
		 struct output *output, struct model *model, struct nvs_config *config)
{
	struct bench_result result = {0};
	struct bench_report report = {.command = &command,
				      .given = given,
				      .options = options,
				      .model = model,
				      .result = &result};
	int status;

	result.error.code = load_config(options, given, config, &result.error);
	if (!result.error.code)
		result.error.code = choose_block(options, config, &report.block, &result.error);
	if (!result.error.code && config_block(config, report.block)->device == NVS_DEVICE_NONE) {
		say("nothing says where to swap to: give --nvme-path DIR, or --config FILE with an "
		    "%s block whose \"device\" is \"nvme\" or \"cpu\"",
		    options->rw == RW_STEP     ? "offload_optimizer"
		    : options->rw == RW_PARAMS ? "offload_param"
					       : "offload_param or offload_optimizer");
		return output_close(output) ? STATUS_FAILED : STATUS_USAGE;
	}
	if (!result.error.code)
		result.error.code = load_model(options, given, model, &result.error);
	if (!result.error.code) {
		size_pool(options, model, config, report.block);
		report.config = config;
		bench_run(options, config, report.block, model, &result);
	}
	status = exit_status(&result);
	if (write_report(output, &report) && !status)
		status = STATUS_FAILED;
	return status;
}

int cmd_bench(int argc, char **argv)
{
	struct bench_options options = {.tensors = 16,
					.tensor_size = 64u << 20,
					.rw = RW_SWAP,
					.scale = 1,
					.loops = 1,
					.seed = 1};
	struct options_given given;
	struct nvs_config config;
	struct model model = {.fd = -1};
	struct output output;
	int status = options_parse(&command, argc, argv, &options, &given);

	if (!status)
		status = check_modes(&options, &given);
	if (!was_given(&given, "loops") && (options.rw == RW_STEP || options.rw == RW_PARAMS))
		options.loops = STEPS;
	if (status)
		return status == OPTIONS_HELP ? options_help(&command) : STATUS_USAGE;
	if (output_open(&output, options.output))
		return STATUS_FAILED;
	nvs_config_init(&config);
	status = bench(&options, &given, &output, &model, &config);
	nvs_config_free(&config);
	model_free(&model);
	return status;
}
