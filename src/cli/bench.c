/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap bench`: the configuration and the model that its options come to. The options are in
 * bench_options.c, the run itself in bench_run.c, what is told of it in bench_text.c and
 * bench_json.c.
 */
#include "bench.h"

#include "bench_report.h"
#include "commands.h"
#include "layers.h"
#include "parameters.h"

#define POOL_MIN_BYTES (256u << 20)

/* What there is to run without a configuration. */
static const char step_defaults[] =
	"{\"bf16\": {\"enabled\": true},"
	" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
	" \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"none\","
	"  \"pipeline_read\": true, \"pipeline_write\": true, \"fast_init\": true}}}";

static struct nvs_offload_config *own_block(struct nvs_config *config, enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? &config->param : &config->optimizer;
}

static int load_model(const struct bench_options *options, const struct options_given *given,
		      struct model *model, struct nvs_error *error)
{
	int rc = options->model ? model_load(model, options->model, error)
				: model_make(model, options->tensors, options->tensor_size, error);

	if (rc)
		return rc;
	if (bench_option_given(given, "scale"))
		model_limit(model, (uint64_t)((double)model->nbytes * options->scale));
	if (bench_option_given(given, "size-limit"))
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
	if (bench_option_given(given, "ioengine"))
		config->aio.ioengine = (enum nvs_ioengine)options->ioengine;
	if (options->threads)
		config->optimizer_threads = (uint32_t)options->threads;
	if (bench_option_given(given, "max-in-cpu") && options->rw == RW_STEP)
		config->optimizer_max_in_cpu = options->max_in_cpu;
	if (bench_option_given(given, "max-in-cpu") && options->rw == RW_PARAMS)
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
	struct bench_report report = {.command = &bench_command,
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
	struct bench_options options;
	struct options_given given;
	struct nvs_config config;
	struct model model = {.fd = -1};
	struct output output;
	int status = bench_options_parse(&options, &given, argc, argv);

	if (status)
		return status == OPTIONS_HELP ? options_help(&bench_command) : STATUS_USAGE;
	if (output_open(&output, options.output))
		return STATUS_FAILED;
	nvs_config_init(&config);
	status = bench(&options, &given, &output, &model, &config);
	nvs_config_free(&config);
	model_free(&model);
	return status;
}
