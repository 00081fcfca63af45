/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the files of each result, matches their jobs to the base's, and computes the figures.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/compare/compare.h"

#define MIB (1u << 20)

const struct metric metrics[METRICS] = {
	{BANDWIDTH, NVS_READ, "read bw", "MiB/s", "read_bw_bytes", 1.0 / MIB, false},
	{IOPS, NVS_READ, "read iops", "", "read_iops", 1, false},
	{LATENCY_P50, NVS_READ, "read p50", "usec", "read_clat_p50_ns", 1e-3, true},
	{LATENCY_P99, NVS_READ, "read p99", "usec", "read_clat_p99_ns", 1e-3, true},
	{BANDWIDTH, NVS_WRITE, "write bw", "MiB/s", "write_bw_bytes", 1.0 / MIB, false},
	{IOPS, NVS_WRITE, "write iops", "", "write_iops", 1, false},
	{LATENCY_P50, NVS_WRITE, "write p50", "usec", "write_clat_p50_ns", 1e-3, true},
	{LATENCY_P99, NVS_WRITE, "write p99", "usec", "write_clat_p99_ns", 1e-3, true},
	{CPU_TIME, NVS_READ, "cpu / GiB", "ms", "cpu_ms_per_gib", 1, true},
};

/* ---- Names */

static char *printable(const char *text, size_t nbytes)
{
	char *copy = malloc(4 * nbytes + 1);

	if (copy)
		visible_text(text, nbytes, copy, 4 * nbytes + 1);
	return copy;
}

/* The name of a file without directory and .json. */
static char *label_of(const char *files, size_t nbytes)
{
	const char *slash = memrchr(files, '/', nbytes);
	size_t skipped = slash ? (size_t)(slash - files) + 1 : 0;
	const char *name = files + skipped;

	nbytes -= skipped;
	if (nbytes > 5 && !memcmp(name + nbytes - 5, ".json", 5))
		nbytes -= 5;
	return printable(name, nbytes);
}

/* ---- Jobs */

/* Jobs without a name all have the empty one. */
static const struct json_value *name_of(const struct json_value *job)
{
	static const struct json_value none = {.string = "", .length = 0};
	const struct json_value *name = json_member(job, "jobname");

	return name && name->type == JSON_STRING ? name : &none;
}

static bool same_name(const struct json_value *a, const struct json_value *b)
{
	const struct json_value *x = name_of(a), *y = name_of(b);

	return x->length == y->length && !memcmp(x->string, y->string, x->length);
}

/* How many jobs up to `before` (NULL: all) have the name of `like`. */
static unsigned count_like(const struct json_value *jobs, const struct json_value *before,
			   const struct json_value *like)
{
	unsigned n = 0;

	for (const struct json_value *job = jobs->first; job && job != before; job = job->next)
		n += same_name(job, like);
	return n;
}

static const struct json_value *nth(const struct json_value *jobs, unsigned index,
				    const struct json_value *like)
{
	for (const struct json_value *job = jobs->first; job; job = job->next)
		if ((!like || same_name(job, like)) && !index--)
			return job;
	return NULL;
}

static bool share_names(const struct json_value *jobs, const struct json_value *others)
{
	for (const struct json_value *job = jobs->first; job; job = job->next)
		if (count_like(others, NULL, job))
			return true;
	return false;
}

/* Jobs with the same name are matched in their order. */
static int match_jobs(struct comparison *comparison, struct compare_run *run, const char *path,
		      struct nvs_error *error)
{
	const struct json_value *base = comparison->sides->runs->results.jobs;
	const struct json_value *jobs = run->results.jobs, *job = base->first;
	bool by_name = share_names(base, jobs);
	int rc = 0;

	run->jobs = calloc(base->count, sizeof(const struct json_value *));
	run->figures = calloc(base->count, sizeof(*run->figures));
	if (!run->jobs || !run->figures)
		return -ENOMEM;
	if (!by_name && jobs->count != base->count) {
		snprintf(error->text, sizeof(error->text),
			 "%.200s has no job of the base's names, and not as many", path);
		return -EINVAL;
	}
	comparison->by_order |= !by_name;
	for (unsigned i = 0; !rc && i < base->count; i++, job = job->next) {
		run->jobs[i] = by_name ? nth(jobs, count_like(base, job, job), job)
				       : nth(jobs, i, NULL);
		if (run->jobs[i])
			rc = results_figures(run->jobs[i], path, &run->figures[i], error);
	}
	return rc;
}

static int name_jobs(struct comparison *comparison)
{
	const struct json_value *jobs = comparison->sides->runs->results.jobs, *job = jobs->first;

	comparison->jobs = calloc(jobs->count, sizeof(*comparison->jobs));
	comparison->njobs = comparison->jobs ? jobs->count : 0;
	for (unsigned i = 0; i < comparison->njobs; i++, job = job->next) {
		const struct json_value *name = name_of(job);

		comparison->jobs[i] = printable(name->string, name->length);
		if (!comparison->jobs[i])
			return -ENOMEM;
	}
	return comparison->jobs ? 0 : -ENOMEM;
}

/* ---- Sides */

/* The first file of all is the base, whose jobs are the rows. */
static int read_run(struct comparison *comparison, struct compare_side *side, char *path)
{
	struct compare_run *run = &side->runs[side->nruns++];
	struct nvs_error error = {.size = sizeof(error)};
	int rc = results_read(&run->results, path, &error);

	if (!rc && !comparison->jobs)
		rc = name_jobs(comparison);
	if (!rc)
		rc = match_jobs(comparison, run, path, &error);
	if (rc)
		say("%s", *error.text ? error.text : nvs_strerror(rc));
	return rc;
}

