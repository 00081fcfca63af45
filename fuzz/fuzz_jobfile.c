/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a job file. An accepted one gives complete sections and a consistent plan; for a
 * refused one, exactly one message is printed.
 */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocations.h"
#include "cli/commands.h"
#include "cli/jobs/jobs.h"

static unsigned errors; /* messages */
static int file;	/* holds each input in turn */
static char path[64];

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Replaces the command's function, which writes to standard error. */
void say(const char *format, ...)
{
	char text[4096];
	va_list args;

	va_start(args, format);
	assert(vsnprintf(text, sizeof(text), format, args) > 0);
	va_end(args);
	errors++;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	assert(!setenv("A", "4k", 1) && !setenv("EMPTY", "", 1));
	file = memfd_create("job file", MFD_CLOEXEC);
	assert(file >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	return 0;
}

static bool is_trimmed(const char *text)
{
	size_t n = strlen(text);

	return !n || (!isspace((unsigned char)text[0]) && !isspace((unsigned char)text[n - 1]));
}

static void check_read(const struct jobfile *jobfile)
{
	const struct jobfile_line *next = jobfile->lines;

	for (size_t i = 0; i < jobfile->n; i++) {
		const struct jobfile_section *section = &jobfile->sections[i];

		assert(*section->name && is_trimmed(section->name) && section->line);
		assert(section->lines || !section->n);
		assert(section->lines == next);
		next = next ? next + section->n : NULL;
		for (size_t j = 0; j < section->n; j++) {
			const struct jobfile_line *line = &section->lines[j];

			assert(*line->key && !strpbrk(line->key, " \t\r\n=;#"));
			assert(line->line && *line->file);
		}
	}
}

static void check_reader(void)
{
	struct jobfile jobfile;
	struct nvs_error error = {.size = sizeof(error)};
	void *memory = NULL;
	int rc = jobfile_read(&jobfile, path, &memory, &error);

	if (rc)
		assert(rc < 0 && error.code == rc && *error.text);
	else
		check_read(&jobfile);
	jobfile_forget(&memory);
}

/* A job is consistent with its predecessor. */
static void check_follows(const struct bench_job *job, const struct bench_job *before)
{
	assert(job->index == before->index + 1);
	assert(job->stage == before->stage || job->stage == before->stage + 1);
	assert(job->groupid - before->groupid <= 1);
	assert(job->groupid - before->groupid >= job->stage - before->stage);
	assert(job->clone == 0 || job->clone == before->clone + 1);
	if (job->clone)
		assert(job->groupid == before->groupid && !strcmp(job->name, before->name));
}

static void check_planned(const struct bench_plan *plan)
{
	assert(plan->n >= 1 && plan->n <= JOBS_MAX);
	for (unsigned i = 0; i < plan->n; i++) {
		const struct bench_job *job = &plan->jobs[i];

		assert(*job->name && strlen(job->name) <= JOB_NAME_MAX);
		assert(job->options.numjobs >= 1 && job->clone < job->options.numjobs);
		if (i)
			check_follows(job, job - 1);
		for (unsigned j = 0; j < i; j++)
			assert(plan->jobs[j].stage != job->stage ||
			       plan->jobs[j].rank != job->rank);
	}
}

static void check_plan(void)
{
	static char name[] = "bench";
	char *argv[] = {name, path, NULL};
	struct bench_plan plan;
	int rc;

	errors = 0;
	rc = jobs_plan(&plan, 2, argv);
	assert(rc <= 0 && errors == (rc < 0));
	if (rc)
		return;
	check_planned(&plan);
	jobs_free(&plan);
}

/* It is read twice, and up to 256 jobs are planned. */
size_t allocated_most(size_t nbytes)
{
	return 2 * JOBFILE_BYTES(nbytes) + (1u << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	assert(!ftruncate(file, 0) && pwrite(file, data, nbytes, 0) == (ssize_t)nbytes);
	check_reader();
	check_plan();
	return 0;
}
