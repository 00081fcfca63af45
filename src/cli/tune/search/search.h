/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the I/O settings with which a drive is fast, with as few measurements as possible. The
 * search knows no drive, only a space of settings and a meter that measures a point of it.
 */
#ifndef CLI_TUNE_SEARCH_SEARCH_H
#define CLI_TUNE_SEARCH_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

enum tune_objective { TUNE_SWAP, TUNE_READ, TUNE_WRITE, TUNE_OBJECTIVES };

struct tune_point {
	enum nvs_ioengine ioengine; /* never AUTO */
	uint32_t block_size, queue_depth, thread_count;
	bool single_submit, overlap_events;
};

#define TUNE_VALUES_MAX 16

/* Every combination of these values with at most in_flight_max bytes in flight. */
struct tune_space {
	uint32_t block_sizes[TUNE_VALUES_MAX], queue_depths[TUNE_VALUES_MAX],
		thread_counts[TUNE_VALUES_MAX]; /* ascending */
	unsigned nblock_sizes, nqueue_depths, nthread_counts;
	enum nvs_ioengine ioengines[NVS_IOENGINE_COUNT]; /* the default first */
	unsigned nioengines;
	bool single_submits, overlap_events; /* whether both values are in the space */
	uint64_t in_flight_max;		     /* block_size x queue_depth x thread_count, bytes */
};

struct tune_sample {
	double bytes_per_s; /* both directions together */
	uint64_t bytes[2];  /* bytes moved, by enum nvs_direction */
	uint64_t ns;	    /* duration of the measurement; the round as a whole takes longer */
	uint64_t p50_ns, p99_ns; /* latency of an I/O; of the two directions, the higher */
	double cpu_ms_per_gib;	 /* 0: unknown */
};

struct tune_meter {
	/* Measures a point for about `for_ns`. 0; -EDQUOT: the round would exceed the write limit;
	 * -EINTR: the user asked to end; or another errno, which ends the search. */
	int (*measure)(void *arg, const struct tune_point *point, enum tune_objective objective,
		       uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error);
	uint64_t (*now_ns)(void *arg);
	const uint64_t *written; /* bytes written so far, warm-ups included */
	/* Called after each round with the share of the budget spent; may be NULL. */
	void (*progress)(void *arg, const char *phase, double share);
	void *arg;
};

enum tune_fate {
	TUNE_DROPPED, /* slower by its own rounds, or less preferred; not a finalist */
	TUNE_SLOWER,  /* a finalist whose mean is more than the tolerance below the fastest */
	TUNE_TIE,     /* a finalist within the tolerance of the fastest */
	TUNE_OVER,    /* over the latency limit */
	TUNE_CHOSEN,
};

/* A point with all its rounds. */
struct tune_trial {
	struct tune_point point;
	enum tune_fate fate;
	bool finalist;
	unsigned rounds;
	double mean, half_width; /* bytes a second; half of the 95 % confidence interval */
	double to_best, to_best_half_width; /* finalists: ratio to the fastest, of paired rounds */
	uint64_t p50_ns, p99_ns;	    /* medians over the rounds */
	double cpu_ms_per_gib;
};

struct tune_rules {
	enum tune_objective objective;
	double tolerance;	 /* 0.03: points within 3 % of the fastest count as equally fast */
	uint64_t latency_max_ns; /* limit of the 99th percentile of an I/O's latency; 0: none */
	uint64_t budget_ns;	 /* on the meter's clock */
	uint64_t writes_max;	 /* limit of bytes written; UINT64_MAX: none */
	uint64_t seed;		 /* seed of the order in which points take turns */
};

struct tune_outcome {
	struct tune_trial *trials; /* in the order of their first measurement */
	size_t n;
	const struct tune_trial *chosen, *fastest;
	bool certain;
	uint64_t spent_ns;
	char why[512];	  /* explains the choice in a sentence or two */
	char unsure[320]; /* why the choice is uncertain; "" if it is certain */
};

bool tune_space_has(const struct tune_space *space, const struct tune_point *point);
bool tune_point_same(const struct tune_point *a, const struct tune_point *b);
/* Whether `a` is preferred to `b` if both are equally fast: it has the smaller total depth, then
 * the smaller block, then fewer workers, then the default settings. */
bool tune_prefers(const struct tune_space *space, const struct tune_point *a,
		  const struct tune_point *b);

/*
 * Chooses the most preferred of the finalists whose mean is within the tolerance of the best mean.
 * If the budget ends while an interval is wider than the tolerance, chooses the best mean and says
 * so. The smallest values of the space must be a point of it. Errors, with no choice and the
 * measurements in *outcome:
 *	-ETIME	 the budget is too small for a single round
 *	-ERANGE	 no measured point is within latency_max_ns
 *	-EINTR, -ENOMEM and errors of the meter
 */
int tune_search(const struct tune_space *space, const struct tune_rules *rules,
		const struct tune_meter *meter, struct tune_outcome *outcome,
		struct nvs_error *error);
void tune_outcome_free(struct tune_outcome *outcome);

/*
 * ---- statistics.c ----
 *
 * What rounds say of a point, and how surely. Drives stall now and then, so outliers say little:
 * means are trimmed, and their intervals are Student's t on winsorised squares (Tukey and
 * McLaughlin, 1963). The drive's noise, as known from other points, counts as additional rounds:
 * two rounds that agree by chance are not believed, and need not be repeated often either.
 */
#define ROUNDS_KEPT	1024u
#define DEVIATIONS_KEPT 64u

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

/* Of 1 to ROUNDS_KEPT values. */
struct middle middle_of(const double *values, unsigned n);
double median(const double *values, unsigned n);
/* Adds one deviation, scaled up as if it were from the true mean. */
void noise_add(struct noise *noise, double deviation);
/* Half the 95 % confidence interval of the mean. The variance known from other points counts as
 * `known_freedom` values, 1 or more. */
double half_width(const struct middle *middle, double known_variance, double known_freedom);

#endif
