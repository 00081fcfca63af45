/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results may come from anywhere: numbers that are negative, infinite or no numbers are refused.
 */
#include "cli/compare/results.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB	   (1u << 30)
#define TEXT_MAX   ((size_t)64 << 20)
#define MEMORY_MAX ((size_t)1 << 30)
/* fio and nvswap sample rates each half second. */
#define SAMPLE_MS 500
/*
 * Neighbouring samples are correlated, since a drive is fast or slow for seconds at a time: this
 * many are worth one independent sample.
 */
#define SAMPLES_PER_INDEPENDENT 4

static const char *const directions[] = {[NVS_READ] = "read", [NVS_WRITE] = "write"};

/* ---- Documents */

static void blank(char *from, const char *to)
{
	for (; from < to; from++)
		*from = *from == '\n' ? '\n' : ' ';
}

/*
 * Keeps the lines from the first that begins with { to the last that begins with }. Of several
 * documents (--status-interval) the last is kept: a line that begins with { after a line of }.
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
	if (!begin)
		return;
	blank(text, begin);
	if (end)
		blank(end, end + strlen(end));
}

static int complain(struct nvs_error *error, const char *name, const struct json_value *at,
		    const char *what)
{
	char label[208];

	error->code = -EINVAL;
	snprintf(error->text, sizeof(error->text), "%s:%u:%u: %s", json_file_label(name, label),
		 at->place.line, at->place.column, what);
	return -EINVAL;
}

/* The results own `text`, also on failure. */
static int parse_results(struct results *results, char *text, const char *name,
			 struct nvs_error *error)
{
	const struct json_value *root;
	int rc;

	*results = (struct results){.text = text};
	blank_surroundings(text);
	rc = json_parse(&results->document, text, strlen(text), name, MEMORY_MAX, error);
	if (rc)
		return rc;
	root = json_root(results->document);
	results->jobs = json_member(root, "jobs");
	if (!results->jobs || results->jobs->type != JSON_ARRAY || !results->jobs->count)
		return complain(error, name, results->jobs ? results->jobs : root,
				"no results of nvswap bench or fio: it has no list of \"jobs\"");
	return 0;
}

static int refuse(struct nvs_error *error, const char *path, int rc, const char *why)
{
	char label[208];

	error->code = rc;
	snprintf(error->text, sizeof(error->text), "%s can't be read: %s",
		 json_file_label(path, label), why);
	return rc;
}

/* As much as TEXT_MAX + 1 bytes, in *nbytes; NULL with errno. */
static char *read_file(const char *path, size_t *nbytes)
{
	FILE *file = fopen(path, "re");
	char *text = file ? malloc(TEXT_MAX + 1) : NULL;
	int saved;

	if (text)
		*nbytes = fread(text, 1, TEXT_MAX + 1, file);
	saved = errno;
	if (text && ferror(file)) {
		free(text);
		text = NULL;
	}
	if (file)
		fclose(file);
	errno = saved;
	return text;
}

int results_read(struct results *results, const char *path, struct nvs_error *error)
{
	size_t n = 0;
	char *text = read_file(path, &n);
	int rc = 0;

	*results = (struct results){.text = NULL};
	if (!text)
		return refuse(error, path, errno ? -errno : -EIO,
			      nvs_strerror(errno ? -errno : -EIO));
	if (n > TEXT_MAX)
		rc = refuse(error, path, -EFBIG, "it has more than 64 MiB");
	else if (memchr(text, '\0', n))
		rc = refuse(error, path, -EINVAL, "it is no text");
	if (rc) {
		free(text);
		return rc;
	}
	text[n] = '\0';
	return parse_results(results, text, path, error);
}

void results_free(struct results *results)
{
	json_free(results->document);
	free(results->text);
}

/* ---- Jobs */

struct reader {
	const char *name;
	struct nvs_error *error;
	int rc; /* of the first bad value */
};

