/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search from its beginning to the choice: how the time is shared, the sweep over the whole
 * space that may take its place, and what became of each point. It knows nothing of drives.
 */
#include "tune_search.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A round is a small part of the budget, in bounds in which a drive can be measured. */
#define ROUNDS_IN_BUDGET 600u
#define ROUND_NS_MIN	 20000000u
#define ROUND_NS_MAX	 250000000u
/* Shares of the budget after which the finalists begin, and end where there is to be a map. */
#define EXPLORE_SHARE 0.55
#define SWEEP_SHARE   0.65
#define FINALS_SHARE  0.75
/* What a search looks at is about so many points; a round takes half as long again as is counted.
 */
#define EXPLORED_POINTS 60
#define ROUND_OVERHEAD	1.5
#define ROUNDS_LEAST	3u
/* A sweep knows each point as a search knows its leaders. */
#define SWEEP_ROUNDS_MIN 3u
#define SWEEP_ROUNDS_MAX ROUNDS_KEPT
#define SWEEP_DOUBT_MIN	 0.005

/* Of a round, until rounds tell. */
#define NOISE_ASSUMED 0.03

struct choice {
	size_t chosen, fastest;
	bool certain;
};

static uint64_t round_length(uint64_t budget_ns)
{
	uint64_t ns = budget_ns / ROUNDS_IN_BUDGET;

	if (ns < ROUND_NS_MIN)
		ns = budget_ns / 4 < ROUND_NS_MIN ? budget_ns / 4 : ROUND_NS_MIN;
	return ns < ROUND_NS_MAX ? ns : ROUND_NS_MAX;
}

static uint64_t until(const struct search *search, double share)
{
	return search->started_ns + (uint64_t)((double)search->rules->budget_ns * share);
}

/* How often a point may be measured while others have to be found yet. */
static unsigned rounds_each(const struct search *search)
{
	double rounds = EXPLORE_SHARE * (double)search->rules->budget_ns /
			(ROUND_OVERHEAD * (double)search->round_ns + 1) / EXPLORED_POINTS;

	return rounds > ROUNDS_LEAST ? (unsigned)rounds : ROUNDS_LEAST;
}

static size_t space_points(const struct tune_space *space)
{
	struct tune_point point = space_first(space);
	size_t n = 0;

	do
		n += space_has(space, &point);
	while (space_next(space, &point));
	return n;
}

/* ---- The sweep ---- */

static bool swept(const struct search *search, size_t trial, double doubt)
{
	unsigned n = search->rounds[trial].n;

	return n >= SWEEP_ROUNDS_MAX ||
	       (n >= SWEEP_ROUNDS_MIN && search_doubt(search, trial) <= doubt);
}

static int sweep_pass(struct search *search, size_t *order, size_t n, double doubt, bool *measured)
{
	*measured = false;
	search_shuffle(search, order, n);
	for (size_t i = 0; i < n; i++) {
		int rc;

		if (swept(search, order[i], doubt))
			continue;
		rc = search_round(search, order[i], NULL);
		if (rc && rc != -ETIME)
			return rc;
		*measured |= !rc;
	}
	return 0;
}

static int enter_all(struct search *search)
{
	struct tune_point point = space_first(search->space);

	do
		if (space_has(search->space, &point) &&
		    search_trial(search, &point, search->rules->objective) < 0)
			return -ENOMEM;
	while (space_next(search->space, &point));
	return 0;
}

static int sweep(struct search *search)
{
	double doubt = search->rules->tolerance > SWEEP_DOUBT_MIN ? search->rules->tolerance
								  : SWEEP_DOUBT_MIN;
	bool measured = true;
	int rc = enter_all(search);
	size_t *order;

	if (rc)
		return rc;
	assert(search->n);
	order = malloc(search->n * sizeof(*order));
	if (!order)
		return search_no_memory(search);
	for (size_t i = 0; i < search->n; i++)
		order[i] = i;
	search->phase = "sweep";
	while (measured && !rc)
		rc = sweep_pass(search, order, search->n, doubt, &measured);
	free(order);
	return rc;
}

/* ---- The search ---- */

