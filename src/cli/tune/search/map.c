/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of a page: bandwidth over block and depth for reads, writes and the mix, with the other
 * settings of the choice. Spends the rest of the budget: first the row and column of the choice,
 * then an ever finer grid. Points that the search has measured are not repeated.
 */
#include <errno.h>

#include "cli/tune/search/state.h"

static int cell(struct search *search, const struct tune_point *point,
		enum tune_objective objective)
{
	size_t known = search->n;
	long trial = search_trial(search, point, objective);
	int rc;

	if (trial < 0)
		return (int)trial;
	if (search->rounds[trial].n)
		return 0;
	if ((size_t)trial == known)
		search->trials[trial].fate = TUNE_ONLY_MAP;
	rc = search_round(search, (size_t)trial, NULL);
	/* Another cell can be cheaper and still fit the budget. */
	return rc == -ETIME ? 0 : rc;
}

/* Measures all objectives, the requested one first; a search for reads writes nothing. */
static int all_objectives(struct search *search, const struct tune_point *point)
{
	unsigned n = search->rules->objective == TUNE_READ ? 1 : TUNE_OBJECTIVES;
	int rc = 0;

	if (!space_has(search->space, point))
		return 0;
	for (unsigned i = 0; i < n && !rc; i++)
		rc = cell(search, point, (search->rules->objective + i) % TUNE_OBJECTIVES);
	return rc;
}

static int in_line(struct search *search, struct tune_point chosen, enum tune_axis axis)
{
	int rc = 0;

	for (unsigned i = 0; i < space_count(search->space, axis) && !rc; i++) {
		struct tune_point point = space_at(search->space, chosen, axis, i);

		rc = all_objectives(search, &point);
	}
	return rc;
}

/* Measures every n-th value of both axes. */
static int cells(struct search *search, struct tune_point point, unsigned every)
{
	const struct tune_space *space = search->space;
	int rc = 0;

	for (unsigned b = 0; b < space_count(space, AXIS_BLOCK); b += every)
		for (unsigned d = 0; d < space_count(space, AXIS_DEPTH) && !rc; d += every) {
			point = space_at(space, point, AXIS_BLOCK, b);
			point = space_at(space, point, AXIS_DEPTH, d);
			rc = all_objectives(search, &point);
		}
	return rc;
}

int search_map(struct search *search, struct tune_point chosen)
{
	int rc;

	search->phase = "map";
	rc = in_line(search, chosen, AXIS_DEPTH);
	if (!rc)
		rc = in_line(search, chosen, AXIS_BLOCK);
	for (unsigned every = 4; every && !rc; every /= 2)
		rc = cells(search, chosen, every);
	return rc;
}
