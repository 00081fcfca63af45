/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicts what a plan needs: space on its paths, bytes read and written, and an estimate of the
 * time. Opens and creates nothing.
 */
#ifndef CLI_FORECAST_FORECAST_H
#define CLI_FORECAST_FORECAST_H

#include <stdio.h>

#include "cli/jobs/jobs.h"

/* Assumed for estimates of time, reads and writes together: no drive is measured. */
#define FORECAST_BYTES_PER_S 1e9

struct forecast {
	uint64_t space;	   /* bytes on all paths of the job together */
	uint64_t fill;	   /* bytes written before the measuring */
	uint64_t bytes[2]; /* by enum nvs_direction, in all */
	bool at_most;	   /* fewer bytes are read if the pool keeps some */
	bool by_time;	   /* the runtime ends the measuring: bytes are estimated from it */
	uint64_t pinned;
	double seconds;
};

/* The job must have been prepared by bench_prepare(). */
void forecast_job(const struct bench_job *job, struct forecast *forecast);

/*
 * Checks that the file systems have the space that each stage needs. -ENOSPC with the path and what
 * to do in *error, and the job's index; errno of nvs_path_get_info.
 */
int forecast_space(const struct bench_plan *plan, unsigned *index, struct nvs_error *error);

/* --dry-run: the forecast of each job, and of all. */
void forecast_text(FILE *file, const struct bench_plan *plan);
void forecast_json(FILE *file, const struct bench_plan *plan);

/* The block of the configuration that says where the job's store or file goes. */

/* A path of a job. */
struct path_space {
	const char *path;
	char filesystem[32];
	uint64_t need, free; /* bytes */
	uint64_t device;     /* identifies the file system */
};
/* Fills places[0..NVS_PATHS_MAX). Returns their number, or errno of nvs_path_get_info. */
int forecast_places(const struct bench_job *job, struct path_space *places,
		    struct nvs_error *error);

#endif
