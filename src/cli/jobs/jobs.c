/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the command line and job files into a plan. A job's section overrides [global], and the
 * command line overrides both. Stages and groups are counted as in fio.
 */
#include "cli/jobs/jobs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/jobs/jobfile.h"
#include "cli/options/values.h"

#define WHERE_BYTES    512 /* of FILE:LINE */
#define KEY_NAMES_MAX  (4 * OPTIONS_MAX)
#define WHERE(at, buf) (snprintf(buf, WHERE_BYTES, "%.490s:%u", (at)->file, (at)->line), (buf))

/* The options given in one place: the command line, [global], or a job's section. */
struct level {
	struct bench_options options;
	struct options_given given;
};

/* The texts that options point into. */
struct texts {
	struct texts *next;
	struct jobfile jobfile;
};

struct planner {
	struct bench_plan *plan;
	struct jobfile *jobfile; /* the file being planned */
	struct level typed;
	struct level global; /* the file's [global] so far */
	struct level run;    /* every [global], and the command line */
	bool wall;	     /* the next job, the first of its file, begins a stage */
	unsigned room;	     /* in plan->jobs */
};

static void level_init(struct level *level)
{
	bench_options_init(&level->options);
	level->given = (struct options_given){0};
}

static void level_put_over(struct level *level, const struct level *upper)
{
	options_copy(&bench_command, &upper->options, &upper->given, &level->options,
		     &level->given);
}

static const char *nearest_key(const char *key)
{
	const char *names[KEY_NAMES_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < bench_command.noptions; i++) {
		const struct option_spec *spec = &bench_command.options[i];

		if (spec->scope == OPTION_OF_LINE)
			continue;
		names[n++] = spec->name;
		for (const char *const *alias = spec->aliases; alias && *alias; alias++)
			names[n++] = *alias;
	}
	assert(n <= KEY_NAMES_MAX);
	return nearest_name(key, names, n);
}

/* Of fio's keys without effect here, those that files for both need. */
static bool is_ignored(const char *key)
{
	static const char *const keys[] = {"invalidate", "randrepeat", "thread", "unlink"};

	for (unsigned i = 0; i < COUNT_OF(keys); i++)
		if (option_names_equal(key, keys[i]))
			return true;
	return false;
}

static int refuse_key(const char *key, const char *where)
{
	const char *instead = options_instead_of(&bench_command, key), *nearest = nearest_key(key);

	if (instead)
		say("%s: %s is no longer a key: %s", where, key, instead);
	else if (nearest)
		say("%s: bench has no key %s; did you mean %s? If it is fio's, use fio", where, key,
		    nearest);
	else
		say("%s: bench has no key %s; if it is fio's, use fio", where, key);
	return -EINVAL;
}

/* A line that the command line overrides has no effect, so its value is not even parsed. */
static bool is_typed(const struct planner *planner, const struct option_spec *spec)
{
	return spec && planner->typed.given.text[spec - bench_command.options];
}

static int take_line(struct planner *planner, struct jobfile_line *line, bool is_global,
		     struct level *level)
{
	const struct option_spec *spec = options_find(&bench_command, line->key);
	char where[WHERE_BYTES];
	struct nvs_error error = {.size = sizeof(error)};

	if (is_typed(planner, spec))
		return 0;
	if (jobfile_expand(planner->jobfile, line, &error)) {
		say("%s", error.text);
		return error.code;
	}
	WHERE(line, where);
	if (!spec)
		return is_ignored(line->key) ? 0 : refuse_key(line->key, where);
	if (spec->scope == OPTION_OF_RUN && !is_global) {
		say("%s: %s applies to the whole run: put it into [global] or give --%s", where,
		    line->key, spec->name);
		return -EINVAL;
	}
	return options_set(&bench_command, line->key, line->value, where, &level->options,
			   &level->given);
}

static int take_section(struct planner *planner, const struct jobfile_section *section,
			bool is_global, struct level *level)
{
	int rc = 0;

	level_init(level);
	for (size_t i = 0; i < section->n && !rc; i++)
		rc = take_line(planner, &section->lines[i], is_global, level);
	return rc;
}

static int make_room(struct planner *planner, uint64_t wanted, const char *where)
{
	struct bench_plan *plan = planner->plan;
	struct bench_job *jobs;

	if (wanted > JOBS_MAX) {
		say("%s: %llu jobs are too many; a run has at most %u", where,
		    (unsigned long long)wanted, JOBS_MAX);
		return -EINVAL;
	}
	if (wanted <= planner->room)
		return 0;
	jobs = realloc(plan->jobs, wanted * sizeof(*jobs));
	if (!jobs) {
		say("out of memory for %llu jobs", (unsigned long long)wanted);
		return -ENOMEM;
	}
	plan->jobs = jobs;
	planner->room = (unsigned)wanted;
	return 0;
}

