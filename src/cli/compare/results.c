/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads results: the JSON that `nvswap bench` and fio write, one document with a list of jobs. They
 * may come from anywhere: numbers that are negative, infinite or no numbers are refused.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/compare/compare.h"

#define GIB	   (1u << 30)
#define MIB	   (1u << 20)
#define TEXT_MAX   ((size_t)64 << 20)
#define MEMORY_MAX ((size_t)1 << 30)
/* fio and nvswap sample rates each half second. */
#define SAMPLE_MS 500
/*
 * Neighbouring samples are correlated, since a drive is fast or slow for seconds at a time: this
 * many are worth one independent sample.
 */
#define SAMPLES_PER_INDEPENDENT 4

#define METRICS_OF(way)                                                                            \
	{way " bw",                                                                                \
	 "MiB/s",                                                                                  \
	 way "_bw_bytes",                                                                          \
	 1.0 / MIB,                                                                                \
	 way,                                                                                      \
	 .rate = "bw_bytes",                                                                       \
	 .mean = "bw_mean",                                                                        \
	 .deviation = "bw_dev",                                                                    \
	 .samples = "bw_samples"},                                                                 \
		{way " iops",                                                                      \
		 "",                                                                               \
		 way "_iops",                                                                      \
		 1,                                                                                \
		 way,                                                                              \
		 .rate = "iops",                                                                   \
		 .mean = "iops_mean",                                                              \
		 .deviation = "iops_stddev",                                                       \
		 .samples = "iops_samples"},                                                       \
		{way " p50", "usec", way "_clat_p50_ns", 1e-3, way, .percentile = "50.000000"},    \
	{                                                                                          \
		way " p99", "usec", way "_clat_p99_ns", 1e-3, way, .percentile = "99.000000"       \
	}

const struct metric metrics[METRICS] = {
	METRICS_OF("read"),
	METRICS_OF("write"),
	{"cpu / GiB", "ms", "cpu_ms_per_gib", 1, NULL, NULL, NULL, NULL, NULL, NULL},
};

static int refuse_value(struct nvs_error *error, const char *path, const struct json_value *at,
			const char *what)
{
	char label[208];

	return error_set(error, -EINVAL, "%s:%u:%u: %s", json_file_label(path, label),
			 at->place.line, at->place.column, what);
}

/*
 * Blanks all but the lines from the first that begins with { to the last that begins with }. Of
 * several documents (--status-interval) the last is kept: a line that begins with { after one of }.
 */
static void blank_surroundings(char *text)
{
	char *begin = NULL, *end = NULL;

	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (*line == '{' && (!begin || (end && (*end == '\n' || !*end)))) {
			begin = line;
			end = NULL;
		} else if (*line == '}' && begin) {
			end = line + 1;
		}
	}
	for (char *c = text; begin && *c; c++)
		if (*c != '\n' && (c < begin || (end && c >= end)))
			*c = ' ';
}

int results_read(const char *path, const struct json_value **jobs, struct nvs_error *error)
{
	FILE *file = fopen(path, "re");
	char *text = malloc(TEXT_MAX + 1), label[208];
	size_t n = file && text ? fread(text, 1, TEXT_MAX + 1, file) : 0;
	int rc = !file || !text || ferror(file) ? -errno : n > TEXT_MAX ? -EFBIG : 0;
	struct json_document *document = NULL;
	const struct json_value *root;

	if (file)
		fclose(file);
	if (!rc && memchr(text, '\0', n))
		rc = -EINVAL;
	if (rc) {
		free(text);
		return error_set(error, rc, "%s can't be read: %s", json_file_label(path, label),
				 rc == -EFBIG	 ? "it has more than 64 MiB"
				 : rc == -EINVAL ? "it is no text"
						 : nvs_strerror(rc));
	}
	text[n] = '\0';
	blank_surroundings(text);
	rc = json_parse(&document, text, n, path, MEMORY_MAX, error);
	if (rc) {
		free(text);
		return rc;
	}
	root = json_root(document);
	*jobs = json_member(root, "jobs");
	if (!*jobs || (*jobs)->type != JSON_ARRAY || !(*jobs)->count)
		return refuse_value(
			error, path, *jobs ? *jobs : root,
			"no results of nvswap bench or fio: it has no list of \"jobs\"");
	return 0;
}

/* ---- Jobs ---- */

struct reader {
	const char *path;
	struct nvs_error *error;
	int rc; /* of the first bad value */
};

/* 0 if missing. */
static double number(struct reader *reader, const struct json_value *from, const char *member)
{
	const struct json_value *found = json_member(from, member);
	double value = 0;

	if (!found || reader->rc)
		return 0;
	if (found->type != JSON_NUMBER || json_read_real(found, &value) || value < 0)
		reader->rc = refuse_value(reader->error, reader->path, found,
					  "this must be a number, not below 0");
	return reader->rc ? 0 : value;
}

/*
 * Only rates have a known noise, by their samples. With group_reporting fio counts the samples of
 * all jobs and adds up their means, but not their deviations. Deviations at the same moment are
 * taken for independent.
 */
static struct estimate read_rate(struct reader *r, const struct json_value *way,
				 const struct metric *metric)
{
	struct estimate estimate = {.value = number(r, way, metric->rate)};
	double mean = number(r, way, metric->mean), deviation = number(r, way, metric->deviation);
	double samples = number(r, way, metric->samples);
	double moments = fmin(samples, floor(number(r, way, "runtime") / SAMPLE_MS) + 1);
	double independent = moments / SAMPLES_PER_INDEPENDENT;

	if (mean > 0 && independent >= 2) {
		estimate.error = deviation * sqrt(samples / moments) / mean / sqrt(independent);
		estimate.freedom = independent - 1;
	}
	return estimate;
}

int results_figures(const struct json_value *job, const char *path,
		    struct estimate figures[METRICS], struct nvs_error *error)
{
	struct reader r = {.path = path, .error = error};
	int code = (int)fmin(number(&r, job, "error"), 4096);
	double bytes = 0, cpu_ms, own;
	char failed[128];

	if (code) {
		snprintf(failed, sizeof(failed), "this job failed: %s", nvs_strerror(-code));
		return refuse_value(error, path, job, failed);
	}
	for (unsigned i = 0; i < METRICS; i++) {
		const struct metric *metric = &metrics[i];
		const struct json_value *way = metric->direction
						       ? json_member(job, metric->direction)
						       : NULL;

		if (way && (way->type != JSON_OBJECT || !json_member(way, "bw_bytes")))
			return refuse_value(error, path, way,
					    "no direction of a job of nvswap bench or fio 3: it "
					    "has no \"bw_bytes\"");
		if (metric->rate)
			figures[i] = read_rate(&r, way, metric);
		else if (metric->percentile)
			figures[i].value =
				number(&r, json_member(json_member(way, "clat_ns"), "percentile"),
				       metric->percentile);
	}
	bytes = number(&r, json_member(job, "read"), "io_bytes") +
		number(&r, json_member(job, "write"), "io_bytes");
	cpu_ms = (number(&r, job, "usr_cpu") + number(&r, job, "sys_cpu")) / 100 *
		 number(&r, job, "job_runtime");
	/* nvswap's own figure excludes generating and comparing contents. */
	own = number(&r, json_member(job, "swap"), "cpu_ms_per_gib");
	figures[METRICS - 1].value = own > 0 ? own : bytes > 0 ? cpu_ms / (bytes / GIB) : 0;
	return r.rc;
}
