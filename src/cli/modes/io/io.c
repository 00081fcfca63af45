/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio's modes: blocks of a file instead of tensors, on the same workers and engines. A file that is
 * read is filled first; with --verify, one that is written is read back at the end.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/jobs/measure.h"
#include "cli/modes/io/load.h"
#include "cli/modes/model/pattern.h"
#include "cli/modes/modes.h"
#include "cli/settings.h"
#include "cli/stop.h"

/* Filling and reading back use I/Os of this length, faster than small blocks. */
#define CHUNK_BYTES ((uint64_t)1 << 20)

struct run {
	const struct bench_options *options;
	struct option_mix blocks, chunks;
	uint64_t longest; /* the longest block */
	uint64_t depth;	  /* I/Os in flight of all workers together */
	struct io_file file;
	struct io_contents contents;
	struct io_sequence sequence;
	struct io_load load;
	struct job_watch *watch;
	struct bench_result *result;
};

static bool reads(const struct run *run)
{
	return fio_mode_moves(run->options->rw, NVS_READ);
}

static bool writes(const struct run *run)
{
	return fio_mode_moves(run->options->rw, NVS_WRITE);
}

/* ---- Resources ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	return b ? common_divisor(b, a % b) : a;
}

static int take_blocks(struct run *run, const struct nvs_config *config)
{
	struct nvs_error *error = &run->result->error;
	uint64_t grain = 0;

	bench_blocks(run->options, setting_number(config, "aio.block_size"), &run->blocks);
	for (unsigned i = 0; i < run->blocks.n; i++) {
		uint64_t nbytes = run->blocks.nbytes[i];

		if (nbytes < NVS_BLOCK_SIZE_MIN || nbytes > NVS_BLOCK_SIZE_MAX || nbytes % 512)
			return io_refuse(error, -EINVAL,
					 "a block of %" PRIu64 " bytes: it must be a multiple of "
					 "512, up to 1 GiB",
					 nbytes);
		grain = common_divisor(nbytes, grain);
		if (nbytes > run->longest)
			run->longest = nbytes;
	}
	assert(grain);
	run->contents = (struct io_contents){
		.seed = run->options->seed, .grain = grain, .writes_over = writes(run)};
	run->chunks = (struct option_mix){
		.nbytes = {(CHUNK_BYTES + grain - 1) / grain * grain}, .percent = {100}, .n = 1};
	return 0;
}

/* Each block is one I/O. */
static int open_aio(struct run *run, const struct nvs_config *config)
{
	struct nvs_error *error = &run->result->error;
	struct nvs_config *own = NULL;
	int rc = nvs_config_copy(config, &own, error);

	run->depth = setting_number(config, "aio.queue_depth") *
		     setting_number(config, "aio.thread_count");
	if (!rc)
		rc = nvs_config_set_number(own, "aio.block_size",
					   run->longest > CHUNK_BYTES ? run->longest : CHUNK_BYTES,
					   error);
	if (!rc)
		rc = nvs_aio_open(&run->load.aio, own, error);
	if (rc)
		run->load.aio = NULL;
	nvs_config_close(own);
	return rc;
}

static int open_file(struct run *run, const struct nvs_config *config, const char *job_name,
		     unsigned clone)
{
	const char *place = nvs_config_get_path(config, NVS_OFFLOAD_PARAM, 0);
	char name[NAME_MAX + 1];
	uint64_t unit = run->blocks.n == 1 ? run->longest : run->contents.grain;
	int rc;

	if (!place)
		place = nvs_config_get_path(config, NVS_OFFLOAD_OPTIMIZER, 0);
	if (!place)
		return io_refuse(&run->result->error, -EDESTADDRREQ,
				 "there is no place for the file: give --directory");
	io_file_name(job_name, clone, name);
	rc = io_file_open(&run->file, run->load.aio, run->options, place,
			  run->options->filename ? run->options->filename : name,
			  &run->result->error);
	if (rc)
		return rc;
	run->result->engine.direct = nvs_file_direct(run->file.file);
	run->result->engine.store_bytes = run->file.nbytes;
	if (run->file.nbytes < run->longest)
		return io_refuse(&run->result->error, -EINVAL,
				 "%s: %" PRIu64 " bytes are less than one block of %" PRIu64,
				 run->file.path, run->file.nbytes, run->longest);
	run->file.nbytes -= run->file.nbytes % unit;
	if (run->contents.grain % nvs_file_unit(run->file.file))
		return io_refuse(&run->result->error, -EINVAL,
				 "%s: blocks are multiples of %" PRIu64
				 " bytes, but this drive takes direct I/O in multiples of %u: give "
				 "such blocks",
				 run->file.path, run->contents.grain,
				 nvs_file_unit(run->file.file));
	return 0;
}

