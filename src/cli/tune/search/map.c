/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of a report: bandwidth over block and depth for reads, writes and the mix, at the other
 * settings of the choice. Takes what time there is: what is in line with the choice first, then
 * coarse cells. What the search has measured already stays.
 */
#include <errno.h>

#include "tune_search.h"

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
	/* There may be time for another that takes less. */
	return rc == -ETIME ? 0 : rc;
}

/* In all objectives, that which was tuned for first. */
static int all_objectives(struct search *search, const struct tune_point *point)
{
	int rc = 0;

	if (!space_has(search->space, point))
		return 0;
	for (unsigned i = 0; i < TUNE_OBJECTIVES && !rc; i++)
		rc = cell(search, point, (search->rules->objective + i) % TUNE_OBJECTIVES);
	return rc;
}

/* The curve over depth is drawn of the choice's blocks, and is what a reader looks at first. */
static int in_line(struct search *search, struct tune_point chosen, enum tune_axis axis)
{
	int rc = 0;

	for (unsigned i = 0; i < space_count(search->space, axis) && !rc; i++) {
		struct tune_point point = space_at(search->space, chosen, axis, i);

		rc = all_objectives(search, &point);
	}
	return rc;
}

/* Every so manieth value of both, in all objectives. */
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
