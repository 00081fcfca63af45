/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan in fio's words. A worker of nvswap's is a queue of its own, so it becomes a job of fio's
 * with its part of the bytes; a mode of nvswap's becomes the one of fio's that moves the same bytes
 * in the same directions, and what nvswap fills before it measures fio lays out before.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compare.h"

static const struct nvs_offload_config *block_of(const struct bench_job *job)
{
	return job->block == NVS_OFFLOAD_PARAM ? &job->config.param : &job->config.optimizer;
}

unsigned compare_clones(const struct bench_plan *plan, unsigned first)
{
	unsigned n = 1;

	while (first + n < plan->n && plan->jobs[first + n].clone == n)
		n++;
	return n;
}

/* What begins a comment or a variable, also in the midst of a name. */
#define UNSPEAKABLE "#;$\n"

/*
 * Drawn without a map of what was moved, they never come to the end of a pass, where fio would let
 * go of what the page cache has of the file.
 */
static bool stays_cached(const struct bench_job *job)
{
	const struct bench_options *options = &job->options;
	struct option_mix blocks[2];

	if (options->direct || !fio_mode_is_random(options->rw) ||
	    !fio_mode_moves(options->rw, NVS_READ))
		return false;
	bench_blocks(options, job->config.aio.block_size, blocks);
	return !bench_blocks_alike(blocks);
}

static const char *what_fio_lacks(const struct bench_job *job)
{
	const struct bench_options *options = &job->options;

	if (options->rw == RW_STEP || options->rw == RW_PARAMS)
		return "it has no training steps, modes step and params";
	if (options->verify)
		return "it does not verify as nvswap does: leave out verify";
	if (options->ramp_loops)
		return "it has no ramp-loops: give ramp-time";
	if (stays_cached(job))
		return "it would keep in the page cache what random blocks of several lengths have "
		       "read: give direct=1, or one length";
	if (block_of(job)->npaths != 1)
		return "it has no stores that are striped over several paths, or in memory: give "
		       "one path";
	if (strpbrk(block_of(job)->nvme_path[0], UNSPEAKABLE) ||
	    (options->filename && strpbrk(options->filename, UNSPEAKABLE)))
		return "its job files have no names with # ; $ or a new line in them";
	return NULL;
}

int compare_check(const struct bench_plan *plan, struct nvs_error *error)
{
	for (unsigned i = 0; i < plan->n; i++) {
		const char *lacks = what_fio_lacks(&plan->jobs[i]);

		if (!lacks)
			continue;
		snprintf(error->text, sizeof(error->text), "job %s can't be compared with fio: %s",
			 plan->jobs[i].name, lacks);
		return -ENOTSUP;
	}
	return 0;
}

/* ---- One job */

static const char *fio_mode(unsigned rw)
{
	static const char *const names[] = {
		[RW_SWAPOUT] = "write",	      [RW_SWAPIN] = "read", [RW_SWAP] = "rw",
		[RW_READ] = "read",	      [RW_WRITE] = "write", [RW_RANDREAD] = "randread",
		[RW_RANDWRITE] = "randwrite", [RW_RW] = "rw",	    [RW_RANDRW] = "randrw"};

	return names[rw];
}

/* The largest block, of which a job's bytes must be at least one. */
static uint64_t largest_block(const struct bench_job *job)
{
	struct option_mix blocks[2];
	uint64_t largest = 0;

	if (!is_fio_mode(job->options.rw))
		return job->config.aio.block_size;
	bench_blocks(&job->options, job->config.aio.block_size, blocks);
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		for (unsigned i = 0; i < blocks[d].n; i++)
			if (blocks[d].nbytes[i] > largest)
				largest = blocks[d].nbytes[i];
	assert(largest);
	return largest;
}

static void put_mix(FILE *file, const struct option_mix *mix)
{
	for (unsigned i = 0; i < mix->n; i++)
		fprintf(file, "%s%" PRIu64 "/%.0f", i ? ":" : "", mix->nbytes[i], mix->percent[i]);
}

