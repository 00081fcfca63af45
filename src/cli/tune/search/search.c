/* SPDX-License-Identifier: Apache-2.0 */
/* The search from begin to choice: how its phases share the budget, and the reason of the choice. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/tune/search/state.h"

/* A round is a small part of the budget, within the limits of a sensible measurement. */
#define ROUNDS_IN_BUDGET 600u
#define ROUND_NS_MIN	 20000000u
#define ROUND_NS_MAX	 250000000u
/* Share of the budget after which exploring ends. */
#define EXPLORE_SHARE 0.55
#define POINT_TEXT    160
/* Relative standard deviation of a round until it is known from measurements. */
#define NOISE_ASSUMED 0.03

static uint64_t round_length(uint64_t budget_ns)
{
	uint64_t ns = budget_ns / ROUNDS_IN_BUDGET;

	if (ns < ROUND_NS_MIN)
		ns = budget_ns / 4 < ROUND_NS_MIN ? budget_ns / 4 : ROUND_NS_MIN;
	return ns < ROUND_NS_MAX ? ns : ROUND_NS_MAX;
}

/* ---- Errors ---- */

static int __attribute__((format(printf, 3, 4)))
fail(const struct search *search, int rc, const char *format, ...)
{
	va_list args;

	if (!search->error)
		return rc;
	*search->error = (struct nvs_error){.size = sizeof(*search->error), .code = rc};
	va_start(args, format);
	vsnprintf(search->error->text, sizeof(search->error->text), format, args);
	va_end(args);
	return rc;
}

static int no_room_for_a_round(const struct search *search)
{
	if (search->out_of_writes && !search->out_of_time)
		return fail(search, -ETIME,
			    "%.0f MiB of writes are not enough for a single measurement",
			    (double)search->rules->writes_max / (double)(1 << 20));
	return fail(search, -ETIME, "%.3g s are not enough for a single measurement",
		    (double)search->rules->budget_ns / 1e9);
}

static int none_allowed(const struct search *search)
{
	size_t lowest = search_best(search);
	const struct tune_point *point = &search->trials[lowest].point;

	return fail(
		search, -ERANGE,
		"nothing that was measured completes 99 %% of its I/Os within %.4g ms: the lowest "
		"99th percentile is %.4g ms, with block_size %u, queue_depth %u and %u worker%s",
		(double)search->rules->latency_max_ns / 1e6,
		(double)search_p99(search, lowest) / 1e6, point->block_size, point->queue_depth,
		point->thread_count, plural(point->thread_count));
}

/* ---- The reason ---- */

static void write_point(const struct search *search, const struct tune_point *point,
			char text[POINT_TEXT])
{
	bool other = point->ioengine != search->space->ioengines[0];

	snprintf(text, POINT_TEXT, "%s%s%s%sblock_size %u, queue_depth %u and %u worker%s",
		 other ? nvs_ioengine_name(point->ioengine) : "", other ? ", " : "",
		 point->single_submit ? "single_submit, " : "",
		 point->overlap_events ? "" : "no overlap_events, ", point->block_size,
		 point->queue_depth, point->thread_count, plural(point->thread_count));
}

static void explain(const struct search *search, const struct choice *choice,
		    struct tune_outcome *outcome)
{
	const struct tune_trial *chosen = outcome->chosen;
	const char *lacking = search->out_of_writes && !search->out_of_time ? "writes" : "time";
	char point[POINT_TEXT], fastest[POINT_TEXT], compared[POINT_TEXT + 80];

	write_point(search, &chosen->point, point);
	write_point(search, &outcome->fastest->point, fastest);
	if (!chosen->finalist)
		snprintf(compared, sizeof(compared),
			 ", the fastest point that there was time to measure");
	else if (chosen == outcome->fastest)
		snprintf(compared, sizeof(compared), ", the fastest of %u finalist%s%s",
			 choice->finalists, plural(choice->finalists),
			 outcome->certain ? "; no smaller one is as fast" : "");
	else
		snprintf(compared, sizeof(compared),
			 ": %.1f %% (+- %.1f) of the fastest (%s), which is less preferred",
			 100 * chosen->to_best, 100 * chosen->to_best_half_width, fastest);
	snprintf(outcome->why, sizeof(outcome->why), "%s move %.3g GB/s%s. %zu setting%s measured.",
		 point, chosen->mean / 1e9, compared, search->n,
		 search->n == 1 ? " was" : "s were");
	if (!chosen->finalist)
		snprintf(outcome->unsure, sizeof(outcome->unsure),
			 "There was not enough %s to compare finalists. More %s may help.", lacking,
			 lacking);
	else if (!choice->told_apart)
		snprintf(outcome->unsure, sizeof(outcome->unsure),
			 "The finalists are known within +- %.1f %%, and %.3g %% is needed to tell "
			 "which are as fast: the best mean is chosen. More %s may help.",
			 100 * choice->width, 100 * search->rules->tolerance, lacking);
	else if (!choice->explored)
		snprintf(outcome->unsure, sizeof(outcome->unsure),
			 "The search for candidates ended early. More %s may find a better one.",
			 lacking);
}

/* ---- The search ---- */

static int run(struct search *search, struct choice *choice)
{
	const struct tune_rules *rules = search->rules;
	int rc;

	search->until = (struct cost){
		.ns = (uint64_t)((double)rules->budget_ns * EXPLORE_SHARE),
		.written = (uint64_t)((double)rules->writes_max * EXPLORE_SHARE),
	};
	rc = search_explore(search, &choice->explored);
	/* -ETIME means that this share of the budget is spent. */
	if (rc && rc != -ETIME)
		return rc;
	if (search_best(search) == search->n)
		return no_room_for_a_round(search);
	search->until = (struct cost){rules->budget_ns, rules->writes_max};
	rc = search_finals(search, choice);
	if (!rc && !search_allowed(search, choice->chosen))
		return none_allowed(search);
	return rc;
}

/* Fills in what the rounds say, and removes trials without one. */
static void finish_trials(struct search *search, struct choice *choice)
{
	size_t kept = 0;

	for (size_t i = 0; i < search->n; i++) {
		const struct rounds *rounds = &search->rounds[i];
		struct tune_trial *trial = &search->trials[i];

		if (!rounds->n)
			continue;
		trial->mean = rounds->rate.mean;
		trial->half_width = rounds->rate.mean * search_doubt(search, i);
		trial->p50_ns = (uint64_t)median(rounds->p50_ns, rounds->n);
		trial->p99_ns = search_p99(search, i);
		trial->cpu_ms_per_gib = rounds->cpu_ms_per_gib;
		if (!search_allowed(search, i))
			trial->fate = TUNE_OVER;
		if (choice->chosen == i)
			choice->chosen = kept;
		if (choice->fastest == i)
			choice->fastest = kept;
		search->trials[kept++] = *trial;
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
	finish_trials(&search, &choice);
	*outcome = (struct tune_outcome){
		.trials = search.trials,
		.n = search.n,
		.spent_ns = search_spent(&search).ns,
	};
	if (!rc) {
		outcome->chosen = &outcome->trials[choice.chosen];
		outcome->fastest = &outcome->trials[choice.fastest];
		outcome->trials[choice.chosen].fate = TUNE_CHOSEN;
		outcome->certain = choice.told_apart && choice.explored;
		explain(&search, &choice, outcome);
	}
	free(search.rounds);
	return rc;
}

void tune_outcome_free(struct tune_outcome *outcome)
{
	free(outcome->trials);
	*outcome = (struct tune_outcome){0};
}
