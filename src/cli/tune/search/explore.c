/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the points that may be chosen, without measuring all of them: a coarse grid of blocks and
 * depths, the row and column of its fastest point, uphill from there, down again to what keeps up
 * with less in flight, and then the other settings one at a time. If one of those is faster, again
 * from there.
 */
#include "cli/tune/search/state.h"

/*
 * Required precision, as relative half intervals: in the coarse grid, and between leading points.
 */
#define DOUBT_COARSE 0.1
#define DOUBT_FINE   0.03
#define LEAST_COARSE 1u
#define LEAST_FINE   2u
/* Longer climbs follow noise. */
#define CLIMBS	8
#define RETURNS 3
#define SETTLED 8
/* Rounds of the point with the lowest latency before the latency limit counts as unreachable. */
#define LEAST_OVER 5u

/* Returns a copy, because trials move when others are added. */
static struct tune_point point_of(const struct search *search, size_t trial)
{
	return search->trials[trial].point;
}

/* By more than noise can explain between points of equal speed. */
static bool clearly_faster(const struct search *search, size_t a, size_t b)
{
	double luck = (search_doubt(search, a) + search_doubt(search, b)) / 3;
	double least = search->rules->tolerance / 2;

	return search->rounds[a].rate.mean >
	       search->rounds[b].rate.mean * (1 + (luck > least ? luck : least));
}

/* ---- Blocks and depths ---- */

static bool is_coarse(const struct tune_space *space, enum tune_axis axis, unsigned index)
{
	return index % 2 == 0 || index + 1 == space_count(space, axis);
}

/* A first round can be slow by chance, so measure the point with the lowest latency again. */
static int look_at_latency(struct search *search)
{
	size_t best = search_best(search);
	struct race race = {.trials = {best}, .n = best < search->n};

	return search_allowed(search, best) ? 0 : race_run(search, &race, 0, LEAST_OVER);
}

static int look_around(struct search *search)
{
	const struct tune_space *space = search->space;
	struct tune_point point = space_first(space);
	struct race race = {.n = 0};
	int rc = 0;

	search->phase = "looking around";
	for (unsigned b = 0; b < space_count(space, AXIS_BLOCK); b++)
		for (unsigned d = 0; d < space_count(space, AXIS_DEPTH) && !rc; d++) {
			point = space_at(space, point, AXIS_BLOCK, b);
			point = space_at(space, point, AXIS_DEPTH, d);
			if (is_coarse(space, AXIS_BLOCK, b) && is_coarse(space, AXIS_DEPTH, d))
				rc = race_enter(search, &race, &point);
		}
	rc = rc ? rc : race_run(search, &race, DOUBT_COARSE, LEAST_COARSE);
	return rc ? rc : look_at_latency(search);
}

/* Enters a point's neighbours: a step on either axis, and on both with the same bytes in flight. */
static int enter_neighbours(struct search *search, struct race *race, struct tune_point point)
{
	static const int steps[][2] = {{0, 0}, {-1, 0}, {1, 0}, {0, -1}, {0, 1}, {-1, 1}, {1, -1}};
	int rc = 0;

	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps) && !rc; i++) {
		struct tune_point beside = point;
		bool is_there = true;

		/* Down first: the point in between can exceed the limit of bytes in flight. */
		for (int by = -1; by <= 1 && is_there; by += 2) {
			if (steps[i][0] == by)
				is_there = space_step(search->space, &beside, AXIS_BLOCK, by);
			if (steps[i][1] == by && is_there)
				is_there = space_step(search->space, &beside, AXIS_DEPTH, by);
		}
		if (is_there)
			rc = race_enter(search, race, &beside);
	}
	return rc;
}

/*
 * Enters all blocks at its depth and all depths of its block, because there can be several peaks: a
 * drive that splits long I/Os is slower with blocks on both sides of the best.
 */
static int enter_cross(struct search *search, struct race *race, struct tune_point point)
{
	int rc = 0;

	for (int axis = AXIS_BLOCK; axis <= AXIS_DEPTH; axis++)
		for (unsigned i = 0; i < space_count(search->space, axis) && !rc; i++) {
			struct tune_point at = space_at(search->space, point, axis, i);

			rc = race_enter(search, race, &at);
		}
	return rc;
}

static int climb(struct search *search)
{
	int rc = 0;

	search->phase = "closing in";
	for (int i = 0; i < CLIMBS && !rc; i++) {
		size_t from = search_best(search);
		struct race race = {.n = 0};

		rc = enter_neighbours(search, &race, point_of(search, from));
		if (!i && !rc)
			rc = enter_cross(search, &race, point_of(search, from));
		if (!rc)
			rc = race_run(search, &race, DOUBT_FINE, LEAST_FINE);
		if (!rc && search_allowed(search, from) &&
		    !clearly_faster(search, search_best(search), from))
			break;
	}
	return rc;
}

