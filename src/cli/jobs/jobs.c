/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the command line and job files into a plan. Stages and groups are counted as in fio. */
#include "cli/jobs/jobs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"

#define WHERE_BYTES    512 /* of FILE:LINE */
#define WHERE(at, buf) (snprintf(buf, WHERE_BYTES, "%.490s:%u", (at)->file, (at)->line), (buf))

/* A job's options as they stand; those of the command line from the beginning. */
struct level {
	struct bench_options options;
	struct options_given given;
};

struct planner {
	struct bench_plan *plan;
	struct level typed;
	struct level global; /* with the file's [global] so far */
	bool wall;	     /* the next job, the first of its file, begins a stage */
};

/* Whether the command line has the option, or one that it excludes. */
static bool is_overridden(const struct planner *planner, const struct option_spec *spec)
{
	for (unsigned i = 0; i < bench_command.noptions; i++)
		if (planner->typed.given.text[i] &&
		    (spec == &bench_command.options[i] ||
		     options_exclude(spec, &bench_command.options[i])))
			return true;
	return false;
}

static int take_line(struct planner *planner, struct jobfile_line *line, bool is_global,
		     struct level *level, struct options_given *own)
{
	const struct option_spec *spec = options_find(&bench_command, line->key);
	char where[WHERE_BYTES];
	struct nvs_error error = {.size = sizeof(error)};

	if (spec && is_overridden(planner, spec))
		return 0;
	if (jobfile_expand(&planner->plan->memory, line, &error))
		return REFUSE(error.code, "%s", error.text);
	WHERE(line, where);
	if (!spec) {
		/* Of fio's keys without effect here, those that files for both need. */
		static const char *const ignored[] = {"invalidate", "randrepeat", "thread",
						      "unlink"};
		const char *nearest = options_nearest(&bench_command, line->key, OPTION_OF_LINE);

		for (unsigned i = 0; i < COUNT_OF(ignored); i++)
			if (option_names_equal(line->key, ignored[i]))
				return 0;
		if (nearest)
			say("%s: bench has no key %s; did you mean %s? If it is fio's, use fio",
			    where, line->key, nearest);
		else
			say("%s: bench has no key %s; if it is fio's, use fio", where, line->key);
		return -EINVAL;
	}
	if (spec->scope == OPTION_OF_RUN && !is_global)
		return REFUSE(-EINVAL,
			      "%s: %s applies to the whole run: put it into [global] or give --%s",
			      where, line->key, spec->name);
	own->text[spec - bench_command.options] = line->key;
	return options_set(&bench_command, line->key, line->value, where, &level->options,
			   &level->given);
}

/* Adds the job and its clones. Errors begin with `where`. */
static int add_job(struct planner *planner, const char *name, const char *where,
		   const struct level *level)
{
	struct bench_plan *plan = planner->plan;
	bool walled = planner->wall || level->options.stonewall;
	uint64_t clones = level->options.numjobs, wanted = plan->n + clones;
	struct bench_job job = {.options = level->options, .given = level->given}, *jobs;

	if (wanted > JOBS_MAX)
		return REFUSE(-EINVAL, "%s: %llu jobs are too many; a run has at most %u", where,
			      (unsigned long long)wanted, JOBS_MAX);
	if (strlen(name) > JOB_NAME_MAX)
		return REFUSE(-EINVAL, "%s: the job's name is too long: at most %u bytes, not %zu",
			      where, JOB_NAME_MAX, strlen(name));
	jobs = realloc(plan->jobs, wanted * sizeof(*jobs));
	if (!jobs)
		return REFUSE(-ENOMEM, "out of memory for %llu jobs", (unsigned long long)wanted);
	plan->jobs = jobs;
	strcpy(job.name, name);
	if (plan->n) {
		job.stage = jobs[plan->n - 1].stage + walled;
		job.groupid = jobs[plan->n - 1].groupid + (walled || level->options.new_group);
	}
	for (; job.clone < clones; job.clone++) {
		job.index = plan->n;
		jobs[plan->n++] = job;
		job.options.seed++;
	}
	planner->wall = false;
	return 0;
}

/* A file that says too little is one job for fio and another for bench, whose defaults differ. With
 * a configuration it is none of fio's. */
