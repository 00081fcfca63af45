/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A race: points take turns in rounds, and those that are clearly slower leave early, so that time
 * goes to possible winners. The order is random in each pass, so a drive that slows down favours
 * none.
 */
#include <assert.h>
#include <errno.h>

#include "cli/tune/search/state.h"

/* A single round can contain a stall, but not one that explains this multiple of the limit. */
#define CLEARLY_OVER 2

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

static bool is_clearly_over(const struct search *search, size_t trial)
{
	const struct rounds *rounds = &search->rounds[trial];

	if (!rounds->n || search_allowed(search, trial))
		return false;
	return rounds->n > 1 ||
	       search_p99(search, trial) > CLEARLY_OVER * search->rules->latency_max_ns;
}

static void drop_losers(struct search *search, struct race *race)
{
	double least = search_low(search, search_best(search)) * (1 - search->rules->tolerance);
	size_t best = search_best(search), kept = 0;

	for (size_t i = 0; i < race->n; i++) {
		size_t trial = race->trials[i];

		if (trial == best ||
		    (search_high(search, trial) >= least && !is_clearly_over(search, trial)))
			race->trials[kept++] = trial;
	}
	race->n = kept;
}

static bool enough(const struct search *search, size_t trial, double doubt, unsigned least)
{
	unsigned n = search->rounds[trial].n;

	return n >= search->rounds_each || (n >= least && search_doubt(search, trial) <= doubt);
}

/* Runs one round of each trial that is not precise enough; *measured: there was one. */
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
		/* Another trial can be cheaper and still fit the budget. */
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
