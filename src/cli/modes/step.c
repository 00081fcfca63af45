/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rw=step: optimizer steps over state on the drive. The gradients are generated once and lent to
 * every step.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/modes/engine.h"
#include "cli/modes/model/reference.h"
#include "cli/modes/modes.h"
#include "cli/modes/steps.h"
#include "cli/settings.h"
#include "cli/stop.h"

struct training {
	const struct bench_options *options;
	struct parameters parameters;
	struct reference reference; /* for --verify */
	struct nvs_optimizer *optimizer;
	struct job_watch *watch;
	struct bench_result *result;
};

static int lend_gradients(struct training *training)
{
	const struct parameters *parameters = &training->parameters;
	int rc = 0;

	for (size_t group = 0; group < parameters->ngroups && !rc; group++)
		rc = nvs_optimizer_lend_gradients(
			training->optimizer, group, parameters->dtype,
			parameters_at(parameters, parameters->gradients, group),
			&training->result->error);
	return rc;
}

static int step(void *arg, struct step_done *done)
{
	struct training *training = arg;
	struct bench_result *result = training->result;
	struct nvs_step_result figures = {.size = sizeof(figures)};
	uint64_t from;
	int rc = lend_gradients(training);

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
	if (!training->options->verify)
		return 0;
	from = thread_cpu_ns() / 1000;
	rc = reference_step(&training->reference, &figures, &result->error);
	done->data_us = thread_cpu_ns() / 1000 - from;
	return rc;
}

static int verify(struct training *training)
{
	struct reference *reference = &training->reference;
	struct bench_result *result = training->result;
	int rc = reference_compare(reference, training->optimizer, &result->error);

	result->steps.compared = reference->compared;
	result->verify_errors = reference->differences;
	/* Compared: master weights, two moments, and the weights. */
	result->verified_bytes = reference->compared *
				 (3 * sizeof(float) + nvs_dtype_size(training->parameters.dtype));
	return rc;
}

static int run_opened(struct training *training)
{
	struct bench_result *result = training->result;
	struct step_mode mode = {.engine = nvs_optimizer_engine(training->optimizer),
				 .step = step,
				 .arg = training,
				 .watch = training->watch};
	int rc;

	parameters_make_gradients(&training->parameters,
				  nvs_optimizer_loss_scale(training->optimizer));
	rc = steps_run(&mode, training->options, result);
	if (result->measured) {
		result->bytes[NVS_READ] = result->steps.sum.read_bytes;
		result->bytes[NVS_WRITE] = result->steps.sum.written_bytes;
	}
	if (!rc && training->options->verify && !stop_signal())
		rc = verify(training);
	return rc;
}

/* Groups are named "group 0" and so on. A kept store is never opened: see bench_opened(). */
static int open_optimizer(struct training *training, const struct nvs_config *config)
{
	const struct parameters *parameters = &training->parameters;
	struct nvs_group_spec *specs = calloc(parameters->ngroups, sizeof(*specs));
	char(*names)[32] = calloc(parameters->ngroups, sizeof(*names));
	struct nvs_error *error = &training->result->error;
	int rc = -ENOMEM;

	for (size_t group = 0; group < parameters->ngroups && specs && names; group++) {
		snprintf(names[group], sizeof(names[group]), "group %zu", group);
		specs[group] = (struct nvs_group_spec){
			.size = sizeof(struct nvs_group_spec),
			.name = names[group],
			.numel = parameters_group_numel(parameters, group),
			.dtype = parameters->dtype,
			.weights = parameters_at(parameters, parameters->weights, group)};
	}
	if (specs && names)
		rc = nvs_optimizer_open(&training->optimizer, config, specs, parameters->ngroups,
					NULL, error);
	free(specs);
	free(names);
	return bench_opened(rc, error);
}

/* Stores the engine's statistics. Returns rc, or, if that is 0, the error of closing. */
static int close_optimizer(struct training *training, int rc)
{
	struct nvs_error closing = {.size = sizeof(closing)};
	struct bench_result *result = training->result;
	int closed;

	result->engine.size = sizeof(result->engine);
	nvs_engine_get_stats(nvs_optimizer_engine(training->optimizer), &result->engine);
	result->pool_peak = result->engine.pool.used_max;
	result->opened = true;
	closed = nvs_optimizer_close(training->optimizer, &closing);
	if (rc || !closed)
		return rc;
	result->error = closing;
	return closed;
}

static int train(struct training *training, const struct nvs_config *config)
{
	int rc = open_optimizer(training, config);

	return rc ? rc : close_optimizer(training, run_opened(training));
}

int bench_step(const struct bench_options *options, const struct nvs_config *config,
	       const struct model *model, struct bench_result *result, struct job_watch *watch)
{
	struct training training = {.options = options, .watch = watch, .result = result};
	struct parameters *parameters = &training.parameters;
	int rc = parameters_open(parameters, model, setting_param_dtype(config),
				 setting_number(config, "zero_optimization.sub_group_size"),
				 options->seed, &result->error);

	result->steps.elements = parameters->numel;
	result->steps.groups = parameters->ngroups;
	if (!rc && options->verify)
		rc = reference_open(&training.reference, parameters, config, &result->error);
	if (!rc)
		rc = train(&training, config);
	steps_note_memory(result, setting_device(config, NVS_OFFLOAD_OPTIMIZER),
			  parameters->nbytes + training.reference.nbytes);
	reference_close(&training.reference);
	parameters_close(parameters);
	return rc;
}
