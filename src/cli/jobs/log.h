/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio's logs of a job over time, averaged over windows: bandwidth (write_bw_log), and the three
 * latencies of an I/O (write_lat_log). Each line is "msec, value, direction, 0, 0", as fio writes
 * it: KiB/s or ns; 0 read or 1 write; no block size and no priority.
 */
#ifndef CLI_JOBS_LOG_H
#define CLI_JOBS_LOG_H

#include <stdio.h>

#include "cli/jobs/jobs.h"

/* The counters as of the beginning of the window. */
struct job_log {
	struct log_file {
		FILE *file; /* NULL: no such log */
		char path[4096];
	} bw, latency[NVS_LATENCY_KINDS];
	uint64_t bytes[2];
	uint64_t ios[NVS_LATENCY_KINDS][2];
	double sum_ns[NVS_LATENCY_KINDS][2];
	uint64_t since_ns, window_ns;
	struct nvs_latency scratch;
};

/* Opens the logs that the job's options name, numbered from 1; job_log_close closes them. */
int job_log_open(struct job_log *log, const struct bench_job *job, struct nvs_error *error);
bool job_log_wanted(const struct job_log *log);
/* Call after the counters of the aio have been reset. */
void job_log_begin(struct job_log *log, uint64_t now_ns);
/* Ends a window `msec` after the beginning: writes a line for each direction with I/O in it. */
void job_log_window(struct job_log *log, struct nvs_aio *aio, const struct nvs_aio_stats *stats,
		    uint64_t msec, uint64_t now_ns);
/* Returns 0, or the error of a write, with *error. */
int job_log_close(struct job_log *log, struct nvs_error *error);

#endif
