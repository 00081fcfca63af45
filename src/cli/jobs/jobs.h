/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jobs of a run, from the command line or job files: what each does, and which run at the same
 * time. Opens no file but the job files.
 */
#ifndef CLI_JOBS_JOBS_H
#define CLI_JOBS_JOBS_H

#include "cli/jobs/bench.h"

#define JOB_NAME_MAX 63
#define JOBS_MAX     256

struct access_list; /* replay/replay.h */

struct bench_job {
	char name[JOB_NAME_MAX + 1]; /* the section's; without a file, the mode's */
	unsigned index;		     /* in the plan, from 0 */
	unsigned stage;	  /* jobs of a stage run at the same time, stages in turn (stonewall) */
	unsigned groupid; /* fio's count of stonewall and new_group */
	unsigned clone;	  /* of numjobs, from 0 */
	unsigned rank;	  /* added to the configuration's: each job of a stage has its own store */
	struct bench_options options; /* the seed includes the clone */
	struct options_given given;   /* by the section, [global] or the command line */
	/* Made by bench_prepare() in the parent: */
	struct nvs_config *config; /* NULL: it was not prepared */
	enum nvs_block block;
	struct model model;
	struct access_list *accesses; /* of mode replay; else NULL */
	struct nvs_trace *trace;      /* while it runs; NULL: none */
};

struct bench_plan {
	/* options of the whole run: output, formats, status_interval_ms, eta */
	struct bench_options run;
	struct options_given given; /* on the command line or in [global] */
	struct bench_job *jobs;	    /* in the order of the files, clones adjacent */
	unsigned n;
	void *memory; /* holds the texts of options */
};

/*
 * Options on the command line override the files for every job; without a file they are the only
 * job. Operands are files ("-": standard input); [global] ends with its file. Returns 0;
 * OPTIONS_HELP; or -EINVAL or the errno of a file after printing the reason with file and line.
 * Call jobs_free only after 0.
 */
int jobs_plan(struct bench_plan *plan, int argc, char **argv);
void jobs_free(struct bench_plan *plan);

/*
 * ---- jobfile.c ----
 *
 * The syntax of fio's job files: sections of lines that are "key=value" or a bare key, comments
 * from a ; or # to the end of the line, and in values ${NAME} for a variable of the environment.
 * Knows no key.
 */

/* What the reading of `nbytes` takes of memory at most: a value of four bytes, ${X}, may stand for
 * 4 KiB. */
#define JOBFILE_BYTES(nbytes) ((2u << 20) + 640 * (size_t)(nbytes))

struct jobfile_line {
	const char *file;
	unsigned line; /* from 1 */
	const char *key;
	char *value; /* as written, trimmed, with its quotes; NULL: a bare key */
};

struct jobfile_section {
	const char *name; /* "global", or that of a job; names may repeat */
	const char *file;
	unsigned line;
	struct jobfile_line *lines;
	size_t n;
};

struct jobfile {
	struct jobfile_section *sections; /* in the order of the file */
	size_t n;
	struct jobfile_line *lines; /* of all sections */
	size_t nlines;
};

/*
 * Reads a file ("-": standard input), whose name must live as long as the result. What it allocates
 * goes to the chain *memory (first NULL), also after an error. -EINVAL with file and line: a line in
 * no section or of no form, or an unended [. -EFBIG above 1 MiB. Errno of opening and reading.
 */
int jobfile_read(struct jobfile *jobfile, const char *path, void **memory, struct nvs_error *error);
/* Frees the chain. */
void jobfile_forget(void **memory);

/*
 * Replaces each ${NAME} in the line's value. Not done by the reader, because a variable that is
 * missing does not matter where the command line overrides the line. -EINVAL with file and line: an
 * unended ${, a variable that is not set, or a value of 4096 bytes or more.
 */
int jobfile_expand(void **memory, struct jobfile_line *line, struct nvs_error *error);

#endif