static int read_side(struct comparison *comparison, struct compare_side *side, char *operand)
{
	bool is_file = !access(operand, F_OK);
	char *equals = is_file ? NULL : strchr(operand, '='), *rest = equals ? equals + 1 : operand;
	unsigned n = 1;
	int rc = 0;

	for (char *c = rest; !is_file && *c; c++)
		n += *c == ',';
	side->label = equals ? printable(operand, (size_t)(equals - operand))
			     : label_of(rest, is_file ? strlen(rest) : strcspn(rest, ","));
	side->runs = calloc(n, sizeof(*side->runs));
	if (!side->label || !side->runs) {
		say("no memory for the results");
		return -ENOMEM;
	}
	if (equals == operand) {
		say("%s: give a name before the =", operand);
		return -EINVAL;
	}
	if (n > RUNS_MAX) {
		say("%s has more than %u files", side->label, RUNS_MAX);
		return -EINVAL;
	}
	while (!rc && side->nruns < n) {
		char *path = is_file ? rest : strsep(&rest, ",");

		if (!*path) {
			say("%s: the list of files has an empty name", side->label);
			return -EINVAL;
		}
		rc = read_run(comparison, side, path);
	}
	return rc;
}

int comparison_read(struct comparison *comparison, char **operands, unsigned n)
{
	comparison->sides = calloc(n, sizeof(*comparison->sides));
	if (!comparison->sides) {
		say("no memory for the results");
		return STATUS_USAGE;
	}
	for (; comparison->nsides < n; comparison->nsides++) {
		struct compare_side *side = &comparison->sides[comparison->nsides];

		if (read_side(comparison, side, operands[comparison->nsides])) {
			comparison->nsides++;
			return STATUS_USAGE;
		}
	}
	return 0;
}

void comparison_free(struct comparison *comparison)
{
	for (unsigned i = 0; i < comparison->nsides; i++) {
		struct compare_side *side = &comparison->sides[i];

		for (unsigned run = 0; run < side->nruns; run++) {
			results_free(&side->runs[run].results);
			free(side->runs[run].jobs);
			free(side->runs[run].figures);
		}
		free(side->runs);
		free(side->label);
	}
	for (unsigned i = 0; i < comparison->njobs; i++)
		free(comparison->jobs[i]);
	free(comparison->jobs);
	free(comparison->sides);
}

/* ---- Figures */

/* Of one run: only rates have a known noise. */
static struct estimate figure(const struct job_figures *figures, const struct metric *metric)
{
	enum nvs_direction d = metric->direction;

	switch (metric->figure) {
	case BANDWIDTH:
		return (struct estimate){figures->bytes_per_s[d], figures->bw_noise[d]};
	case IOPS:
		return (struct estimate){figures->iops[d], figures->iops_noise[d]};
	case LATENCY_P50:
		return (struct estimate){.value = figures->p50_ns[d]};
	case LATENCY_P99:
		return (struct estimate){.value = figures->p99_ns[d]};
	case CPU_TIME:
		break;
	}
	return (struct estimate){.value = figures->cpu_ms_per_gib};
}

struct estimate comparison_estimate(const struct comparison *comparison, unsigned side,
				    unsigned job, const struct metric *metric)
{
	const struct compare_side *of = &comparison->sides[side];
	struct estimate one = {.value = 0};
	double values[RUNS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < of->nruns; i++) {
		if (!of->runs[i].jobs[job])
			continue;
		one = figure(&of->runs[i].figures[job], metric);
		values[n++] = one.value;
	}
	return n > 1 ? estimate_of_runs(values, n) : one;
}

struct change comparison_change(const struct comparison *comparison, unsigned side, unsigned job,
				const struct metric *metric)
{
	struct estimate base = comparison_estimate(comparison, 0, job, metric);
	struct estimate other = comparison_estimate(comparison, side, job, metric);

	return change_of(&base, &other, metric->less_is_better, comparison->threshold);
}

bool comparison_has(const struct comparison *comparison, unsigned job, const struct metric *metric)
{
	for (unsigned side = 0; side < comparison->nsides; side++)
		if (comparison_estimate(comparison, side, job, metric).value > 0)
			return true;
	return false;
}

const char *verdict_name(const struct metric *metric, enum verdict verdict)
{
	static const char *const speed[] = {"can't tell", "same", "faster", "slower"};
	static const char *const cost[] = {"can't tell", "same", "less", "more"};

	return metric->figure == CPU_TIME ? cost[verdict] : speed[verdict];
}

void comparison_notes(const struct comparison *comparison, char notes[512])
{
	unsigned fewest = UINT_MAX;

	for (unsigned i = 0; i < comparison->nsides; i++)
		if (comparison->sides[i].nruns < fewest)
			fewest = comparison->sides[i].nruns;
	snprintf(notes, 512,
		 "± is half of the 95 %% interval; same is within %g %% of the base.%s%s",
		 comparison->threshold,
		 fewest > 1
			 ? ""
			 : " A single run has intervals of rates only, from its samples, and only "
			   "if it took 4 s or more. It does not show how runs differ: repeat "
			   "runs, as A1.json,A2.json.",
		 comparison->by_order ? " Jobs are matched by their order: their names differ."
				      : "");
}
