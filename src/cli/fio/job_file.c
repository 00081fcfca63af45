/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a plan as a job file of fio's. Each of nvswap's workers has a queue of its own, so it
 * becomes a job with its share of the bytes. A mode of nvswap becomes the mode of fio that moves
 * the same bytes in the same directions; fio lays out beforehand what nvswap fills.
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

#include "cli/fio/fio.h"
#include "cli/report/group.h"
#include "cli/settings.h"

unsigned fio_clones(const struct bench_plan *plan, unsigned first)
{
	unsigned n = 1;

	while (first + n < plan->n && plan->jobs[first + n].clone == n)
		n++;
	return n;
}

/* These begin a comment or a variable, even within a name. */
#define NOT_IN_NAMES "#;$\n"

static const char *job_place(const struct bench_job *job)
{
	return nvs_config_get_path(job->config, job->block, 0);
}

static const char *why_fio_cannot(const struct bench_job *job)
{
	const struct bench_options *options = &job->options;

	if (options->rw == RW_STEP || options->rw == RW_PARAMS)
		return "it has no training steps (modes step and params)";
	if (is_checkpoint_mode(options->rw))
		return "it has no checkpoints (modes checkpoint and restore)";
	if (options->verify)
		return "it does not verify as nvswap does: leave out verify";
	if (options->ramp_loops)
		return "it has no ramp-loops: give ramp-time";
	if (setting_path_count(job->config, job->block) != 1)
		return "it has no stores in memory or striped over several paths: give one path";
	if (strpbrk(job_place(job), NOT_IN_NAMES) ||
	    (options->filename && strpbrk(options->filename, NOT_IN_NAMES)))
		return "its job files allow no # ; $ or newline in a name";
	return NULL;
}