/* Adds the job and its clones. Errors begin with `where`. */
static int add_job(struct planner *planner, const char *name, const char *where,
		   const struct level *level)
{
	struct bench_plan *plan = planner->plan;
	bool walled = planner->wall || level->options.stonewall;
	uint64_t clones = level->options.numjobs;
	struct bench_job job = {.options = level->options, .given = level->given};
	int rc = make_room(planner, plan->n + clones, where);

	if (rc)
		return rc;
	if (strlen(name) > JOB_NAME_MAX) {
		say("%s: the job's name is too long: at most %u bytes, not %zu", where,
		    JOB_NAME_MAX, strlen(name));
		return -EINVAL;
	}
	memcpy(job.name, name, strlen(name));
	if (plan->n) {
		job.stage = plan->jobs[plan->n - 1].stage + walled;
		job.groupid = plan->jobs[plan->n - 1].groupid +
			      (walled || level->options.new_group);
	}
	for (; job.clone < clones; job.clone++) {
		job.index = plan->n;
		plan->jobs[plan->n++] = job;
		job.options.seed++;
	}
	planner->wall = false;
	return 0;
}

/* Whether --section selects the job; without it every job runs. */
static bool is_wanted(const struct planner *planner, const char *name)
{
	const struct option_list *wanted = &planner->typed.options.sections;

	for (unsigned i = 0; i < wanted->n; i++)
		if (!strcmp(wanted->items[i], name))
			return true;
	return wanted->n == 0;
}

/*
 * A file that says too little is one job for fio and another for bench, whose defaults differ. With
 * a configuration it is none of fio's.
 */
static int check_complete(const struct level *level, const char *name, const char *where)
{
	static const struct {
		const char *key, *why;
	} needed[] = {{"rw", "fio would read; give rw=swap, or another mode"},
		      {"bs", "fio's default is 4k, and bench's 1m"},
		      {"iodepth", "fio's default is 1, and bench's 8"},
		      {"size", "bench's default is 1g, and fio has none"},
		      {"direct", "fio would go through the page cache, and bench never does; "
				 "give direct=1"}};
	bool blocks = is_block_mode(level->options.rw) && !level->options.config;

	for (unsigned i = 0; i < (blocks ? COUNT_OF(needed) : 1); i++)
		if (!bench_option_given(&level->given, needed[i].key)) {
			say("%s: job %s has no %s: %s", where, name, needed[i].key, needed[i].why);
			return -EINVAL;
		}
	return 0;
}

static int plan_section(struct planner *planner, const struct jobfile_section *section)
{
	bool is_global = !strcmp(section->name, "global");
	struct level own, level = planner->global;
	char where[WHERE_BYTES];
	int rc;

	if (!is_global && !is_wanted(planner, section->name))
		return 0;
	rc = take_section(planner, section, is_global, &own);
	if (rc)
		return rc;
	if (is_global) {
		level_put_over(&planner->global, &own);
		level_put_over(&planner->run, &own);
		return 0;
	}
	level_put_over(&level, &own);
	/*
	 * The command line is for every job, so options without effect in this job's mode are no
	 * error.
	 */
	level_put_over(&level, &planner->typed);
	bench_options_fill_defaults(&level.options, &level.given);
	rc = bench_options_check(&level.options, &own.given, WHERE(section, where));
	if (!rc)
		rc = check_complete(&level, section->name, where);
	return rc ? rc : add_job(planner, section->name, where, &level);
}

static int plan_file(struct planner *planner, const char *path)
{
	struct bench_plan *plan = planner->plan;
	struct texts *texts = calloc(1, sizeof(*texts));
	struct nvs_error error = {.size = sizeof(error)};
	int rc;

	if (!texts) {
		say("out of memory for %s", path);
		return -ENOMEM;
	}
	rc = jobfile_read(&texts->jobfile, path, &error);
	if (rc) {
		say("%s", error.text);
		free(texts);
		return rc;
	}
	texts->next = plan->memory;
	plan->memory = texts;
	planner->jobfile = &texts->jobfile;
	planner->wall = plan->n != 0;
	level_init(&planner->global);
	for (size_t i = 0; i < texts->jobfile.n && !rc; i++)
		rc = plan_section(planner, &texts->jobfile.sections[i]);
	return rc;
}

