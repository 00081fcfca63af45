/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the files of each result, matches their jobs to the base's, and tells changes from noise:
 * by Welch's interval of the ratio of two means, on logarithms, so that swapping base and other
 * gives the inverse.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/statistics/student.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/compare/compare.h"

/* ---- Jobs ---- */

/* Jobs without a name all have the empty one. */
static const struct json_value *name_of(const struct json_value *job)
{
	static const struct json_value none = {.string = "", .length = 0};
	const struct json_value *name = json_member(job, "jobname");

	return name && name->type == JSON_STRING ? name : &none;
}

/* How many jobs up to `before` (NULL: all) have the name of `like`. */
static unsigned count_like(const struct json_value *jobs, const struct json_value *before,
			   const struct json_value *like)
{
	const struct json_value *name = name_of(like);
	unsigned n = 0;

	for (const struct json_value *job = jobs->first; job && job != before; job = job->next)
		n += name_of(job)->length == name->length &&
		     !memcmp(name_of(job)->string, name->string, name->length);
	return n;
}

/* Jobs with the same name are matched in their order. */
static int match_jobs(struct comparison *comparison, struct compare_run *run, const char *path,
		      const struct json_value *jobs, struct nvs_error *error)
{
	const struct json_value *base = comparison->base, *job, *other;
	bool by_name = false;
	unsigned i = 0;
	int rc = 0;

	run->jobs = calloc(base->count, sizeof(const struct json_value *));
	run->figures = calloc(base->count, sizeof(*run->figures));
	if (!run->jobs || !run->figures)
		return -ENOMEM;
	for (job = base->first; job && !by_name; job = job->next)
		by_name = count_like(jobs, NULL, job);
	if (!by_name && jobs->count != base->count) {
		snprintf(error->text, sizeof(error->text),
			 "%.200s has no job of the base's names, and not as many", path);
		return -EINVAL;
	}
	comparison->by_order |= !by_name;
	for (job = base->first, other = jobs->first; !rc && job; job = job->next, i++) {
		if (by_name) {
			unsigned before = count_like(base, job, job);

			for (other = jobs->first; other; other = other->next)
				if (count_like(jobs, other->next, job) > before)
					break;
		}
		run->jobs[i] = other;
		if (other)
			rc = results_figures(other, path, run->figures[i], error);
		if (!by_name)
			other = other->next;
	}
	return rc;
}

const char *comparison_job_name(const struct comparison *comparison, unsigned job)
{
	static char text[1024];
	const struct json_value *name = name_of(comparison->sides->runs->jobs[job]);

	return visible_text(name->string, name->length, text, sizeof(text));
}

/* ---- Sides ---- */

static int read_side(struct comparison *comparison, struct compare_side *side, char *operand)
{
	bool is_file = !access(operand, F_OK);
	char *equals = is_file ? NULL : strchr(operand, '='), *rest = equals ? equals + 1 : operand;
	const char *label = operand, *slash;
	size_t length = is_file ? strlen(rest) : strcspn(rest, ",");
	unsigned n = 1;
	int rc = 0;

	if (equals) {
		length = (size_t)(equals - operand);
	} else { /* the name of the first file without directory and .json */
		slash = memrchr(operand, '/', length);
		label = slash ? slash + 1 : operand;
		length -= (size_t)(label - operand);
		if (length > 5 && !memcmp(label + length - 5, ".json", 5))
			length -= 5;
	}
	for (char *c = rest; !is_file && *c; c++)
		n += *c == ',';
	side->label = malloc(4 * length + 1);
	side->runs = calloc(n, sizeof(*side->runs));
	if (!side->label || !side->runs) {
		say("no memory for the results");
		return -ENOMEM;
	}
	visible_text(label, length, side->label, 4 * length + 1);
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
		struct nvs_error error = {.size = sizeof(error)};
		const struct json_value *jobs;

		if (!*path) {
			say("%s: the list of files has an empty name", side->label);
			return -EINVAL;
		}
		rc = results_read(path, &jobs, &error);
		if (!rc && !comparison->base)
			comparison->base = jobs;
		if (!rc)
			rc = match_jobs(comparison, &side->runs[side->nruns++], path, jobs, &error);
		if (rc)
			say("%s", *error.text ? error.text : nvs_strerror(rc));
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
	for (; comparison->nsides < n; comparison->nsides++)
		if (read_side(comparison, &comparison->sides[comparison->nsides],
			      operands[comparison->nsides]))
			return STATUS_USAGE;
	return 0;
}

/* ---- Figures ---- */

struct estimate comparison_estimate(const struct comparison *comparison, unsigned side,
				    unsigned job, unsigned metric)
{
	const struct compare_side *of = &comparison->sides[side];
	struct estimate one = {.value = 0}, all = {.value = 0};
	double values[RUNS_MAX], n = 0, squares = 0;

	for (unsigned i = 0; i < of->nruns; i++) {
		if (!of->runs[i].jobs[job])
			continue;
		one = of->runs[i].figures[job][metric];
		all.value += one.value;
		values[(unsigned)n++] = one.value;
	}
	if (n < 2)
		return one;
	all.value /= n;
	for (unsigned i = 0; i < n; i++)
		squares += (values[i] - all.value) * (values[i] - all.value);
	if (all.value > 0)
		all.error = sqrt(squares / (n - 1) / n) / all.value;
	all.freedom = n - 1;
	return all;
}

double estimate_half_width(const struct estimate *estimate)
{
	return estimate->freedom < 1 ? (double)NAN
				     : 100 * student_975(estimate->freedom) * estimate->error;
}

struct change comparison_change(const struct comparison *comparison, unsigned side, unsigned job,
				unsigned metric)
{
	static const char *const names[2][4] = {{"can't tell", "same", "faster", "slower"},
						{"can't tell", "same", "less", "more"}};
	struct change change = {.percent = (double)NAN, .half_width = (double)NAN};
	struct estimate base = comparison_estimate(comparison, 0, job, metric);
	struct estimate other = comparison_estimate(comparison, side, job, metric);
	double a = base.error * base.error, b = other.error * other.error, half = 0;
	double ratio, low, high;

	if (base.value > 0 && other.value > 0) {
		ratio = log(other.value / base.value);
		if (base.freedom < 1 || other.freedom < 1)
			half = (double)NAN;
		else if (a + b > 0)
			half = sqrt(a + b) *
			       student_975((a + b) * (a + b) /
					   (a * a / base.freedom + b * b / other.freedom));
		low = 100 * expm1(ratio - half);
		high = 100 * expm1(ratio + half);
		change.percent = 100 * expm1(ratio);
		change.half_width = (high - low) / 2;
		if (low >= -comparison->threshold && high <= comparison->threshold)
			change.verdict = SAME;
		else if (low > 0 || high < 0)
			change.verdict = (low > 0) == !metrics[metric].rate ? WORSE : BETTER;
		change.beyond_threshold = change.verdict >= BETTER &&
					  fabs(change.percent) > comparison->threshold;
	}
	change.verdict_name = names[!metrics[metric].direction][change.verdict];
	return change;
}

bool comparison_has(const struct comparison *comparison, unsigned job, unsigned metric)
{
	for (unsigned side = 0; side < comparison->nsides; side++)
		if (comparison_estimate(comparison, side, job, metric).value > 0)
			return true;
	return false;
}
