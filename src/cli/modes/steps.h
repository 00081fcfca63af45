/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training steps one after the other, and what they sum up to: the first, which makes or records
 * what later ones live on, those of the ramp, and those that are measured.
 */
#ifndef CLI_STEPS_H
#define CLI_STEPS_H

#include "bench.h"

struct job_watch; /* stage.h */

/* What one step came to. */
struct step_done {
	struct nvs_step_io io;
	uint64_t updates_ns, tiles; /* of an optimizer; processor time, with the norm's */
	uint64_t data_us;	    /* processor time of making and comparing contents */
	bool skipped;
};

struct step_mode {
	struct nvs_engine *engine;
	int (*step)(void *arg, struct step_done *done); /* -EINTR: a signal ended it early */
	int (*settle)(void *arg); /* waits for what steps left in flight; NULL: nothing */
	void *arg;
	struct job_watch *watch;
};

/* Measures options->loops steps, of which none begins after options->runtime_ms; with time_based as
 * many as begin in that time. */
int steps_run(const struct step_mode *mode, const struct bench_options *options,
	      struct bench_result *result);
/*
 * Notes the most memory that the process had, of which `own_bytes` are the benchmark's own, and
 * what a store on `device` takes of the machine's memory beside it.
 */
void steps_note_memory(struct bench_result *result, enum nvs_device device, uint64_t own_bytes);

#endif
