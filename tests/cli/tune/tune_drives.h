/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives of several kinds to tune, in virtual time. The rate of each point is computed; the rounds
 * of a search return it with noise and advance virtual time. A struct drive_load runs the tuner's
 * workload over the aio layer on a simulated drive of the same kind.
 */
#ifndef TESTS_CLI_TUNE_TUNE_DRIVES_H
#define TESTS_CLI_TUNE_TUNE_DRIVES_H

#include "cli/tune/tune.h"
#include "support/sim/sim_drive.h"

struct drive_kind {
	const char *name;
	uint64_t bytes_per_s; /* maximum rate */
	uint64_t latency_ns;  /* as in struct sim_drive; moving_ns, too */
	uint64_t (*moving_ns)(bool write, uint32_t nbytes, unsigned in_service);
	enum tune_objective objective; /* objective that shows the kind's behaviour */
};

extern const struct drive_kind drive_kinds[];
extern const size_t ndrive_kinds;

/* Six blocks, seven depths, three counts of workers, single_submit and overlap_events. */
extern const struct tune_space drive_space;

/* A workload over a simulated drive, on an empty file that is never read or written. */
struct drive_load {
	struct tune_workload load;
	struct sim *sim;
};
/* Uses the memory and working set that the space requires. */
void drive_load_open(struct drive_load *load, const struct drive_kind *kind,
		     const struct tune_space *space);
void drive_load_close(struct drive_load *load);

/* How the rates of a drive change over time; the seed decides when. */
enum drive_temper {
	DRIVE_STEADY,
	/* Sometimes 30 to 60 % of the rate are lost for less than a second, as by garbage
	 * collection or other users. */
	DRIVE_STALLS,
	/* A third of the rate goes and comes slowly, as on a shared cloud disk. */
	DRIVE_DRIFTS,
};

struct drive_point {
	struct tune_point point;
	struct tune_sample sample; /* without noise, stalls and drift */
	uint64_t beside_ns;	   /* time of a round outside the measurement */
};

struct drive {
	const struct drive_kind *kind;
	struct tune_space space;
	struct drive_point *points; /* all of the space */
	size_t n;
	/* Set by tests: */
	enum drive_temper temper; /* takes effect at the next drive_meter() */
	uint64_t fails;		  /* this measurement, from 1, fails with `error`; 0: none */
	int error;
	double (*disturb)(void *arg, const struct tune_point *point); /* a factor of the rate */
	void *disturb_arg;
	/* Reset by drive_meter(): */
	uint64_t writes_max; /* a round that would exceed it writes up to it and fails */
	uint64_t now_ns, written, longest_ns, measured;
	double noise;
	uint64_t random, temper_random, drift_from_ns;
	uint64_t stall_from_ns, stall_to_ns; /* the current stall, or the next */
	double stalled;			     /* the remaining share of the rate during the stall */
};

/* Computes the rate of every point of the space, for the kind's objective. */
struct drive *drive_open(const struct drive_kind *kind, const struct tune_space *space);
void drive_close(struct drive *drive);
/* Restarts the clock, and the noise from the seed. `noise` is a round's relative standard
 * deviation. */
struct tune_meter drive_meter(struct drive *drive, double noise, uint64_t seed);
/* A normally distributed value with a standard deviation of 1. */
double drive_deviation(uint64_t *random);
/* The rate of the point without noise, stalls and drift. */
double drive_rate(const struct drive *drive, const struct tune_point *point);
/* The best rate of all points with a p99 latency of at most p99_max (0: any). */
double drive_best_rate(const struct drive *drive, uint64_t p99_max);
/* The expected choice: the most preferred point within the tolerance of drive_best_rate(). */
struct tune_point drive_answer(const struct drive *drive, double tolerance, uint64_t p99_max);
/* The time of three rounds of each point. */
uint64_t drive_sweep_ns(const struct drive *drive, uint64_t round_ns);

#endif
