/* SPDX-License-Identifier: Apache-2.0 */
/* The size of the pool, and the engine, whose tensors are registered in the model's order, so that
 * neighbours are adjacent in the store. With a pool that holds the whole model, rw=params would
 * read nothing, so its default is half of the model if that has room to read ahead. */
#include "cli/modes/modes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/settings.h"

#define POOL_BATCHES	4u
#define BATCH_BYTES_MAX (128u << 20)
#define RATE_BATCHES	20u /* in a second, so that the rate is smooth */

int bench_opened(int rc, struct nvs_error *error)
{
	if (rc != -EEXIST)
		return rc;
	return error_set(error, rc,
			 "there is a kept store, which bench does not touch: give another "
			 "--nvme-path, or another \"rank\" in the configuration");
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
					.pattern = {model, job->options.seed},
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

void bench_engine_generate(struct bench_engine *opened, const struct layer *tensors,
			   uint32_t generation)
{
	uint64_t from = thread_cpu_ns();

	for (size_t i = tensors->first; i < tensors->first + tensors->n; i++)
		pattern_fill(&opened->pattern, i, generation, nvs_tensor_data(opened->tensors[i]));
	opened->result->data_us += (thread_cpu_ns() - from) / 1000;
}

int bench_engine_fill(struct bench_engine *opened, uint32_t generation, const bool *chosen)
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
		bench_engine_generate(opened, &batch, generation);
		rc = nvs_tensor_release(engine, tensors, n, pin, NVS_DIRTY, error);
		rc = rc ?: nvs_tensor_swap_out(engine, tensors, n, error);
		result->first_bytes += batch.nbytes;
		progress_update(result->first_bytes, result->first_bytes);
	}
	progress_end();
	if (!rc && result->first_bytes)
		rc = bench_engine_wait(opened);
	result->first_ns = clock_ns() - started;
	return rc;
}

