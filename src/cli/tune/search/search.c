/* SPDX-License-Identifier: Apache-2.0 */
/* The search from begin to choice: how its phases share the budget. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/tune/search/state.h"

/* A round is a small part of the budget, within the limits of a sensible measurement. */
#define ROUNDS_IN_BUDGET 600u
#define ROUND_NS_MIN	 20000000u
#define ROUND_NS_MAX	 250000000u
/* Shares of the budget after which exploring ends, and the finals if a map follows. */
#define EXPLORE_SHARE 0.55
#define FINALS_SHARE  0.75
/* The usual number of points explored; a round takes half as long again as its measurement. */
#define EXPLORED_POINTS 60
#define ROUND_OVERHEAD	1.5
#define ROUNDS_LEAST	3u
/* Relative standard deviation of a round until it is known from measurements. */
#define NOISE_ASSUMED 0.03

static uint64_t round_length(uint64_t budget_ns)
{
	uint64_t ns = budget_ns / ROUNDS_IN_BUDGET;

	if (ns < ROUND_NS_MIN)
		ns = budget_ns / 4 < ROUND_NS_MIN ? budget_ns / 4 : ROUND_NS_MIN;
	return ns < ROUND_NS_MAX ? ns : ROUND_NS_MAX;
}

static struct cost share_of_budget(const struct search *search, double share)
{
	return (struct cost){
		.ns = (uint64_t)((double)search->rules->budget_ns * share),
		.written = share < 1 ? (uint64_t)((double)search->rules->writes_max * share)
				     : search->rules->writes_max,
	};
}

/* The maximum rounds of a point while others are still unexplored. */
static unsigned rounds_each(const struct search *search)
{
	double rounds = EXPLORE_SHARE * (double)search->rules->budget_ns /
			(ROUND_OVERHEAD * (double)search->round_ns + 1) / EXPLORED_POINTS;

	return rounds > ROUNDS_LEAST ? (unsigned)rounds : ROUNDS_LEAST;
}

static int fail(const struct search *search, int rc, const char *text)
{
	if (search->error) {
		*search->error = (struct nvs_error){.size = sizeof(*search->error), .code = rc};
		snprintf(search->error->text, sizeof(search->error->text), "%s", text);
	}
	return rc;
}

static int no_room_for_a_round(const struct search *search)
{
	char text[128];

	if (search->out_of_writes && !search->out_of_time)
		snprintf(text, sizeof(text),
			 "%.0f MiB of writes are not enough for a single measurement",
			 (double)search->rules->writes_max / (double)(1 << 20));
	else
		snprintf(text, sizeof(text), "%.3g s are not enough for a single measurement",
			 (double)search->rules->budget_ns / 1e9);
	return fail(search, -ETIME, text);
}

/* The error names the lowest latency found. */
static int none_allowed(const struct search *search)
{
	size_t lowest = search_best(search);
	const struct tune_point *point = &search->trials[lowest].point;
	char text[256];

	snprintf(text, sizeof(text),
		 "nothing that was measured completes 99 %% of its I/Os within %.4g ms: the lowest "
		 "99th percentile is %.4g ms, with block_size %u, queue_depth %u and %u worker%s",
		 (double)search->rules->latency_max_ns / 1e6,
		 (double)search_p99(search, lowest) / 1e6, point->block_size, point->queue_depth,
		 point->thread_count, plural(point->thread_count));
	return fail(search, -ERANGE, text);
}

/* -ETIME in a phase means that its share of the budget is spent; the search continues. */
static int run(struct search *search, struct choice *choice)
{
	int rc;

	search->until = share_of_budget(search, EXPLORE_SHARE);
	search->rounds_each = rounds_each(search);
	rc = search_explore(search);
	if (rc && rc != -ETIME)
		return rc;
	if (search_best(search) == search->n)
		return no_room_for_a_round(search);
	search->until = share_of_budget(search, search->rules->map ? FINALS_SHARE : 1);
	rc = search_finals(search, choice);
	choice->told_apart &= search->explored;
	if (rc == -ERANGE)
		return none_allowed(search);
	if (rc && rc != -ETIME)
		return rc;
	if (!search->rules->map)
		return 0;
	search->until = share_of_budget(search, 1);
	return search_map(search, search->trials[choice->chosen].point);
}

/* Removes trials without a round. */
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
		.started = {meter->now_ns(meter->arg), meter->written(meter->arg)},
		.round_ns = round_length(rules->budget_ns),
	};
	struct choice choice = {0};
	struct tune_point smallest = space_first(space);
	int rc;

	assert(space_has(space, &smallest));
	rc = run(&search, &choice);
	search_estimate(&search);
	leave_out_unmeasured(&search, &choice);
	*outcome = (struct tune_outcome){
		.trials = search.trials,
		.n = search.n,
		.spent_ns = search_spent(&search).ns,
	};
	if (!rc)
		search_judge(&search, &choice, outcome);
	free(search.rounds);
	return rc;
}

void tune_outcome_free(struct tune_outcome *outcome)
{
	free(outcome->trials);
	*outcome = (struct tune_outcome){0};
}
