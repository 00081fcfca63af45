/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rw=swapout, swapin and swap: passes over the model, batch by batch, with as much in flight as the
 * pool has room for. To avoid a deadlock, it waits for room without a limit only while it has
 * nothing pinned.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "cli/jobs/measure.h"
#include "cli/jobs/watch.h"
#include "cli/modes/engine.h"
#include "cli/modes/model/pattern.h"
#include "cli/modes/modes.h"
#include "cli/progress.h"
#include "cli/stop.h"

/* A batch is a part of the pool, but no more than keeps a drive busy. */
#define POOL_BATCHES	4u
#define BATCH_BYTES_MAX (128u << 20)
/* Batches in a second at the job's rate, so that the rate is smooth. */
#define RATE_BATCHES 20u

/* Adjacent tensors that move together. */
struct batch {
	size_t first, n;
	uint64_t nbytes, room;
	uint64_t pin;	     /* 0: not pinned */
	uint32_t generation; /* generation of its contents */
	bool written;
};

struct run {
	const struct bench_options *options;
	const struct model *model;
	struct pattern pattern;
	struct bench_engine opened;
	struct batch *batches;
	size_t nbatches;
	uint64_t asked[2]; /* bytes requested, by enum nvs_direction */
	uint64_t data_us;  /* processor time for generating and comparing contents */
	struct job_watch *watch;
	struct bench_result *result;
};

/* A number of loops over all batches. */
struct pass {
	const char *name;
	uint64_t loops;	     /* UINT64_MAX: until the runtime ends */
	uint64_t runtime_ns; /* limit; 0: none */
	bool fill;	     /* generate new contents before a swap-out */
	bool compare;	     /* compare after a swap-in */
	bool change;	     /* write back what was read */
	bool paced;	     /* limited by the job's rate */
	uint64_t started_ns, bytes;
};

static struct nvs_tensor **batch_tensors(const struct run *run, const struct batch *batch)
{
	return run->opened.tensors + batch->first;
}

static bool by_time(const struct pass *pass)
{
	return pass->loops == UINT64_MAX;
}

static uint64_t times(uint64_t loops, uint64_t n)
{
	uint64_t all;

	return __builtin_mul_overflow(loops, n, &all) ? UINT64_MAX : all;
}

static void pass_begin(struct pass *pass, const struct run *run)
{
	pass->started_ns = clock_ns();
	progress_begin(pass->name,
		       by_time(pass) ? pass->runtime_ns : times(pass->loops, run->model->nbytes));
}

static void pass_moved(struct pass *pass, uint64_t nbytes)
{
	pass->bytes += nbytes;
	progress_update(by_time(pass) ? clock_ns() - pass->started_ns : pass->bytes, pass->bytes);
}

static bool pass_over(const struct pass *pass)
{
	return stop_signal() ||
	       (pass->runtime_ns && clock_ns() - pass->started_ns >= pass->runtime_ns);
}

/* Waits until the job's rate allows that many more bytes; false if the time ends first. */
static bool pace(const struct run *run, const struct pass *pass, enum nvs_direction direction,
		 uint64_t nbytes)
{
	return !pass->paced || job_pace(run->watch, direction, nbytes);
}

static int fill_batch(struct run *run, const struct batch *batch)
{
	uint64_t from = thread_cpu_ns() / 1000;
	int rc = 0;

	for (size_t i = 0; i < batch->n && !rc; i++)
		rc = pattern_fill(&run->pattern, batch->first + i, batch->generation,
				  nvs_tensor_data(run->opened.tensors[batch->first + i]),
				  &run->result->error);
	run->data_us += thread_cpu_ns() / 1000 - from;
	return rc;
}

static int compare_batch(struct run *run, const struct batch *batch)
{
	uint64_t from = thread_cpu_ns();
	int rc = bench_engine_compare(&run->opened, &run->pattern, batch->first, batch->n,
				      batch->generation, run->result);

	run->data_us += (thread_cpu_ns() - from) / 1000;
	return rc;
}

/* Releases a batch, and starts to write it if it was changed. */
static int release_batch(struct run *run, struct batch *batch, enum nvs_how how)
{
	struct nvs_tensor **tensors = batch_tensors(run, batch);
	int rc = nvs_tensor_release(run->opened.engine, tensors, batch->n, batch->pin, how,
				    &run->result->error);

	batch->pin = 0;
	if (!rc)
		rc = nvs_tensor_swap_out(run->opened.engine, tensors, batch->n,
					 &run->result->error);
	if (!rc && how == NVS_DIRTY) {
		run->asked[NVS_WRITE] += batch->nbytes;
		batch->written = true;
	}
	return rc;
}

static int wait_batch(struct run *run, const struct batch *batch)
{
	return nvs_tensor_wait(run->opened.engine, batch_tensors(run, batch), batch->n, batch->pin,
			       -1, &run->result->error);
}

