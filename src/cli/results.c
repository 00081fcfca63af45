/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of results, for `nvswap compare` and `nvswap info`. */
#include "cli/results.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"

#define TEXT_MAX   ((size_t)64 << 20)
#define MEMORY_MAX ((size_t)1 << 30)

int result_refuse(struct nvs_error *error, const char *path, const struct json_value *at,
		  const char *what)
{
	char label[208];

	error_set(error, -EINVAL, "%s:%u:%u: %s", json_file_label(path, label), at->place.line,
		  at->place.column, what);
	return -EINVAL;
}

/* Blanks all but the lines from the first that begins with { to the last that begins with }. Of
 * several documents (--status-interval) the last is kept: a line that begins with { after one of
 * }. */
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

int results_read(struct results *results, const char *path, struct nvs_error *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc = -errno;
	char *text = NULL, label[208];
	size_t n = 0;
	const char *why = NULL;
	const struct json_value *root, *jobs;

	if (fd >= 0) {
		rc = file_read_all(fd, TEXT_MAX, &text, &n);
		close(fd);
	}
	*results = (struct results){.text = text};
	if (n > TEXT_MAX)
		why = "it has more than 64 MiB";
	else if (text && memchr(text, '\0', n))
		why = "it is no text";
	if (why || rc)
		return error_set(error, rc ? rc : -EINVAL, "%s can't be read: %s",
				 json_file_label(path, label), why ? why : nvs_strerror(rc));
	blank_surroundings(text);
	rc = json_parse(&results->document, text, n, path, MEMORY_MAX, error);
	if (rc)
		return rc;
	root = json_root(results->document);
	jobs = json_member(root, "jobs");
	if (!jobs || jobs->type != JSON_ARRAY || !jobs->count)
		return result_refuse(
			error, path, jobs ? jobs : root,
			"no results of nvswap bench or fio: it has no list of \"jobs\"");
	results->jobs = jobs;
	return 0;
}

void results_free(struct results *results)
{
	json_free(results->document);
	free(results->text);
	*results = (struct results){0};
}

double result_number(const struct json_value *from, const char *member, const char *path,
		     struct nvs_error *error)
{
	const struct json_value *found = error->code ? NULL : json_member(from, member);
	double value = 0;

	if (found && (found->type != JSON_NUMBER || json_read_real(found, &value) || value < 0)) {
		result_refuse(error, path, found, "this must be a number, not below 0");
		return 0;
	}
	return value;
}

int result_check(const struct json_value *job, const char *path, struct nvs_error *error)
{
	int code = (int)fmin(result_number(job, "error", path, error), 4096);
	char failed[128];

	if (!code)
		return 0;
	snprintf(failed, sizeof(failed), "this job failed: %s", nvs_strerror(-code));
	return result_refuse(error, path, job, failed);
}
