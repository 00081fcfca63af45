/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rw=step: optimizer steps over state on the drive. The elements of the model's floating-point tensors,
 * end to end, are cut into groups, with generated weights and gradients in memory beside the pool. The
 * gradients are generated once and lent to every step.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/modes/modes.h"
#include "cli/settings.h"

#define LEAST_EXPONENT (-10) /* elements span four powers of two below 2^-6, as weights do */
#define SCALE_LOG2_MAX 20    /* keeps scaled gradients within the range of fp16 */

struct training {
	enum nvs_dtype dtype; /* of weights and gradients: NVS_F32, NVS_BF16 or NVS_F16 */
	uint64_t numel;
	uint64_t group_numel; /* numel of every group but the last, which has the rest */
	size_t ngroups;
	char *weights, *gradients;
	struct nvs_optimizer *optimizer;
	struct bench_result *result;
};

/* A hash that compilers vectorize in a loop. */
static inline uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x85ebca6bu;
	x ^= x >> 13;
	x *= 0xc2b2ae35u;
	return x ^ x >> 16;
}

/* An element has a random sign, two random bits of the exponent above `least`, and mantissa. */
static void generate(const struct training *training, void *array, uint64_t seed, uint32_t salt,
		     int least)
{
	static const struct format {
		unsigned sign_shift, mantissa_bits;
		int bias;
	} formats[NVS_DTYPE_COUNT] = {
		[NVS_F32] = {31, 23, 127}, [NVS_BF16] = {15, 7, 127}, [NVS_F16] = {15, 10, 15}};
	const struct format *format = &formats[training->dtype];
	uint32_t random = (4u << format->mantissa_bits) - 1;
	uint32_t base = (uint32_t)(format->bias + least) << format->mantissa_bits;
	uint32_t salted = mix((uint32_t)seed ^ mix(salt)) ^ mix((uint32_t)(seed >> 32) + salt);
	uint16_t *shorts = array;
	uint32_t *longs = array;

	assert(format->sign_shift);
	for (uint64_t i = 0; i < training->numel; i++) {
		uint32_t drawn = mix((uint32_t)i * 0x9e3779b1u + salted);
		uint32_t element = drawn >> 31 << format->sign_shift | ((drawn & random) + base);

		if (format->sign_shift == 31)
			longs[i] = element;
		else
			shorts[i] = (uint16_t)element;
	}
}

static void *group_data(const struct training *training, char *array, size_t group)
{
	return array + group * training->group_numel * nvs_dtype_size(training->dtype);
}

static int train_step(void *arg, struct step_done *done)
{
	struct training *training = arg;
	struct bench_result *result = training->result;
	struct nvs_step_result figures = {.size = sizeof(figures)};
	int rc = 0;

	for (size_t group = 0; group < training->ngroups && !rc; group++)
		rc = nvs_optimizer_lend_gradients(training->optimizer, group, training->dtype,
						  group_data(training, training->gradients, group),
						  &result->error);
	if (!rc)
		rc = nvs_optimizer_step(training->optimizer, NULL, &figures, &result->error);
	if (rc)
		return rc;
	result->steps.kernel = figures.kernel;
	result->steps.threads = figures.threads;
	result->steps.norm = figures.norm;
	result->steps.clip = figures.clip;
	result->steps.loss_scale = figures.loss_scale;
	result->steps.host_bytes = figures.host_bytes;
	*done = (struct step_done){.io = figures.io,
				   .updates_ns = figures.cpu_ns,
				   .tiles = figures.tiles,
				   .skipped = figures.skipped};
	return 0;
}

