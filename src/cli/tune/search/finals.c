/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The finalists: those that may be chosen are measured in turn against each other. They are
 * compared by the ratios of rounds of the same pass, so that a drive whose speed drifts makes no
 * difference between them. The choice is by these ratios, however wide their intervals are: those
 * say when it is sure. Only what differs from the defaults has to be faster for sure.
 */
#include <math.h>
#include <stdlib.h>

#include "tune_search.h"

#define FINALISTS 8u
#define PREFERRED 5u /* of them, by preference; the others by speed */
#define SIBLINGS  8u /* beside them */
#define PLACES	  (FINALISTS + SIBLINGS)
/* A slow one that few rounds of much noise could not rule out is no use for being preferred. */
#define PREFERRED_LEAST 0.75
#define PASSES		ROUNDS_KEPT
#define PASSES_MIN	4u
/* Within so many tolerances of the fastest something surely is that counts as fast, while there is
 * time to be sure. */
#define SURELY 1.5
/* Looked at again after each pass, an interval misses sooner or later. A default is not given up
 * for that: its interval is so many times as wide. */
#define DEFAULT_WIDER 2
/* No ratio of two rounds is surer than this. */
#define NOISE_LEAST 0.001

struct finalist {
	size_t trial;
	bool out;	     /* clearly slower than the tolerance allows */
	unsigned passes;     /* that it took part in: from the first on */
	double logs[PASSES]; /* of the rate, by pass; the middle of a pass is 0 */
	double ratio, doubt; /* to the fastest; half the interval, as a share */
};

struct finals {
	struct search *search;
	struct noise noise;    /* of rounds beside others of their pass */
	struct finalist *list; /* in the order of preference */
	size_t n, fastest;
};

/* ---- Who takes part ---- */

static bool may_be_chosen(const struct search *search, size_t trial, size_t best)
{
	if (!search->rounds[trial].n || search->trials[trial].objective != search->rules->objective)
		return false;
	return search_high(search, trial) >=
	       search_low(search, best) * (1 - search->rules->tolerance);
}

static bool takes_part(const struct finals *finals, size_t trial)
{
	for (size_t i = 0; i < finals->n; i++)
		if (finals->list[i].trial == trial)
			return true;
	return false;
}

/* Of those that may be chosen and take no part yet, the most preferred or the fastest. */
static size_t next_finalist(const struct finals *finals, bool by_speed)
{
	const struct search *search = finals->search;
	size_t best = search_best(search), found = search->n;

	for (size_t i = 0; i < search->n; i++) {
		if (takes_part(finals, i) || !may_be_chosen(search, i, best))
			continue;
		if (!by_speed &&
		    search->rounds[i].rate.mean < PREFERRED_LEAST * search->rounds[best].rate.mean)
			continue;
		if (found == search->n ||
		    (by_speed ? search->rounds[i].rate.mean > search->rounds[found].rate.mean
			      : space_prefers(search->space, &search->trials[i].point,
					      &search->trials[found].point)))
			found = i;
	}
	return found;
}

static void add(struct finals *finals, size_t trial)
{
	size_t at = finals->n;
	const struct search *search = finals->search;

	if (trial == search->n || takes_part(finals, trial))
		return;
	while (at && space_prefers(search->space, &search->trials[trial].point,
				   &search->trials[finals->list[at - 1].trial].point)) {
		finals->list[at] = finals->list[at - 1];
		at--;
	}
	finals->list[at] = (struct finalist){.trial = trial};
	finals->n++;
}

static int add_point(struct finals *finals, const struct tune_point *sibling)
{
	long trial;

	if (finals->n == PLACES)
		return 0;
	trial = search_trial(finals->search, sibling, finals->search->rules->objective);
	if (trial < 0)
		return (int)trial;
	add(finals, (size_t)trial);
	return 0;
}

/* With the settings' defaults; and with these and all that is in flight in one worker's hands. */
static int add_siblings(struct finals *finals, struct tune_point point)
{
	const struct tune_space *space = finals->search->space;
	uint32_t depth = point.queue_depth * point.thread_count;
	struct tune_point sibling = space_first(space);
	int rc;

	sibling.block_size = point.block_size;
	sibling.queue_depth = point.queue_depth;
	sibling.thread_count = point.thread_count;
	rc = add_point(finals, &sibling);
	sibling.queue_depth = depth;
	sibling.thread_count = 1;
	if (space->thread_counts[0] == 1 && depth <= space->queue_depths[space->nqueue_depths - 1])
		rc = rc ? rc : add_point(finals, &sibling);
	return rc;
}

