/* SPDX-License-Identifier: Apache-2.0 */
/* rw=swapout, swapin and swap: passes over the model, batch by batch, with as much in flight as the
 * pool has room for. It waits for room without a limit only while it has nothing pinned. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/modes/modes.h"

struct batch {
	struct layer of;
	uint64_t pin;	     /* 0: not pinned */
	uint32_t generation; /* generation of its contents */
	bool written;
};

struct run {
	const struct bench_options *options;
	struct bench_engine opened;
	struct batch *batches;
	size_t nbatches;
	uint64_t asked[2]; /* bytes requested, by enum nvs_direction */
	struct job_watch *watch;
	struct bench_result *result;
};

struct pass {
	const char *name;
	uint64_t loops;	     /* UINT64_MAX: until the runtime ends */
	uint64_t runtime_ns; /* limit; 0: none */
	bool change;	     /* write back what was read */
	bool paced;	     /* limited by the job's rate */
	uint64_t started_ns, bytes;
};

static uint64_t times(uint64_t loops, uint64_t n)
{
	uint64_t all;

	return __builtin_mul_overflow(loops, n, &all) ? UINT64_MAX : all;
}

static void pass_begin(struct pass *pass, const struct run *run)
{
	pass->started_ns = clock_ns();
	progress_begin(pass->name, pass->loops == UINT64_MAX
					   ? pass->runtime_ns
					   : times(pass->loops, run->opened.model->nbytes));
}

static void pass_moved(struct pass *pass, uint64_t nbytes)
{
	pass->bytes += nbytes;
	progress_update(pass->loops == UINT64_MAX ? clock_ns() - pass->started_ns : pass->bytes,
			pass->bytes);
}

static bool pass_over(const struct pass *pass)
{
	return stop_signal() ||
	       (pass->runtime_ns && clock_ns() - pass->started_ns >= pass->runtime_ns);
}

static bool pace(const struct run *run, const struct pass *pass, enum nvs_direction direction,
		 const struct batch *batch)
{
	return !pass->paced || job_pace(run->watch, direction, batch->of.nbytes);
}

static struct nvs_tensor **batch_tensors(const struct run *run, const struct batch *batch)
{
	return run->opened.tensors + batch->of.first;
}

/* If the last write of an unpinned batch is still in flight, this reports the write's failure. */
static int wait_batch(struct run *run, const struct batch *batch)
{
	return nvs_tensor_wait(run->opened.engine, batch_tensors(run, batch), batch->of.n,
			       batch->pin, -1, &run->result->error);
}

/* timeout_ms 0: -EAGAIN without an error if there is no room. */
static int pin_batch(struct run *run, struct batch *batch, bool read, int timeout_ms)
{
	int rc = (read ? nvs_tensor_swap_in
		       : nvs_tensor_pin)(run->opened.engine, batch_tensors(run, batch), batch->of.n,
					 timeout_ms, &batch->pin, &run->result->error);

	if (rc == -EAGAIN && !timeout_ms)
		run->result->error = (struct nvs_error){.size = sizeof(run->result->error)};
	return rc;
}

static int release_batch(struct run *run, struct batch *batch, enum nvs_how how)
{
	struct nvs_tensor **tensors = batch_tensors(run, batch);
	struct nvs_error *error = &run->result->error;
	int rc = nvs_tensor_release(run->opened.engine, tensors, batch->of.n, batch->pin, how,
				    error);

	batch->pin = 0;
	rc = rc ?: nvs_tensor_swap_out(run->opened.engine, tensors, batch->of.n, error);
	if (!rc && how == NVS_DIRTY) {
		run->asked[NVS_WRITE] += batch->of.nbytes;
		batch->written = true;
	}
	return rc;
}

static int write_pass(struct run *run, struct pass *pass)
{
	uint64_t total = times(pass->loops, run->nbatches);
	int rc = 0;

	pass_begin(pass, run);
	for (uint64_t i = 0; i < total && !rc && !pass_over(pass); i++) {
		struct batch *batch = &run->batches[i % run->nbatches];

		if (!pace(run, pass, NVS_WRITE, batch))
			break;
		rc = wait_batch(run, batch);
		rc = rc ?: pin_batch(run, batch, false, -1);
		if (!rc && run->options->verify) {
			batch->generation += batch->written;
			bench_engine_generate(&run->opened, &batch->of, batch->generation);
		}
		rc = rc ?: release_batch(run, batch, NVS_DIRTY);
		pass_moved(pass, batch->of.nbytes);
	}
	progress_end();
	return rc;
}

/* Releases the batch unchanged if the rate leaves no time to write it. */
static int end_read(struct run *run, struct batch *batch, const struct pass *pass)
{
	int rc = wait_batch(run, batch);
	bool change;

	if (rc)
		return rc;
	if (run->options->verify)
		bench_engine_compare(&run->opened, &batch->of, batch->generation);
	change = pass->change && pace(run, pass, NVS_WRITE, batch);
	if (change && run->options->verify) {
		batch->generation++;
		bench_engine_generate(&run->opened, &batch->of, batch->generation);
	}
	return release_batch(run, batch, change ? NVS_DIRTY : NVS_CLEAN);
}

