/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the points that may be chosen, without measuring all of them: all blocks at every second
 * depth, and then the neighbours of two points until there is no new one: of the fastest, which
 * leads uphill, and of the smallest that keeps up with it, which leads down to less in flight. The
 * other settings are tried there, one at a time.
 *
 * Points race: they take turns in rounds, in a random order in each pass, so a drive that slows
 * down favours none. Those that are clearly slower leave early.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/numbers.h"
#include "cli/tune/search/state.h"

/* Of all blocks and every second depth. */
#define RACE_MAX (TUNE_VALUES_MAX * (TUNE_VALUES_MAX / 2 + 1))
/* The required precision, as a relative half interval, and the least rounds of a point. */
#define DOUBT_ENOUGH 0.03
#define LEAST_ROUNDS 2u
/* A point has at most one in so many of the rounds that the budget has time for. */
#define ROUNDS_A_BUDGET 200u
/* The grid has points with at most this part of the bytes in flight. */
#define GRID_SHARE 4
/* Longer climbs follow noise. */
#define CLIMBS 24

struct race {
	size_t trials[RACE_MAX];
	size_t n;
};

/* Adds the point if the space has it and the race does not. */
static int enter(struct search *search, struct race *race, struct tune_point point)
{
	long trial;

	if (!space_has(search->space, &point))
		return 0;
	trial = search_trial(search, &point);
	if (trial < 0)
		return (int)trial;
	for (size_t i = 0; i < race->n; i++)
		if (race->trials[i] == (size_t)trial)
			return 0;
	assert(race->n < RACE_MAX);
	race->trials[race->n++] = (size_t)trial;
	return 0;
}

/* Clearly slower points leave, and those over the latency limit, but not by a single round. */
static void drop_losers(struct search *search, struct race *race)
{
	size_t best = search_best(search), kept = 0;
	double least = search_low(search, best) * (1 - search->rules->tolerance);

	for (size_t i = 0; i < race->n; i++) {
		size_t trial = race->trials[i];

		if (trial == best ||
		    (search_high(search, trial) >= least &&
		     (search_allowed(search, trial) || search->rounds[trial].n < LEAST_ROUNDS)))
			race->trials[kept++] = trial;
	}
	race->n = kept;
}

/* The most rounds of a point. */
static unsigned most_rounds(const struct search *search)
{
	uint64_t rounds = search->rules->budget_ns / (search->round_ns + 1) / ROUNDS_A_BUDGET;

	return rounds > LEAST_ROUNDS ? (unsigned)rounds : LEAST_ROUNDS;
}

/* Runs rounds in turn until each has LEAST_ROUNDS and is known well enough, or has had `most`. */
static int run_race(struct search *search, struct race *race, unsigned most)
{
	for (bool measured = true; measured && race->n; drop_losers(search, race)) {
		measured = false;
		search_shuffle(search, race->trials, race->n);
		for (size_t i = 0; i < race->n; i++) {
			unsigned n = search->rounds[race->trials[i]].n;
			int rc = 0;

			if (n < LEAST_ROUNDS ||
			    (n < most && search_doubt(search, race->trials[i]) > DOUBT_ENOUGH)) {
				rc = search_round(search, race->trials[i], NULL);
				measured = true;
			}
			if (rc)
				return rc;
		}
	}
	return 0;
}

static int look_around(struct search *search)
{
	const struct tune_space *space = search->space;
	unsigned depths = space_count(space, AXIS_DEPTH);
	struct race race = {.n = 0};
	int rc = 0;

	for (unsigned b = 0; b < space_count(space, AXIS_BLOCK); b++)
		for (unsigned d = 0; d < depths && !rc; d += d + 2 < depths ? 2 : 1) {
			struct tune_point point = space_at(space, space_first(space), AXIS_BLOCK,
							   b);

			point = space_at(space, point, AXIS_DEPTH, d);
			/* A round takes long to fill deep queues of large blocks; climb there. */
			if (!d || (uint64_t)point.block_size * point.queue_depth <=
					  space->in_flight_max / GRID_SHARE)
				rc = enter(search, &race, point);
		}
	return rc ? rc : run_race(search, &race, LEAST_ROUNDS);
}

