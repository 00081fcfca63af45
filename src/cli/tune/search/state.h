/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the search share: the space as it is walked in, trials with what their rounds
 * said, and time. Points are looked at as trials of one objective; a trial is named by its number,
 * for the array moves as it grows.
 */
#ifndef CLI_TUNE_SEARCH_H
#define CLI_TUNE_SEARCH_H

#include "tune.h"

#define LATENCIES_KEPT	32u
#define ROUNDS_KEPT	512u
#define DEVIATIONS_KEPT 64u

/* What values say when those at either end are left out. */
struct middle {
	unsigned n, of; /* that are left, of so many */
	double mean;	/* of these */
	double squares; /* summed deviations of all, those left out as the next that is not */
};

/* How rounds deviate, relative to what they measure. */
struct noise {
	double variance, freedom; /* of a round, but for stalls; and how surely it is known */
	double squares[DEVIATIONS_KEPT];
	unsigned n;
};

/* The rounds of a trial. */
struct rounds {
	unsigned n;
	struct middle rate; /* bytes a second */
	double rates[ROUNDS_KEPT];
	double cpu_ms_per_gib;
	uint64_t p50_ns[LATENCIES_KEPT], p99_ns[LATENCIES_KEPT];
};

struct search {
	const struct tune_space *space;
	const struct tune_rules *rules;
	const struct tune_meter *meter;
	struct nvs_error *error;
	const char *phase;

	struct tune_trial *trials; /* estimates are filled in at the end */
	struct rounds *rounds;	   /* of the trial of the same number */
	size_t n, room;

	/* Of the rounds of all points together: what one says of a point that has no more yet. */
	struct noise noise;

	uint64_t random, started_ns;
	uint64_t until_ns;    /* no round begins that would end later */
	bool cut_short;	      /* there was one that would have */
	uint64_t round_ns;    /* of what is counted in a round */
	unsigned rounds_each; /* of a point in races, at most */
};

/* ---- tune_space.c: the values of a setting, and which of two points is preferred ---- */

enum tune_axis { AXIS_BLOCK, AXIS_DEPTH, AXIS_WORKERS };

unsigned space_count(const struct tune_space *space, enum tune_axis axis);
/* The place of the point's value among those of the axis, and a point with the value there. */
unsigned space_index(const struct tune_space *space, const struct tune_point *point,
		     enum tune_axis axis);
struct tune_point space_at(const struct tune_space *space, struct tune_point point,
			   enum tune_axis axis, unsigned index);
/* The next point on an axis, in that direction; false where there is none in the space. */
bool space_step(const struct tune_space *space, struct tune_point *point, enum tune_axis axis,
		int by);
bool space_has(const struct tune_space *space, const struct tune_point *point);
bool space_same(const struct tune_point *a, const struct tune_point *b);
/* They differ in nothing but workers with as much in flight, and in settings that have defaults. */
bool space_as_deep(const struct tune_point *a, const struct tune_point *b);
/* The smallest of everything, with the settings' defaults. */
struct tune_point space_first(const struct tune_space *space);
/* Every point of the space in turn; false behind the last. */
bool space_next(const struct tune_space *space, struct tune_point *point);
/*
 * Whether `a` is to be taken where both are as fast: fewer I/Os in flight on the drive (queue_depth
 * of all workers together), then the smaller block, then fewer workers, then the defaults.
 */
bool space_prefers(const struct tune_space *space, const struct tune_point *a,
		   const struct tune_point *b);

/* ---- tune_stats.c: what rounds say, and how surely ---- */

void rounds_add(struct rounds *rounds, const struct tune_sample *sample);
/* Of 1 to ROUNDS_KEPT values. */
struct middle middle_of(const double *values, unsigned n);
/* One more deviation from a mean, made as wide as if that were known for sure. */
void noise_add(struct noise *noise, double deviation);
/* Half the 95 % confidence interval of the mean, where the variance of a value is also known from
 * elsewhere, with a freedom of 1 or more. */
double half_width(const struct middle *middle, double known_variance, double known_freedom);
uint64_t median(const uint64_t *values, size_t n);

/* ---- tune_rounds.c: trials and their rounds ---- */

/* The trial of a point in an objective, made where there is none: its number or -ENOMEM. */
long search_trial(struct search *search, const struct tune_point *point,
		  enum tune_objective objective);
/* One more round. -ETIME: there is no time for it. Errors of the meter. */
int search_round(struct search *search, size_t trial, double *bytes_per_s);
uint64_t search_now(const struct search *search);
/* Of the trial's mean, as a share of it. */
double search_doubt(const struct search *search, size_t trial);
/* The ends of its interval. Rates differ by factors, so the low one is above nothing, too. */
double search_low(const struct search *search, size_t trial);
double search_high(const struct search *search, size_t trial);
/* -ENOMEM, with the error told. */
int search_no_memory(const struct search *search);
/* Numbers in an order of chance. */
void search_shuffle(struct search *search, size_t *numbers, size_t n);
/* The trial of the objective asked for that is surely the fastest so far: highest at the low end of
 * its interval. One has been measured. */
size_t search_best(const struct search *search);
/* The one that is preferred of those within the tolerance of `best`, which may be itself. */
size_t search_preferred(const struct search *search, size_t best);
void search_estimate(struct search *search);

/* ---- tune_race.c ---- */

#define RACE_MAX 128u

/* Trials that run against each other; those that lose leave it. */
struct race {
	size_t trials[RACE_MAX];
	size_t n;
};

/* The point takes part, if it is one of the space and does not yet. 0 or -ENOMEM. */
int race_enter(struct search *search, struct race *race, const struct tune_point *point);
/*
 * Rounds in turn, in an order of chance, until what is left is known within `doubt`, after at least
 * `least` rounds, or has had as many as may be. Out goes what is clearly slower than the fastest by
 * more than the tolerance.
 */
int race_run(struct search *search, struct race *race, double doubt, unsigned least);

/* ---- tune_explore.c, tune_finals.c, tune_map.c ---- */

/* Measures as few points as it can to find those that may be chosen. */
int search_explore(struct search *search);
/*
 * Measures those that may be chosen against each other until they are told apart or time is up, and
 * chooses: *chosen, *fastest, *certain, also with -ETIME. The errors of search_round.
 */
int search_finals(struct search *search, size_t *chosen, size_t *fastest, bool *certain);
/* Every block and depth in all objectives, with the other settings of the choice; those in line
 * with it first. */
int search_map(struct search *search, struct tune_point chosen);

#endif
