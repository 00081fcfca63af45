/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options override the configuration, and the configuration the defaults. The jobs' processes
 * inherit the result by fork.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/bench/run.h"
#include "cli/commands.h"
#include "cli/modes/pool.h"
#include "cli/replay/replay.h"
#include "cli/settings.h"

/* The configuration of modes with an optimizer, without --config. */
static const char optimizer_defaults[] =
	"{\"bf16\": {\"enabled\": true},"
	" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
	" \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"none\","
	"  \"pipeline_read\": true, \"pipeline_write\": true, \"fast_init\": true}}}";

static int load_model(const struct bench_options *options, const struct options_given *given,
		      struct model *model, struct nvs_error *error)
{
	struct option_mix same = {.nbytes = {options->tensor_size}, .percent = {100}, .n = 1};
	int rc;

	if (!bench_option_given(given, "tensor-size"))
		same.nbytes[0] = pool_tensor_size(options);
	rc = options->model ? model_load(model, options->model, error)
			    : model_make(model, options->bssplit.n ? &options->bssplit : &same,
					 options->tensors, options->size, options->seed, error);
	if (rc)
		return rc;
	if (bench_option_given(given, "scale"))
		return model_scale(model, options->scale);
	if (options->model && options->size)
		model_limit(model, options->size);
	return 0;
}

static int load_config(const struct bench_options *options, const struct options_given *given,
		       struct nvs_config *config, struct nvs_error *error)
{
	bool resident = bench_option_given(given, "max-in-cpu");
	const struct {
		bool given;
		const char *key;
		uint64_t number;
	} settings[] = {
		{options->bs, "aio.block_size", options->bs},
		{options->iodepth, "aio.queue_depth", options->iodepth},
		{options->thread_count, "aio.thread_count", options->thread_count},
		{options->threads, "nvswap.optimizer_threads", options->threads},
		{bench_option_given(given, "ioengine"), "nvswap.ioengine", options->ioengine},
		{resident && options->rw == RW_STEP, "nvswap.optimizer_max_in_cpu",
		 options->max_in_cpu},
		{resident && options->rw == RW_PARAMS, "offload_param.max_in_cpu",
		 options->max_in_cpu},
	};
	struct nvs_error unused = {.size = sizeof(unused)};
	struct model model;
	uint64_t rank = options->rank;
	int rc;

	nvs_config_set_log(config, say_log, NULL);
	rc = nvs_config_set_number(config, "nvswap.strict", true, error);
	if (!rc && options->config) {
		/* A model parses as a configuration that has none of nvswap's blocks, so it would
		 * be taken for empty settings. */
		if (!model_load(&model, options->config, &unused)) {
			model_free(&model);
			return error_set(error, -EINVAL,
					 "--config %s: this is a model, give it to --model",
					 options->config);
		}
		rc = nvs_config_load(config, options->config, error);
		if (!rc)
			rc = nvs_config_read_rank(config, error);
	} else if (!rc && options->rw == RW_STEP) {
		rc = nvs_config_parse(config, optimizer_defaults, sizeof(optimizer_defaults) - 1,
				      "the defaults of an optimizer", error);
	}
	for (size_t i = 0; i < COUNT_OF(settings) && !rc; i++)
		if (settings[i].given)
			rc = nvs_config_set_number(config, settings[i].key, settings[i].number,
						   error);
	if (rc)
		return rc;
	/* Ranks that were not given are counted from 0 within a stage. */
	if (!bench_option_given(given, "rank"))
		rank += setting_number(config, "nvswap.rank");
	rc = nvs_config_set_number(config, "nvswap.rank", rank, error);
	if (rc || !setting_number(config, "nvswap.keep"))
		return rc;
	/* A benchmark must never overwrite a kept store. */
	say_log(NULL, NVS_LOG_WARNING,
		"\"keep\" is ignored: bench neither keeps a store nor uses a kept one");
	return nvs_config_set_number(config, "nvswap.keep", false, error);
}

/*
 * The configuration block with the paths: that of the mode, or parameters before optimizer. Paths
 * given as an option create the block.
 */
static int choose_block(const struct bench_options *options, struct nvs_config *config,
			enum nvs_block *block, struct nvs_error *error)
{
	bool optimizer = options->rw == RW_STEP ||
			 (options->rw != RW_PARAMS &&
			  setting_device(config, NVS_OFFLOAD_PARAM) == NVS_DEVICE_NONE &&
			  setting_device(config, NVS_OFFLOAD_OPTIMIZER) != NVS_DEVICE_NONE);

	*block = optimizer ? NVS_OFFLOAD_OPTIMIZER : NVS_OFFLOAD_PARAM;
	if (options->nvme_path.n)
		return nvs_config_set_paths(config, *block, options->nvme_path.items,
					    options->nvme_path.n, error);
	if (setting_device(config, *block) != NVS_DEVICE_NONE)
		return 0;
	if (is_block_mode(options->rw))
		return error_set(error, -EDESTADDRREQ,
				 "there is no place for the file: give --directory DIR");
	return error_set(error, -EDESTADDRREQ,
			 "there is no place to swap to: give --nvme-path DIR, or --config FILE "
			 "with an %s block whose \"device\" is \"nvme\" or \"cpu\"",
			 options->rw == RW_STEP	    ? "offload_optimizer"
			 : options->rw == RW_PARAMS ? "offload_param"
						    : "offload_param or offload_optimizer");
}

/* A scratch file needs a directory. */
static int check_directory(const struct bench_job *job, struct nvs_error *error)
{
	const char *place = nvs_config_get_path(job->config, job->block, 0);
	struct stat st;

	if (!place || setting_path_count(job->config, job->block) != 1)
		return error_set(error, -EINVAL,
				 "rw=%s measures one drive: give one directory as --nvme-path",
				 bench_rw_name(job->options.rw));
	if (!stat(place, &st) && S_ISBLK(st.st_mode))
		return error_set(error, -ENOTDIR,
				 "%s is a block device, and rw=%s needs a directory for its file",
				 place, bench_rw_name(job->options.rw));
	return 0;
}

int bench_prepare(struct bench_job *job, struct nvs_error *error)
{
	const struct bench_options *options = &job->options;
	int rc;

	job->model = (struct model){.path = NULL};
	rc = nvs_config_open(&job->config, error);
	if (rc)
		return rc;
	rc = load_config(options, &job->given, job->config, error);
	if (!rc)
		rc = choose_block(options, job->config, &job->block, error);
	if (rc)
		return rc;
	if (is_block_mode(options->rw))
		return check_directory(job, error);
	rc = options->rw == RW_REPLAY ? replay_load(job, error)
				      : load_model(options, &job->given, &job->model, error);
	if (!rc)
		rc = pool_choose(options, &job->model, job->config, job->block, error);
	return rc || !job->accesses ? rc : replay_check_pool(job, error);
}

void bench_release(struct bench_job *job)
{
	nvs_config_close(job->config);
	job->config = NULL;
	model_free(&job->model);
	replay_release(job);
}