static int open_optimizer(struct training *training, const struct nvs_config *config)
{
	struct nvs_group_spec *specs = calloc(training->ngroups, sizeof(*specs));
	char(*names)[32] = calloc(training->ngroups, sizeof(*names));
	struct nvs_error *error = &training->result->error;
	int rc = -ENOMEM;

	for (size_t group = 0; group < training->ngroups && specs && names; group++) {
		snprintf(names[group], sizeof(names[group]), "group %zu", group);
		specs[group] = (struct nvs_group_spec){
			.size = sizeof(struct nvs_group_spec),
			.name = names[group],
			.numel = min_u64(training->numel - group * training->group_numel,
					 training->group_numel),
			.dtype = training->dtype,
			.weights = group_data(training, training->weights, group)};
	}
	if (specs && names)
		rc = nvs_optimizer_open(&training->optimizer, config, specs, training->ngroups,
					NULL, error);
	free(specs);
	free(names);
	return bench_opened(rc, error);
}

static int train(struct training *training, const struct bench_job *job, struct job_watch *watch)
{
	struct nvs_error closing = {.size = sizeof(closing)};
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct bench_result *result = training->result;
	struct load mode = {.options = &job->options,
			    .watch = watch,
			    .result = result,
			    .step = train_step,
			    .arg = training};
	double loss_scale;
	int rc = open_optimizer(training, job->config), closed;

	if (rc)
		return rc;
	mode.engine = nvs_optimizer_engine(training->optimizer);
	loss_scale = nvs_optimizer_loss_scale(training->optimizer);
	nvs_optimizer_get_info(training->optimizer, &info, NULL);
	result->steps.state_bytes = info.step_bytes;
	generate(training, training->gradients, job->options.seed, 2,
		 LEAST_EXPONENT +
			 (loss_scale > 1 ? (int)fmin(ilogb(loss_scale), SCALE_LOG2_MAX) : 0));
	rc = steps_run(&mode);
	if (result->measured) {
		result->bytes[NVS_READ] = result->steps.sum.read_bytes;
		result->bytes[NVS_WRITE] = result->steps.sum.written_bytes;
	}
	result->engine.size = sizeof(result->engine);
	nvs_engine_get_stats(mode.engine, &result->engine);
	result->pool_peak = result->engine.pool.used_max;
	result->opened = true;
	closed = nvs_optimizer_close(training->optimizer, &closing);
	if (rc || !closed)
		return rc;
	result->error = closing;
	return closed;
}

int bench_step(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	const struct nvs_config *config = job->config;
	struct training training = {.dtype = setting_param_dtype(config), .result = result};
	uint64_t nbytes;
	int rc;

	training.numel = model_trained(&job->model, training.dtype);
	training.group_numel = setting_number(config, "zero_optimization.sub_group_size");
	training.ngroups = (training.numel + training.group_numel - 1) / training.group_numel;
	nbytes = training.numel * nvs_dtype_size(training.dtype);
	if (!training.numel)
		return error_set(&result->error, -EINVAL,
				 "the model has no floating-point element, so there is nothing to "
				 "train");
	result->steps.elements = training.numel;
	result->steps.groups = training.ngroups;
	rc = memory_room_check(2 * nbytes, "model", "weights and gradients beside the pool",
			       "train a part of the model with --scale, or smaller tensors with "
			       "--tensor-size",
			       &result->error);
	if (rc)
		return rc;
	training.weights = huge_map(nbytes, NULL);
	training.gradients = huge_map(nbytes, NULL);
	if (training.weights && training.gradients) {
		generate(&training, training.weights, job->options.seed, 1, LEAST_EXPONENT);
		/* Taken now, so that the check of the pool's memory sees what these take. */
		memset(training.gradients, 0, nbytes);
		rc = train(&training, job, watch);
	} else {
		rc = error_set(&result->error, -ENOMEM,
			       "no memory for the weights and gradients of %llu elements, %llu "
			       "bytes beside the pool: train a part of the model with --scale",
			       (unsigned long long)training.numel,
			       (unsigned long long)(2 * nbytes));
	}
	steps_note_memory(result, setting_device(config, NVS_OFFLOAD_OPTIMIZER), 2 * nbytes);
	if (training.weights)
		munmap(training.weights, nbytes);
	if (training.gradients)
		munmap(training.gradients, nbytes);
	return rc;
}
