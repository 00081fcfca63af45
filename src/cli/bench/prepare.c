/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options override the configuration, and the configuration the defaults. What is read here stays
 * as it is: processes that are forked later find it in their memory.
 */
#include "bench_prepare.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "io_file.h"
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

static int make_model(const struct bench_options *options, struct model *model,
		      struct nvs_error *error)
{
	struct option_mix same = {.nbytes = {options->tensor_size}, .percent = {100}, .n = 1};
	const struct option_mix *mix = options->bssplit[NVS_READ].n ? options->bssplit : &same;

	return model_make(model, mix, options->tensors, options->size.nbytes, options->seed, error);
}

static int load_model(const struct bench_options *options, const struct options_given *given,
		      struct model *model, struct nvs_error *error)
{
	int rc = options->model ? model_load(model, options->model, error)
				: make_model(options, model, error);

	if (rc)
		return rc;
	if (bench_option_given(given, "scale"))
		model_limit(model, (uint64_t)((double)model->nbytes * options->scale));
	if (options->model && options->size.nbytes)
		model_limit(model, options->size.nbytes);
	return 0;
}

static void take_options(const struct bench_options *options, const struct options_given *given,
			 struct nvs_config *config)
{
	if (options->iodepth)
		config->aio.queue_depth = (uint32_t)options->iodepth;
	if (options->thread_count)
		config->aio.thread_count = (uint32_t)options->thread_count;
	if (bench_option_given(given, "ioengine"))
		config->aio.ioengine = (enum nvs_ioengine)options->ioengine;
	if (options->threads)
		config->optimizer_threads = (uint32_t)options->threads;
	/* What is not given was chosen for jobs that run together, from 0 on. */
	config->rank = (uint32_t)options->rank +
		       (bench_option_given(given, "rank") ? 0 : config->rank);
	if (bench_option_given(given, "max-in-cpu") && options->rw == RW_STEP)
		config->optimizer_max_in_cpu = options->max_in_cpu;
	if (bench_option_given(given, "max-in-cpu") && options->rw == RW_PARAMS)
		config->param.max_in_cpu = options->max_in_cpu;
}

static int load_config(const struct bench_options *options, const struct options_given *given,
		       struct nvs_config *config, struct nvs_error *error)
{
	int rc;

	nvs_config_init(config);
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

/* A direction for which none is given has the configuration's; that is then the larger of both. */
static void settle_block_sizes(struct bench_options *options, struct nvs_config *config)
{
	uint64_t largest = 0;

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		if (!options->bs[d])
			options->bs[d] = config->aio.block_size;
		if (is_fio_mode(options->rw) && !fio_mode_moves(options->rw, d))
			continue;
		if (options->bs[d] > largest)
			largest = options->bs[d];
	}
	config->aio.block_size = (uint32_t)largest;
}

/* A whole name says its place by itself: the directory that the file is in, or the device it is. */
static int set_place_of(const char *filename, struct nvs_offload_config *offload,
			struct nvs_error *error)
{
	char place[PATH_MAX];
	const char *path = place;
	struct stat st;
	char *end;

	if ((size_t)snprintf(place, sizeof(place), "%s", filename) >= sizeof(place)) {
		error->code = -ENAMETOOLONG;
		snprintf(error->text, sizeof(error->text), "%s: %s", filename,
			 nvs_strerror(error->code));
		return error->code;
	}
	if (stat(filename, &st) || !S_ISBLK(st.st_mode)) {
		end = strrchr(place, '/');
		end[end == place] = '\0';
	}
	return nvs_config_set_paths(offload, &path, 1, error);
}

static int refuse_nowhere(const struct bench_options *options, struct nvs_error *error)
{
	error->code = -EDESTADDRREQ;
	if (is_fio_mode(options->rw))
		snprintf(error->text, sizeof(error->text),
			 "nothing says where the file goes: give --directory DIR, or a --filename "
			 "that begins with /");
	else
		snprintf(error->text, sizeof(error->text),
			 "nothing says where to swap to: give --nvme-path DIR, or --config FILE "
			 "with an %s block whose \"device\" is \"nvme\" or \"cpu\"",
			 options->rw == RW_STEP	    ? "offload_optimizer"
			 : options->rw == RW_PARAMS ? "offload_param"
						    : "offload_param or offload_optimizer");
	return error->code;
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
	if (is_fio_mode(options->rw) && options->filename && *options->filename == '/')
		return set_place_of(options->filename, own_block(config, *block), error);
	if (options->nvme_path.n)
		return nvs_config_set_paths(own_block(config, *block), options->nvme_path.items,
					    options->nvme_path.n, error);
	if (own_block(config, *block)->device != NVS_DEVICE_NONE)
		return 0;
	return refuse_nowhere(options, error);
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

/* A stage may be minutes away: what it would have to refuse is refused before the first. */
static int foresee_file(const struct bench_job *job, struct nvs_error *error)
{
	const struct nvs_offload_config *offload = &job->config.param;
	const char *named = job->options.filename;
	char name[NAME_MAX + 1];

	if (job->block == NVS_OFFLOAD_OPTIMIZER)
		offload = &job->config.optimizer;
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
		settle_block_sizes(&job->options, &job->config);
	if (!rc)
		rc = choose_block(options, &job->config, &job->block, error);
	if (!rc && is_fio_mode(options->rw))
		return foresee_file(job, error);
	if (rc)
		return rc;
	rc = load_model(options, &job->given, &job->model, error);
	if (!rc)
		size_pool(options, &job->model, &job->config, job->block);
	return rc;
}

void bench_release(struct bench_job *job)
{
	nvs_config_free(&job->config);
	model_free(&job->model);
}