int fio_check(const struct bench_plan *plan, struct nvs_error *error)
{
	for (unsigned i = 0; i < plan->n; i++) {
		const char *why = why_fio_cannot(&plan->jobs[i]);

		if (!why)
			continue;
		snprintf(error->text, sizeof(error->text), "job %s can't be compared with fio: %s",
			 plan->jobs[i].name, why);
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

/* A job of fio's moves at least one of these. */
static uint64_t largest_block(const struct bench_job *job)
{
	const struct option_mix *mix = &job->options.bssplit;
	uint64_t largest = 0;

	for (unsigned i = 0; is_fio_mode(job->options.rw) && i < mix->n; i++)
		largest = mix->nbytes[i] > largest ? mix->nbytes[i] : largest;
	return largest ? largest : setting_number(job->config, "aio.block_size");
}

static void put_blocks(FILE *file, const struct bench_job *job)
{
	const struct option_mix *mix = &job->options.bssplit;

	if (!is_fio_mode(job->options.rw) || mix->n < 2) {
		fprintf(file, "bs=%" PRIu64 "\n", largest_block(job));
		return;
	}
	for (unsigned i = 0; i < mix->n; i++)
		fprintf(file, "%s%" PRIu64 "/%.0f", i ? ":" : "bssplit=", mix->nbytes[i],
			mix->percent[i]);
	fputc('\n', file);
	/* fio's map of written blocks would cut short long blocks that lie over short ones. */
	if (fio_mode_is_random(job->options.rw))
		fputs("norandommap=1\n", file);
}

/* Bytes of the file for all workers together, or of the tensors of one swap. */
static uint64_t job_bytes(const struct bench_job *job, const struct bench_result *result)
{
	if (!is_fio_mode(job->options.rw))
		return job->model.nbytes;
	return result->engine.store_bytes;
}

/* posix has a thread for each I/O in flight; fio's psync needs a job for each. */
static bool is_posix(const struct bench_result *result)
{
	return !strcmp(result->engine.aio.ioengine, nvs_ioengine_name(NVS_IOENGINE_POSIX));
}

static uint64_t fio_jobs_of(const struct bench_job *job, const struct bench_result *result)
{
	return setting_number(job->config, "aio.thread_count") *
	       (is_posix(result) ? setting_number(job->config, "aio.queue_depth") : 1);
}

static void put_engine(FILE *file, const struct bench_job *job, const struct bench_result *result,
		       bool fixed_buffers)
{
	if (is_posix(result)) {
		fputs("ioengine=psync\n", file);
		return;
	}
	fprintf(file, "ioengine=%s\niodepth=%" PRIu64 "\n", result->engine.aio.ioengine,
		setting_number(job->config, "aio.queue_depth"));
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

static void put_rate(FILE *file, const struct bench_options *options, uint64_t njobs)
{
	if (options->rate)
		fprintf(file, "rate=%" PRIu64 "\n",
			options->rate > njobs ? options->rate / njobs : 1);
}

/* fio splits names at colons. */
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

/* All of fio's jobs use one file: a device, or an existing file, which is only read. */
static bool is_of_one_file(const struct bench_job *job)
{
	return !is_directory(job_place(job)) ||
	       (job->options.filename &&
		(job->options.rw == RW_READ || job->options.rw == RW_RANDREAD));
}

/*
 * Files of fio's own are removed at the end. A filename with a directory was split when the job was
 * prepared; fio joins the two again.
 */
static void put_place(FILE *file, const struct bench_job *job)
{
	const char *name = job->options.filename, *path = job_place(job);

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

/* The bytes of each of `njobs` jobs. */
static uint64_t part_of(const struct bench_job *job, const struct bench_result *result,
			uint64_t njobs)
{
	uint64_t block = largest_block(job), part = job_bytes(job, result) / njobs / block * block;

	return part ? part : block;
}

static void put_bytes(FILE *file, const struct bench_job *job, uint64_t part, uint64_t njobs)
{
	uint64_t io_size = job->options.io_size;

	fprintf(file, "size=%" PRIu64 "\n", part);
	/* A swap moves all bytes in both directions. */
	if (job->options.rw == RW_SWAP)
		fprintf(file, "io_size=%" PRIu64 "\n", 2 * part);
	if (io_size)
		fprintf(file, "io_size=%" PRIu64 "\n", io_size > njobs ? io_size / njobs : 1);
}

/* Each job begins at another offset of the one file. */
static bool shares_one_file(const struct bench_job *job, uint64_t njobs)
{
	return njobs > 1 && is_of_one_file(job);
}

static void put_job(FILE *file, const struct bench_job *job, const struct bench_result *result,
		    unsigned clones, bool fixed_buffers)
{
	const struct bench_options *options = &job->options;
	uint64_t njobs = fio_jobs_of(job, result);
	uint64_t part = part_of(job, result, njobs);

	fprintf(file, "rw=%s\n", fio_mode(options->rw));
	if (options->rw == RW_RW || options->rw == RW_RANDRW)
		fprintf(file, "rwmixread=%" PRIu64 "\n", options->rwmixread);
	if (options->rw == RW_RW || options->rw == RW_RANDRW || options->rw == RW_SWAP)
		fputs("overwrite=1\n", file);
	put_engine(file, job, result, fixed_buffers);
	put_blocks(file, job);
	put_place(file, job);
	put_bytes(file, job, part, njobs);
	if (shares_one_file(job, njobs))
		fprintf(file, "offset_increment=%" PRIu64 "\n", part);
	fprintf(file, "direct=1\nnumjobs=%" PRIu64 "\n", njobs * clones);
	put_rate(file, options, njobs);
	put_times(file, options);
}

/* ---- The whole plan */

int fio_job_file(const struct bench_plan *plan, const struct bench_result *const *results,
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

		clones = fio_clones(plan, i);
		/* Clones each move the whole file: those that share it among jobs need a section
		 * each. */
		sections = shares_one_file(job, fio_jobs_of(job, results[i])) ? clones : 1;
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

void fio_remove_files(const struct bench_plan *plan, const char *run)
{
	for (unsigned i = 0; i < plan->n; i++)
		remove_from(job_place(&plan->jobs[i]), run);
}