static int say_no_job(const struct planner *planner)
{
	const struct option_list *wanted = &planner->typed.options.sections;

	if (wanted->n)
		say("--section %s: no job file has such a section", wanted->items[0]);
	else
		say("%s has no job section, such as [swap]", planner->typed.given.operands[0]);
	return -EINVAL;
}

static int plan_files(struct planner *planner)
{
	const struct options_given *typed = &planner->typed.given;
	int rc = 0;

	for (unsigned i = 0; i < typed->noperands && !rc; i++)
		rc = plan_file(planner, typed->operands[i]);
	return rc || planner->plan->n ? rc : say_no_job(planner);
}

/* Without a file the command line is the only job. */
static int plan_typed(struct planner *planner)
{
	struct level level = planner->typed;
	const struct option_spec *rw = options_find(&bench_command, "rw");
	int rc;

	if (level.options.sections.n) {
		say("--section needs a job file");
		return -EINVAL;
	}
	bench_options_fill_defaults(&level.options, &level.given);
	rc = bench_options_check(&level.options, &level.given, NULL);
	return rc ? rc : add_job(planner, rw->choices[level.options.rw], "--numjobs", &level);
}

static bool has_rank(const struct bench_job *job)
{
	return bench_option_given(&job->given, "rank");
}

static bool share_directory(const struct bench_job *a, const struct bench_job *b)
{
	const struct option_list *ours = &a->options.nvme_path, *theirs = &b->options.nvme_path;

	for (unsigned i = 0; i < ours->n; i++)
		for (unsigned j = 0; j < theirs->n; j++)
			if (!strcmp(ours->items[i], theirs->items[j]))
				return true;
	return !ours->n && !theirs->n;
}

/* Counts the clones' ranks up from a given rank; two jobs must not share a store. */
static int check_ranks(struct bench_plan *plan)
{
	for (unsigned i = 0; i < plan->n; i++) {
		struct bench_job *job = &plan->jobs[i], *other = plan->jobs;

		if (!has_rank(job))
			continue;
		job->options.rank += job->clone;
		for (; other < job; other++)
			if (other->stage == job->stage &&
			    other->options.rank == job->options.rank && has_rank(other) &&
			    share_directory(other, job)) {
				say("jobs %s and %s run at the same time on the same path, and "
				    "both have rank %llu: give them different ranks, or none",
				    other->name, job->name, (unsigned long long)job->options.rank);
				return -EINVAL;
			}
	}
	return 0;
}

/* Whether a job of the stage was given this rank. */
static bool is_taken(const struct bench_plan *plan, unsigned stage, uint64_t rank)
{
	for (unsigned i = 0; i < plan->n; i++)
		if (plan->jobs[i].stage == stage && plan->jobs[i].options.rank == rank &&
		    has_rank(&plan->jobs[i]))
			return true;
	return false;
}

/* Jobs of a stage without a given rank get the lowest free ones, so each has its own store. */
static int choose_ranks(struct bench_plan *plan)
{
	uint64_t next = 0;
	int rc = check_ranks(plan);

	for (unsigned i = 0; i < plan->n && !rc; i++) {
		struct bench_job *job = &plan->jobs[i];

		if (i && job->stage != job[-1].stage)
			next = 0;
		if (has_rank(job))
			continue;
		while (is_taken(plan, job->stage, next))
			next++;
		job->options.rank = next++;
	}
	return rc;
}

int jobs_plan(struct bench_plan *plan, int argc, char **argv)
{
	struct planner planner = {.plan = plan};
	int rc;

	*plan = (struct bench_plan){0};
	level_init(&planner.run);
	level_init(&planner.typed);
	rc = options_parse(&bench_command, argc, argv, &planner.typed.options,
			   &planner.typed.given);
	if (!rc) {
		rc = planner.typed.given.noperands ? plan_files(&planner) : plan_typed(&planner);
		level_put_over(&planner.run, &planner.typed);
		plan->run = planner.run.options;
		plan->given = planner.run.given;
	}
	if (!rc)
		rc = choose_ranks(plan);
	if (rc)
		jobs_free(plan);
	return rc;
}

void jobs_free(struct bench_plan *plan)
{
	struct texts *texts = plan->memory;

	while (texts) {
		struct texts *next = texts->next;

		jobfile_free(&texts->jobfile);
		free(texts);
		texts = next;
	}
	free(plan->jobs);
	options_forget_lists();
	*plan = (struct bench_plan){0};
}
