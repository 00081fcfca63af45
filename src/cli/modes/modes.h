/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modes of a benchmark. Each opens what it needs, runs, and closes it; it returns 0 or a
 * negative errno, with a text in result->error if the errno alone is unclear.
 */
#ifndef CLI_MODES_MODES_H
#define CLI_MODES_MODES_H

#include "cli/jobs/jobs.h"

int bench_blocks(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);
/* Makes a file to work on, also that of `nvswap tune`. It has no name, so that nothing is left of
 * it however the process ends, and `nbytes` are reserved where the file system can. Returns the
 * descriptor. -ENOSPC and other errors of making a file. */
int make_scratch_file(const char *directory, uint64_t nbytes, struct nvs_error *error);
int bench_swap(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);
int bench_step(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);
/* Computing in a visit is a span of the job's trace. */
int bench_params(const struct bench_job *job, struct job_watch *watch, struct bench_result *result);

/* ---- engine.c: the size of a job's pool, from --pool or the configuration, or else a default that
 * suits the mode and what memory the process may take ---- */

/* The size of generated tensors if none is given: smaller than 64 MiB if memory is short. */
uint64_t pool_tensor_size(const struct bench_options *options);
/* Sets the block's buffers to the size of the pool. -E2BIG if the pool is too small for the longest
 * tensor, or with rw=params for the longest layer, with what suffices in *error. -EINVAL: out of
 * range. */
int pool_choose(const struct bench_options *options, const struct model *model,
		struct nvs_config *config, enum nvs_block block, struct nvs_error *error);

/* ---- What a mode does after it has opened and filled what it needs: the wait for the other
 * jobs of the stage, the ramp, and the measured window ---- */

struct step_done {
	struct nvs_step_io io;
	uint64_t updates_ns, tiles; /* of an optimizer; processor time of updates and norm */
	bool skipped;
};

struct load {
	const struct bench_options *options;
	struct job_watch *watch;
	struct bench_result *result;
	struct nvs_engine *engine; /* NULL: none, but this aio: */
	struct nvs_aio *aio;
	/* Ends after `loops` passes, UINT64_MAX: any number, or runtime_ms, 0: no limit, or at a
	 * signal; leaves nothing in flight. Adds its work on contents to result->data_us. */
	int (*run)(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms);
	/* Of steps_run: */
	int (*step)(void *arg, struct step_done *done); /* -EINTR: a signal ended it early */
	struct bench_engine *opened; /* whose I/O steps leave in flight; NULL: none */
	void *arg;
};

/* Returns the error of run(). If a signal ended it early, result->measured may be false. */
int load_run(const struct load *load);

/* ---- engine.c: the engine of a benchmark with the model's tensors in it ---- */

struct bench_engine {
	struct nvs_engine *engine;   /* NULL: opening failed */
	struct nvs_tensor **tensors; /* in the order of the model */
	const struct model *model;
	struct pattern pattern; /* of the job */
	struct bench_result *result;
	uint64_t pool_bytes;
	struct nvs_error difference; /* the first difference found */
};

/* Errors are in result->error. Call bench_engine_close afterwards, whatever is returned. */
int bench_engine_open(struct bench_engine *opened, const struct bench_job *job,
		      struct bench_result *result);
/* Neighbours from tensor `first` on that move together: a part of the pool, but no more than keeps
 * a drive busy, nor than a fraction of a second at `rate`. At least one tensor. */
struct layer bench_engine_batch(const struct bench_engine *opened, size_t first, uint64_t rate);
/* Generates tensors that are pinned. Time of filling and comparing is added to result->data_us. */
void bench_engine_generate(struct bench_engine *opened, const struct layer *tensors,
			   uint32_t generation);
/* Writes that generation of each tensor whose entry in `chosen` is true; NULL: of all. */
int bench_engine_fill(struct bench_engine *opened, uint32_t generation, const bool *chosen);
/* Compares tensors that are pinned with their pattern. Differences are counted in the result, and
 * the first of them is kept for the verdict. */
void bench_engine_compare(struct bench_engine *opened, const struct layer *tensors,
			  uint32_t generation);
int bench_engine_wait(struct bench_engine *opened);
/* Stores the engine's statistics and closes it. Returns rc, or, if that is 0, -EBADMSG with the
 * first difference if contents differed, or the error of closing. */
int bench_engine_close(struct bench_engine *opened, int rc, struct bench_result *result);
/* Explains -EEXIST, a kept store. Returns rc. */
int bench_opened(int rc, struct nvs_error *error);

#endif