/*
 * Enters the point and its neighbours: a step on either axis, on both with the same bytes in
 * flight, and a smaller depth with a block that makes up for it.
 */
static int enter_near(struct search *search, struct race *race, struct tune_point point)
{
	static const int steps[][2] = {{0, 0}, {-1, 0}, {1, 0},	 {0, -1},
				       {0, 1}, {-1, 1}, {1, -1}, {2, -1}};
	const struct tune_space *space = search->space;
	int b = (int)space_index(space, &point, AXIS_BLOCK);
	int d = (int)space_index(space, &point, AXIS_DEPTH);
	int rc = 0;

	for (size_t i = 0; i < COUNT_OF(steps) && !rc; i++) {
		int block = b + steps[i][0], depth = d + steps[i][1];

		if (block < 0 || block >= (int)space_count(space, AXIS_BLOCK) || depth < 0 ||
		    depth >= (int)space_count(space, AXIS_DEPTH))
			continue;
		point = space_at(space, point, AXIS_BLOCK, (unsigned)block);
		rc = enter(search, race, space_at(space, point, AXIS_DEPTH, (unsigned)depth));
	}
	return rc;
}

static int enter_settings(struct search *search, struct race *race, struct tune_point point)
{
	const struct tune_space *space = search->space;
	struct tune_point single = point, drained = point;
	int rc = 0;

	for (unsigned i = 0; i < space_count(space, AXIS_WORKERS) && !rc; i++)
		rc = enter(search, race, space_at(space, point, AXIS_WORKERS, i));
	single.single_submit = !point.single_submit;
	drained.overlap_events = !point.overlap_events;
	if (space->single_submits && !rc)
		rc = enter(search, race, single);
	if (space->overlap_events && !rc)
		rc = enter(search, race, drained);
	for (unsigned i = 0; i < space->nioengines && !rc; i++) {
		point.ioengine = space->ioengines[i];
		rc = enter(search, race, point);
	}
	return rc;
}

/* The most preferred trial that keeps up with `best`, possibly `best` itself. */
static size_t smallest_beside(const struct search *search, size_t best)
{
	size_t smallest = best;

	for (size_t i = 0; i < search->n; i++)
		if (search_keeps_up(search, i, best) &&
		    space_prefers(search->space, &search->trials[i].point,
				  &search->trials[smallest].point))
			smallest = i;
	return smallest;
}

/* Stays with `top` while it is allowed and no point is faster by more than noise can explain. */
static size_t climb(const struct search *search, size_t top)
{
	size_t best = search_best(search);
	double luck = (search_doubt(search, best) + search_doubt(search, top)) / 3;
	double least = 1 + fmax(luck, search->rules->tolerance / 2);

	return search_allowed(search, top) && search->rounds[best].rate.mean <=
						      search->rounds[top].rate.mean * least
		       ? top
		       : best;
}

int search_explore(struct search *search, bool *complete)
{
	size_t top, small, known;
	int rc;

	search->phase = "looking around";
	rc = look_around(search);
	top = search_best(search);
	for (int i = 0; i < CLIMBS && !rc && !*complete; i++) {
		struct race race = {.n = 0};

		search->phase = "closing in";
		known = search->n;
		top = climb(search, top);
		small = smallest_beside(search, top);
		rc = enter_near(search, &race, search->trials[top].point);
		rc = rc ? rc : enter_near(search, &race, search->trials[small].point);
		if (search->n == known && !rc) {
			rc = enter_settings(search, &race, search->trials[top].point);
			rc = rc ? rc : enter_settings(search, &race, search->trials[small].point);
		}
		*complete = !rc && search->n == known;
		rc = rc ? rc : run_race(search, &race, most_rounds(search));
	}
	return rc;
}