static int enter(struct finals *finals)
{
	size_t trials[FINALISTS], n;
	int rc = 0;

	add(finals, search_best(finals->search));
	add(finals, search_preferred(finals->search, search_best(finals->search)));
	while (finals->n < PREFERRED && next_finalist(finals, false) != finals->search->n)
		add(finals, next_finalist(finals, false));
	while (finals->n < FINALISTS && next_finalist(finals, true) != finals->search->n)
		add(finals, next_finalist(finals, true));
	n = finals->n;
	for (size_t i = 0; i < n; i++)
		trials[i] = finals->list[i].trial;
	for (size_t i = 0; i < n && !rc; i++)
		rc = add_siblings(finals, finals->search->trials[trials[i]].point);
	return rc;
}

/* ---- What the passes say ---- */

static double mean_log(const struct finalist *finalist)
{
	return middle_of(finalist->logs, finalist->passes).mean;
}

/* Both took part in the first passes, up to where one of them left. */
static void compare(const struct finals *finals, struct finalist *finalist,
		    const struct finalist *fastest)
{
	unsigned n = finalist->passes < fastest->passes ? finalist->passes : fastest->passes;
	double logs[PASSES], doubt;
	struct middle middle;

	finalist->ratio = 1;
	finalist->doubt = 0;
	if (finalist == fastest || !n)
		return;
	for (unsigned i = 0; i < n; i++)
		logs[i] = finalist->logs[i] - fastest->logs[i];
	middle = middle_of(logs, n);
	/* A ratio has the noise of two rounds. */
	doubt = half_width(&middle, 2 * finals->noise.variance, finals->noise.freedom);
	finalist->ratio = exp(middle.mean);
	finalist->doubt = doubt > NOISE_LEAST ? doubt : NOISE_LEAST;
}

static void compare_all(struct finals *finals)
{
	size_t fastest = 0;

	for (size_t i = 1; i < finals->n; i++)
		if (finals->list[fastest].out ||
		    (!finals->list[i].out &&
		     mean_log(&finals->list[i]) > mean_log(&finals->list[fastest])))
			fastest = i;
	finals->fastest = fastest;
	/* What left keeps the ratio that it was beaten by. */
	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out)
			compare(finals, &finals->list[i], &finals->list[fastest]);
}

/* As fast as the fastest: within the tolerance. The fastest is. */
static bool is_in(const struct finals *finals, const struct finalist *finalist)
{
	return finalist->ratio >= 1 - finals->search->rules->tolerance;
}

/* And not by luck: surely within some more of it. */
static bool is_surely_in(const struct finals *finals, const struct finalist *finalist)
{
	return is_in(finals, finalist) && finalist->ratio * (1 - finalist->doubt) >=
						  1 - SURELY * finals->search->rules->tolerance;
}

static const struct tune_point *point_of(const struct finals *finals, size_t i)
{
	return &finals->search->trials[finals->list[i].trial].point;
}

/* Whether one that is left departs from it in what has a default. */
static bool is_default(const struct finals *finals, const struct finalist *finalist)
{
	size_t at = (size_t)(finalist - finals->list);

	for (size_t i = at + 1; i < finals->n; i++)
		if (!finals->list[i].out &&
		    space_as_deep(point_of(finals, at), point_of(finals, i)))
			return true;
	return false;
}

/* The most that the ratio may be. */
static double at_most(const struct finals *finals, const struct finalist *finalist)
{
	double wider = is_default(finals, finalist) ? DEFAULT_WIDER : 1;

	return finalist->ratio * (1 + wider * finalist->doubt);
}

static bool is_out(const struct finals *finals, const struct finalist *finalist)
{
	double tolerance = finals->search->rules->tolerance;

	return finalist->out ||
	       (!is_in(finals, finalist) && at_most(finals, finalist) < 1 - tolerance / 2);
}

static void drop_losers(struct finals *finals)
{
	for (size_t i = 0; i < finals->n; i++) {
		struct finalist *finalist = &finals->list[i];

		if (at_most(finals, finalist) < 1 - finals->search->rules->tolerance)
			finalist->out = true;
	}
}

/* The most preferred of those. */
static size_t first(const struct finals *finals,
		    bool (*is)(const struct finals *, const struct finalist *))
{
	for (size_t i = 0; i < finals->n; i++)
		if (is(finals, &finals->list[i]))
			return i;
	return finals->fastest;
}

/* Nothing but chance may be for the settings in which it departs from what is preferred. */
static size_t choose(const struct finals *finals)
{
	size_t choice = first(finals, is_in);
	const struct tune_point *chosen = point_of(finals, choice);

	for (size_t i = 0; i < choice; i++)
		if (space_as_deep(point_of(finals, i), chosen) && !is_out(finals, &finals->list[i]))
			return i;
	return choice;
}

