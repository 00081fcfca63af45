/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads results: the JSON that `nvswap bench` and fio write, one document with a list of jobs.
 */
#ifndef CLI_COMPARE_RESULTS_H
#define CLI_COMPARE_RESULTS_H

#include "base/json/read.h"

/* How well a mean is known. */
struct noise {
	double error;	/* standard error, as a share of the mean */
	double freedom; /* degrees of it; below 1: the error is not known */
};

/* Of one job in one run; arrays are by enum nvs_direction. */
struct job_figures {
	uint64_t bytes[2];
	struct noise bw_noise[2], iops_noise[2]; /* by the sampled rates */
	/* Only doubles from here on. */
	double bytes_per_s[2], iops[2];
	double p50_ns[2], p99_ns[2]; /* completion latency of an I/O */
	double cpu_ms_per_gib;
};

struct results {
	char *text;
	struct json_document *document;
	const struct json_value *jobs; /* a list that is not empty */
};

/*
 * Reads results from a file of at most 64 MiB. Skips lines before and after the document: fio's
 * warnings, output in other formats. -EINVAL with the place in the text, or another negative
 * errno; call results_free then too.
 */
int results_read(struct results *results, const char *path, struct nvs_error *error);
void results_free(struct results *results); /* zeroed ones are fine */

/* -EINVAL if the job failed or lacks figures of fio 3. */
int results_figures(const struct json_value *job, const char *name, struct job_figures *figures,
		    struct nvs_error *error);

/* "bins" or "percentile" of a direction's clat_ns; NULL: missing. */
const struct json_value *results_latency(const struct json_value *job, enum nvs_direction direction,
					 const char *member);

#endif