static int check_complete(const struct level *level, const char *name, const char *where)
{
	static const struct {
		const char *key, *why;
	} needed[] = {{"rw", "fio would read; give rw=swap, or another mode"},
		      {"bs", "fio's default is 4k, and bench's 1m"},
		      {"iodepth", "fio's default is 1, and bench's 8"},
		      {"ioengine", "fio's default, psync, keeps one I/O in flight; give "
				   "ioengine=io_uring, or another of bench"},
		      {"size", "bench's default is 1g, and fio has none"},
		      {"direct", "fio would go through the page cache, and bench never does; "
				 "give direct=1"}};
	bool blocks = is_block_mode(level->options.rw) && !level->options.config;

	for (unsigned i = 0; i < (blocks ? COUNT_OF(needed) : 1); i++)
		if (!bench_option_given(&level->given, needed[i].key))
			return REFUSE(-EINVAL, "%s: job %s has no %s: %s", where, name,
				      needed[i].key, needed[i].why);
	return 0;
}

static int plan_section(struct planner *planner, const struct jobfile_section *section)
{
	const struct option_list *wanted = &planner->typed.options.sections;
	bool is_global = !strcmp(section->name, "global"), skipped = wanted->n && !is_global;
	struct level level = planner->global;
	struct options_given own = {.noperands = 0};
	char where[WHERE_BYTES];
	int rc = 0;

	for (unsigned i = 0; i < wanted->n && skipped; i++)
		skipped = strcmp(wanted->items[i], section->name) != 0;
	if (skipped)
		return 0;
	for (size_t i = 0; i < section->n && !rc; i++)
		rc = take_line(planner, &section->lines[i], is_global, &level, &own);
	if (rc)
		return rc;
	if (is_global) {
		planner->global = level;

		/* The options of [global] are also of the run, unless a later [global] has them. */
		struct bench_plan *plan = planner->plan;
		const struct level *global = &planner->global;

		for (unsigned i = 0; i < bench_command.noptions; i++) {
			const struct option_spec *spec = &bench_command.options[i];

			if (!global->given.text[i])
				continue;
			memcpy((char *)&plan->run + spec->offset,
			       (const char *)&global->options + spec->offset,
			       option_value_bytes(spec->type));
			plan->given.text[i] = global->given.text[i];
		}
		return 0;
	}
	/* Of the command line and [global], options without effect in this mode are no error. */
	for (unsigned i = 0; i < bench_command.noptions; i++)
		if (!level.given.text[i]) /* a later line excludes it */
			own.text[i] = NULL;
	rc = bench_options_settle(&level.options, &level.given, &own, WHERE(section, where));
	rc = rc ?: check_complete(&level, section->name, where);
	return rc ? rc : add_job(planner, section->name, where, &level);
}

static int plan_files(struct planner *planner)
{
	const struct level *typed = &planner->typed;
	struct bench_plan *plan = planner->plan;
	struct nvs_error error = {.size = sizeof(error)};
	struct jobfile jobfile;
	int rc = 0;

	for (unsigned i = 0; i < typed->given.noperands && !rc; i++) {
		rc = jobfile_read(&jobfile, typed->given.operands[i], &plan->memory, &error);
		if (rc)
			say("%s", error.text);
		planner->wall = plan->n != 0;
		planner->global = *typed;
		for (size_t j = 0; j < jobfile.n && !rc; j++)
			rc = plan_section(planner, &jobfile.sections[j]);
	}
	if (rc || plan->n)
		return rc;
	if (typed->options.sections.n)
		say("--section %s: no job file has such a section",
		    typed->options.sections.items[0]);
	else
		say("%s has no job section, such as [swap]", typed->given.operands[0]);
	return -EINVAL;
}

int jobs_plan(struct bench_plan *plan, int argc, char **argv)
{
	struct planner planner = {.plan = plan};
	struct level *typed = &planner.typed;
	int rc;

	*plan = (struct bench_plan){0};
	typed->options = bench_defaults;
	rc = options_parse(&bench_command, argc, argv, &typed->options, &typed->given);
	if (!rc) {
		plan->run = typed->options;
		plan->given = typed->given;
		if (typed->given.noperands)
			rc = plan_files(&planner);
		else if (typed->options.sections.n)
			rc = REFUSE(-EINVAL, "--section needs a job file");
		else
			rc = bench_options_settle(&typed->options, &typed->given, &typed->given,
						  NULL);
		if (!rc && !typed->given.noperands)
			rc = add_job(&planner, bench_rw_name(typed->options.rw), "--numjobs",
				     typed);
	}
	/* Jobs that run at the same time have their own stores. */
	for (unsigned i = 0, first = 0; i < plan->n && !rc; i++) {
		if (plan->jobs[i].stage != plan->jobs[first].stage)
			first = i;
		plan->jobs[i].rank = i - first;
	}
	if (rc)
		jobs_free(plan);
	return rc;
}

void jobs_free(struct bench_plan *plan)
{
	jobfile_forget(&plan->memory);
	free(plan->jobs);
	*plan = (struct bench_plan){0};
}
