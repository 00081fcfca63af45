/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench --compare`: runs the jobs of a plan with nvswap and with fio in turn.
 */
#ifndef CLI_BENCH_TURNS_H
#define CLI_BENCH_TURNS_H

#include "cli/bench/stage.h"
#include "cli/report/report.h"

/*
 * Runs the prepared plan `rounds` times, in turn with fio. *stages, results (as stages_run has
 * them) and disks are those of nvswap's last run. rows has room for plan->n; *nrows of them are
 * filled, none on failure. Returns the exit status, after saying what failed: fio is missing or
 * failed, or fio has no equivalent of a job (step, params, striped, verified).
 */
int take_turns(struct bench_plan *plan, struct stages **stages, const struct bench_result **results,
	       struct disk_watch *disks, struct fio_row *rows, unsigned *nrows);

#endif
