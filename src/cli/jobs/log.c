/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters never fall, so a window's figures are their increase. The stream records a failed write,
 * and closing it reports the failure.
 */
#include "cli/jobs/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "cli/result_file.h"

static const char *const latency_names[] = {
	[NVS_SLAT] = "slat", [NVS_CLAT] = "clat", [NVS_LAT] = "lat"};

static int open_file(struct log_file *log, const char *prefix, const char *name, unsigned number,
		     struct nvs_error *error)
{
	int length = snprintf(log->path, sizeof(log->path), "%s_%s.%u.log", prefix, name, number);
	int fd = (size_t)length < sizeof(log->path) ? result_open(log->path) : -ENAMETOOLONG;

	log->file = fd < 0 || (ftruncate(fd, 0) && errno != EINVAL) ? NULL : fdopen(fd, "w");
	if (log->file)
		return 0;
	*error = (struct nvs_error){.size = sizeof(*error), .code = fd < 0 ? fd : -errno};
	if (fd >= 0)
		close(fd);
	snprintf(error->text, sizeof(error->text), "cannot write the log %.256s: %s", log->path,
		 result_strerror(error->code));
	return error->code;
}

int job_log_open(struct job_log *log, const struct bench_job *job, struct nvs_error *error)
{
	const char *bw = job->options.write_bw_log, *latency = job->options.write_lat_log;
	char name[JOB_NAME_MAX + 1];
	int rc = 0;

	snprintf(name, sizeof(name), "%s", job->name);
	for (char *slash = name; (slash = strchr(slash, '/'));)
		*slash = '_';
	log->window_ns = job->options.log_avg_msec * 1000000u;
	if (bw)
		rc = open_file(&log->bw, *bw ? bw : name, "bw", job->index + 1, error);
	for (int kind = 0; kind < NVS_LATENCY_KINDS && latency && !rc; kind++)
		rc = open_file(&log->latency[kind], *latency ? latency : name, latency_names[kind],
			       job->index + 1, error);
	return rc;
}

bool job_log_wanted(const struct job_log *log)
{
	return log->bw.file || log->latency[0].file;
}

void job_log_begin(struct job_log *log, uint64_t now_ns)
{
	memset(log->bytes, 0, sizeof(log->bytes));
	memset(log->ios, 0, sizeof(log->ios));
	memset(log->sum_ns, 0, sizeof(log->sum_ns));
	log->since_ns = now_ns;
}

static void log_bandwidth(struct job_log *log, const struct nvs_aio_stats *stats, uint64_t msec,
			  uint64_t elapsed_ns)
{
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		double nbytes = (double)(stats->io[d].bytes - log->bytes[d]);

		if (nbytes > 0 && elapsed_ns)
			fprintf(log->bw.file, "%" PRIu64 ", %.0f, %d, 0, 0\n", msec,
				nbytes / 1024 * 1e9 / (double)elapsed_ns, d == NVS_WRITE);
		log->bytes[d] = stats->io[d].bytes;
	}
}

static void log_latency(struct job_log *log, struct nvs_aio *aio, int kind, uint64_t msec)
{
	struct nvs_latency *latency = &log->scratch;

	latency->size = sizeof(*latency);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		uint64_t *ios = &log->ios[kind][d];
		double *sum_ns = &log->sum_ns[kind][d];

		nvs_aio_get_latency(aio, d, kind, latency);
		if (latency->count > *ios)
			fprintf(log->latency[kind].file, "%" PRIu64 ", %.0f, %d, 0, 0\n", msec,
				(latency->sum_ns - *sum_ns) / (double)(latency->count - *ios),
				d == NVS_WRITE);
		*ios = latency->count;
		*sum_ns = latency->sum_ns;
	}
}

void job_log_window(struct job_log *log, struct nvs_aio *aio, const struct nvs_aio_stats *stats,
		    uint64_t msec, uint64_t now_ns)
{
	if (log->bw.file)
		log_bandwidth(log, stats, msec, now_ns - log->since_ns);
	for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++)
		if (log->latency[kind].file)
			log_latency(log, aio, kind, msec);
	log->since_ns = now_ns;
}

static int close_file(struct log_file *log, struct nvs_error *error)
{
	int failed;

	if (!log->file)
		return 0;
	errno = 0;
	failed = ferror(log->file);
	failed |= fclose(log->file);
	log->file = NULL;
	if (!failed)
		return 0;
	*error = (struct nvs_error){.size = sizeof(*error), .code = errno ? -errno : -EIO};
	snprintf(error->text, sizeof(error->text), "the log %.256s is incomplete: %s", log->path,
		 strerror(-error->code));
	return error->code;
}

int job_log_close(struct job_log *log, struct nvs_error *error)
{
	int rc = close_file(&log->bw, error);

	for (int kind = 0; kind < NVS_LATENCY_KINDS; kind++) {
		struct nvs_error other = {.size = sizeof(other)};
		int closed = close_file(&log->latency[kind], &other);

		if (closed && !rc) {
			*error = other;
			rc = closed;
		}
	}
	return rc;
}
