/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rw=params: forward and backward passes over a model's layers. The parameters of a layer are
 * swapped in for each visit and released clean. A device would compute during the visit; here it
 * only takes time.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/modes/modes.h"
#include "cli/settings.h"
#include "cli/stop.h"

struct pass {
	const struct bench_job *job;
	struct pattern pattern;
	struct bench_engine opened;
	struct layer *layers;
	size_t nlayers;
};

static int wait_params(void *arg)
{
	struct pass *pass = arg;

	return bench_engine_wait(&pass->opened);
}

static void compute(const struct pass *pass, const struct layer *layer)
{
	uint64_t from = clock_ns();
	char name[32];

	job_sleep_until(from + pass->job->options.compute_us * 1000u);
	if (!pass->job->options.compute_us || !pass->job->trace)
		return;
	model_layer_name(pass->opened.model, layer, name, sizeof(name));
	nvs_trace_span(pass->job->trace, name, from, clock_ns());
}

static int visit(struct pass *pass, const struct layer *layer)
{
	struct nvs_engine *engine = pass->opened.engine;
	struct nvs_tensor **tensors = pass->opened.tensors + layer->first;
	struct nvs_error *error = &pass->opened.result->error;
	uint64_t pin;
	int rc = nvs_tensor_swap_in(engine, tensors, layer->n, -1, &pin, error);

	if (!rc)
		rc = nvs_tensor_wait(engine, tensors, layer->n, pin, -1, error);
	if (rc)
		return rc;
	if (pass->job->options.verify)
		bench_engine_compare(&pass->opened, &pass->pattern, layer, 0);
	compute(pass, layer);
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
	struct pass pass = {.job = job,
			    .pattern = {.model = model, .seed = job->options.seed},
			    .layers = calloc(model->n, sizeof(struct layer))};
	struct load mode = {.options = &job->options,
			    .watch = watch,
			    .result = result,
			    .step = pass_step,
			    .wait = wait_params,
			    .arg = &pass};
	int rc;

	if (!pass.layers)
		return -ENOMEM;
	for (size_t at = 0; at < model->n; at += pass.layers[pass.nlayers++].n)
		pass.layers[pass.nlayers] = model_layer(model, at);
	result->steps.layers = pass.nlayers;
	rc = bench_engine_open(&pass.opened, job, result);
	mode.engine = pass.opened.engine;
	if (!rc)
		rc = bench_engine_fill(&pass.opened, &pass.pattern, 0, NULL);
	if (!rc && !stop_signal())
		rc = steps_run(&mode);
	rc = bench_engine_close(&pass.opened, rc, result);
	steps_note_memory(result, setting_device(job->config, NVS_OFFLOAD_PARAM), 0);
	free(pass.layers);
	return rc;
}