static int write_batch(struct run *run, struct batch *batch, bool fill)
{
	/* If its last write is still in flight, this reports the write's failure. */
	int rc = wait_batch(run, batch);

	if (!rc)
		rc = nvs_tensor_pin(run->opened.engine, batch_tensors(run, batch), batch->n, -1,
				    &batch->pin, &run->result->error);
	if (rc)
		return rc;
	if (fill) {
		batch->generation += batch->written && run->options->verify;
		rc = fill_batch(run, batch);
	}
	return rc ? rc : release_batch(run, batch, NVS_DIRTY);
}

static int write_pass(struct run *run, struct pass *pass)
{
	uint64_t total = times(pass->loops, run->nbatches);
	int rc = 0;

	assert(run->nbatches);
	pass_begin(pass, run);
	for (uint64_t i = 0; i < total && !rc && !pass_over(pass); i++) {
		struct batch *batch = &run->batches[i % run->nbatches];

		if (!pace(run, pass, NVS_WRITE, batch->nbytes))
			break;
		rc = write_batch(run, batch, pass->fill);
		pass_moved(pass, batch->nbytes);
	}
	progress_end();
	return rc;
}

static int begin_read(struct run *run, struct batch *batch, int timeout_ms)
{
	int rc = wait_batch(run, batch);

	if (!rc)
		rc = nvs_tensor_swap_in(run->opened.engine, batch_tensors(run, batch), batch->n,
					timeout_ms, &batch->pin, &run->result->error);
	if (rc)
		return rc;
	run->asked[NVS_READ] += batch->nbytes;
	return 0;
}

/* Releases the batch unchanged if the rate leaves no time to write it. */
static int end_read(struct run *run, struct batch *batch, const struct pass *pass)
{
	int rc = wait_batch(run, batch);
	bool change;

	if (!rc && pass->compare)
		rc = compare_batch(run, batch);
	change = !rc && pass->change && pace(run, pass, NVS_WRITE, batch->nbytes);
	if (change && pass->compare) {
		batch->generation++;
		rc = fill_batch(run, batch);
	}
	return rc ? rc : release_batch(run, batch, change ? NVS_DIRTY : NVS_CLEAN);
}

/*
 * Reads up to half of the pool ahead; the other half is for write-backs. A batch is read again only
 * after its release, because a pinned tensor is not read.
 */
static int read_ahead(struct run *run, const struct pass *pass, struct batch *const *order,
		      size_t n, uint64_t limit, uint64_t done, uint64_t *issued, uint64_t *held)
{
	while (*issued < limit && *issued - done < n) {
		struct batch *batch = order[*issued % n];
		bool holds = *issued != done;
		int rc;

		if (holds && *held + batch->room > run->opened.pool_bytes / 2)
			return 0;
		if (!pace(run, pass, NVS_READ, batch->nbytes))
			return 0;
		rc = begin_read(run, batch, holds ? 0 : -1);
		if (rc == -EAGAIN && holds) {
			run->result->error = (struct nvs_error){.size = sizeof(run->result->error)};
			return 0;
		}
		if (rc)
			return rc;
		*held += batch->room;
		(*issued)++;
	}
	return 0;
}

static int read_pass(struct run *run, struct pass *pass)
{
	struct batch **order = calloc(run->nbatches, sizeof(struct batch *));
	uint64_t issued = 0, done = 0, held = 0, limit;
	size_t n = 0;
	int rc = order ? 0 : -ENOMEM;

	for (size_t i = 0; i < run->nbatches && order; i++)
		if (run->batches[i].written)
			order[n++] = &run->batches[i];
	limit = times(pass->loops, n);
	pass_begin(pass, run);
	while (!rc && n && done < limit) {
		if (pass_over(pass))
			limit = issued;
		rc = read_ahead(run, pass, order, n, limit, done, &issued, &held);
		if (rc || issued == done)
			break;

		struct batch *batch = order[done++ % n];

		rc = end_read(run, batch, pass);
		held -= batch->room;
		pass_moved(pass, batch->nbytes);
	}
	progress_end();
	free(order);
	return rc;
}

/*
 * Without comparing, contents are whatever the pool holds. Fill it with data once, before the
 * measurement: drives and hypervisors treat zeros specially.
 */
static int prime(struct run *run)
{
	size_t n = 0;
	int rc = 0;

	while (n < run->nbatches && !rc) {
		struct batch *batch = &run->batches[n];

		rc = nvs_tensor_pin(run->opened.engine, batch_tensors(run, batch), batch->n,
				    n ? 0 : -1, &batch->pin, &run->result->error);
		n += !rc;
	}
	if (rc == -EAGAIN) {
		run->result->error = (struct nvs_error){.size = sizeof(run->result->error)};
		rc = 0;
	}
	for (size_t i = 0; i < n && !rc && !stop_signal(); i++)
		rc = fill_batch(run, &run->batches[i]);
	for (size_t i = 0; i < n && !rc; i++) {
		struct batch *batch = &run->batches[i];

		rc = nvs_tensor_release(run->opened.engine, batch_tensors(run, batch), batch->n,
					batch->pin, NVS_CLEAN, &run->result->error);
		batch->pin = 0;
	}
	return rc;
}

static int wait_all(struct run *run)
{
	return nvs_tensor_wait(run->opened.engine, run->opened.tensors, run->model->n, 0, -1,
			       &run->result->error);
}

