/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The finals: measures the candidates in turn and compares ratios of rounds of the same pass, so
 * that a drive with drifting speed favours none. They go on while an interval is wider than the
 * tolerance and the budget lasts. Finalists whose mean is within the tolerance of the best mean are
 * equal, and the most preferred of them is chosen; if an interval stays wider, the best mean is.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>

#include "cli/tune/search/state.h"

#define FINALISTS 8u
/* The fastest so many are finalists whatever their intervals, which rely on few rounds. */
#define SURE_PLACES 4u
#define PASSES	    ROUNDS_KEPT
#define PASSES_MIN  6u
/* After these shares of the finals there are places for half of the finalists, and for three. */
#define SHARE_HALF  0.33
#define SHARE_THREE 0.67
/* An interval that is tested after each pass misses eventually, so excluding a finalist requires
 * this many times its width. */
#define WIDER 2

struct finalist {
	size_t trial;
	bool out;	     /* can't be chosen, or has left its place */
	double logs[PASSES]; /* log of the rate by pass */
	double ratio, doubt; /* rate relative to the fastest; half its interval, relative */
};

struct finals {
	struct search *search;
	struct finalist list[FINALISTS];
	size_t n, fastest;
	unsigned passes;
	double from; /* the share of the budget spent before */
};

static const struct tune_point *point_of(const struct finals *finals, size_t i)
{
	return &finals->search->trials[finals->list[i].trial].point;
}

/*
 * Adds a candidate that is no finalist yet: the most preferred with default settings, or the fastest
 * with a block size that no finalist has, because equal points of one block crowd out those of
 * others.
 */
static void add_next(struct finals *finals, size_t best, bool by_speed)
{
	const struct search *search = finals->search;
	size_t found = search->n;

	for (size_t i = 0; i < search->n; i++) {
		const struct tune_point *point = &search->trials[i].point;
		bool has_defaults = point->ioengine == search->space->ioengines[0] &&
				    !point->single_submit && point->overlap_events;
		bool has_place = !search->rounds[i].n || !search_allowed(search, i) ||
				 (!by_speed && !has_defaults);

		for (size_t j = 0; j < finals->n; j++)
			has_place |= finals->list[j].trial == i ||
				     (by_speed &&
				      point_of(finals, j)->block_size == point->block_size);
		if (has_place || (finals->n >= SURE_PLACES && !search_keeps_up(search, i, best)))
			continue;
		if (found == search->n ||
		    (by_speed ? search->rounds[i].rate.mean > search->rounds[found].rate.mean
			      : space_prefers(search->space, point, &search->trials[found].point)))
			found = i;
	}
	if (found < search->n && finals->n < FINALISTS)
		finals->list[finals->n++].trial = found;
}

/* Runs a round of each; the rounds of an interrupted pass do not count. */
static int run_pass(struct finals *finals)
{
	size_t order[FINALISTS], n = 0;
	double logs[FINALISTS];
	unsigned pass = finals->passes;

	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out)
			order[n++] = i;
	if (!n || pass == PASSES)
		return -ERANGE;
	search_shuffle(finals->search, order, n);
	for (size_t i = 0; i < n; i++) {
		double rate;
		int rc = search_round(finals->search, finals->list[order[i]].trial, &rate);

		if (rc)
			return rc;
		logs[i] = log(rate > 1 ? rate : 1);
	}
	for (size_t i = 0; i < n; i++)
		finals->list[order[i]].logs[pass] = logs[i];
	finals->passes++;
	return 0;
}

/* The trimmed mean of the log ratios of two finalists that have had all passes. */
static struct middle log_ratio(const struct finals *finals, size_t a, size_t b)
{
	double logs[PASSES];

	for (unsigned i = 0; i < finals->passes; i++)
		logs[i] = finals->list[a].logs[i] - finals->list[b].logs[i];
	return middle_of(logs, finals->passes);
}

/* Compares all with the fastest. Those that are out keep the ratio that excluded them. */
static void compare(struct finals *finals)
{
	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out && (finals->list[finals->fastest].out ||
					     log_ratio(finals, i, finals->fastest).mean > 0))
			finals->fastest = i;
	for (size_t i = 0; i < finals->n; i++) {
		struct finalist *finalist = &finals->list[i];
		struct middle middle;

		if (finalist->out)
			continue;
		middle = log_ratio(finals, i, finals->fastest);
		finalist->ratio = exp(middle.mean);
		/* The variance of a log ratio is that of two rounds. */
		finalist->doubt = half_width(&middle, 2 * finals->search->noise.variance,
					     finals->search->noise.freedom);
		if (i == finals->fastest)
			finalist->doubt = 0;
	}
}

