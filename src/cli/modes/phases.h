/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phases of a mode, after it has opened and filled what it needs: the wait for the other jobs of
 * the stage, the ramp, and the measured window.
 */
#ifndef CLI_MODES_PHASES_H
#define CLI_MODES_PHASES_H

#include "cli/jobs/bench.h"

struct job_watch; /* watch.h */

/* The figures of one step. */
struct step_done {
	struct nvs_step_io io;
	uint64_t updates_ns, tiles; /* of an optimizer; processor time of updates and norm */
	bool skipped;
};

struct load {
	const struct bench_options *options;
	struct job_watch *watch;
	struct bench_result *result;
	struct nvs_engine *engine; /* NULL: none, but this aio: */
	struct nvs_aio *aio;
	/*
	 * Ends after `loops` passes, UINT64_MAX: any number, or runtime_ms, 0: no limit, or at a
	 * signal; leaves nothing in flight. What it spends on contents it adds to result->data_us.
	 */
	int (*run)(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms);
	/* Of steps_run: */
	int (*step)(void *arg, struct step_done *done); /* -EINTR: a signal ended it early */
	int (*wait)(void *arg); /* waits for I/O that steps leave in flight; NULL: none */
	void *arg;
};

/* Returns the error of run(). If a signal ended it early, result->measured may be false. */
int load_run(const struct load *load);
/*
 * Training steps: the first one, which creates the state or records the plan of the later ones, and
 * then those of the phases, whose figures are summed. A step that a signal or an error cut short is
 * not counted.
 */
int steps_run(const struct load *steps);
/* Stores the peak memory of the process, of which the benchmark itself uses `own_bytes`, and the
 * memory of a store in host memory. */
void steps_note_memory(struct bench_result *result, enum nvs_device device, uint64_t own_bytes);

#endif
