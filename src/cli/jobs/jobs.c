/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the command line and job files to a plan. What the section of a job says goes over what
 * [global] says, and what is typed over both. Jobs are counted into stages and groups as fio counts
 * them.
 */
#include "jobs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "jobfile.h"

#define WHERE_BYTES    512 /* of FILE:LINE */
#define FIO_KEYS_MAX   512
#define KEY_NAMES_MAX  (FIO_KEYS_MAX + 4 * OPTIONS_MAX)
#define WHERE(at, buf) (snprintf(buf, WHERE_BYTES, "%.490s:%u", (at)->file, (at)->line), (buf))

/* What one place says of jobs: the command line, [global], the section of one. */
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
	struct level typed;
	struct level global;	   /* of the file, so far */
	struct level run;	   /* all that [global] says anywhere, and what is typed */
	bool wall;		   /* the next job begins a stage, being the first of its file */
	unsigned room;		   /* in plan->jobs */
	bool warned[FIO_KEYS_MAX]; /* of each of fio_keys() */
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
	for (const char *const *name = fio_keys(); *name; name++)
		names[n++] = *name;
	assert(n <= KEY_NAMES_MAX);
	return nearest_name(key, names, n);
}

/* A key of fio's is told of once; any other is an error. */
static int take_unknown(struct planner *planner, const struct jobfile_line *line, const char *where)
{
	const char *why = fio_key_means_nothing(line->key), *nearest;

	if (!why) {
		nearest = nearest_key(line->key);
		say("%s: no key %s%s%s%s", where, line->key, nearest ? "; did you mean " : "",
		    nearest ? nearest : "", nearest ? "?" : "");
		return -EINVAL;
	}
	for (size_t i = 0; fio_keys()[i]; i++) {
		assert(i < FIO_KEYS_MAX);
		if (strcmp(fio_keys()[i], line->key) != 0 || planner->warned[i])
			continue;
		say("%s: fio's %s is ignored: %s", where, line->key, why);
		planner->warned[i] = true;
	}
	return 0;
}

static int take_line(struct planner *planner, const struct jobfile_line *line, bool is_global,
		     struct level *level)
{
	const struct option_spec *spec = options_find(&bench_command, line->key);
	char where[WHERE_BYTES];

	WHERE(line, where);
	if (!spec)
		return take_unknown(planner, line, where);
	if (spec->scope == OPTION_OF_RUN && !is_global) {
		say("%s: %s is for the whole run: put it into [global] or give --%s", where,
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
		say("%s: that makes %llu jobs, and a run has %u at most", where,
		    (unsigned long long)wanted, JOBS_MAX);
		return -EINVAL;
	}
	if (wanted <= planner->room)
		return 0;
	jobs = realloc(plan->jobs, wanted * sizeof(*jobs));
	if (!jobs) {
		say("no memory left for %llu jobs", (unsigned long long)wanted);
		return -ENOMEM;
	}
	plan->jobs = jobs;
	planner->room = (unsigned)wanted;
	return 0;
}

/* Adds the job and its clones. `where` begins what is said of it. */
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
		say("%s: the name of a job has %u bytes at most, and this has %zu", where,
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

/* Whether --section or "section" asks for it. */
static bool is_wanted(const struct planner *planner, const char *name)
{
	const struct option_list *wanted = &planner->typed.options.sections;

	for (unsigned i = 0; i < wanted->n; i++)
		if (!strcmp(wanted->items[i], name))
			return true;
	return wanted->n == 0;
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
	/* These are for every job, so some may have no use for them. */
	level_put_over(&level, &planner->typed);
	bench_options_settle(&level.options, &level.given);
	rc = bench_options_check(&level.options, &own.given, WHERE(section, where));
	return rc ? rc : add_job(planner, section->name, where, &level);
}

static int plan_file(struct planner *planner, const char *path)
{
	struct bench_plan *plan = planner->plan;
	struct texts *texts = calloc(1, sizeof(*texts));
	struct nvs_error error;
	int rc;

	if (!texts) {
		say("no memory left for %s", path);
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
		say("--section %s: no job file has a section of that name", wanted->items[0]);
	else
		say("%s: it has no section of a job, such as [swap]",
		    planner->typed.given.operands[0]);
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

/* Without a file: the command line is the job, and must make sense as one. */
static int plan_typed(struct planner *planner)
{
	struct level level = planner->typed;
	const struct option_spec *rw = options_find(&bench_command, "rw");
	int rc;

	if (level.options.sections.n) {
		say("--section chooses jobs of job files, and none is given");
		return -EINVAL;
	}
	bench_options_settle(&level.options, &level.given);
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

/* The ranks that are given, and a clone's is counted from there: no two may meet in a store. */
static int check_ranks(struct bench_plan *plan)
{
	for (unsigned i = 0; i < plan->n; i++) {
		struct bench_job *job = &plan->jobs[i], *other = plan->jobs;

		if (!has_rank(job))
			continue;
		job->options.rank += job->clone;
		for (; other < job; other++)
			if (other->stage == job->stage && has_rank(other) &&
			    other->options.rank == job->options.rank &&
			    share_directory(other, job)) {
				say("jobs %s and %s run at the same time on the same path, and "
				    "both have rank %llu: give them others, or none",
				    other->name, job->name, (unsigned long long)job->options.rank);
				return -EINVAL;
			}
	}
	return 0;
}

/* Whether a job of the stage was given that rank. */
static bool is_taken(const struct bench_plan *plan, unsigned stage, uint64_t rank)
{
	for (unsigned i = 0; i < plan->n; i++)
		if (plan->jobs[i].stage == stage && has_rank(&plan->jobs[i]) &&
		    plan->jobs[i].options.rank == rank)
			return true;
	return false;
}

/* Jobs that run at the same time get stores of their own, wherever these are. */
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
