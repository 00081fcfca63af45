/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line of progress of jobs that run together: the phase of the job that has the longest way to
 * go, the rates of all, and the time left.
 */
#ifndef CLI_BENCH_ETA_H
#define CLI_BENCH_ETA_H

#include "cli/jobs/watch.h"

/* Draws the line if any of the `n` jobs is in a phase. */
void eta_draw(struct job_live *const *jobs, unsigned n);

#endif