static int look_and_choose(struct search *search, struct choice *choice)
{
	int rc;

	search->until_ns = until(search, search->rules->exhaustive ? SWEEP_SHARE : EXPLORE_SHARE);
	search->rounds_each = rounds_each(search);
	rc = search->rules->exhaustive ? sweep(search) : search_explore(search);
	if (rc && rc != -ETIME)
		return rc;
	/* The first round of all may take any share of what there is. */
	search->until_ns = until(search, search->rules->map ? FINALS_SHARE : 1);
	if (search_best(search) == search->n)
		return -ETIME;
	return search_finals(search, &choice->chosen, &choice->fastest, &choice->certain);
}

/* 0 or -ETIME: there is a choice if anything was measured. */
static int run(struct search *search, struct choice *choice)
{
	int rc;

	search->until_ns = until(search, 1);
	rc = look_and_choose(search, choice);
	if (rc && rc != -ETIME)
		return rc;
	if (search_best(search) == search->n)
		return -ETIME;
	choice->certain &= !search->cut_short;
	search->until_ns = until(search, 1);
	return search->rules->map ? search_map(search, search->trials[choice->chosen].point) : 0;
}

/* ---- The outcome ---- */

/* What was to be measured and never was leaves the list. */
static void leave_out_unmeasured(struct search *search, struct choice *choice)
{
	size_t kept = 0;

	for (size_t i = 0; i < search->n; i++) {
		if (!search->rounds[i].n)
			continue;
		if (choice->chosen == i)
			choice->chosen = kept;
		if (choice->fastest == i)
			choice->fastest = kept;
		search->trials[kept] = search->trials[i];
		search->rounds[kept++] = search->rounds[i];
	}
	search->n = kept;
}

/* Finalists have theirs; of the others, some seem as fast: how many of these ask for less. */
static size_t judge(struct search *search, const struct choice *choice)
{
	size_t open = 0;
	double enough = search->trials[choice->fastest].mean * (1 - search->rules->tolerance);
	const struct tune_point *chosen = &search->trials[choice->chosen].point;

	for (size_t i = 0; i < search->n; i++) {
		struct tune_trial *trial = &search->trials[i];

		if (trial->objective == search->rules->objective && !trial->finalist &&
		    trial->fate == TUNE_DROPPED && trial->mean >= enough)
			trial->fate = space_prefers(search->space, &trial->point, chosen)
					      ? TUNE_OPEN
					      : TUNE_TIE;
		open += trial->fate == TUNE_OPEN;
	}
	search->trials[choice->chosen].fate = TUNE_CHOSEN;
	return open;
}

static size_t say_point(const struct search *search, char *text, size_t nbytes,
			const struct tune_point *point)
{
	bool other = point->ioengine != search->space->ioengines[0];

	return (size_t)snprintf(
		text, nbytes, "%s%s%s%sblock_size %u, queue_depth %u and %u worker%s",
		other ? nvs_ioengine_name(point->ioengine) : "", other ? ", " : "",
		point->single_submit ? "single_submit, " : "",
		point->overlap_events ? "" : "no overlap_events, ", point->block_size,
		point->queue_depth, point->thread_count, point->thread_count == 1 ? "" : "s");
}

/* What the choice is beside the fastest, and why it is preferred. */
static size_t say_beside(const struct search *search, const struct tune_outcome *outcome,
			 char *text, size_t nbytes)
{
	const struct tune_trial *chosen = outcome->chosen, *fastest = outcome->fastest;
	double ratio = chosen->finalist ? chosen->to_best : chosen->mean / fastest->mean;
	size_t used = (size_t)snprintf(text, nbytes, ": %s%.1f %% of the fastest (",
				       chosen->finalist ? "by rounds in turn " : "", 100 * ratio);

	used += say_point(search, text + used, nbytes - used, &fastest->point);
	return used +
	       (size_t)snprintf(text + used, nbytes - used, "), %s.",
				ratio < 1 - search->rules->tolerance
					? "which may be chance, and a setting leaves its default "
					  "only for more than that"
				: space_as_deep(&chosen->point, &fastest->point)
					? "whose settings are not the defaults"
					: "which asks for more");
}

