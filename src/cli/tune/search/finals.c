/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The finals: measures the candidates in turn and compares ratios of rounds of the same pass, so
 * that a drive with drifting speed favours none. The winner is the most preferred finalist that is
 * statistically indistinguishable from the fastest: a deeper queue, a larger block or a non-default
 * setting must be significantly faster.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "cli/tune/search/state.h"

#define FINALISTS 12u
#define PREFERRED 8u /* finalists chosen by preference; the others by speed */
#define SIBLINGS  8u /* extra places for variants of finalists */
#define PLACES	  (FINALISTS + SIBLINGS)
/* A point slower than this share of the fastest, by its own rounds, is no candidate. */
#define LEAST	   0.75
#define PASSES	   ROUNDS_KEPT
#define PASSES_MIN 6u
/* The choice is certain if it lies within this many tolerances of the fastest. */
#define SURELY 1.5
/* An interval that is tested after each pass misses eventually, so excluding a finalist requires
 * this many times its width, and more to give up a default. */
#define WIDER		   1.2
#define WIDER_FOR_DEFAULTS 2
/* Lower bound on the uncertainty of a ratio of two rounds. */
#define NOISE_LEAST 0.001

struct finalist {
	size_t trial;
	bool out;	     /* clearly slower, or over the latency limit */
	unsigned from, to;   /* its passes: [from, to) */
	double logs[PASSES]; /* log of the rate by pass, minus the pass mean */
	double ratio, doubt; /* rate relative to the fastest; half its interval, relative */
};

struct finals {
	struct search *search;
	struct noise noise;    /* of rounds relative to their pass */
	struct finalist *list; /* by preference */
	size_t n, fastest;
	unsigned pass; /* the next pass */
};

/* ---- Choosing the finalists ---- */

static bool may_be_chosen(const struct search *search, size_t trial, size_t best)
{
	return search_counts(search, trial) &&
	       search_high(search, trial) >=
		       search_low(search, best) * (1 - search->rules->tolerance) &&
	       search->rounds[trial].rate.mean >= LEAST * search->rounds[best].rate.mean;
}

static bool takes_part(const struct finals *finals, size_t trial)
{
	for (size_t i = 0; i < finals->n; i++)
		if (finals->list[i].trial == trial)
			return true;
	return false;
}

/* The most preferred, or the fastest, of the candidates that are not finalists yet. */
static size_t next_finalist(const struct finals *finals, size_t best, bool by_speed)
{
	const struct search *search = finals->search;
	size_t found = search->n;

	for (size_t i = 0; i < search->n; i++) {
		if (takes_part(finals, i) || !may_be_chosen(search, i, best))
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
	const struct search *search = finals->search;
	size_t at = finals->n;

	if (trial == search->n || takes_part(finals, trial))
		return;
	for (; at && space_prefers(search->space, &search->trials[trial].point,
				   &search->trials[finals->list[at - 1].trial].point);
	     at--)
		finals->list[at] = finals->list[at - 1];
	finals->list[at] =
		(struct finalist){.trial = trial, .from = finals->pass, .to = finals->pass};
	finals->n++;
}

static int add_point(struct finals *finals, const struct tune_point *point)
{
	long trial;

	if (finals->n == PLACES)
		return 0;
	trial = search_trial(finals->search, point, finals->search->rules->objective);
	if (trial < 0)
		return (int)trial;
	add(finals, (size_t)trial);
	return 0;
}

/* Adds the point with default settings, and that with one worker and the same total depth. */
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
	struct search *search = finals->search;
	size_t best = search_best(search), trials[FINALISTS], n;
	int rc = 0;

	if (!search_allowed(search, best))
		return -ERANGE;
	add(finals, best);
	add(finals, search_preferred(search, best));
	while (finals->n < PREFERRED && next_finalist(finals, best, false) != search->n)
		add(finals, next_finalist(finals, best, false));
	while (finals->n < FINALISTS && next_finalist(finals, best, true) != search->n)
		add(finals, next_finalist(finals, best, true));
	n = finals->n;
	for (size_t i = 0; i < n; i++)
		trials[i] = finals->list[i].trial;
	for (size_t i = 0; i < n && !rc; i++)
		rc = add_siblings(finals, search->trials[trials[i]].point);
	return rc;
}

