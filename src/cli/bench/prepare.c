/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options override the configuration, and the configuration the defaults. The jobs' processes
 * inherit the result by fork.
 */
#include "cli/bench/prepare.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/modes/io/file.h"
#include "cli/modes/pool.h"
#include "cli/replay/replay.h"
#include "config/config.h"

/* The configuration of --rw step without --config. */
static const char step_defaults[] =
	"{\"bf16\": {\"enabled\": true},"
	" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},"
	" \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"none\","
	"  \"pipeline_read\": true, \"pipeline_write\": true, \"fast_init\": true}}}";

static int make_model(const struct bench_options *options, struct model *model,
		      struct nvs_error *error)
{
	struct option_mix same = {.nbytes = {options->tensor_size}, .percent = {100}, .n = 1};
	const struct option_mix *mix = options->bssplit.n ? &options->bssplit : &same;

	return model_make(model, mix, options->tensors, options->size, options->seed, error);
}

static int load_model(const struct bench_options *options, const struct options_given *given,
		      struct model *model, struct nvs_error *error)
{
	int rc = options->model ? model_load(model, options->model, error)
				: make_model(options, model, error);

	if (rc)
		return rc;
	if (bench_option_given(given, "scale"))
		return model_scale(model, options->scale);
	if (options->model && options->size)
		model_limit(model, options->size);
	return 0;
}

static void take_options(const struct bench_options *options, const struct options_given *given,
			 struct nvs_config *config)
{
	if (options->bs)
		config->aio.block_size = (uint32_t)options->bs;
	if (options->iodepth)
		config->aio.queue_depth = (uint32_t)options->iodepth;
	if (options->thread_count)
		config->aio.thread_count = (uint32_t)options->thread_count;
	if (bench_option_given(given, "ioengine"))
		config->aio.ioengine = (enum nvs_ioengine)options->ioengine;
	if (options->threads)
		config->optimizer_threads = (uint32_t)options->threads;
	/* Ranks that were not given are counted from 0 within a stage. */
	config->rank = (uint32_t)options->rank +
		       (bench_option_given(given, "rank") ? 0 : config->rank);
	if (bench_option_given(given, "max-in-cpu") && options->rw == RW_STEP)
		config->optimizer_max_in_cpu = options->max_in_cpu;
	if (bench_option_given(given, "max-in-cpu") && options->rw == RW_PARAMS)
		config->offload[NVS_OFFLOAD_PARAM].max_in_cpu = options->max_in_cpu;
}

/* A model parses as a configuration that has none of nvswap's blocks, so it would be taken for
 * empty settings. */
static int refuse_model(const char *path, struct nvs_error *error)
{
	struct nvs_error unused = {.size = sizeof(unused)};
	struct model model;

	if (model_load(&model, path, &unused))
		return 0;
	model_free(&model);
	error->code = -EINVAL;
	snprintf(error->text, sizeof(error->text),
		 "--config %s: this is a model, give it to --model", path);
	return error->code;
}

static int read_config(const struct bench_options *options, struct nvs_config *config,
		       struct nvs_error *error)
{
	int rc;

	if (options->config) {
		rc = refuse_model(options->config, error);
		if (!rc)
			rc = nvs_config_load(config, options->config, error);
		return rc ? rc : nvs_config_read_rank(config, error);
	}
	return options->rw == RW_STEP
		       ? nvs_config_parse(config, step_defaults, sizeof(step_defaults) - 1,
					  "the defaults of --rw step", error)
		       : 0;
}

static int load_config(const struct bench_options *options, const struct options_given *given,
		       struct nvs_config *config, struct nvs_error *error)
{
	int rc;

	config_init(config);
	config->log.fn = say_log;
	rc = read_config(options, config, error);
	if (rc)
		return rc;
	take_options(options, given, config);
	/* A benchmark must never overwrite a kept store. */
	if (config->keep)
		say_log(NULL, NVS_LOG_WARNING,
			"\"keep\" is ignored: bench neither keeps a store nor uses a kept one");
	config->keep = false;
	return 0;
}

/* Creating the file would put it into /dev, which is memory. */
static bool is_missing_device(const char *filename)
{
	return !strncmp(filename, "/dev/", 5) && strncmp(filename, "/dev/shm/", 9) != 0 &&
	       access(filename, F_OK);
}