static void put_blocks(FILE *file, const struct bench_job *job)
{
	struct option_mix blocks[2];

	if (is_fio_mode(job->options.rw))
		bench_blocks(&job->options, job->config.aio.block_size, blocks);
	if (!is_fio_mode(job->options.rw) || bench_blocks_alike(blocks)) {
		fprintf(file, "bs=%" PRIu64 "\n", largest_block(job));
		return;
	}
	if (blocks[NVS_READ].n == 1 && blocks[NVS_WRITE].n == 1) {
		fprintf(file, "bs=%" PRIu64 ",%" PRIu64 "\n", blocks[NVS_READ].nbytes[0],
			blocks[NVS_WRITE].nbytes[0]);
	} else {
		fputs("bssplit=", file);
		put_mix(file, &blocks[NVS_READ]);
		fputc(',', file);
		put_mix(file, &blocks[NVS_WRITE]);
		fputc('\n', file);
	}
	/* Its map of what it has moved would cut long blocks short that lie over short ones. */
	if (fio_mode_is_random(job->options.rw))
		fputs("norandommap=1\n", file);
}

/* Bytes of the file, all workers together: what one pass of a swap goes through. */
static uint64_t job_bytes(const struct bench_job *job, const struct bench_result *result)
{
	if (!is_fio_mode(job->options.rw))
		return job->model.nbytes;
	return result->engine.store_bytes;
}

/* posix has a thread for each I/O in flight, as fio's psync has a job. */
static bool is_posix(const struct bench_result *result)
{
	return !strcmp(result->engine.aio.ioengine, nvs_ioengine_name(NVS_IOENGINE_POSIX));
}

static uint32_t fio_jobs_of(const struct bench_job *job, const struct bench_result *result)
{
	const struct nvs_aio_config *aio = &job->config.aio;

	return aio->thread_count * (is_posix(result) ? aio->queue_depth : 1);
}

static void put_engine(FILE *file, const struct bench_job *job, const struct bench_result *result,
		       bool fixed_buffers)
{
	if (is_posix(result)) {
		fputs("ioengine=psync\n", file);
		return;
	}
	fprintf(file, "ioengine=%s\niodepth=%" PRIu32 "\n", result->engine.aio.ioengine,
		job->config.aio.queue_depth);
	if (!strcmp(result->engine.aio.ioengine, nvs_ioengine_name(NVS_IOENGINE_IO_URING)))
		fprintf(file, "%sregisterfiles=1\n", fixed_buffers ? "fixedbufs=1\n" : "");
}

static void put_times(FILE *file, const struct bench_options *options)
{
	if (options->runtime_ms)
		fprintf(file, "runtime=%" PRIu64 "ms\n", options->runtime_ms);
	if (options->time_based)
		fputs("time_based=1\n", file);
	if (options->ramp_time_ms)
		fprintf(file, "ramp_time=%" PRIu64 "ms\n", options->ramp_time_ms);
	if (options->startdelay_ms)
		fprintf(file, "startdelay=%" PRIu64 "ms\n", options->startdelay_ms);
	if (options->loops > 1)
		fprintf(file, "loops=%" PRIu64 "\n", options->loops);
}

static void put_rate(FILE *file, const struct bench_options *options, uint32_t njobs)
{
	static const char *const before[] = {[NVS_READ] = "rate=", [NVS_WRITE] = ","};

	if (!options->rate[NVS_READ] && !options->rate[NVS_WRITE])
		return;
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		fputs(before[d], file);
		if (options->rate[d])
			fprintf(file, "%" PRIu64,
				options->rate[d] / njobs ? options->rate[d] / njobs : 1);
	}
	fputc('\n', file);
}

/* fio takes several names, with colons between them. */
static void put_name(FILE *file, const char *key, const char *name)
{
	fprintf(file, "%s=", key);
	for (; *name; name++)
		fprintf(file, "%s%c", *name == ':' ? "\\" : "", *name);
	fputc('\n', file);
}

static bool is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) || S_ISDIR(st.st_mode);
}

/* All of fio's jobs have that one, which is there, and is read alone. */
static bool is_of_one_file(const struct bench_job *job)
{
	return !is_directory(block_of(job)->nvme_path[0]) ||
	       (job->options.filename &&
		(job->options.rw == RW_READ || job->options.rw == RW_RANDREAD));
}

/*
 * Other files are made and removed. A whole name was parted into directory and name when the job
 * was prepared, and fio puts them together again.
 */
static void put_place(FILE *file, const struct bench_job *job)
{
	const char *name = job->options.filename, *path = block_of(job)->nvme_path[0];

	if (!is_directory(path)) {
		put_name(file, "filename", path);
		return;
	}
	put_name(file, "directory", path);
	if (is_of_one_file(job))
		put_name(file, "filename", *name == '/' ? strrchr(name, '/') + 1 : name);
	else
		fputs("unlink=1\n", file);
}

