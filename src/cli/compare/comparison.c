/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the files of each result. Matches their jobs to the base's, and tells changes from noise by
 * Welch's interval of the ratio of two means, on logarithms. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/statistics/student.h"
#include "cli/commands.h"
#include "cli/compare/compare.h"
#include "cli/results.h"

#define GIB (1u << 30)
#define MIB (1u << 20)
/* fio and nvswap sample rates each half second. */
#define SAMPLE_MS 500
/* Neighbouring samples are correlated, since a drive is fast or slow for seconds at a time: this
 * many are worth one independent sample. */
#define SAMPLES_PER_INDEPENDENT 4

static const struct rate bw = {"bw_bytes", "bw_mean", "bw_dev", "bw_samples"};
static const struct rate iops = {"iops", "iops_mean", "iops_stddev", "iops_samples"};

const struct metric metrics[METRICS] = {
	{"read bw", "MiB/s", "read_bw_bytes", 1.0 / MIB, "read", &bw, NULL},
	{"read iops", "", "read_iops", 1, "read", &iops, NULL},
	{"read p50", "usec", "read_clat_p50_ns", 1e-3, "read", NULL, "50.000000"},
	{"read p99", "usec", "read_clat_p99_ns", 1e-3, "read", NULL, "99.000000"},
	{"write bw", "MiB/s", "write_bw_bytes", 1.0 / MIB, "write", &bw, NULL},
	{"write iops", "", "write_iops", 1, "write", &iops, NULL},
	{"write p50", "usec", "write_clat_p50_ns", 1e-3, "write", NULL, "50.000000"},
	{"write p99", "usec", "write_clat_p99_ns", 1e-3, "write", NULL, "99.000000"},
	{"cpu / GiB", "ms", "cpu_ms_per_gib", 1, NULL, NULL, NULL},
};

static int read_figures(const struct json_value *job, const char *path,
			struct estimate figures[METRICS], struct nvs_error *error)
{
	double bytes = 0, cpu_ms, own;
	int rc = result_check(job, path, error);

	if (rc)
		return rc;
	for (unsigned i = 0; i < METRICS; i++) {
		const struct metric *metric = &metrics[i];
		const struct json_value *way = metric->direction
						       ? json_member(job, metric->direction)
						       : NULL;

		if (way && (way->type != JSON_OBJECT || !json_member(way, "bw_bytes")))
			return result_refuse(error, path, way,
					     "no direction of a job of nvswap bench or fio 3: it "
					     "has no \"bw_bytes\"");
		/* Only rates have a known noise, by their samples. With group_reporting fio counts
		 * the samples of all jobs and adds up their means, but not their deviations.
		 * Deviations at the same moment are taken for independent. */
		if (metric->rate) {
			double mean = result_number(way, metric->rate->mean, path, error);
			double deviation = result_number(way, metric->rate->deviation, path, error);
			double samples = result_number(way, metric->rate->samples, path, error);
			double runtime_ms = result_number(way, "runtime", path, error);
			double moments = fmin(samples, floor(runtime_ms / SAMPLE_MS) + 1);
			double independent = moments / SAMPLES_PER_INDEPENDENT;

			figures[i].value = result_number(way, metric->rate->value, path, error);
			if (mean > 0 && independent >= 2) {
				figures[i].error = deviation * sqrt(samples / moments) / mean /
						   sqrt(independent);
				figures[i].freedom = independent - 1;
			}
		}
		if (metric->percentile)
			figures[i].value = result_number(
				json_member(json_member(way, "clat_ns"), "percentile"),
				metric->percentile, path, error);
	}
	bytes = result_number(json_member(job, "read"), "io_bytes", path, error) +
		result_number(json_member(job, "write"), "io_bytes", path, error);
	cpu_ms = (result_number(job, "usr_cpu", path, error) +
		  result_number(job, "sys_cpu", path, error)) /
		 100 * result_number(job, "job_runtime", path, error);
	/* nvswap's own figure excludes generating and comparing contents. */
	own = result_number(json_member(job, "swap"), "cpu_ms_per_gib", path, error);
	figures[METRICS - 1].value = own > 0 ? own : bytes > 0 ? cpu_ms / (bytes / GIB) : 0;
	return error->code;
}