/* The most preferred of those whose mean is within the tolerance of the best mean. */
static size_t smallest_equal(const struct finals *finals)
{
	const struct search *search = finals->search;
	size_t smallest = finals->fastest;

	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out && finals->list[i].ratio >= 1 - search->rules->tolerance &&
		    space_prefers(search->space, point_of(finals, i), point_of(finals, smallest)))
			smallest = i;
	return smallest;
}

/* Of those that are neither the fastest nor its smallest equal, the slowest leave for places. */
static void halve(struct finals *finals)
{
	double share = (search_share_spent(finals->search) - finals->from) / (1 - finals->from);
	size_t places = share < SHARE_HALF ? FINALISTS : share < SHARE_THREE ? FINALISTS / 2 : 3;
	size_t equal = smallest_equal(finals), n = 0;

	for (size_t i = 0; i < finals->n; i++)
		n += !finals->list[i].out;
	for (; n > places; n--) {
		struct finalist *slowest = NULL;

		for (size_t i = 0; i < finals->n; i++)
			if (!finals->list[i].out && i != finals->fastest && i != equal &&
			    (!slowest || finals->list[i].ratio < slowest->ratio))
				slowest = &finals->list[i];
		assert(slowest); /* there are three places at least */
		slowest->out = true;
	}
}

/*
 * Excludes those that can't be chosen: clearly slower ones, and of those that need more than the
 * smallest equal, ones that are clearly not faster by the tolerance. Returns the width of the
 * widest interval left.
 */
static double drop_losers(struct finals *finals)
{
	const struct search *search = finals->search;
	size_t equal = smallest_equal(finals);
	double width = 0;

	for (size_t i = 0; i < finals->n; i++) {
		struct finalist *finalist = &finals->list[i];
		bool larger = space_prefers(search->space, point_of(finals, equal),
					    point_of(finals, i));
		double least = 1 + (larger ? 1 : -1) * search->rules->tolerance;

		finalist->out |= !search_allowed(search, finalist->trial) ||
				 (i != finals->fastest && finals->passes >= PASSES_MIN &&
				  finalist->ratio * (1 + WIDER * finalist->doubt) < least);
	}
	if (!finals->list[finals->fastest].out)
		halve(finals);
	for (size_t i = 0; i < finals->n; i++)
		if (!finals->list[i].out)
			width = fmax(width, finals->list[i].doubt);
	return width;
}

static void conclude(struct finals *finals, struct choice *choice)
{
	struct search *search = finals->search;
	size_t chosen = choice->told_apart ? smallest_equal(finals) : finals->fastest;

	for (size_t i = 0; i < finals->n; i++) {
		const struct finalist *finalist = &finals->list[i];
		struct tune_trial *trial = &search->trials[finalist->trial];

		trial->finalist = true;
		trial->to_best = finalist->ratio;
		trial->to_best_half_width = finalist->ratio * finalist->doubt;
		trial->fate = finalist->ratio >= 1 - search->rules->tolerance ? TUNE_TIE
									      : TUNE_SLOWER;
	}
	choice->finalists = (unsigned)finals->n;
	choice->chosen = finals->list[chosen].trial;
	choice->fastest = finals->list[finals->fastest].trial;
}

int search_finals(struct search *search, struct choice *choice)
{
	struct finals finals = {.search = search, .from = search_share_spent(search)};
	size_t best = search_best(search), known;
	int rc = 0;

	search->phase = "finalists";
	choice->chosen = choice->fastest = best;
	choice->width = 1;
	do {
		known = finals.n;
		add_next(&finals, best, true);
		if (finals.n == known || finals.n > SURE_PLACES)
			add_next(&finals, best, false);
	} while (finals.n > known);
	while (!rc && !choice->told_apart) {
		rc = run_pass(&finals);
		if (rc)
			break;
		compare(&finals);
		choice->width = drop_losers(&finals);
		choice->told_apart = finals.passes >= PASSES_MIN &&
				     !finals.list[finals.fastest].out &&
				     choice->width <= search->rules->tolerance;
	}
	if (finals.passes)
		conclude(&finals, choice);
	if (!search_allowed(search, choice->chosen)) {
		choice->chosen = choice->fastest = search_best(search);
		choice->told_apart = false;
	}
	return rc == -ETIME || rc == -ERANGE ? 0 : rc;
}
