/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modes swapout, swapin and swap: passes over the model, batch by batch, with as much in flight as
 * the pool has room for. It waits without a limit only while it holds nothing that others could
 * wait for.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_engine.h"
#include "bench_modes.h"
#include "clock.h"
#include "job_watch.h"
#include "measure.h"
#include "pattern.h"
#include "progress.h"
#include "stop.h"

/* Batches move a part of the pool at a time, and no more than is needed to keep a drive busy. */
#define POOL_BATCHES	4u
#define BATCH_BYTES_MAX (128u << 20)
/* In a second at the job's rate, so that it is kept smoothly. */
#define RATE_BATCHES 20u

/* Neighbouring tensors that move together. */
struct batch {
	size_t first, n;
	uint64_t nbytes, room;
	uint32_t generation; /* of its contents */
	bool written;
};

struct run {
	const struct bench_options *options;
	const struct model *model;
	struct pattern pattern;
	struct nvs_engine *engine;
	struct nvs_tensor **tensors;
	struct batch *batches;
	size_t nbatches;
	uint64_t pool_bytes;
	uint64_t asked[2];	     /* bytes that were to be moved, by enum nvs_direction */
	uint64_t data_us;	     /* processor time for making and comparing contents */
	struct nvs_error difference; /* the first that comparing found */
	struct job_watch *watch;
	struct bench_result *result;
};

/* One way through all batches, several times. */
struct pass {
	const char *name;
	uint64_t loops;	     /* UINT64_MAX: until the time is over */
	uint64_t runtime_ns; /* that it may take at most; 0: any */
	bool fill;	     /* make new contents before a swap-out */
	bool compare;	     /* after a swap-in */
	bool change;	     /* write back what was read */
	bool paced;	     /* at the job's rate */
	uint64_t started_ns, bytes;
};

static struct nvs_tensor **batch_tensors(const struct run *run, const struct batch *batch)
{
	return run->tensors + batch->first;
}

static void note_pool_use(struct run *run)
{
	struct nvs_engine_stats stats;

	nvs_get_stats(run->engine, &stats);
	if (stats.pool.used > run->result->pool_peak)
		run->result->pool_peak = stats.pool.used;
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
	pass->started_ns = now_ns();
	progress_begin(pass->name,
		       by_time(pass) ? pass->runtime_ns : times(pass->loops, run->model->nbytes));
}

static void pass_moved(struct pass *pass, uint64_t nbytes)
{
	pass->bytes += nbytes;
	progress_update(by_time(pass) ? now_ns() - pass->started_ns : pass->bytes, pass->bytes);
}

static bool pass_over(const struct pass *pass)
{
	return stop_signal() ||
	       (pass->runtime_ns && now_ns() - pass->started_ns >= pass->runtime_ns);
}

/* Whether so many bytes more may be moved now; waits until they may. */
static bool pace(const struct run *run, const struct pass *pass, enum nvs_direction direction,
		 uint64_t nbytes)
{
	return !pass->paced || job_pace(run->watch, direction, nbytes);
}

static int fill_batch(struct run *run, const struct batch *batch)
{
	uint64_t from = thread_us();
	int rc = 0;

	for (size_t i = 0; i < batch->n && !rc; i++)
		rc = pattern_fill(&run->pattern, batch->first + i, batch->generation,
				  nvs_data(run->tensors[batch->first + i]), &run->result->error);
	run->data_us += thread_us() - from;
	return rc;
}

/* A tensor that differs is counted, and the first of them described; others are looked at too. */
static int compare_batch(struct run *run, const struct batch *batch)
{
	struct bench_result *result = run->result;
	uint64_t from = thread_us();
	struct nvs_error error;

	for (size_t i = batch->first; i < batch->first + batch->n; i++) {
		int rc = pattern_compare(&run->pattern, i, batch->generation,
					 nvs_data(run->tensors[i]), &error);

		if (rc && rc != -EBADMSG) {
			result->error = error;
			return rc;
		}
		if (rc && !result->verify_errors++)
			run->difference = error;
		result->verified_bytes += run->model->tensors[i].nbytes;
	}
	run->data_us += thread_us() - from;
	return 0;
}

/* Ends the use of a batch, and lets what was changed be written while others go on. */
static int let_go(struct run *run, struct batch *batch, enum nvs_how how)
{
	struct nvs_tensor **tensors = batch_tensors(run, batch);
	int rc = nvs_release(run->engine, tensors, batch->n, how, &run->result->error);

	if (!rc)
		rc = nvs_swap_out(run->engine, tensors, batch->n, &run->result->error);
	if (!rc && how == NVS_DIRTY) {
		run->asked[NVS_WRITE] += batch->nbytes;
		batch->written = true;
	}
	return rc;
}

static int wait_batch(struct run *run, const struct batch *batch)
{
	return nvs_wait(run->engine, batch_tensors(run, batch), batch->n, -1, &run->result->error);
}