/* ---- Matching jobs ---- */

/* Jobs without a name all have the empty one. */
static const struct json_value *name_of(const struct json_value *job)
{
	static const struct json_value none = {.string = "", .length = 0};
	const struct json_value *name = json_member(job, "jobname");

	return name && name->type == JSON_STRING ? name : &none;
}

/* A job of a list, and its place in it. */
struct placed_job {
	const struct json_value *json;
	unsigned place;
};

static int order_of_names(const struct json_value *a, const struct json_value *b)
{
	const struct json_value *left = name_of(a), *right = name_of(b);

	if (left->length != right->length)
		return left->length < right->length ? -1 : 1;
	return memcmp(left->string, right->string, left->length);
}

static int by_name_and_place(const void *left, const void *right)
{
	const struct placed_job *a = left, *b = right;
	int order = order_of_names(a->json, b->json);

	return order ? order : a->place < b->place ? -1 : a->place > b->place;
}

/* The jobs by name, to be freed; NULL: no memory. */
static struct placed_job *sort_jobs(const struct json_value *jobs)
{
	struct placed_job *sorted = calloc(jobs->count, sizeof(*sorted));
	unsigned n = 0;

	for (const struct json_value *job = jobs->first; sorted && job; job = job->next, n++)
		sorted[n] = (struct placed_job){job, n};
	if (sorted)
		qsort(sorted, n, sizeof(*sorted), by_name_and_place);
	return sorted;
}

/* Jobs with the same name are matched in their order. */
static int match_jobs(struct comparison *comparison, struct compare_job **run, const char *path,
		      const struct json_value *jobs, struct nvs_error *error)
{
	const struct json_value *base = comparison->base, *other = jobs->first;
	struct placed_job *ours = sort_jobs(base), *theirs = sort_jobs(jobs);
	bool by_name = false;
	int rc = 0;

	*run = calloc(base->count, sizeof(**run));
	if (!*run || !ours || !theirs)
		rc = -ENOMEM;
	for (unsigned i = 0, k = 0; !rc && i < base->count; i++) {
		while (k < jobs->count && order_of_names(theirs[k].json, ours[i].json) < 0)
			k++;
		if (k == jobs->count || order_of_names(theirs[k].json, ours[i].json))
			continue;
		(*run)[ours[i].place].json = theirs[k++].json;
		by_name = true;
	}
	if (!rc && !by_name && jobs->count != base->count)
		rc = error_set(error, -EINVAL,
			       "%.200s has no job of the base's names, and not as many", path);
	comparison->by_order |= !rc && !by_name;
	for (unsigned i = 0; !rc && i < base->count; i++) {
		struct compare_job *job = &(*run)[i];

		if (!by_name) {
			job->json = other;
			other = other->next;
		}
		if (job->json)
			rc = read_figures(job->json, path, job->figures, error);
	}
	free(ours);
	free(theirs);
	return rc;
}

const char *comparison_job_name(const struct comparison *comparison, unsigned job)
{
	static char text[1024];
	const struct json_value *name = name_of(comparison->sides->runs[0][job].json);

	return visible_text(name->string, name->length, text, sizeof(text));
}

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
	side->runs = calloc(n, sizeof(struct compare_job *));
	side->results = calloc(n, sizeof(*side->results));
	if (!side->label || !side->runs || !side->results)
		return REFUSE(-ENOMEM, "no memory for the results");
	visible_text(label, length, side->label, 4 * length + 1);
	if (equals == operand)
		return REFUSE(-EINVAL, "%s: give a name before the =", operand);
	if (n > RUNS_MAX)
		return REFUSE(-EINVAL, "%s has more than %u files", side->label, RUNS_MAX);
	while (!rc && side->nruns < n) {
		char *path = is_file ? rest : strsep(&rest, ",");
		struct nvs_error error = {.size = sizeof(error)};
		struct results *results = &side->results[side->nruns];

		if (!*path)
			return REFUSE(-EINVAL, "%s: the list of files has an empty name",
				      side->label);
		rc = results_read(results, path, &error);
		if (!rc && !comparison->base)
			comparison->base = results->jobs;
		if (!rc)
			rc = match_jobs(comparison, &side->runs[side->nruns++], path, results->jobs,
					&error);
		if (rc)
			say("%s", *error.text ? error.text : nvs_strerror(rc));
	}
	return rc;
}