/* ---- Comparing the finalists ---- */

static double mean_log(const struct finalist *finalist)
{
	return middle_of(finalist->logs + finalist->from, finalist->to - finalist->from).mean;
}

/* Compares over the passes that both share. A new finalist has a doubt of 1. */
static void compare(const struct finals *finals, struct finalist *finalist,
		    const struct finalist *fastest)
{
	unsigned from = finalist->from > fastest->from ? finalist->from : fastest->from;
	unsigned to = finalist->to < fastest->to ? finalist->to : fastest->to;
	double logs[PASSES], doubt;
	struct middle middle;

	finalist->ratio = 1;
	finalist->doubt = finalist == fastest ? 0 : 1;
	if (finalist == fastest || from >= to)
		return;
	for (unsigned i = from; i < to; i++)
		logs[i - from] = finalist->logs[i] - fastest->logs[i];
	middle = middle_of(logs, to - from);
	/* The variance of a log ratio is that of two rounds. */
	doubt = half_width(&middle, 2 * finals->noise.variance, finals->noise.freedom);
	finalist->ratio = exp(middle.mean);
	finalist->doubt = fmax(doubt, NOISE_LEAST);
}

static void compare_all(struct finals *finals)
{
	size_t fastest = finals->n;

	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out && finals->list[i].to > finals->list[i].from &&
		    (fastest == finals->n ||
		     mean_log(&finals->list[i]) > mean_log(&finals->list[fastest])))
			fastest = i;
	if (fastest == finals->n)
		return;
	finals->fastest = fastest;
	/* Excluded finalists keep the ratio that excluded them. */
	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out)
			compare(finals, &finals->list[i], &finals->list[fastest]);
}

/* Whether a less preferred finalist differs from this one only in settings with a default. */
static bool has_variants(const struct finals *finals, const struct finalist *finalist)
{
	const struct tune_trial *trials = finals->search->trials;

	for (size_t i = (size_t)(finalist - finals->list) + 1; i < finals->n; i++)
		if (!finals->list[i].out && space_as_deep(&trials[finalist->trial].point,
							  &trials[finals->list[i].trial].point))
			return true;
	return false;
}

static bool keeps_up(const struct finals *finals, const struct finalist *finalist)
{
	double wider = has_variants(finals, finalist) ? WIDER_FOR_DEFAULTS : WIDER;

	return !finalist->out && finalist->ratio * (1 + wider * finalist->doubt) >=
					 1 - finals->search->rules->tolerance;
}

static void drop_losers(struct finals *finals)
{
	for (size_t i = 0; i < finals->n; i++)
		finals->list[i].out = !keeps_up(finals, &finals->list[i]) ||
				      !search_allowed(finals->search, finals->list[i].trial);
}

/* The most preferred measured finalist that keeps up; finals->n if there is none. */
static size_t choose(const struct finals *finals)
{
	size_t i = 0;

	while (i < finals->n &&
	       (finals->list[i].to == finals->list[i].from || !keeps_up(finals, &finals->list[i]) ||
		!search_allowed(finals->search, finals->list[i].trial)))
		i++;
	return i;
}