/* Races points against the best; *moved: one that keeps up is preferred to `from`. */
static int compare(struct search *search, struct race *race, size_t *from, bool *moved)
{
	struct tune_point fastest = point_of(search, search_best(search));
	int rc = race_enter(search, race, &fastest);
	size_t preferred;

	if (!rc)
		rc = race_run(search, race, DOUBT_FINE, LEAST_FINE);
	preferred = search_preferred(search, search_best(search));
	*moved = !rc && preferred != *from &&
		 space_prefers(search->space, &search->trials[preferred].point,
			       &search->trials[*from].point);
	*from = preferred;
	return rc;
}

/*
 * Tries the next smaller depth, with this block and all larger ones, which can compensate for it.
 */
static int down_a_depth(struct search *search, size_t *from, bool *moved)
{
	struct tune_point point = point_of(search, *from);
	struct race race = {.n = 0};
	int rc = 0;

	*moved = false;
	if (!space_step(search->space, &point, AXIS_DEPTH, -1))
		return 0;
	do
		rc = race_enter(search, &race, &point);
	while (!rc && space_step(search->space, &point, AXIS_BLOCK, 1));
	return rc ? rc : compare(search, &race, from, moved);
}

static int down_a_block(struct search *search, size_t *from, bool *moved)
{
	struct tune_point point = point_of(search, *from);
	struct race race = {.n = 0};
	int rc;

	*moved = false;
	if (!space_step(search->space, &point, AXIS_BLOCK, -1))
		return 0;
	rc = race_enter(search, &race, &point);
	return rc ? rc : compare(search, &race, from, moved);
}

/* Measures the preferred point until it is as precise as the best, or no longer preferred. */
static int measure_preferred(struct search *search, size_t *preferred)
{
	int rc = 0;

	for (int i = 0; i < SETTLED && !rc; i++) {
		struct race race = {.n = 0};
		struct tune_point point;

		*preferred = search_preferred(search, search_best(search));
		if (search->rounds[*preferred].n >= LEAST_FINE &&
		    search_doubt(search, *preferred) <= DOUBT_FINE)
			break;
		point = point_of(search, *preferred);
		rc = race_enter(search, &race, &point);
		rc = rc ? rc : race_run(search, &race, DOUBT_FINE, LEAST_FINE);
	}
	return rc;
}

static int walk_down(struct search *search)
{
	size_t from = 0;
	bool moved = true;
	int rc = measure_preferred(search, &from);

	while (moved && !rc)
		rc = down_a_depth(search, &from, &moved);
	moved = true;
	while (moved && !rc)
		rc = down_a_block(search, &from, &moved);
	return rc;
}

/* ---- The other settings ---- */

static int enter_variants(struct search *search, struct race *race, struct tune_point point)
{
	const struct tune_space *space = search->space;
	struct tune_point other;
	int rc = race_enter(search, race, &point);

	for (unsigned i = 0; i < space_count(space, AXIS_WORKERS) && !rc; i++) {
		other = space_at(space, point, AXIS_WORKERS, i);
		rc = race_enter(search, race, &other);
	}
	for (unsigned i = 0; i < space->nioengines && !rc; i++) {
		other = point;
		other.ioengine = space->ioengines[i];
		rc = race_enter(search, race, &other);
	}
	other = point;
	other.single_submit = !other.single_submit;
	if (space->single_submits && !rc)
		rc = race_enter(search, race, &other);
	other = point;
	other.overlap_events = !other.overlap_events;
	if (space->overlap_events && !rc)
		rc = race_enter(search, race, &other);
	return rc;
}

/* Around the fastest point and around the preferred one; *moved: one of these is faster. */
static int settings(struct search *search, bool *moved)
{
	size_t best = search_best(search);
	struct race race = {.n = 0};
	int rc;

	search->phase = "settings";
	rc = enter_variants(search, &race, point_of(search, best));
	if (!rc)
		rc = enter_variants(search, &race,
				    point_of(search, search_preferred(search, best)));
	if (!rc)
		rc = race_run(search, &race, DOUBT_FINE, LEAST_FINE);
	*moved = !rc && clearly_faster(search, search_best(search), best);
	return rc;
}

int search_explore(struct search *search)
{
	bool moved = true;
	int rc = look_around(search);

	for (int i = 0; i < RETURNS && moved && !rc; i++) {
		rc = climb(search);
		if (!rc)
			rc = walk_down(search);
		search->explored |= !rc;
		if (!rc)
			rc = settings(search, &moved);
	}
	return rc;
}