/* Reads up to half of the pool ahead; the other half is for write-backs. A batch is read again only
 * after its release, because a pinned tensor is not read. */
static int read_pass(struct run *run, struct pass *pass)
{
	struct batch **order = calloc(run->nbatches, sizeof(struct batch *)), *batch;
	uint64_t issued = 0, done = 0, held = 0, limit;
	size_t n = 0;
	int rc = 0;

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < run->nbatches; i++)
		if (run->batches[i].written)
			order[n++] = &run->batches[i];
	limit = times(pass->loops, n);
	pass_begin(pass, run);
	while (!rc && done < limit) {
		if (pass_over(pass))
			limit = issued;
		while (issued < limit && issued - done < n) {
			bool holds = issued != done;

			batch = order[issued % n];
			if ((holds && held + batch->of.room > run->opened.pool_bytes / 2) ||
			    !pace(run, pass, NVS_READ, batch))
				break;
			rc = wait_batch(run, batch);
			rc = rc ?: pin_batch(run, batch, true, holds ? 0 : -1);
			if (rc)
				break;
			run->asked[NVS_READ] += batch->of.nbytes;
			held += batch->of.room;
			issued++;
		}
		if (rc == -EAGAIN && issued != done)
			rc = 0;
		if (rc || issued == done)
			break;
		batch = order[done++ % n];
		rc = end_read(run, batch, pass);
		held -= batch->of.room;
		pass_moved(pass, batch->of.nbytes);
	}
	progress_end();
	free(order);
	return rc;
}

/* Without comparing, contents are whatever the pool holds. Fill it with data once, before the
 * measurement: drives and hypervisors treat zeros specially. */
static int prime(struct run *run)
{
	size_t n = 0;
	int rc = 0;

	while (n < run->nbatches && !rc) {
		rc = pin_batch(run, &run->batches[n], false, n ? 0 : -1);
		n += !rc;
	}
	if (rc == -EAGAIN)
		rc = 0;
	for (size_t i = 0; i < n && !rc && !stop_signal(); i++)
		bench_engine_generate(&run->opened, &run->batches[i].of, 0);
	for (size_t i = 0; i < n && !rc; i++)
		rc = release_batch(run, &run->batches[i], NVS_CLEAN);
	return rc;
}

static int mode_pass(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms)
{
	struct run *run = arg;
	unsigned rw = run->options->rw;
	struct pass pass = {.name = measured ? bench_rw_name(rw) : "ramp",
			    .loops = loops,
			    .runtime_ns = runtime_ms * 1000000u,
			    .change = rw == RW_SWAP,
			    .paced = true};
	int rc;

	run->asked[NVS_READ] = run->asked[NVS_WRITE] = 0;
	rc = (rw == RW_SWAPOUT ? write_pass : read_pass)(run, &pass);
	return rc ? rc : bench_engine_wait(&run->opened);
}

static int run_opened(struct run *run)
{
	const struct bench_options *options = run->options;
	const struct model *model = run->opened.model;
	struct load load = {.options = options,
			    .watch = run->watch,
			    .result = run->result,
			    .engine = run->opened.engine,
			    .run = mode_pass,
			    .arg = run};
	struct pass last = {.name = "verify", .loops = 1};
	uint64_t data_us;
	int rc = 0;

	for (size_t first = 0; first < model->n; first += run->batches[run->nbatches++].of.n)
		run->batches[run->nbatches] =
			(struct batch){.of = bench_engine_batch(&run->opened, first, options->rate),
				       .written = options->rw != RW_SWAPOUT};
	if (options->rw != RW_SWAPOUT)
		rc = bench_engine_fill(&run->opened, 0, NULL);
	else if (!options->verify)
		rc = prime(run);
	rc = rc ?: load_run(&load);
	if (rc || !run->result->measured)
		return rc;
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (run->asked[d] != run->result->bytes[d])
			return error_set(&run->result->error, -EIO,
					 "%" PRIu64
					 " bytes should have been swapped %s, but %" PRIu64 " were",
					 run->asked[d], d == NVS_READ ? "in" : "out",
					 run->result->bytes[d]);
	if (!options->verify || options->rw == RW_SWAPIN || stop_signal())
		return 0;
	data_us = run->result->data_us;
	rc = read_pass(run, &last);
	run->result->data_us = data_us;
	return rc;
}

int bench_swap(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	struct run run = {.options = &job->options,
			  .batches = calloc(job->model.n, sizeof(struct batch)),
			  .watch = watch,
			  .result = result};
	int rc = -ENOMEM;

	if (run.batches) {
		rc = bench_engine_open(&run.opened, job, result);
		rc = rc ?: run_opened(&run);
		rc = bench_engine_close(&run.opened, rc, result);
	}
	free(run.batches);
	return rc;
}
