/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio's logs of a job over time, of each I/O or averaged over windows: bandwidth (write_bw_log),
 * and the three latencies of an I/O (write_lat_log). Each line is "msec, value, direction, bytes,
 * 0", as fio writes it: KiB/s or ns; 0 read or 1 write; bytes of the I/O, or 0 where averages of
 * several have no one block size; and no priority.
 */
#ifndef CLI_JOB_LOG_H
#define CLI_JOB_LOG_H

#include <stdio.h>

#include "jobs.h"

/* What stood on the counters at the beginning of a window. */
struct job_log {
	struct log_file {
		FILE *file; /* NULL: not asked for */
		char path[4096];
	} bw, latency[NVS_LATENCY_KINDS];
	uint64_t bytes[2];
	uint64_t ios[NVS_LATENCY_KINDS][2];
	double sum_ns[NVS_LATENCY_KINDS][2];
	uint64_t since_ns, window_ns; /* window_ns 0: each I/O has its line */
	struct nvs_latency scratch;
	size_t room; /* for I/Os that have no line yet */
	struct nvs_io_record taken[256];
	struct nvs_error error; /* code 0: nothing that is to be told at the end */
};

/* Opens what the job's options ask for; numbers in names are from 1. job_log_close undoes it. */
int job_log_open(struct job_log *log, const struct bench_job *job, struct nvs_error *error);
bool job_log_wanted(const struct job_log *log);
/* Takes the memory that single I/Os need, which is slow. Nothing is in flight, or is to be before
 * job_log_begin. */
void job_log_prepare(struct job_log *log, struct nvs_aio *aio);
/* The counters of the aio have just been reset. */
void job_log_begin(struct job_log *log, uint64_t now_ns);
/* Where each I/O has its line: writes those that have completed since the last time. */
void job_log_ios(struct job_log *log, struct nvs_aio *aio);
/* Nothing is in flight any more, and nothing that comes is to be logged. */
void job_log_end(struct job_log *log, struct nvs_aio *aio);
/* A window ends `msec` after the beginning: a line for each direction that had I/O in it. */
void job_log_window(struct job_log *log, struct nvs_aio *aio, const struct nvs_aio_stats *stats,
		    uint64_t msec, uint64_t now_ns);
/* 0, or what could not be written or was lost, with *error. */
int job_log_close(struct job_log *log, struct nvs_error *error);

#endif
