/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line that tells how far the jobs are that run together: the phase of the one that has the
 * longest way to go, the rates of all, and the time left.
 */
#ifndef CLI_ETA_H
#define CLI_ETA_H

#include "job_watch.h"

/* Draws it, if any of the `n` is in a phase. */
void eta_draw(struct job_live *const *jobs, unsigned n);

#endif
