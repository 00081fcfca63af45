/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read, write, randread and randwrite: what the drive itself does with blocks of one size, beside
 * which swapping is judged. What is read is written first. Contents are not compared.
 *
 * A pass keeps the workers busy: each block is a transfer, submitted in batches that follow each
 * other around a ring. It holds twice what the queues do, so that waiting starves none.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/modes/modes.h"
#include "cli/settings.h"

#define FILL_BYTES ((uint64_t)1 << 20) /* of a block while the file is filled */
#define MEMORY_MIN ((uint64_t)8 << 20)
/* As far as MEMORY_MIN allows: with small depths, this thread wakes up once a batch, not an I/O. */
#define WINDOW_MIN	256
#define BATCHES		8  /* in a window; 2 if half the window fills the queues twice */
#define RATE_PARTS_IN_S 20 /* batches in a second at the job's rate */

struct blocks {
	const struct bench_options *options;
	struct job_watch *watch;
	struct bench_result *result;
	struct nvs_aio *aio;
	struct nvs_file *file;
	uint64_t block, nbytes; /* of the file, a multiple of the block */
	uint64_t depth;		/* I/Os in flight of all workers together */

	char *memory;
	uint64_t memory_bytes;
	struct nvs_transfer *slots;
	struct nvs_request **requests; /* of the submitted slots */
	uint64_t nslots;
	uint64_t moved; /* bytes of the last pass */
	bool hangs;	/* transfers are stuck in flight: nothing can be closed */
};

/* One run over the file, until a limit or a signal ends it. */
struct pass {
	const char *name;
	enum nvs_direction direction;
	bool random, paced;
	uint64_t block;
	uint64_t nbytes;     /* UINT64_MAX: no limit */
	uint64_t runtime_ns; /* 0: no limit */

	uint64_t window, batch;	  /* slots in use; the window is a multiple of the batch */
	uint64_t submitted, done; /* I/Os */
	uint64_t nblocks;	  /* of the file; each is in flight once at most */
	uint64_t drawn;		  /* bytes */
	bool ended;		  /* the rate allows no more before the end */
};

/* The n-th block of a random order in which each comes once: a Feistel network over the smallest
 * even number of bits that holds the numbers of blocks, repeated until it is one. */
static uint64_t shuffled(uint64_t seed, uint64_t n, uint64_t nblocks)
{
	unsigned half = 0;

	while ((nblocks - 1) >> (2 * half))
		half++;
	do {
		uint64_t mask = ((uint64_t)1 << half) - 1, key = seed;
		uint64_t left = n >> half, right = n & mask;

		for (unsigned round = 0; round < 4; round++) {
			uint64_t mixed = spread(&key) ^ right,
				 next = left ^ (spread(&mixed) & mask);

			left = right;
			right = next;
		}
		n = left << half | right;
	} while (n >= nblocks);
	return n;
}

/* Fills the next batch of slots, and submits it. */
static int submit_batch(struct blocks *run, struct pass *pass)
{
	uint64_t first = pass->submitted % pass->window, nbytes = 0;
	uint32_t n = 0;
	int rc;

	for (; n < pass->batch && pass->drawn < pass->nbytes; n++) {
		uint64_t block = (pass->submitted + n) % pass->nblocks, offset, length;

		if (pass->random)
			block = shuffled(run->options->seed, block, pass->nblocks);
		offset = block * pass->block;
		length = min_u64(run->nbytes - offset, pass->block);
		run->slots[first + n] = (struct nvs_transfer){
			.size = sizeof(struct nvs_transfer),
			.file = run->file,
			.direction = pass->direction,
			.data = run->memory + (first + n) * pass->block,
			.nbytes = length,
			.offset = offset,
		};
		nbytes += length;
		pass->drawn += length;
	}
	pass->ended = !n || (pass->paced && !job_pace(run->watch, pass->direction, nbytes));
	if (pass->ended)
		return 0;
	rc = nvs_aio_submit(run->aio, run->slots + first, n, run->requests + first,
			    &run->result->error);
	if (!rc)
		pass->submitted += n;
	return rc;
}

static int complete_batch(struct blocks *run, struct pass *pass, struct nvs_error *error)
{
	uint64_t first = pass->done % pass->window, left = pass->submitted - pass->done;
	uint32_t n = (uint32_t)min_u64(left, pass->batch);
	int rc = nvs_aio_wait(run->aio, run->requests + first, n, -1, error);

	run->hangs = rc == -ETIMEDOUT;
	for (uint32_t i = 0; i < n && !run->hangs; i++) {
		nvs_request_close(run->requests[first + i]);
		run->moved += run->slots[first + i].nbytes;
	}
	pass->done += n;
	return rc;
}