static int open_load(struct run *run)
{
	struct io_load *load = &run->load;
	int rc = io_load_open(load, run->depth, run->longest, &run->result->error);

	if (!rc)
		rc = io_contents_open(&run->contents, run->file.nbytes, run->options->verify);
	if (rc)
		return rc;
	/*
	 * Not zeros, which some drives handle faster. If registering is refused, I/O is only
	 * slower.
	 */
	for (uint64_t at = 0; at < load->memory_bytes; at += PATTERN_BLOCK_BYTES)
		pattern_block(run->options->seed, 0, 0, at, load->memory + at, PATTERN_BLOCK_BYTES);
	rc = nvs_aio_register_memory(load->aio, load->memory, load->memory_bytes);
	return rc == -ENOMEM || rc == -ENOSPC ? 0 : rc;
}

/* ---- The passes ---- */

/* Reads or writes the whole file in chunks. */
static int walk(struct run *run, const char *name, enum nvs_direction direction)
{
	struct io_sequence whole = {.read_percent = direction == NVS_READ ? 100 : 0,
				    .mix = &run->chunks,
				    .grain = run->contents.grain,
				    .nbytes = run->file.nbytes};
	const struct io_pass pass = {.name = name,
				     .sequence = &whole,
				     .nbytes = whole.nbytes,
				     .longest = run->chunks.nbytes[0],
				     .make = direction == NVS_WRITE,
				     .compare = direction == NVS_READ};

	return io_load_run(&run->load, &pass);
}

static int fill(struct run *run)
{
	uint64_t from = clock_ns();
	int rc = 0;

	if (!reads(run))
		return 0;
	if (run->file.own) {
		rc = walk(run, "fill", NVS_WRITE);
		run->result->first_ns = clock_ns() - from;
		run->result->first_bytes = run->load.moved[NVS_WRITE];
	}
	return rc ? rc : io_file_sync(&run->file, &run->result->error);
}

static void sequence_begin(struct run *run)
{
	unsigned read_percent = reads(run) ? 100 : 0;

	if (reads(run) && writes(run))
		read_percent = (unsigned)run->options->rwmixread;
	run->sequence = (struct io_sequence){.random = fio_mode_is_random(run->options->rw),
					     .read_percent = read_percent,
					     .mix = &run->blocks,
					     .grain = run->contents.grain,
					     .nbytes = run->file.nbytes,
					     .seed = run->options->seed};
}

static int mode_pass(struct run *run, const char *name, uint64_t nbytes, uint64_t runtime_ms)
{
	const struct io_pass pass = {.name = name,
				     .sequence = &run->sequence,
				     .nbytes = nbytes,
				     .runtime_ns = runtime_ms * 1000000u,
				     .longest = run->longest,
				     .make = run->options->verify,
				     .compare = run->options->verify,
				     .paced = true};

	io_sequence_restart(&run->sequence);
	return io_load_run(&run->load, &pass);
}

/* As in fio, a smaller io_size is part of each loop, and a larger one takes more passes. */
static uint64_t bytes_of(const struct run *run, uint64_t loops)
{
	uint64_t file = run->file.nbytes;
	uint64_t nbytes = run->options->io_size ? run->options->io_size : file;
	uint64_t once = nbytes < file ? nbytes : file;

	if (loops > UINT64_MAX / once)
		return UINT64_MAX;
	return nbytes > loops * once ? nbytes : loops * once;
}

