/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's process while it runs: its live figures, its waits for the other jobs of the stage and for
 * its rate, and the measured window: what the process, its aio and its engine did in between.
 */
#ifndef CLI_JOBS_WATCH_H
#define CLI_JOBS_WATCH_H

#include <sys/resource.h>

#include "cli/jobs/jobs.h"
#include "cli/progress.h"

/* ---- measure.c ---- */

/* The counters at the beginning of the window. */
struct baseline {
	uint64_t started_ns;
	struct rusage usage;
	struct nvs_engine_stats stats;
};

/* No transfer may be in flight. `engine` owns the aio; NULL: the aio has no engine. */
void measure_begin(struct nvs_aio *aio, struct nvs_engine *engine, struct baseline *from);
/*
 * Stores the figures of the window, except data_us and updates_us. Bytes and transfers are those of
 * tensors, or, without an engine, those of I/Os.
 */
void measure_end(struct nvs_aio *aio, struct nvs_engine *engine, const struct baseline *from,
		 struct bench_result *result);
/* The largest resident set of the process (VmHWM); 0: unknown. */
uint64_t peak_memory(void);

/* ---- watch.c ---- */

enum job_phase {
	JOB_WAITING,
	JOB_PREPARING,
	JOB_READY,
	JOB_RAMPING,
	JOB_MEASURING,
	JOB_MEASURED,
	JOB_ENDED
};

/* In memory shared by the job's process and its parent. */
struct job_live {
	atomic_uint phase; /* enum job_phase */
	struct progress progress;
	atomic_ullong bytes[2]; /* of the measured part so far, by enum nvs_direction */
	atomic_ullong ios[2];
	atomic_ullong measuring_since_ns; /* CLOCK_MONOTONIC; 0: not yet */
	struct bench_result result;	  /* written by the job until JOB_ENDED */
	/* Figures so far: written only once per request, because the parent reads them then. */
	struct bench_result status;
	atomic_uint status_asked, status_answered;
	struct bench_result measured; /* of the whole measurement, valid from JOB_MEASURED on */
};

/* Called by a job's modes in the job's process. A NULL watch is allowed. */
struct job_watch;
/*
 * Call once everything is open and filled: waits for the other jobs of the stage. Returns false if
 * the run is to end (a signal, or a job failed).
 */
bool job_begin(struct job_watch *watch);
/*
 * Begin, with measure_begin, and end the measurement; samples are taken between.
 * job_measured adds the samples to a result that has the figures of measure_end.
 */
void job_measures(struct job_watch *watch, struct nvs_aio *aio, struct nvs_engine *engine,
		  struct baseline *from);
void job_measured(struct job_watch *watch, struct bench_result *result);
/*
 * Sleeps until the job's rate allows `nbytes` more in that direction, counted from the last
 * job_begin or job_measures. Returns false if the phase or the run ends first: then move nothing.
 */
bool job_pace(struct job_watch *watch, enum nvs_direction direction, uint64_t nbytes);

/* Sleeps until then, a time of clock_ns(). Returns false if a signal ends the run first. */
bool job_sleep_until(uint64_t due_ns);

/*
 * Opens the watch of this process's job. `channel` is a socket: the job sends 'r' when it is ready
 * and begins when a byte arrives. A process has one.
 */
struct job_watch *job_watch_open(const struct bench_job *job, struct job_live *live, int channel);

#endif