void bench_engine_compare(struct bench_engine *opened, const struct layer *tensors,
			  uint32_t generation)
{
	struct bench_result *result = opened->result;
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t from = thread_cpu_ns();

	for (size_t i = tensors->first; i < tensors->first + tensors->n; i++)
		if (pattern_compare(&opened->pattern, i, generation,
				    nvs_tensor_data(opened->tensors[i]), &error) &&
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

/* ---- The pool ---- */

#define DEFAULT_BYTES (256u << 20)
#define ROUNDING      (1u << 20) /* rounding tensors up to whole pages adds at most this */

/* Bytes of the pool for one element of a buffer. Optimizer state is fp32. */
static uint64_t element_bytes(const struct nvs_config *config, enum nvs_block block)
{
	return nvs_dtype_size(block == NVS_OFFLOAD_PARAM ? setting_param_dtype(config) : NVS_F32);
}

/* Elements in each of `count` buffers of `nbytes` together. */
static uint64_t buffer_size_for(uint64_t nbytes, uint64_t count, uint64_t element)
{
	return (nbytes / count + (nbytes % count != 0) + element - 1) / element;
}

/* Of what the process may take, half of a job's share; the other is for weights and gradients. */
static uint64_t memory_share(const struct bench_options *options)
{
	struct memory_room room;

	memory_room(&room);
	return memory_room_bytes(&room) / 8 * 3 / options->numjobs;
}

uint64_t pool_tensor_size(const struct bench_options *options)
{
	uint64_t share = memory_share(options), nbytes = options->tensor_size;
	/* Beside the pool there are weights and gradients of all tensors. */
	uint64_t tensors = options->rw == RW_STEP && !options->size ? 2 * options->tensors : 4;

	while (nbytes > ROUNDING / 16 && nbytes > share / tensors)
		nbytes /= 2;
	return nbytes;
}

static struct layer largest_layer(const struct model *model)
{
	struct layer largest = {0}, layer;

	for (size_t at = 0; at < model->n; at += layer.n) {
		layer = model_layer(model, at);
		if (!largest.n || layer.room > largest.room)
			largest = layer;
	}
	return largest;
}

static uint64_t default_pool(const struct bench_options *options, const struct model *model)
{
	uint64_t share = memory_share(options), half = model->nbytes / 2, largest, nbytes;
	uint64_t usual = share >= DEFAULT_BYTES ? DEFAULT_BYTES
						: max_u64(share - share % ROUNDING, ROUNDING);

	if (options->rw == RW_STEP)
		return usual;
	largest = options->rw == RW_PARAMS ? largest_layer(model).room
					   : model_largest(model)->nbytes;
	/* No machine has memory for such a tensor; avoid an overflow. */
	if (largest > UINT64_MAX / 4)
		return largest;
	nbytes = max_u64(2 * largest + ROUNDING, usual);
	if (options->rw != RW_PARAMS)
		return nbytes;
	nbytes = max_u64(nbytes, 3 * largest + ROUNDING);
	return nbytes < half ? nbytes : max_u64(half, 2 * largest);
}

/* Keeps the number of buffers if they can make up the pool exactly. The optimizer's groups follow
 * its buffers' size, because a buffer holds one. */
static int size_pool(const struct bench_options *options, const struct model *model,
		     struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	const char *key = setting_buffer_size_key(block);
	uint64_t count = setting_of_block(config, block, "buffer_count");
	uint64_t element = element_bytes(config, block), nbytes = options->pool, numel;
	int rc = 0;

	if (nbytes || !options->config) {
		if (!nbytes)
			nbytes = default_pool(options, model);
		if (nbytes % (count * element)) {
			count = 1;
			rc = nvs_config_set_number(config,
						   block == NVS_OFFLOAD_PARAM
							   ? "offload_param.buffer_count"
							   : "offload_optimizer.buffer_count",
						   count, error);
		}
		numel = buffer_size_for(nbytes, count, element);
		return rc ? rc : nvs_config_set_number(config, key, numel, error);
	}
	if (block == NVS_OFFLOAD_PARAM)
		return 0;
	/* The optimizer's pool is no larger than all of its state. */
	numel = options->rw == RW_STEP ? model_trained(model, setting_param_dtype(config))
				       : (model->nbytes + element - 1) / element;
	return numel >= setting_number(config, key)
		       ? 0
		       : nvs_config_set_number(config, key, max_u64(numel, 1), error);
}

int pool_choose(const struct bench_options *options, const struct model *model,
		struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	int rc = size_pool(options, model, config, block, error);
	const struct model_tensor *longest;
	uint64_t count, pool, need;
	char name[sizeof(error->subject)];
	size_t n = (size_t)snprintf(name, sizeof(name), "layer ");

	/* The optimizer cuts its own tiles, and checks that the pool holds enough of them. */
	if (rc || options->rw == RW_STEP)
		return rc;
	pool = model_pages(nvs_config_pool_bytes(config, block));
	if (options->rw == RW_PARAMS) {
		struct layer layer = largest_layer(model);

		model_layer_name(model, &layer, name + n, sizeof(name) - n);
		need = layer.room;
	} else {
		longest = model_largest(model);
		snprintf(name, sizeof(name), "tensor %s", longest->name);
		need = model_room(longest);
	}
	if (need <= pool)
		return 0;
	count = setting_of_block(config, block, "buffer_count");
	return error_about(error, -E2BIG, name, 0, 0,
			   "%s takes %" PRIu64 " bytes, more than the whole pool of %" PRIu64
			   ": give --pool %" PRIu64
			   " or more, or in the configuration \"%s\": %" PRIu64
			   " (elements, in each of %" PRIu64 " buffers)",
			   name, need, pool, need,
			   block == NVS_OFFLOAD_PARAM ? "buffer_size" : "sub_group_size",
			   buffer_size_for(need, count, element_bytes(config, block)), count);
}