/* All that are preferred to the choice are known not to be as fast, and none that is left may yet
 * be so much faster that the choice would not be. */
static bool told_apart(const struct finals *finals)
{
	double most = 1 + SURELY * finals->search->rules->tolerance;
	size_t choice = first(finals, is_surely_in);

	for (size_t i = 0; i < finals->n; i++) {
		const struct finalist *finalist = &finals->list[i];

		if (i < choice && !is_out(finals, finalist))
			return false;
		if (!finalist->out && finalist->ratio * (1 + finalist->doubt) > most)
			return false;
	}
	return true;
}

/* ---- Passes ---- */

static double middle_log(const struct finals *finals, const size_t *order, size_t n, unsigned pass)
{
	double logs[PLACES];

	for (size_t i = 0; i < n; i++)
		logs[i] = finals->list[order[i]].logs[pass];
	return middle_of(logs, (unsigned)n).mean;
}

/* What the drive as a whole has become meanwhile is taken out. */
static void take_pass(struct finals *finals, const size_t *order, size_t n, unsigned pass)
{
	double middle = middle_log(finals, order, n, pass);

	for (size_t i = 0; i < n; i++) {
		struct finalist *finalist = &finals->list[order[i]];

		finalist->logs[pass] -= middle;
		if (pass)
			noise_add(&finals->noise, (finalist->logs[pass] - mean_log(finalist)) *
							  sqrt(pass / (pass + 1.0)));
		finalist->passes = pass + 1;
	}
}

static int run_pass(struct finals *finals, unsigned pass)
{
	size_t order[PLACES], n = 0;

	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out)
			order[n++] = i;
	search_shuffle(finals->search, order, n);
	for (size_t i = 0; i < n; i++) {
		struct finalist *finalist = &finals->list[order[i]];
		double rate;
		int rc = search_round(finals->search, finalist->trial, &rate);

		if (rc)
			return rc;
		finalist->logs[pass] = log(rate > 1 ? rate : 1);
	}
	/* One that was cut short counts for nobody. */
	take_pass(finals, order, n, pass);
	return 0;
}

static int run_passes(struct finals *finals, bool *certain)
{
	for (unsigned pass = 0; pass < PASSES; pass++) {
		int rc = run_pass(finals, pass);

		if (rc)
			return rc;
		compare_all(finals);
		if (pass + 1 < PASSES_MIN)
			continue;
		drop_losers(finals);
		if (told_apart(finals)) {
			*certain = true;
			return 0;
		}
	}
	return 0;
}

/* The choice by intervals alone, with the same word for defaults. */
static size_t choose_without_passes(const struct search *search, size_t best)
{
	size_t choice = search_preferred(search, best);

	for (size_t i = 0; i < search->n; i++) {
		const struct tune_point *point = &search->trials[i].point;
		const struct tune_point *chosen = &search->trials[choice].point;

		if (space_as_deep(point, chosen) && space_prefers(search->space, point, chosen) &&
		    may_be_chosen(search, i, best))
			choice = i;
	}
	return choice;
}

static void conclude(struct finals *finals, size_t *chosen, size_t *fastest)
{
	struct search *search = finals->search;
	size_t choice = choose(finals);

	/* No pass came to its end: what its rounds have added counts with the others. */
	if (!finals->list[0].passes) {
		*fastest = search_best(search);
		*chosen = choose_without_passes(search, *fastest);
		return;
	}
	for (size_t i = 0; i < finals->n; i++) {
		const struct finalist *finalist = &finals->list[i];
		struct tune_trial *trial = &search->trials[finalist->trial];

		trial->finalist = true;
		trial->to_best = finalist->ratio;
		trial->to_best_half_width = finalist->ratio * finalist->doubt;
		trial->fate = is_in(finals, finalist) ? TUNE_TIE : TUNE_SLOWER;
	}
	*chosen = finals->list[choice].trial;
	*fastest = finals->list[finals->fastest].trial;
}

int search_finals(struct search *search, size_t *chosen, size_t *fastest, bool *certain)
{
	struct finals finals = {
		.search = search,
		.noise = {.variance = search->noise.variance, .freedom = search->noise.freedom},
	};
	int rc;

	finals.list = calloc(PLACES, sizeof(*finals.list));
	if (!finals.list)
		return search_no_memory(search);
	search->phase = "finalists";
	rc = enter(&finals);
	if (!rc)
		rc = run_passes(&finals, certain);
	conclude(&finals, chosen, fastest);
	free(finals.list);
	return rc;
}