/* The engine must have moved the bytes that were requested. */
static int check_moved(struct run *run, const uint64_t from[2])
{
	static const char *const names[] = {[NVS_READ] = "in", [NVS_WRITE] = "out"};

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		unsigned long long asked = run->asked[d] - from[d];
		unsigned long long moved = run->result->bytes[d];

		if (asked == moved)
			continue;
		run->result->error.code = -EIO;
		snprintf(run->result->error.text, sizeof(run->result->error.text),
			 "%llu bytes should have been swapped %s, but %llu were", asked, names[d],
			 moved);
		return -EIO;
	}
	return 0;
}

/*
 * Whether swap-outs need generated contents: for comparing, or because the model's file has them.
 */
static bool makes_contents(const struct run *run)
{
	return run->options->verify || run->model->nfiles;
}

static int mode_pass(struct run *run, const char *name, uint64_t loops, uint64_t runtime_ms)
{
	struct pass pass = {
		.name = name, .loops = loops, .runtime_ns = runtime_ms * 1000000u, .paced = true};
	bool verify = run->options->verify;
	int rc;

	if (run->options->rw == RW_SWAPOUT) {
		pass.fill = makes_contents(run);
		rc = write_pass(run, &pass);
	} else {
		pass.compare = verify;
		pass.change = run->options->rw == RW_SWAP;
		rc = read_pass(run, &pass);
	}
	return rc ? rc : wait_all(run);
}

static int first_pass(struct run *run)
{
	struct pass pass = {.name = "fill", .loops = 1, .fill = true};
	int rc;

	if (run->options->rw == RW_SWAPOUT)
		return makes_contents(run) ? 0 : prime(run);
	rc = write_pass(run, &pass);
	if (!rc)
		rc = wait_all(run);
	run->result->first_ns = clock_ns() - pass.started_ns;
	run->result->first_bytes = pass.bytes;
	return rc;
}

static int measured_pass(struct run *run)
{
	static const char *const names[] = {"swap-out", "swap-in", "swap"};
	const struct bench_options *options = run->options;
	struct nvs_aio *aio = nvs_engine_aio(run->opened.engine);
	uint64_t asked[2] = {run->asked[0], run->asked[1]}, data_us = run->data_us;
	struct baseline from;
	int rc;

	job_measures(run->watch, aio, run->opened.engine, &from);
	rc = mode_pass(run, names[options->rw], options->time_based ? UINT64_MAX : options->loops,
		       options->runtime_ms);
	measure_end(aio, run->opened.engine, &from, run->result);
	job_measured(run->watch, run->result);
	run->result->data_us = run->data_us - data_us;
	return rc ? rc : check_moved(run, asked);
}

static int final_pass(struct run *run)
{
	struct pass pass = {.name = "verify", .loops = 1, .compare = true};

	if (!run->options->verify || run->options->rw == RW_SWAPIN)
		return 0;
	return read_pass(run, &pass);
}

static int ramp(struct run *run)
{
	const struct bench_options *options = run->options;
	int rc = 0;

	if (options->ramp_loops)
		rc = mode_pass(run, "ramp", options->ramp_loops, 0);
	if (!rc && options->ramp_time_ms && !stop_signal())
		rc = mode_pass(run, "ramp", UINT64_MAX, options->ramp_time_ms);
	return rc;
}

static int all_passes(struct run *run)
{
	int rc = first_pass(run);

	if (rc || !job_begin(run->watch))
		return rc;
	rc = ramp(run);
	if (!rc && !stop_signal())
		rc = measured_pass(run);
	if (!rc && !stop_signal())
		rc = final_pass(run);
	return bench_engine_verdict(&run->opened, rc, run->result);
}

static struct batch cut_batch(const struct run *run, size_t first, uint64_t limit)
{
	struct batch batch = {.first = first};
	const struct model *model = run->model;

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

static void make_batches(struct run *run)
{
	uint64_t limit = min_u64(run->opened.pool_bytes / POOL_BATCHES, BATCH_BYTES_MAX);

	if (run->options->rate)
		limit = min_u64(limit, run->options->rate / RATE_BATCHES);
	for (size_t first = 0; first < run->model->n;) {
		run->batches[run->nbatches] = cut_batch(run, first, limit);
		first += run->batches[run->nbatches++].n;
	}
}

static int open_and_run(struct run *run, const struct nvs_config *config, enum nvs_block block)
{
	int rc = bench_engine_open(&run->opened, config, block, run->model, run->result);

	if (!rc) {
		make_batches(run);
		rc = all_passes(run);
	}
	return bench_engine_close(&run->opened, rc, run->result);
}

int bench_swap(const struct bench_options *options, const struct nvs_config *config,
	       enum nvs_block block, const struct model *model, struct bench_result *result,
	       struct job_watch *watch)
{
	struct batch *batches = calloc(model->n, sizeof(struct batch));
	struct run run = {.options = options,
			  .model = model,
			  .pattern = {.model = model, .seed = options->seed},
			  .batches = batches,
			  .watch = watch,
			  .result = result};
	int rc = batches ? open_and_run(&run, config, block) : -ENOMEM;

	free(batches);
	return rc;
}