/* The place of an absolute path is its directory, or the block device itself. */
static int set_place_of(const char *filename, struct offload_config *offload,
			struct nvs_error *error)
{
	char place[PATH_MAX];
	const char *path = place;
	struct stat st;
	char *end;

	if (is_missing_device(filename))
		return io_refuse(error, -ENODEV, "%s: there is no such device", filename);
	if ((size_t)snprintf(place, sizeof(place), "%s", filename) >= sizeof(place))
		return io_refuse(error, -ENAMETOOLONG, "%s: %s", filename,
				 nvs_strerror(-ENAMETOOLONG));
	if (stat(filename, &st) || !S_ISBLK(st.st_mode)) {
		end = strrchr(place, '/');
		end[end == place] = '\0';
	}
	return config_set_paths(offload, &path, 1, error);
}

static int refuse_nowhere(const struct bench_options *options, struct nvs_error *error)
{
	error->code = -EDESTADDRREQ;
	if (is_fio_mode(options->rw))
		snprintf(error->text, sizeof(error->text),
			 "there is no place for the file: give --directory DIR, or an absolute "
			 "--filename");
	else
		snprintf(error->text, sizeof(error->text),
			 "there is no place to swap to: give --nvme-path DIR, or --config FILE "
			 "with an %s block whose \"device\" is \"nvme\" or \"cpu\"",
			 options->rw == RW_STEP	    ? "offload_optimizer"
			 : options->rw == RW_PARAMS ? "offload_param"
						    : "offload_param or offload_optimizer");
	return error->code;
}

/*
 * The configuration block with the paths: that of the mode, or parameters before optimizer. Paths
 * given as an option create the block.
 */
static int choose_block(const struct bench_options *options, struct nvs_config *config,
			enum nvs_block *block, struct nvs_error *error)
{
	bool optimizer = config->offload[NVS_OFFLOAD_PARAM].device == NVS_DEVICE_NONE &&
			 config->offload[NVS_OFFLOAD_OPTIMIZER].device != NVS_DEVICE_NONE;

	if (options->rw == RW_STEP || options->rw == RW_PARAMS)
		optimizer = options->rw == RW_STEP;
	*block = optimizer ? NVS_OFFLOAD_OPTIMIZER : NVS_OFFLOAD_PARAM;
	if (is_fio_mode(options->rw) && options->filename && *options->filename == '/')
		return set_place_of(options->filename, pool_block(config, *block), error);
	if (options->nvme_path.n)
		return config_set_paths(pool_block(config, *block), options->nvme_path.items,
					options->nvme_path.n, error);
	if (pool_block(config, *block)->device != NVS_DEVICE_NONE)
		return 0;
	return refuse_nowhere(options, error);
}

/* Report errors of later stages before the first one begins. */
static int foresee_file(const struct bench_job *job, struct nvs_error *error)
{
	const struct offload_config *offload = &job->config.offload[NVS_OFFLOAD_PARAM];
	const char *named = job->options.filename;
	char name[NAME_MAX + 1];

	if (job->block == NVS_OFFLOAD_OPTIMIZER)
		offload = &job->config.offload[NVS_OFFLOAD_OPTIMIZER];
	if (!offload->npaths)
		return 0;
	io_file_name(job->name, job->clone, name);
	return io_file_foresee(&job->options, offload->nvme_path[0], named ? named : name, error);
}

int bench_prepare(struct bench_job *job, struct nvs_error *error)
{
	const struct bench_options *options = &job->options;
	int rc;

	job->model = (struct model){.fd = -1};
	rc = load_config(options, &job->given, &job->config, error);
	if (!rc)
		rc = choose_block(options, &job->config, &job->block, error);
	if (!rc && is_fio_mode(options->rw))
		return foresee_file(job, error);
	if (rc)
		return rc;
	rc = options->rw == RW_REPLAY ? replay_load(job, error)
				      : load_model(options, &job->given, &job->model, error);
	if (!rc)
		rc = pool_choose(options, &job->model, &job->config, job->block, error);
	return rc || !job->accesses ? rc : replay_check_pool(job, error);
}

void bench_release(struct bench_job *job)
{
	config_free(&job->config);
	model_free(&job->model);
	replay_release(job);
}
