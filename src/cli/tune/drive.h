/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done to the drive beside the search: the file is filled before anything is read from it,
 * and writes are looked at for whether they slow down as more is written.
 */
#ifndef CLI_TUNE_DRIVE_H
#define CLI_TUNE_DRIVE_H

#include "tune.h"
#include "tune_file.h"

#define TUNE_WORKING_SET_MIN ((uint64_t)64 << 20)

/* What rounds are measured with, and what they have come to. */
struct tune_work {
	struct tune_load load; /* the first: rounds are given the whole by its address */
	struct tune_drive *drive;
	enum nvs_ioengine ioengine; /* of fill and reference */
	double fill_first, fill_last, reference_first;
	double rate; /* of the last round */
};

/*
 * Writes the file full, from the beginning. Stops after `soft_ns`, if by then there is enough to
 * work on, and sets load.working_set to what there is. -ETIME: not enough after `hard_ns`; -EINTR;
 * errors of the drive.
 */
int tune_fill(struct tune_work *work, uint64_t soft_ns, uint64_t hard_ns, struct nvs_error *error);
/* Rounds of the same writing, at the beginning and at the end: the rate, bytes a second. */
int tune_reference(struct tune_work *work, uint64_t for_ns, double *rate, struct nvs_error *error);
/* Compares the beginning with the end, and says it in drive->slows_text. */
void tune_judge_writes(struct tune_work *work, double reference_last);
/* measure() of a tune_meter over a struct tune_work. */
int tune_measure(void *work, const struct tune_point *point, enum tune_objective objective,
		 uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error);

#endif