static int ramp(struct run *run)
{
	const struct bench_options *options = run->options;
	int rc = 0;

	if (options->ramp_loops)
		rc = mode_pass(run, "ramp", bytes_of(run, options->ramp_loops), 0);
	if (!rc && options->ramp_time_ms)
		rc = mode_pass(run, "ramp", UINT64_MAX, options->ramp_time_ms);
	return rc;
}

/* Checks the workers' count of bytes against what was submitted. */
static int check_moved(struct run *run)
{
	struct bench_result *result = run->result;

	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (run->load.moved[d] != result->bytes[d])
			return io_refuse(&result->error, -EIO,
					 "%" PRIu64 " bytes should have been %s, but %" PRIu64
					 " were",
					 run->load.moved[d], d == NVS_READ ? "read" : "written",
					 result->bytes[d]);
	return 0;
}

static int measure(struct run *run)
{
	static const char *const names[] = {
		[RW_READ] = "read",	      [RW_WRITE] = "write", [RW_RANDREAD] = "randread",
		[RW_RANDWRITE] = "randwrite", [RW_RW] = "rw",	    [RW_RANDRW] = "randrw"};
	const struct bench_options *options = run->options;
	bool endless = options->time_based && options->runtime_ms;
	struct io_load *load = &run->load;
	struct baseline from;
	int rc;

	load->moved[NVS_READ] = load->moved[NVS_WRITE] = load->data_us = 0;
	job_measures(run->watch, load->aio, NULL, &from);
	rc = mode_pass(run, names[options->rw],
		       endless ? UINT64_MAX : bytes_of(run, options->loops), options->runtime_ms);
	if (load->hangs)
		return rc;
	measure_end(load->aio, NULL, &from, run->result);
	run->result->data_us = load->data_us;
	job_measured(run->watch, run->result);
	return rc ? rc : check_moved(run);
}

static int all_passes(struct run *run)
{
	int rc = fill(run);

	if (rc || !job_begin(run->watch))
		return rc;
	sequence_begin(run);
	rc = ramp(run);
	if (!rc && !stop_signal())
		rc = measure(run);
	if (!rc && !stop_signal() && writes(run) && run->options->verify)
		rc = walk(run, "verify", NVS_READ);
	if (!rc && run->result->verify_errors) {
		run->result->error = run->load.difference;
		rc = -EBADMSG;
	}
	return rc;
}

/* ---- Opening and closing ---- */

/* A drive that hangs may still write to the buffers, so keep them until the process ends. */
static void close_all(struct run *run)
{
	struct io_load *load = &run->load;

	if (load->aio) {
		run->result->engine.aio.size = sizeof(run->result->engine.aio);
		nvs_aio_get_stats(load->aio, &run->result->engine.aio);
		run->result->opened = true;
	}
	if (load->hangs)
		return;
	if (load->memory)
		nvs_aio_unregister_memory(load->aio, load->memory);
	io_file_close(&run->file);
	io_load_close(load);
	nvs_aio_close(load->aio);
	io_contents_close(&run->contents);
}

int bench_io(const struct bench_options *options, const struct nvs_config *config,
	     struct bench_result *result, struct job_watch *watch, const char *job_name,
	     unsigned clone)
{
	struct run run = {.options = options, .file.fd = -1, .watch = watch, .result = result};
	int rc;

	assert(is_fio_mode(options->rw));
	run.load = (struct io_load){.file = &run.file,
				    .contents = &run.contents,
				    .options = options,
				    .watch = watch,
				    .result = result};
	if (options->trace)
		return io_refuse(&result->error, -EINVAL,
				 "--trace is for nvswap's own modes: leave it out");
	rc = take_blocks(&run, config);
	if (!rc)
		rc = open_aio(&run, config);
	if (!rc)
		rc = open_file(&run, config, job_name, clone);
	if (!rc)
		rc = open_load(&run);
	if (!rc)
		rc = all_passes(&run);
	close_all(&run);
	return rc;
}