/* What each of so many jobs has of them. */
static uint64_t part_of(const struct bench_job *job, const struct bench_result *result,
			uint32_t njobs)
{
	uint64_t block = largest_block(job), part = job_bytes(job, result) / njobs / block * block;

	return part ? part : block;
}

static void put_bytes(FILE *file, const struct bench_job *job, uint64_t part, uint32_t njobs)
{
	const struct option_amount *io_size = &job->options.io_size;

	fprintf(file, "size=%" PRIu64 "\n", part);
	/* A swap moves everything both ways. */
	if (job->options.rw == RW_SWAP)
		fprintf(file, "io_size=%" PRIu64 "\n", 2 * part);
	if (io_size->nbytes)
		fprintf(file, "io_size=%" PRIu64 "\n",
			io_size->nbytes > njobs ? io_size->nbytes / njobs : 1);
	if (io_size->percent)
		fprintf(file, "io_size=%" PRIu64 "%%\n", io_size->percent);
}

/* Among so many, by where in it they begin. */
static bool parts_one_file(const struct bench_job *job, uint32_t njobs)
{
	return njobs > 1 && is_of_one_file(job);
}

static void put_job(FILE *file, const struct bench_job *job, const struct bench_result *result,
		    unsigned clones, bool fixed_buffers)
{
	const struct bench_options *options = &job->options;
	uint32_t njobs = fio_jobs_of(job, result);
	uint64_t part = part_of(job, result, njobs);

	fprintf(file, "rw=%s", fio_mode(options->rw));
	if (options->rw_suffix)
		fprintf(file, ":%" PRIu64, options->rw_suffix);
	fputc('\n', file);
	if (options->rw == RW_RW || options->rw == RW_RANDRW)
		fprintf(file, "rwmixread=%" PRIu64 "\n", options->rwmixread);
	if (options->rw == RW_RW || options->rw == RW_RANDRW || options->rw == RW_SWAP)
		fputs("overwrite=1\n", file);
	put_engine(file, job, result, fixed_buffers);
	put_blocks(file, job);
	put_place(file, job);
	put_bytes(file, job, part, njobs);
	if (parts_one_file(job, njobs))
		fprintf(file, "offset_increment=%" PRIu64 "\n", part);
	fprintf(file, "direct=%d\nnumjobs=%" PRIu32 "\n", options->direct, njobs * clones);
	/* nvswap's engine tells the page cache nothing of what will be read. */
	if (!options->direct)
		fputs("fadvise_hint=0\n", file);
	put_rate(file, options, njobs);
	put_times(file, options);
}

/* ---- All of them */

int compare_fio_jobs(const struct bench_plan *plan, const struct bench_result *const *results,
		     const char *run, bool huge_pages, bool fixed_buffers, char **text)
{
	size_t nbytes;
	FILE *file = open_memstream(text, &nbytes);
	int failed;

	if (!file)
		return -ENOMEM;
	fputs("[global]\nthread=1\ngroup_reporting=1\nscramble_buffers=0\npercentile_list=50:99\n",
	      file);
	if (huge_pages)
		fputs("iomem=mmaphuge\n", file);
	for (unsigned i = 0, clones, sections; i < plan->n; i += clones) {
		const struct bench_job *job = &plan->jobs[i];

		clones = compare_clones(plan, i);
		/* Where jobs part a file, clones, which each move all of it, have to begin anew. */
		sections = parts_one_file(job, fio_jobs_of(job, results[i])) ? clones : 1;
		for (unsigned section = 0; section < sections; section++) {
			fprintf(file, "[%s-%u]\n%s", run, i, section ? "" : "new_group=1\n");
			if (!section && i && job->stage != plan->jobs[i - 1].stage)
				fputs("stonewall=1\n", file);
			put_job(file, job, results[i], clones / sections, fixed_buffers);
		}
	}
	failed = ferror(file);
	if (!fclose(file) && !failed)
		return 0;
	free(*text);
	*text = NULL;
	return -ENOMEM;
}

static void remove_from(const char *directory, const char *run)
{
	DIR *dir = opendir(directory);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, run, strlen(run)))
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
}

void compare_fio_remove(const struct bench_plan *plan, const char *run)
{
	for (unsigned i = 0; i < plan->n; i++)
		remove_from(block_of(&plan->jobs[i])->nvme_path[0], run);
}
