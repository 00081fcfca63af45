/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio's JSON, as far as a comparison goes: bytes, rates, latencies and processor time of each job.
 */
#include <errno.h>
#include <string.h>
#include <yajl/yajl_tree.h>

#include "compare.h"

#define GIB (1u << 30)

/* A number beneath `path`; 0 where there is none, as of percentiles where nothing moved. */
static double number(yajl_val from, const char *const *path)
{
	yajl_val found = yajl_tree_get(from, (const char **)(uintptr_t)path, yajl_t_number);

	return found && YAJL_IS_DOUBLE(found) ? YAJL_GET_DOUBLE(found) : 0;
}

#define NUMBER(from, ...) number(from, (const char *const[]){__VA_ARGS__, NULL})

static void read_job(yajl_val job, struct compare_figures *figures)
{
	static const char *const directions[] = {[NVS_READ] = "read", [NVS_WRITE] = "write"};
	double gib = 0, cpu_ms;

	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		const char *way = directions[d];

		figures->bytes[d] = (uint64_t)NUMBER(job, way, "io_bytes");
		figures->bytes_per_s[d] = NUMBER(job, way, "bw_bytes");
		figures->iops[d] = NUMBER(job, way, "iops");
		figures->p50_ns[d] = NUMBER(job, way, "clat_ns", "percentile", "50.000000");
		figures->p99_ns[d] = NUMBER(job, way, "clat_ns", "percentile", "99.000000");
		gib += (double)figures->bytes[d] / GIB;
	}
	cpu_ms = (NUMBER(job, "usr_cpu") + NUMBER(job, "sys_cpu")) / 100 *
		 NUMBER(job, "job_runtime");
	figures->cpu_ms_per_gib = gib > 0 ? cpu_ms / gib : 0;
}

static int read_jobs(yajl_val jobs, struct compare_figures *figures, unsigned n,
		     struct nvs_error *error)
{
	size_t found = jobs ? jobs->u.array.len : 0;

	if (found != n) {
		snprintf(error->text, sizeof(error->text),
			 "fio's JSON tells of %zu jobs where there are %u", found, n);
		return -EINVAL;
	}
	for (unsigned i = 0; i < n; i++) {
		yajl_val job = jobs->u.array.values[i];
		int code = (int)NUMBER(job, "error");

		if (code) {
			snprintf(error->text, sizeof(error->text), "fio's job %u failed: %s", i + 1,
				 strerror(code));
			return -EINVAL;
		}
		read_job(job, &figures[i]);
	}
	return 0;
}

int compare_fio_read(const char *json, struct compare_figures *figures, unsigned n,
		     struct nvs_error *error)
{
	static const char *const path[] = {"jobs", NULL};
	/* What fio has to remark stands before it. */
	const char *begin = *json == '{' ? json : strstr(json, "\n{");
	char why[256] = "there is none";
	yajl_val tree = begin ? yajl_tree_parse(begin, why, sizeof(why)) : NULL;
	int rc;

	if (!tree) {
		snprintf(error->text, sizeof(error->text), "fio's JSON can't be read: %s", why);
		return -EINVAL;
	}
	rc = read_jobs(yajl_tree_get(tree, (const char **)(uintptr_t)path, yajl_t_array), figures,
		       n, error);
	yajl_tree_free(tree);
	return rc;
}