/* Returns with no I/O in flight, unless run->hangs. */
static int run_pass(struct blocks *run, struct pass pass)
{
	struct nvs_error ignored = {.size = sizeof(ignored)};
	uint64_t started_ns = clock_ns(), taken_ns = 0, fit = run->memory_bytes / pass.block;
	uint64_t rate = pass.paced ? run->options->rate : 0;
	int rc = 0;

	run->moved = 0;
	pass.nblocks = (run->nbytes + pass.block - 1) / pass.block;
	pass.window = min_u64(min_u64(fit, run->nslots), pass.nblocks);
	pass.batch = pass.window / (pass.window >= 4 * run->depth ? 2 : BATCHES);
	if (rate)
		pass.batch = min_u64(pass.batch, rate / RATE_PARTS_IN_S / pass.block);
	pass.batch = max_u64(pass.batch, 1);
	pass.window -= pass.window % pass.batch;
	assert(pass.window);
	progress_begin(pass.name, pass.runtime_ns ? pass.runtime_ns : pass.nbytes);
	do {
		while (!rc && !pass.ended && !stop_signal() &&
		       (!pass.runtime_ns || taken_ns < pass.runtime_ns) &&
		       pass.submitted - pass.done + pass.batch <= pass.window) {
			rc = submit_batch(run, &pass);
			taken_ns = clock_ns() - started_ns;
		}
		if (!rc && pass.done < pass.submitted)
			rc = complete_batch(run, &pass, &run->result->error);
		taken_ns = clock_ns() - started_ns;
		progress_update(pass.runtime_ns ? taken_ns : run->moved, run->moved);
	} while (!rc && pass.done < pass.submitted);
	/* After an error those of the other I/Os add no information. */
	while (pass.done < pass.submitted && !run->hangs)
		complete_batch(run, &pass, &ignored);
	progress_end();
	return rc;
}

static int fill(struct blocks *run)
{
	struct bench_result *result = run->result;
	const struct pass pass = {.name = "fill",
				  .direction = NVS_WRITE,
				  .block = max_u64(run->block, FILL_BYTES),
				  .nbytes = run->nbytes};
	uint64_t from_ns = clock_ns();
	int rc = run_pass(run, pass);

	result->first_ns = clock_ns() - from_ns;
	result->first_bytes = run->moved;
	return rc ? rc : nvs_file_sync(run->file, &result->error);
}

static int mode_pass(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms)
{
	struct blocks *run = arg;
	unsigned rw = run->options->rw;
	const struct pass pass = {.name = measured ? bench_rw_name(rw) : "ramp",
				  .direction = block_mode_writes(rw) ? NVS_WRITE : NVS_READ,
				  .random = rw == RW_RANDREAD || rw == RW_RANDWRITE,
				  .paced = true,
				  .block = run->block,
				  .nbytes = loops < UINT64_MAX / run->nbytes ? loops * run->nbytes
									     : UINT64_MAX,
				  .runtime_ns = runtime_ms * 1000000u};

	return run_pass(run, pass);
}

/* ---- Opening and closing */

int make_scratch_file(const char *directory, uint64_t nbytes, struct nvs_error *error)
{
	int fd, rc = file_may_grow(directory, nbytes, error);

	if (rc)
		return rc;
	fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EOPNOTSUPP) {
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%s/.nvswap-XXXXXX", directory);
		fd = mkostemp(path, O_CLOEXEC);
		if (fd >= 0)
			unlink(path);
	}
	if (fd >= 0 && (!file_reserve(fd, 0, nbytes) || errno == EOPNOTSUPP))
		return fd;
	rc = error_set(error, -errno, "can't make a file of %" PRIu64 " bytes in %.512s: %s%s",
		       nbytes, directory, nvs_strerror(-errno),
		       errno == ENOSPC ? "; give a smaller --size (of tune: --working-set)" : "");
	if (fd >= 0)
		close(fd);
	return rc;
}

static int open_file(struct blocks *run, const char *place)
{
	struct nvs_error *error = &run->result->error;
	int fd = make_scratch_file(place, run->nbytes, error), rc;

	if (fd < 0)
		return fd;
	rc = nvs_file_from_fd(run->aio, fd, NVS_FILE_WRITE | NVS_FILE_UNITS, &run->file, error);
	close(fd);
	if (rc)
		run->file = NULL;
	else if (!nvs_file_direct(run->file))
		rc = error_set(error, -EINVAL,
			       "%s: this file system has no direct I/O: use another directory",
			       place);
	else if (run->block % nvs_file_unit(run->file))
		rc = error_set(error, -EINVAL,
			       "bs: a block has %" PRIu64 " bytes, but the drive of %s takes "
			       "direct I/O in multiples of %u",
			       run->block, place, nvs_file_unit(run->file));
	return rc;
}

