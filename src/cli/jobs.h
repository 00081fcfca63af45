/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jobs of a run, from the command line or from job files: which there are, what each is to do,
 * and which run at the same time. Looks at no file but the job files.
 */
#ifndef CLI_JOBS_H
#define CLI_JOBS_H

#include "bench.h"

#define JOB_NAME_MAX 63
#define JOBS_MAX     256

struct bench_job {
	char name[JOB_NAME_MAX + 1]; /* of its section; without a file, the mode's */
	unsigned index;		     /* in the plan, from 0 */
	unsigned stage;	  /* jobs of a stage run at the same time, stages in turn (stonewall) */
	unsigned groupid; /* fio's: counts stonewall and new_group */
	unsigned clone;	  /* of numjobs, from 0 */
	/* seed + clone. rank, where none is given: to be added to that of the configuration, so
	 * that jobs of a stage have stores of their own. */
	struct bench_options options;
	struct options_given given; /* by the section, [global] and the command line together */
	/* What bench_prepare() makes of the options, in the process that started: */
	struct nvs_config config;
	enum nvs_block block;
	struct model model;
};

struct bench_plan {
	/* What belongs to the whole run: output, formats, status_interval_ms, eta, compare */
	struct bench_options run;
	struct options_given given; /* what the command line and [global] say of all jobs */
	struct bench_job *jobs;	    /* in the order of the files, clones side by side */
	unsigned n;
	void *memory; /* that texts of options lie in */
};

/*
 * Options of jobs on the command line hold for every job of the files, over what the files say;
 * without a file they are the one job. Names of files are operands ("-": standard input), and what
 * [global] says ends with its file. 0; OPTIONS_HELP; -EINVAL and errno of the files after saying
 * on standard error what is wrong, with file and line. jobs_free comes after 0 alone.
 */
int jobs_plan(struct bench_plan *plan, int argc, char **argv);
void jobs_free(struct bench_plan *plan);

/* What fio knows and nvswap has no use for: why, in a few words, or NULL if fio has no such key. */
const char *fio_key_means_nothing(const char *key);
/* All of those names, for finding the nearest; up to NULL. */
const char *const *fio_keys(void);

#endif
