/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the modes share. Tensors are registered in the model's order, so that neighbours are adjacent in
 * the store.
 */
#include "cli/modes/modes.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers.h"
#include "cli/stop.h"

#define POOL_BATCHES	4u
#define BATCH_BYTES_MAX (128u << 20)
#define RATE_BATCHES	20u /* in a second, so that the rate is smooth */

int bench_opened(int rc, struct nvs_error *error)
{
	return rc != -EEXIST ? rc
			     : error_set(error, rc,
					 "there is a kept store, which bench does not touch: give "
					 "another --nvme-path, or another \"rank\" in the "
					 "configuration");
}

int bench_engine_open(struct bench_engine *opened, const struct bench_job *job,
		      struct bench_result *result)
{
	const struct model *model = &job->model;
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_tensor_spec *specs = calloc(model->n, sizeof(*specs));
	int rc = -ENOMEM;

	*opened = (struct bench_engine){.tensors = calloc(model->n, sizeof(struct nvs_tensor *)),
					.model = model,
					.result = result};
	if (opened->tensors && specs)
		rc = bench_opened(
			nvs_engine_open(&opened->engine, job->config, job->block, &result->error),
			&result->error);
	if (rc) {
		opened->engine = NULL;
		free(specs);
		return rc;
	}
	nvs_engine_get_stats(opened->engine, &stats);
	opened->pool_bytes = stats.pool.bytes;
	for (size_t i = 0; i < model->n; i++)
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = model->tensors[i].name,
						    .dtype = model->tensors[i].dtype,
						    .numel = model->tensors[i].numel};
	rc = nvs_tensor_register(opened->engine, specs, model->n, opened->tensors, &result->error);
	free(specs);
	return rc;
}

struct layer bench_engine_batch(const struct bench_engine *opened, size_t first, uint64_t rate)
{
	const struct model *model = opened->model;
	uint64_t limit = min_u64(opened->pool_bytes / POOL_BATCHES, BATCH_BYTES_MAX);
	struct layer batch = {.first = first};

	if (rate)
		limit = min_u64(limit, rate / RATE_BATCHES);
	for (size_t i = first; i < model->n; i++) {
		uint64_t room = model_room(&model->tensors[i]);

		if (batch.n && (batch.room > limit || room > limit - batch.room))
			break;
		batch.n++;
		batch.nbytes += model->tensors[i].nbytes;
		batch.room += room;
	}
	return batch;
}

void bench_engine_generate(struct bench_engine *opened, const struct pattern *pattern,
			   const struct layer *tensors, uint32_t generation)
{
	uint64_t from = thread_cpu_ns();

	for (size_t i = tensors->first; i < tensors->first + tensors->n; i++)
		pattern_fill(pattern, i, generation, nvs_tensor_data(opened->tensors[i]));
	opened->result->data_us += (thread_cpu_ns() - from) / 1000;
}

int bench_engine_fill(struct bench_engine *opened, const struct pattern *pattern,
		      uint32_t generation, const bool *chosen)
{
	struct bench_result *result = opened->result;
	struct nvs_engine *engine = opened->engine;
	struct nvs_error *error = &result->error;
	uint64_t started = clock_ns(), pin;
	int rc = 0;

	progress_begin("fill", opened->model->nbytes);
	for (size_t first = 0, n; first < opened->model->n && !rc && !stop_signal(); first += n) {
		struct layer batch = {first, 1, opened->model->tensors[first].nbytes, 0};
		struct nvs_tensor **tensors = opened->tensors + first;

		if (!chosen)
			batch = bench_engine_batch(opened, first, 0);
		n = batch.n;
		if (chosen && !chosen[first])
			continue;
		rc = nvs_tensor_pin(engine, tensors, n, -1, &pin, error);
		if (rc)
			break;
		bench_engine_generate(opened, pattern, &batch, generation);
		rc = nvs_tensor_release(engine, tensors, n, pin, NVS_DIRTY, error);
		if (!rc)
			rc = nvs_tensor_swap_out(engine, tensors, n, error);
		result->first_bytes += batch.nbytes;
		progress_update(result->first_bytes, result->first_bytes);
	}
	progress_end();
	if (!rc && result->first_bytes)
		rc = bench_engine_wait(opened);
	result->first_ns = clock_ns() - started;
	return rc;
}

void bench_engine_compare(struct bench_engine *opened, const struct pattern *pattern,
			  const struct layer *tensors, uint32_t generation)
{
	struct bench_result *result = opened->result;
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t from = thread_cpu_ns();

	for (size_t i = tensors->first; i < tensors->first + tensors->n; i++)
		if (pattern_compare(pattern, i, generation, nvs_tensor_data(opened->tensors[i]),
				    &error) &&
		    !result->verify_errors++)
			opened->difference = error;
	result->verified_bytes += tensors->nbytes;
	result->data_us += (thread_cpu_ns() - from) / 1000;
}

int bench_engine_wait(struct bench_engine *opened)
{
	return nvs_tensor_wait(opened->engine, opened->tensors, opened->model->n, 0, -1,
			       &opened->result->error);
}

int bench_engine_close(struct bench_engine *opened, int rc, struct bench_result *result)
{
	struct nvs_error closing = {.size = sizeof(closing)};
	int closed = 0;

	if (opened->engine) {
		result->engine.size = sizeof(result->engine);
		nvs_engine_get_stats(opened->engine, &result->engine);
		result->pool_peak = result->engine.pool.used_max;
		result->opened = true;
		closed = nvs_engine_close(opened->engine, &closing);
	}
	if (!rc && result->verify_errors) {
		result->error = opened->difference;
		rc = -EBADMSG;
	} else if (!rc && closed) {
		result->error = closing;
		rc = closed;
	}
	free(opened->tensors);
	*opened = (struct bench_engine){0};
	return rc;
}

int load_run(const struct load *load)
{
	const struct bench_options *options = load->options;
	struct bench_result *result = load->result;
	struct nvs_aio *aio = load->engine ? nvs_engine_aio(load->engine) : load->aio;
	struct baseline from;
	int rc = 0;

	if (!job_begin(load->watch))
		return 0;
	if (options->ramp_loops)
		rc = load->run(load->arg, false, options->ramp_loops, 0);
	if (!rc && options->ramp_time_ms && !stop_signal())
		rc = load->run(load->arg, false, UINT64_MAX, options->ramp_time_ms);
	if (rc || stop_signal())
		return rc;
	result->data_us = 0;
	job_measures(load->watch, aio, load->engine, &from);
	rc = load->run(load->arg, true, options->time_based ? UINT64_MAX : options->loops,
		       options->runtime_ms);
	measure_end(aio, load->engine, &from, result);
	job_measured(load->watch, result);
	return rc;
}