static int open_memory(struct blocks *run)
{
	uint64_t nbytes = 2 * run->depth * run->block;
	int rc;

	run->nslots = max_u64(2 * run->depth, WINDOW_MIN);
	run->memory_bytes = align_up(max_u64(nbytes, MEMORY_MIN), PATTERN_BLOCK_BYTES);
	if (memory_room_check(run->memory_bytes, "iodepth", "two I/Os for each of the depth",
			      "give a smaller --iodepth or --bs", &run->result->error))
		return -ENOMEM;
	run->slots = calloc(run->nslots, sizeof(*run->slots));
	run->requests = calloc(run->nslots, sizeof(struct nvs_request *));
	run->memory = huge_map(run->memory_bytes, NULL);
	if (!run->slots || !run->requests || !run->memory)
		return error_set(&run->result->error, -ENOMEM,
				 "no memory for %" PRIu64 " I/Os of %" PRIu64 " bytes",
				 2 * run->depth, run->block);
	/* Not zeros, which some drives handle faster. */
	for (uint64_t at = 0; at < run->memory_bytes; at += PATTERN_BLOCK_BYTES)
		pattern_block(run->options->seed, 0, 0, at, run->memory + at, PATTERN_BLOCK_BYTES);
	/* Where registering is refused, I/O is only slower. */
	rc = nvs_aio_register_memory(run->aio, run->memory, run->memory_bytes);
	return rc == -ENOMEM || rc == -ENOSPC ? 0 : rc;
}

/* A drive that hangs may still write to the buffers, so keep them until the process ends. */
static void close_all(struct blocks *run)
{
	struct bench_result *result = run->result;

	if (run->aio) {
		result->engine.aio.size = sizeof(result->engine.aio);
		nvs_aio_get_stats(run->aio, &result->engine.aio);
		result->opened = true;
	}
	free(run->requests);
	free(run->slots);
	if (run->hangs)
		return;
	if (run->memory) {
		nvs_aio_unregister_memory(run->aio, run->memory);
		munmap(run->memory, run->memory_bytes);
	}
	nvs_file_close(run->file);
	nvs_aio_close(run->aio);
}

int bench_blocks(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	const struct bench_options *options = &job->options;
	const struct nvs_config *config = job->config;
	struct blocks run = {.options = options,
			     .watch = watch,
			     .result = result,
			     .block = setting_number(config, "aio.block_size"),
			     .depth = setting_number(config, "aio.queue_depth") *
				      setting_number(config, "aio.thread_count")};
	struct nvs_error *error = &result->error;
	struct nvs_config *own = NULL;
	int rc;

	assert(is_block_mode(options->rw));
	run.nbytes = align_down(options->size, run.block);
	if (!run.nbytes)
		return error_set(&result->error, -EINVAL,
				 "size: %" PRIu64 " bytes are less than one block of %" PRIu64,
				 options->size, run.block);
	/* Each block is one I/O, also while the file is filled. */
	rc = nvs_config_copy(config, &own, error);
	if (!rc)
		rc = nvs_config_set_number(own, "aio.block_size", max_u64(run.block, FILL_BYTES),
					   error);
	rc = rc ?: nvs_aio_open(&run.aio, own, error);
	if (rc)
		run.aio = NULL;
	nvs_config_close(own);
	rc = rc ?: open_file(&run, nvs_config_get_path(config, job->block, 0));
	if (!rc) {
		result->engine.direct = true;
		result->engine.store_bytes = run.nbytes;
		rc = open_memory(&run);
	}
	if (!rc) {
		const struct load load = {.options = options,
					  .watch = watch,
					  .result = result,
					  .aio = run.aio,
					  .run = mode_pass,
					  .arg = &run};
		uint64_t counted;

		rc = block_mode_writes(options->rw) ? 0 : fill(&run);
		rc = rc ?: load_run(&load);
		counted = result->bytes[NVS_READ] + result->bytes[NVS_WRITE];
		if (!rc && result->measured && counted != run.moved)
			rc = error_set(&result->error, -EIO,
				       "%" PRIu64 " bytes should have been moved, but %" PRIu64
				       " were",
				       run.moved, counted);
	}
	close_all(&run);
	return rc;
}