static const struct json_value *at(const struct json_value *from, const char *const *path)
{
	for (; *path && from; path++)
		from = json_member(from, *path);
	return from;
}

/* 0 if missing. */
static double number(struct reader *reader, const struct json_value *from, const char *const *path)
{
	const struct json_value *found = at(from, path);
	double value = 0;

	if (!found || reader->rc)
		return 0;
	if (found->type != JSON_NUMBER || json_read_real(found, &value) || value < 0)
		reader->rc = complain(reader->error, reader->name, found,
				      "this must be a number, not below 0");
	return reader->rc ? 0 : value;
}

#define NUMBER(reader, from, ...) number(reader, from, (const char *const[]){__VA_ARGS__, NULL})

/*
 * With group_reporting fio counts the samples of all jobs and adds up their means, but not their
 * deviations. Deviations at the same moment are taken for independent.
 */
static struct noise noise_of(double mean, double deviation, double samples, double runtime_ms)
{
	struct noise noise = {.freedom = 0};
	double moments = fmin(samples, floor(runtime_ms / SAMPLE_MS) + 1);
	double independent = moments / SAMPLES_PER_INDEPENDENT;

	if (mean > 0 && independent >= 2) {
		noise.error = deviation * sqrt(samples / moments) / mean / sqrt(independent);
		noise.freedom = independent - 1;
	}
	return noise;
}

int results_figures(const struct json_value *job, const char *name, struct job_figures *figures,
		    struct nvs_error *error)
{
	struct reader r = {.name = name, .error = error};
	int code = (int)fmin(NUMBER(&r, job, "error"), 4096);
	double gib = 0, runtime_ms, cpu_ms, own;
	char failed[128];

	*figures = (struct job_figures){.cpu_ms_per_gib = 0};
	if (code) {
		snprintf(failed, sizeof(failed), "this job failed: %s", nvs_strerror(-code));
		return complain(error, name, job, failed);
	}
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		const struct json_value *way = json_member(job, directions[d]);

		if (way && (way->type != JSON_OBJECT || !json_member(way, "bw_bytes")))
			return complain(error, name, way,
					"no direction of a job of nvswap bench or fio 3: it has no "
					"\"bw_bytes\"");
		runtime_ms = NUMBER(&r, way, "runtime");
		figures->bytes[d] = (uint64_t)fmin(NUMBER(&r, way, "io_bytes"), 0x1p63);
		figures->bytes_per_s[d] = NUMBER(&r, way, "bw_bytes");
		figures->bw_noise[d] = noise_of(NUMBER(&r, way, "bw_mean"),
						NUMBER(&r, way, "bw_dev"),
						NUMBER(&r, way, "bw_samples"), runtime_ms);
		figures->iops[d] = NUMBER(&r, way, "iops");
		figures->iops_noise[d] = noise_of(NUMBER(&r, way, "iops_mean"),
						  NUMBER(&r, way, "iops_stddev"),
						  NUMBER(&r, way, "iops_samples"), runtime_ms);
		figures->p50_ns[d] = NUMBER(&r, way, "clat_ns", "percentile", "50.000000");
		figures->p99_ns[d] = NUMBER(&r, way, "clat_ns", "percentile", "99.000000");
		gib += (double)figures->bytes[d] / GIB;
	}
	cpu_ms = (NUMBER(&r, job, "usr_cpu") + NUMBER(&r, job, "sys_cpu")) / 100 *
		 NUMBER(&r, job, "job_runtime");
	/* nvswap's own figure excludes generating and comparing contents. */
	own = NUMBER(&r, job, "swap", "cpu_ms_per_gib");
	figures->cpu_ms_per_gib = own > 0 ? own : gib > 0 ? cpu_ms / gib : 0;
	return r.rc;
}

const struct json_value *results_latency(const struct json_value *job, enum nvs_direction direction,
					 const char *member)
{
	return at(job, (const char *const[]){directions[direction], "clat_ns", member, NULL});
}
