/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs training steps and sums their figures: the first step, which creates the state or records
 * the plan of the later ones, then the ramp steps, then the measured steps.
 */
#ifndef CLI_MODES_STEPS_H
#define CLI_MODES_STEPS_H

#include "cli/jobs/bench.h"

struct job_watch; /* watch.h */

/* The figures of one step. */
struct step_done {
	struct nvs_step_io io;
	uint64_t updates_ns, tiles; /* of an optimizer; processor time of updates and norm */
	uint64_t data_us;	    /* processor time of comparing contents */
	bool skipped;
};

struct step_mode {
	struct nvs_engine *engine;
	int (*step)(void *arg, struct step_done *done); /* -EINTR: a signal ended it early */
	int (*wait)(void *arg); /* waits for I/O that steps leave in flight; NULL: none */
	void *arg;
	struct job_watch *watch;
};

/*
 * Measures options->loops steps, or with time_based as many as fit; no step begins after
 * options->runtime_ms.
 */
int steps_run(const struct step_mode *mode, const struct bench_options *options,
	      struct bench_result *result);
/* Stores the peak memory of the process, of which the benchmark itself uses `own_bytes`, and the
 * memory of a store in host memory. */
void steps_note_memory(struct bench_result *result, enum nvs_device device, uint64_t own_bytes);

#endif
