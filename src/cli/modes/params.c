/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rw=params: forward and backward passes over a model's layers. The parameters of a layer are
 * swapped in for each visit and released clean. A device would compute during the visit; here it
 * only takes time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/jobs/watch.h"
#include "cli/modes/engine.h"
#include "cli/modes/model/layers.h"
#include "cli/modes/model/pattern.h"
#include "cli/modes/modes.h"
#include "cli/modes/steps.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/stop.h"

struct pass {
	const struct bench_options *options;
	const struct model *model;
	struct nvs_trace *trace;
	struct pattern pattern;
	struct bench_engine opened;
	struct layer *layers;
	size_t nlayers;
	struct job_watch *watch;
	struct bench_result *result;
};

static struct nvs_tensor **layer_tensors(const struct pass *pass, const struct layer *layer)
{
	return pass->opened.tensors + layer->first;
}

static int wait_all(void *arg)
{
	struct pass *pass = arg;

	return nvs_tensor_wait(pass->opened.engine, pass->opened.tensors, pass->model->n, 0, -1,
			       &pass->result->error);
}

static int compare_layer(struct pass *pass, const struct layer *layer, struct step_done *done)
{
	uint64_t from = thread_cpu_ns();
	int rc = bench_engine_compare(&pass->opened, &pass->pattern, layer->first, layer->n, 0,
				      pass->result);

	done->data_us += (thread_cpu_ns() - from) / 1000;
	return rc;
}

static void compute(const struct pass *pass, const struct layer *layer)
{
	uint64_t from = clock_ns();
	char name[32];

	job_sleep_until(from + pass->options->compute_us * 1000u);
	if (!pass->options->compute_us || !pass->trace)
		return;
	layer_name(pass->model, layer, name, sizeof(name));
	nvs_trace_span(pass->trace, name, from, clock_ns());
}

static int visit(struct pass *pass, const struct layer *layer, struct step_done *done)
{
	struct nvs_engine *engine = pass->opened.engine;
	struct nvs_tensor **tensors = layer_tensors(pass, layer);
	struct nvs_error *error = &pass->result->error;
	uint64_t pin;
	int rc = nvs_tensor_swap_in(engine, tensors, layer->n, -1, &pin, error);

	if (!rc)
		rc = nvs_tensor_wait(engine, tensors, layer->n, pin, -1, error);
	if (!rc && pass->options->verify)
		rc = compare_layer(pass, layer, done);
	if (rc)
		return rc;
	compute(pass, layer);
	return nvs_tensor_release(engine, tensors, layer->n, pin, NVS_CLEAN, error);
}

static int step(void *arg, struct step_done *done)
{
	struct pass *pass = arg;
	struct nvs_error *error = &pass->result->error;
	size_t n = pass->nlayers;
	int rc = nvs_engine_step_begin(pass->opened.engine, error);

	for (size_t i = 0; i < 2 * n && !rc; i++) {
		rc = visit(pass, &pass->layers[i < n ? i : 2 * n - 1 - i], done);
		if (!rc && stop_signal())
			rc = -EINTR;
	}
	done->io.size = sizeof(done->io);
	return rc ? rc : nvs_engine_step_end(pass->opened.engine, &done->io, error);
}

static int write_layer(struct pass *pass, const struct layer *layer)
{
	struct nvs_engine *engine = pass->opened.engine;
	struct nvs_tensor **tensors = layer_tensors(pass, layer);
	struct nvs_error *error = &pass->result->error;
	uint64_t pin;
	int rc = nvs_tensor_pin(engine, tensors, layer->n, -1, &pin, error);

	for (size_t i = 0; i < layer->n && !rc; i++)
		rc = pattern_fill(&pass->pattern, layer->first + i, 0, nvs_tensor_data(tensors[i]),
				  error);
	if (!rc)
		rc = nvs_tensor_release(engine, tensors, layer->n, pin, NVS_DIRTY, error);
	return rc ? rc : nvs_tensor_swap_out(engine, tensors, layer->n, error);
}

/* Writes every layer to the drive once. */
static int swap_out_all(struct pass *pass)
{
	struct bench_result *result = pass->result;
	uint64_t started = clock_ns(), nbytes = 0;
	int rc = 0;

	progress_begin("fill", pass->model->nbytes);
	for (size_t i = 0; i < pass->nlayers && !rc && !stop_signal(); i++) {
		const struct layer *layer = &pass->layers[i];

		rc = write_layer(pass, layer);
		for (size_t t = layer->first; t < layer->first + layer->n; t++)
			nbytes += pass->model->tensors[t].nbytes;
		progress_update(nbytes, nbytes);
	}
	progress_end();
	if (!rc)
		rc = wait_all(pass);
	result->first_ns = clock_ns() - started;
	result->first_bytes = nbytes;
	return rc;
}

static int run_opened(struct pass *pass)
{
	struct step_mode mode = {.engine = pass->opened.engine,
				 .step = step,
				 .wait = wait_all,
				 .arg = pass,
				 .watch = pass->watch};
	int rc = swap_out_all(pass);

	if (!rc && !stop_signal())
		rc = steps_run(&mode, pass->options, pass->result);
	return bench_engine_verdict(&pass->opened, rc, pass->result);
}

int bench_params(const struct bench_options *options, const struct nvs_config *config,
		 struct nvs_trace *trace, const struct model *model, struct bench_result *result,
		 struct job_watch *watch)
{
	struct pass pass = {.options = options,
			    .model = model,
			    .trace = trace,
			    .pattern = {.model = model, .seed = options->seed},
			    .layers = calloc(model->n, sizeof(struct layer)),
			    .watch = watch,
			    .result = result};
	int rc;

	if (!pass.layers)
		return -ENOMEM;
	pass.nlayers = layers_cut(model, pass.layers);
	result->steps.layers = pass.nlayers;
	rc = bench_engine_open(&pass.opened, config, NVS_OFFLOAD_PARAM, model, result);
	if (!rc)
		rc = run_opened(&pass);
	rc = bench_engine_close(&pass.opened, rc, result);
	steps_note_memory(result, setting_device(config, NVS_OFFLOAD_PARAM), 0);
	free(pass.layers);
	return rc;
}
