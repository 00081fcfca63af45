/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training steps. rw=step: optimizer steps over state on the drive. The elements of the model's
 * floating-point tensors, end to end, are cut into groups, with generated weights and gradients in
 * memory beside the pool. The gradients are generated once and lent to every step.
 *
 * rw=params: forward and backward passes over a model's layers. The parameters of a layer are
 * swapped in for each visit, which a device would spend computing, and released clean.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/modes/modes.h"
#include "cli/settings.h"

#define LEAST_EXPONENT (-10) /* elements span four powers of two below 2^-6, as weights do */
#define SCALE_LOG2_MAX 20    /* keeps scaled gradients within the range of fp16 */

static void count_step(struct step_figures *figures, const struct step_done *done)
{
	const struct nvs_step_io *io = &done->io;
	uint64_t *sum = (void *)&figures->sum;

	if (!figures->steps++ || io->wall_ns < figures->wall_min_ns)
		figures->wall_min_ns = io->wall_ns;
	figures->wall_max_ns = max_u64(figures->wall_max_ns, io->wall_ns);
	figures->skipped += done->skipped;
	figures->shorter_ns += min_u64(io->io_ns, io->compute_ns);
	figures->updates_ns += done->updates_ns;
	figures->tiles += done->tiles;
	/* Words, and the size, which nothing reads of a sum. */
	for (size_t i = 0; i < sizeof(*io) / sizeof(*sum); i++)
		sum[i] += ((const uint64_t *)(const void *)io)[i];
}

static int run_steps(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms)
{
	const struct load *steps = arg;
	uint64_t started = clock_ns(), runtime_ns = runtime_ms * 1000000u, spent_ns = 0, moved = 0;
	bool by_time = loops == UINT64_MAX;
	int rc = 0;

	progress_begin(measured ? "steps" : "ramp", by_time ? runtime_ns : loops);
	for (uint64_t i = 0;
	     i < loops && !rc && !stop_signal() && (!runtime_ns || spent_ns < runtime_ns); i++) {
		struct step_done done = {0};

		rc = steps->step(steps->arg, &done);
		if (!rc && measured)
			count_step(&steps->result->steps, &done);
		moved += done.io.read_bytes + done.io.written_bytes;
		spent_ns = clock_ns() - started;
		progress_update(by_time ? spent_ns : i + 1, moved);
	}
	progress_end();
	return rc || !steps->opened ? rc : bench_engine_wait(steps->opened);
}

/* The first step, which creates the state or records the plan of the later ones, and then those of
 * the phases, whose figures are summed. A step that was cut short is not counted. */
static int steps_run(const struct load *steps)
{
	struct load own = *steps, load = *steps;
	struct step_done first = {0};
	int rc = steps->step(steps->arg, &first);

	steps->result->steps.first = first.io;
	if (!rc && steps->opened)
		rc = bench_engine_wait(steps->opened);
	load.run = run_steps;
	load.arg = &own;
	rc = rc ?: load_run(&load);
	steps->result->updates_us = steps->result->steps.updates_ns / 1000;
	return rc == -EINTR && stop_signal() ? 0 : rc;
}

/* Stores the peak memory of the process, of which the benchmark itself uses `own_bytes`. */
static void steps_note_memory(struct bench_result *result, enum nvs_device device,
			      uint64_t own_bytes)
{
	const struct nvs_pool_stats *pool = &result->engine.pool;

	result->steps.own_bytes = own_bytes;
	result->steps.peak_bytes = peak_memory();
	/* Explicit huge pages are not in the resident set. */
	result->steps.pool_rss_bytes = pool->bytes - min_u64(pool->huge, pool->bytes);
	if (device == NVS_DEVICE_CPU)
		result->steps.store_bytes = result->engine.store_bytes;
}

/* ---- rw=step ---- */

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
	rc = rc ?: nvs_optimizer_step(training->optimizer, NULL, &figures, &result->error);
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

/* ---- rw=params ---- */

struct pass {
	const struct bench_job *job;
	struct bench_engine opened;
	struct layer *layers;
	size_t nlayers;
};

static int visit(struct pass *pass, const struct layer *layer)
{
	struct nvs_engine *engine = pass->opened.engine;
	struct nvs_tensor **tensors = pass->opened.tensors + layer->first;
	struct nvs_error *error = &pass->opened.result->error;
	const struct bench_job *job = pass->job;
	uint64_t pin, from;
	char name[32];
	int rc = nvs_tensor_swap_in(engine, tensors, layer->n, -1, &pin, error);

	rc = rc ?: nvs_tensor_wait(engine, tensors, layer->n, pin, -1, error);
	if (rc)
		return rc;
	if (job->options.verify)
		bench_engine_compare(&pass->opened, layer, 0);
	from = clock_ns();
	job_sleep_until(from + job->options.compute_us * 1000u);
	if (job->options.compute_us && job->trace) {
		model_layer_name(pass->opened.model, layer, name, sizeof(name));
		nvs_trace_span(job->trace, name, from, clock_ns());
	}
	return nvs_tensor_release(engine, tensors, layer->n, pin, NVS_CLEAN, error);
}

static int pass_step(void *arg, struct step_done *done)
{
	struct pass *pass = arg;
	struct nvs_error *error = &pass->opened.result->error;
	size_t n = pass->nlayers;
	int rc = nvs_engine_step_begin(pass->opened.engine, error);

	for (size_t i = 0; i < 2 * n && !rc; i++) {
		rc = visit(pass, &pass->layers[i < n ? i : 2 * n - 1 - i]);
		if (!rc && stop_signal())
			rc = -EINTR;
	}
	done->io.size = sizeof(done->io);
	return rc ? rc : nvs_engine_step_end(pass->opened.engine, &done->io, error);
}

int bench_params(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	const struct model *model = &job->model;
	struct pass pass = {.job = job, .layers = calloc(model->n, sizeof(struct layer))};
	struct load mode = {.options = &job->options,
			    .watch = watch,
			    .result = result,
			    .step = pass_step,
			    .opened = &pass.opened,
			    .arg = &pass};
	int rc;

	if (!pass.layers)
		return -ENOMEM;
	for (size_t at = 0; at < model->n; at += pass.layers[pass.nlayers++].n)
		pass.layers[pass.nlayers] = model_layer(model, at);
	result->steps.layers = pass.nlayers;
	rc = bench_engine_open(&pass.opened, job, result);
	mode.engine = pass.opened.engine;
	rc = rc ?: bench_engine_fill(&pass.opened, 0, NULL);
	if (!rc && !stop_signal())
		rc = steps_run(&mode);
	rc = bench_engine_close(&pass.opened, rc, result);
	steps_note_memory(result, setting_device(job->config, NVS_OFFLOAD_PARAM), 0);
	free(pass.layers);
	return rc;
}
