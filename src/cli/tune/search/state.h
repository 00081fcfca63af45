/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of the search: steps in the space, trials and their rounds, and the budget. A
 * trial is identified by its number, because the array moves when it grows.
 */
#ifndef CLI_TUNE_SEARCH_STATE_H
#define CLI_TUNE_SEARCH_STATE_H

#include "cli/tune/search/search.h"

#define LATENCIES_KEPT	32u
#define ROUNDS_KEPT	512u
#define DEVIATIONS_KEPT 64u

/* A trimmed mean. */
struct middle {
	unsigned n, of; /* number of values kept, and of all values */
	double mean;	/* of the values kept */
	double squares; /* summed squared deviations of all values, winsorised */
};

/* The deviation of rounds from the mean of their point, relative to it. */
struct noise {
	double variance, freedom; /* variance of one round without stalls; its degrees of freedom */
	double squares[DEVIATIONS_KEPT];
	unsigned n;
};

/* The rounds of a trial. */
struct rounds {
	unsigned n;
	struct middle rate; /* bytes a second */
	double rates[ROUNDS_KEPT];
	double cpu_ms_per_gib;
	double p50_ns[LATENCIES_KEPT], p99_ns[LATENCIES_KEPT];
};

/* The cost of rounds. */
struct cost {
	uint64_t ns, written;
};

struct search {
	const struct tune_space *space;
	const struct tune_rules *rules;
	const struct tune_meter *meter;
	struct nvs_error *error;
	const char *phase;

	struct tune_trial *trials; /* estimates are filled in at the end */
	struct rounds *rounds;	   /* rounds of the trial with the same number */
	size_t n, room;
	struct noise noise; /* over all points; applies to a point with a single round */

	uint64_t random;
	struct cost started;		 /* clock and bytes written at the begin */
	struct cost until;		 /* no round may begin that would exceed these costs */
	bool out_of_time, out_of_writes; /* a round was not run for lack of it */
	uint64_t round_ns;
};

/* ---- space.c: values of a setting, and the order of preference ---- */

enum tune_axis { AXIS_BLOCK, AXIS_DEPTH, AXIS_WORKERS };

unsigned space_count(const struct tune_space *space, enum tune_axis axis);
/* The position of the point's value on the axis, and a point with the value at a position. */
unsigned space_index(const struct tune_space *space, const struct tune_point *point,
		     enum tune_axis axis);
struct tune_point space_at(const struct tune_space *space, struct tune_point point,
			   enum tune_axis axis, unsigned index);
bool space_has(const struct tune_space *space, const struct tune_point *point);
bool space_same(const struct tune_point *a, const struct tune_point *b);
/* The smallest values with the default settings. */
struct tune_point space_first(const struct tune_space *space);
/* Whether `a` is preferred to `b` if both are equally fast. */
bool space_prefers(const struct tune_space *space, const struct tune_point *a,
		   const struct tune_point *b);

/* ---- statistics.c: means of rounds and their precision ---- */

void rounds_add(struct rounds *rounds, const struct tune_sample *sample);
/* The trimmed mean of 1 to ROUNDS_KEPT values. */
struct middle middle_of(const double *values, unsigned n);
/* Adds one deviation, scaled up as if it were from the true mean. */
void noise_add(struct noise *noise, double deviation);
/* Half the 95 % confidence interval of the mean. The variance known from other points counts as
 * `known_freedom` values, 1 or more. */
double half_width(const struct middle *middle, double known_variance, double known_freedom);
/* The median of the latencies kept of n. */
double median(const double *values, unsigned n);

/* ---- trials.c: trials and their rounds ---- */

/* The trial of a point, made if necessary: its number or -ENOMEM with the error set. */
long search_trial(struct search *search, const struct tune_point *point);
/* Runs one more round. -ETIME: the budget has no room for it. Errors of the meter. */
int search_round(struct search *search, size_t trial, double *bytes_per_s);
/* The costs since the begin. */
struct cost search_spent(const struct search *search);
/* The share of the budget spent, of time or writes, whichever is more. */
double search_share_spent(const struct search *search);
/* Half of the trial's confidence interval, relative to its mean. */
double search_doubt(const struct search *search, size_t trial);
/* The ends of its interval. Rates differ by factors, so the low end is above zero. */
double search_low(const struct search *search, size_t trial);
double search_high(const struct search *search, size_t trial);
/* The median over its rounds. */
uint64_t search_p99(const struct search *search, size_t trial);
/* Whether the trial is within the latency limit; true without a limit. */
bool search_allowed(const struct search *search, size_t trial);
/* Whether the trial is measured and allowed, and its interval reaches into the tolerance. */
bool search_keeps_up(const struct search *search, size_t trial, size_t best);
/*
 * The allowed trial with the highest low end of its interval; if none is allowed, the one with the
 * lowest latency; search->n if nothing was measured.
 */
size_t search_best(const struct search *search);
/* Puts the numbers into random order. */
void search_shuffle(struct search *search, size_t *numbers, size_t n);

/* ---- The phases ---- */

struct choice {
	size_t chosen, fastest;
	unsigned finalists;
	double width;	 /* of the widest interval between finalists that may win; 1: no rounds */
	bool explored;	 /* every neighbour of the candidates was measured */
	bool told_apart; /* the width is within the tolerance */
};

/* explore.c: finds the candidates; *complete: there was time for all of them. */
int search_explore(struct search *search, bool *complete);
/* finals.c: measures the candidates against each other, and chooses, also with -ETIME. */
int search_finals(struct search *search, struct choice *choice);

#endif
