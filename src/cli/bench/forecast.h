/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the jobs of a plan need, before anything is opened or made: space on their paths, bytes that
 * they move, and the time where --rate or the runtime gives it. No speed of a drive is assumed. The
 * jobs must have been prepared by bench_prepare().
 */
#ifndef CLI_BENCH_FORECAST_H
#define CLI_BENCH_FORECAST_H

#include <stdio.h>

#include "cli/jobs/jobs.h"

/*
 * Checks that the file systems have the space that each stage needs. -ENOSPC with the path and what
 * to do in *error, and the job's index; errno of nvs_path_get_info.
 */
int forecast_space(const struct bench_plan *plan, unsigned *index, struct nvs_error *error);
/* --dry-run: the forecast of each job, and the bytes of all. */
void forecast_text(FILE *file, const struct bench_plan *plan);
void forecast_json(FILE *file, const struct bench_plan *plan);

#endif
