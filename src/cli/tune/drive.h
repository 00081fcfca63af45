/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Effects of tuning on the drive besides the search: fills the file before it is read, and finds
 * out whether writes slow down over time.
 */
#ifndef CLI_TUNE_DRIVE_H
#define CLI_TUNE_DRIVE_H

#include "cli/tune/tune.h"
#include "cli/tune/workload.h"

struct tune_work {
	struct tune_workload workload;
	struct tune_drive *drive;
	enum nvs_ioengine ioengine;   /* engine of the fill and the reference */
	double fill_first, fill_last; /* rates of the first and the last quarter */
	double reference_first;	      /* 0: not measured */
	double rate;		      /* rate of the last round */
};

/*
 * Fills the file from its beginning. Stops after `soft_ns` if enough is filled then, and sets the
 * working set to the filled part. -ETIME: not enough after `hard_ns`; -EINTR; errors of the drive.
 */
int tune_fill(struct tune_work *work, uint64_t soft_ns, uint64_t hard_ns, struct nvs_error *error);
/* Measures the rate of writes by rounds that are equal before and after the search. */
int tune_reference(struct tune_work *work, uint64_t for_ns, double *rate, struct nvs_error *error);
/* Compares the begin and end of the fill, and the references (0: not measured). */
void tune_judge_writes(struct tune_work *work, double reference_last);
/* measure() of a tune_meter over a struct tune_work. */
int tune_measure(void *work, const struct tune_point *point, enum tune_objective objective,
		 uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error);

#endif
