/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives of several kinds to tune for, in virtual time. The rate of each point is computed; the
 * rounds of a search are that, with noise, and take virtual time. A struct drive_load runs the
 * workload of the tuner over the aio layer on a simulated drive of the same kind.
 */
#ifndef TESTS_CLI_TUNE_TUNE_DRIVES_H
#define TESTS_CLI_TUNE_TUNE_DRIVES_H

#include "cli/tune/workload.h"
#include "support/sim/sim_drive.h"

struct drive_kind {
	const char *name;
	uint64_t bytes_per_s; /* that it never exceeds */
	uint64_t latency_ns;  /* as of struct sim_drive, and so the next */
	uint64_t (*moving_ns)(void *arg, bool write, uint32_t nbytes, unsigned in_service);
	enum tune_objective objective; /* that shows what it is like */
};

extern const struct drive_kind drive_kinds[];
extern const size_t ndrive_kinds;
const struct drive_kind *drive_kind(const char *name);

/* Six blocks, seven depths, three counts of workers, single_submit and overlap_events. */
extern const struct tune_space drive_space;

/* A workload over a simulated drive, on an empty file that is not touched. */
struct drive_load {
	struct tune_workload load;
	struct sim *sim;
};
/* With the bytes of memory and working set that the space asks for. */
void drive_load_open(struct drive_load *load, const struct drive_kind *kind,
		     const struct tune_space *space);
void drive_load_close(struct drive_load *load);

/* What becomes of the rates of any of them as time goes on, by chance from the seed. */
enum drive_temper {
	DRIVE_STEADY,
	/* Now and then, for a part of a second, 30 to 60 % of the rate are lost: it collects
	 * garbage, or others have their turn. */
	DRIVE_STALLS,
	/* Slowly a third of the rate goes and comes, as of a disk that a cloud shares out. */
	DRIVE_DRIFTS,
};

struct drive;

/* The rates of every point of the space are computed, for the objective of the kind. */
struct drive *drive_open(const struct drive_kind *kind, const struct tune_space *space);
void drive_close(struct drive *drive);
/* Begins anew: the clock, and the noise from a seed: the standard deviation of a round, as a share.
 */
struct tune_meter drive_meter(struct drive *drive, double noise, uint64_t seed);
/* From the next meter on; a drive begins steady. */
void drive_set_temper(struct drive *drive, enum drive_temper temper);
/* A value as of Gauss, with a standard deviation of 1. */
double drive_deviation(uint64_t *random);
/* Without noise, stalls and drift. */
double drive_rate(const struct drive *drive, const struct tune_point *point);
/* Of all points, or of those with a latency of at most p99_max (0: any). */
double drive_best_rate(const struct drive *drive, uint64_t p99_max);
/* What should be chosen: the most preferred point within the tolerance of that. */
struct tune_point drive_answer(const struct drive *drive, double tolerance, uint64_t p99_max);
/* The time of three rounds of each point. */
uint64_t drive_sweep_ns(const struct drive *drive, uint64_t round_ns);
/* For this meter: a round that would write more fails, and writes all of it. */
void drive_limit_writes(struct drive *drive, uint64_t nbytes);
uint64_t drive_written(const struct drive *drive);
/* The longest round so far. */
uint64_t drive_longest_ns(const struct drive *drive);
/* The n-th measurement (from 1) fails with this; 0: none does. */
void drive_fail(struct drive *drive, uint64_t nth, int error);

#endif
