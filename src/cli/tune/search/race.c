/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A race: points take turns in rounds, and what is clearly slower leaves early, so that time goes
 * to those that may yet win. An order of chance in each pass keeps a drive that gets slower from
 * favouring anyone.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tune_search.h"

int race_enter(struct search *search, struct race *race, const struct tune_point *point)
{
	long trial;

	if (!space_has(search->space, point))
		return 0;
	trial = search_trial(search, point, search->rules->objective);
	if (trial < 0)
		return (int)trial;
	for (size_t i = 0; i < race->n; i++)
		if (race->trials[i] == (size_t)trial)
			return 0;
	assert(race->n < RACE_MAX);
	race->trials[race->n++] = (size_t)trial;
	return 0;
}

/* The least that the fastest of all is good for. */
static double to_beat(const struct search *search)
{
	return search_low(search, search_best(search)) * (1 - search->rules->tolerance);
}

static void drop_losers(struct search *search, struct race *race)
{
	double least = to_beat(search);
	size_t kept = 0;

	for (size_t i = 0; i < race->n; i++) {
		size_t trial = race->trials[i];

		if (search_high(search, trial) >= least)
			race->trials[kept++] = trial;
	}
	race->n = kept;
}

static bool enough(const struct search *search, size_t trial, double doubt, unsigned least)
{
	unsigned n = search->rounds[trial].n;

	return n >= search->rounds_each || (n >= least && search_doubt(search, trial) <= doubt);
}

/* One round of each that is not known well enough; *measured: there was one. */
static int run_pass(struct search *search, struct race *race, double doubt, unsigned least,
		    bool *measured)
{
	int rc = 0;

	*measured = false;
	search_shuffle(search, race->trials, race->n);
	for (size_t i = 0; i < race->n; i++) {
		int this_rc;

		if (enough(search, race->trials[i], doubt, least))
			continue;
		this_rc = search_round(search, race->trials[i], NULL);
		if (this_rc && this_rc != -ETIME)
			return this_rc;
		/* There may be time for another that takes less. */
		*measured |= !this_rc;
		rc = this_rc ? this_rc : rc;
	}
	return *measured ? 0 : rc;
}

int race_run(struct search *search, struct race *race, double doubt, unsigned least)
{
	bool measured = true;
	int rc = 0;

	while (measured && race->n && !rc) {
		rc = run_pass(search, race, doubt, least, &measured);
		if (!rc)
			drop_losers(search, race);
	}
	return rc;
}
