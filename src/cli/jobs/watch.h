/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job's process tells while it runs, and what it is held back by: the other jobs of its
 * stage, and its rate.
 */
#ifndef CLI_JOB_WATCH_H
#define CLI_JOB_WATCH_H

#include "jobs.h"
#include "measure.h"
#include "progress.h"

enum job_phase {
	JOB_WAITING,
	JOB_PREPARING,
	JOB_READY,
	JOB_RAMPING,
	JOB_MEASURING,
	JOB_MEASURED,
	JOB_ENDED
};

/* In memory that the job's process shares with its parent. */
struct job_live {
	atomic_uint phase; /* enum job_phase */
	struct progress progress;
	atomic_ullong bytes[2]; /* of the measured part so far, by enum nvs_direction */
	atomic_ullong ios[2];
	atomic_ullong measuring_since_ns; /* CLOCK_MONOTONIC; 0: not yet */
	struct bench_result result;	  /* the job's own until JOB_ENDED */
	/* Of the part measured so far: written once for each time that it is asked for, and not
	 * otherwise, for who asked reads it. */
	struct bench_result status;
	atomic_uint status_asked, status_told;
	struct bench_result measured; /* of the whole part, from JOB_MEASURED on */
};

/*
 * What a job's modes call while they run, in the job's process; NULL-safe, for a run that nobody
 * watches.
 */
struct job_watch;
/* Everything is open and filled: waits until all jobs of the stage are, and for startdelay. Returns
 * false where the run is to end (a signal, a job that failed). */
bool job_begin(struct job_watch *watch);
/*
 * The measured part begins, as by measure_begin, or has ended: logs and samples are taken between,
 * and what they need is there before. The figures of measure_end are in the result, and get those
 * of the samples.
 */
void job_measures(struct job_watch *watch, struct nvs_aio *aio, struct nvs_engine *engine,
		  struct baseline *from);
void job_measured(struct job_watch *watch, struct bench_result *result);
/*
 * Sleeps until `nbytes` more in that direction are within the job's rate, which counts from the
 * last job_begin or job_measures on. Returns false where the time for it, or the run, is over
 * sooner: then nothing may be moved.
 */
bool job_pace(struct job_watch *watch, enum nvs_direction direction, uint64_t nbytes);

/*
 * The watch of a job whose process this is; `channel` is a socket: 'r' goes out when the job is
 * ready, and what comes in lets it begin. Errors are those of its logs.
 */
int job_watch_open(struct job_watch **watch, const struct bench_job *job, struct job_live *live,
		   int channel, struct nvs_error *error);
/* Writes what is left of the logs. */
int job_watch_close(struct job_watch *watch, struct nvs_error *error);

#endif