static size_t say_choice(const struct search *search, const struct tune_outcome *outcome,
			 char *text, size_t nbytes)
{
	const struct tune_trial *chosen = outcome->chosen;
	size_t used = say_point(search, text, nbytes, &chosen->point), finalists = 0;

	used += (size_t)snprintf(text + used, nbytes - used, " move %.3g GB/s", chosen->mean / 1e9);
	if (chosen != outcome->fastest)
		return used + say_beside(search, outcome, text + used, nbytes - used);
	for (size_t i = 0; i < outcome->n; i++)
		finalists += outcome->trials[i].finalist;
	if (finalists < 2)
		return used + (size_t)snprintf(
				      text + used, nbytes - used, "%s",
				      finalists ? ", and what else was measured is clearly slower."
						: ", the most there was time to see.");
	return used + (size_t)snprintf(text + used, nbytes - used,
				       ", the fastest of the %zu finalists; of these nothing that "
				       "asks for less came within %.3g %% of it.",
				       finalists, 100 * search->rules->tolerance);
}

static void say_why(const struct search *search, size_t open, bool told_apart,
		    struct tune_outcome *outcome)
{
	char *text = outcome->why;
	size_t nbytes = sizeof(outcome->why), measured = 0;
	size_t used = say_choice(search, outcome, text, nbytes);

	for (size_t i = 0; i < search->n; i++)
		measured += search->trials[i].objective == search->rules->objective &&
			    search->trials[i].fate != TUNE_ONLY_MAP;
	assert(used < nbytes);
	used += (size_t)snprintf(text + used, nbytes - used,
				 " %zu of the %zu combinations were measured.", measured,
				 space_points(search->space));
	if (open)
		used += (size_t)snprintf(text + used, nbytes - used,
					 " Of these %zu that ask%s for less may be as fast, and "
					 "were not measured against it.",
					 open, open == 1 ? "s" : "");
	if (!told_apart)
		snprintf(text + used, nbytes - used, "%s",
			 search->rules->exhaustive
				 ? " Time ran out before all of them were known for sure."
				 : " Time ran out before the best of them were told apart for "
				   "sure.");
}

static void conclude(struct search *search, struct choice *choice, int rc,
		     struct tune_outcome *outcome)
{
	size_t open;

	search_estimate(search);
	leave_out_unmeasured(search, choice);
	*outcome = (struct tune_outcome){
		.trials = search->trials,
		.n = search->n,
		.spent_ns = search_now(search) - search->started_ns,
	};
	if (rc)
		return;
	open = judge(search, choice);
	outcome->chosen = &search->trials[choice->chosen];
	outcome->fastest = &search->trials[choice->fastest];
	outcome->certain = choice->certain && !open;
	say_why(search, open, choice->certain, outcome);
}

static int no_time(const struct search *search, struct nvs_error *error)
{
	if (error) {
		error->code = -ETIME;
		snprintf(error->text, sizeof(error->text),
			 "%.3g s are not enough for a single measurement",
			 (double)search->rules->budget_ns / 1e9);
	}
	return -ETIME;
}

int tune_search(const struct tune_space *space, const struct tune_rules *rules,
		const struct tune_meter *meter, struct tune_outcome *outcome,
		struct nvs_error *error)
{
	struct search search = {
		.space = space,
		.rules = rules,
		.meter = meter,
		.error = error,
		.noise = {.variance = NOISE_ASSUMED * NOISE_ASSUMED, .freedom = 2},
		.random = rules->seed,
		.started_ns = meter->now_ns(meter->arg),
		.round_ns = round_length(rules->budget_ns),
	};
	struct choice choice = {0};
	struct tune_point smallest = space_first(space);
	int rc;

	assert(space_has(space, &smallest));
	rc = rules->budget_ns ? run(&search, &choice) : -ETIME;

	if (rc == -ETIME)
		no_time(&search, error);
	conclude(&search, &choice, rc, outcome);
	free(search.rounds);
	return rc;
}

void tune_outcome_free(struct tune_outcome *outcome)
{
	free(outcome->trials);
	*outcome = (struct tune_outcome){0};
}