static struct estimate estimate_runs(const struct compare_side *side, unsigned job, unsigned metric)
{
	struct estimate one = {.value = 0}, all = {.value = 0};
	double values[RUNS_MAX], squares = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < side->nruns; i++) {
		if (!side->runs[i][job].json)
			continue;
		one = side->runs[i][job].figures[metric];
		all.value += one.value;
		values[n++] = one.value;
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

/* The verdict is "same" if the interval lies within the threshold of 0, "can't tell" if it has 0
 * and more, or the noise is unknown. */
static void compute_cell(struct comparison *comparison, const struct compare_side *side,
			 unsigned job, unsigned metric)
{
	const struct metric *of = &metrics[metric];
	struct cell *cell = &side->cells[job][metric];
	const struct estimate *base = &comparison->sides->cells[job][metric].estimate;
	const struct estimate *this = &cell->estimate;
	double threshold = comparison->threshold, half = 0, a, b, ratio, low, high;

	*cell = (struct cell){.estimate = estimate_runs(side, job, metric),
			      .verdict = "can't tell"};
	cell->half_width = cell->change = cell->change_half_width = (double)NAN;
	if (this->freedom >= 1)
		cell->half_width = 100 * student_975(this->freedom) * this->error;
	if (!(base->value > 0 && this->value > 0))
		return;
	a = base->error * base->error;
	b = this->error * this->error;
	ratio = log(this->value / base->value);
	if (base->freedom < 1 || this->freedom < 1)
		half = (double)NAN;
	else if (a + b > 0)
		half = sqrt(a + b) * student_975((a + b) * (a + b) /
						 (a * a / base->freedom + b * b / this->freedom));
	low = 100 * expm1(ratio - half);
	high = 100 * expm1(ratio + half);
	cell->change = 100 * expm1(ratio);
	cell->change_half_width = (high - low) / 2;
	if (low >= -threshold && high <= threshold) {
		cell->verdict = "same";
	} else if (low > 0 || high < 0) {
		bool better = (low > 0) == !!of->rate;

		cell->verdict = of->direction ? (better ? "faster" : "slower")
					      : (better ? "less" : "more");
		cell->beyond_threshold = fabs(cell->change) > threshold;
		comparison->slower |= of->direction && !better && cell->beyond_threshold;
	}
}

bool comparison_has(const struct comparison *comparison, unsigned job, unsigned metric)
{
	for (unsigned side = 0; side < comparison->nsides; side++)
		if (comparison->sides[side].cells[job][metric].estimate.value > 0)
			return true;
	return false;
}

int comparison_read(struct comparison *comparison, char **operands, unsigned n)
{
	struct compare_side *sides = calloc(n, sizeof(*sides));

	comparison->sides = sides;
	comparison->nsides = sides ? n : 0;
	for (unsigned i = 0; sides && i < n; i++)
		if (read_side(comparison, &sides[i], operands[i]))
			return STATUS_USAGE;
	for (unsigned i = 0; sides && i < n; i++) {
		struct compare_side *side = &sides[i];

		side->cells = calloc(comparison->base->count, sizeof(*side->cells));
		if (!side->cells)
			break;
		for (unsigned cell = 0; cell < comparison->base->count * METRICS; cell++)
			compute_cell(comparison, side, cell / METRICS, cell % METRICS);
	}
	if (sides && sides[n - 1].cells)
		return 0;
	return REFUSE(STATUS_USAGE, "no memory for the results");
}