/* The choice is certainly about as fast as the fastest, and no other can be much faster. */
static bool told_apart(const struct finals *finals)
{
	double margin = SURELY * finals->search->rules->tolerance;
	size_t choice = choose(finals);

	if (choice == finals->n ||
	    finals->list[choice].ratio * (1 - finals->list[choice].doubt) < 1 - margin)
		return false;
	for (size_t i = 0; i < finals->n; i++) {
		const struct finalist *finalist = &finals->list[i];

		if (!finalist->out && finalist->ratio * (1 + finalist->doubt) > 1 + margin)
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

/* Normalizes the rounds by the middle rate of the pass, which removes drift of the drive. */
static void take_pass(struct finals *finals, const size_t *order, size_t n)
{
	unsigned pass = finals->pass;
	double middle = middle_log(finals, order, n, pass);

	for (size_t i = 0; i < n; i++) {
		struct finalist *finalist = &finals->list[order[i]];

		unsigned before = pass - finalist->from;

		finalist->logs[pass] -= middle;
		if (before)
			noise_add(&finals->noise, (finalist->logs[pass] - mean_log(finalist)) *
							  sqrt(before / (before + 1.0)));
		finalist->to = pass + 1;
	}
}

/* The rounds of an interrupted pass do not count. */
static int run_pass(struct finals *finals)
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
		finalist->logs[finals->pass] = log(rate > 1 ? rate : 1);
	}
	if (n)
		take_pass(finals, order, n);
	return n ? 0 : -ERANGE;
}

/* Adds the point one step below the choice, even if exploration found it slow: the drive may have
 * been slower then. *entered: whether a finalist was added. */
static int enter_below(struct finals *finals, bool *entered)
{
	size_t choice = choose(finals), n = finals->n;
	struct tune_point point;
	int rc = 0;

	for (int axis = AXIS_BLOCK; axis <= AXIS_DEPTH && choice < n && !rc; axis++) {
		point = finals->search->trials[finals->list[choice].trial].point;
		if (space_step(finals->search->space, &point, axis, -1))
			rc = add_point(finals, &point);
		if (finals->n > n)
			break;
	}
	*entered = finals->n > n;
	return rc;
}

static int run_passes(struct finals *finals, bool *certain)
{
	for (; finals->pass < PASSES && !*certain; finals->pass++) {
		bool entered = false;
		int rc = run_pass(finals);

		if (rc)
			return rc;
		compare_all(finals);
		if (finals->pass + 1 < PASSES_MIN)
			continue;
		drop_losers(finals);
		if (!told_apart(finals))
			continue;
		finals->pass++;
		rc = enter_below(finals, &entered);
		finals->pass--;
		if (rc)
			return rc;
		compare_all(finals);
		*certain = !entered;
	}
	return 0;
}

/* ---- The choice ---- */

static int choose_without_passes(const struct search *search, struct choice *choice)
{
	size_t best = search_best(search);

	if (!search_allowed(search, best))
		return -ERANGE;
	choice->fastest = best;
	choice->chosen = search_preferred(search, best);
	return 0;
}

static int conclude(struct finals *finals, struct choice *choice)
{
	struct search *search = finals->search;
	size_t chosen = choose(finals);

	if (chosen == finals->n)
		return choose_without_passes(search, choice);
	for (size_t i = 0; i < finals->n; i++) {
		const struct finalist *finalist = &finals->list[i];
		struct tune_trial *trial = &search->trials[finalist->trial];

		trial->finalist = finalist->to > finalist->from;
		if (!trial->finalist)
			continue;
		trial->to_best = finalist->ratio;
		trial->to_best_half_width = finalist->ratio * finalist->doubt;
		trial->fate = keeps_up(finals, finalist) ? TUNE_TIE : TUNE_SLOWER;
	}
	choice->chosen = finals->list[chosen].trial;
	choice->fastest = finals->list[finals->fastest].trial;
	return 0;
}

int search_finals(struct search *search, struct choice *choice)
{
	struct finals finals = {
		.search = search,
		.noise = {.variance = search->noise.variance, .freedom = search->noise.freedom},
	};
	int rc, concluded;

	finals.list = calloc(PLACES, sizeof(*finals.list));
	if (!finals.list)
		return search_no_memory(search);
	search->phase = "finalists";
	rc = enter(&finals);
	if (!rc)
		rc = run_passes(&finals, &choice->told_apart);
	concluded = conclude(&finals, choice);
	free(finals.list);
	return rc && rc != -ETIME && rc != -ERANGE ? rc : concluded;
}