static int write_batch(struct run *run, struct batch *batch, bool fill)
{
	/* What it wrote last, if that is still on its way: its outcome is asked for here. */
	int rc = wait_batch(run, batch);

	if (!rc)
		rc = nvs_lease(run->engine, batch_tensors(run, batch), batch->n, -1,
			       &run->result->error);
	if (rc)
		return rc;
	note_pool_use(run);
	if (fill) {
		batch->generation += batch->written && run->options->verify;
		rc = fill_batch(run, batch);
	}
	return rc ? rc : let_go(run, batch, NVS_DIRTY);
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

static int begin_read(struct run *run, const struct batch *batch, int timeout_ms)
{
	int rc = wait_batch(run, batch);

	if (!rc)
		rc = nvs_swap_in(run->engine, batch_tensors(run, batch), batch->n, timeout_ms,
				 &run->result->error);
	if (rc)
		return rc;
	run->asked[NVS_READ] += batch->nbytes;
	note_pool_use(run);
	return 0;
}

/* What the rate has no time for any more stays as it was read. */
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
	return rc ? rc : let_go(run, batch, change ? NVS_DIRTY : NVS_CLEAN);
}

/*
 * Reads up to half of the pool ahead; the other half is for what is being written back. A batch is
 * read again only after it was let go, for otherwise nothing would be read.
 */
static int read_ahead(struct run *run, const struct pass *pass, struct batch *const *order,
		      size_t n, uint64_t limit, uint64_t done, uint64_t *issued, uint64_t *held)
{
	while (*issued < limit && *issued - done < n) {
		const struct batch *batch = order[*issued % n];
		bool holds = *issued != done;
		int rc;

		if (holds && *held + batch->room > run->pool_bytes / 2)
			return 0;
		if (!pace(run, pass, NVS_READ, batch->nbytes))
			return 0;
		rc = begin_read(run, batch, holds ? 0 : -1);
		if (rc == -EAGAIN && holds) {
			run->result->error = (struct nvs_error){0};
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
 * Made-up contents that are not compared are what the pool's memory holds. That is made to be data,
 * not zeros, once and before the measuring, for drives and hypervisors take a short way with zeros.
 */
static int prime(struct run *run)
{
	size_t n = 0;
	int rc = 0;

	while (n < run->nbatches && !rc) {
		const struct batch *batch = &run->batches[n];

		rc = nvs_lease(run->engine, batch_tensors(run, batch), batch->n, n ? 0 : -1,
			       &run->result->error);
		n += !rc;
	}
	if (rc == -EAGAIN) {
		run->result->error = (struct nvs_error){0};
		rc = 0;
	}
	for (size_t i = 0; i < n && !rc && !stop_signal(); i++)
		rc = fill_batch(run, &run->batches[i]);
	for (size_t i = 0; i < n && !rc; i++)
		rc = nvs_release(run->engine, batch_tensors(run, &run->batches[i]),
				 run->batches[i].n, NVS_CLEAN, &run->result->error);
	return rc;
}

static int wait_all(struct run *run)
{
	return nvs_wait(run->engine, run->tensors, run->model->n, -1, &run->result->error);
}

/* The engine's own count of what has moved, against what was asked for. */
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
			 "%llu bytes were to be swapped %s, and %llu were", asked, names[d], moved);
		return -EIO;
	}
	return 0;
}

/* Contents are made for every swap-out: to be compared, or because they are a file's own. */
static bool makes_contents(const struct run *run)
{
	return run->options->verify || run->model->fd >= 0;
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
	run->result->first_ns = now_ns() - pass.started_ns;
	run->result->first_bytes = pass.bytes;
	return rc;
}

static int measured_pass(struct run *run)
{
	static const char *const names[] = {"swap-out", "swap-in", "swap"};
	const struct bench_options *options = run->options;
	struct nvs_aio *aio = nvs_engine_aio(run->engine);
	uint64_t asked[2] = {run->asked[0], run->asked[1]}, data_us = run->data_us;
	struct baseline from;
	int rc;

	job_measures(run->watch, aio, run->engine, &from);
	rc = mode_pass(run, names[options->rw], options->time_based ? UINT64_MAX : options->loops,
		       options->runtime_ms);
	measure_end(aio, run->engine, &from, run->result);
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
	if (!rc && run->result->verify_errors) {
		run->result->error = run->difference;
		rc = -EBADMSG;
	}
	return rc;
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

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void make_batches(struct run *run)
{
	uint64_t limit = least(run->pool_bytes / POOL_BATCHES, BATCH_BYTES_MAX);

	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (run->options->rate[d])
			limit = least(limit, run->options->rate[d] / RATE_BATCHES);
	for (size_t first = 0; first < run->model->n;) {
		run->batches[run->nbatches] = cut_batch(run, first, limit);
		first += run->batches[run->nbatches++].n;
	}
}

static int open_and_run(struct run *run, const struct nvs_config *config, enum nvs_block block)
{
	struct bench_engine opened;
	int rc = bench_engine_open(&opened, config, block, run->model, run->result);

	run->engine = opened.engine;
	run->tensors = opened.tensors;
	run->pool_bytes = opened.pool_bytes;
	if (!rc) {
		make_batches(run);
		rc = all_passes(run);
	}
	return bench_engine_close(&opened, rc, run->result);
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
