/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the points that may be chosen, without measuring all of them: all blocks at every second
 * depth, and then the neighbours of two points until there is no new one: of the fastest, which
 * leads uphill, and of the smallest that keeps up with it, which leads down to less in flight. The
 * other settings are tried there, one at a time. Points race: they take turns in rounds, in a
 * random order in each pass, so a drive that slows down favours none. Slower ones leave early.
 *
 * The finals measure the candidates in turn and compare ratios of rounds of the same pass, while an
 * interval is wider than the tolerance and the budget lasts.
 */
#include "cli/tune/search/search.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/numbers.h"

/* A round is a small part of the budget, within the limits of a sensible measurement. */
#define ROUNDS_IN_BUDGET 600u
#define ROUND_NS_MIN	 20000000u
#define ROUND_NS_MAX	 250000000u
/* A round should measure this many I/Os and this many fillings of the queues; on a slow drive it is
 * extended for that, up to a factor. With a write limit, ROUNDS_IN_BUDGET must fit into it. */
#define ROUND_IOS     100.0
#define QUEUES_FULL   2.0
#define ROUND_STRETCH 4.0
/* Relative standard deviation of a round until it is known. */
#define NOISE_ASSUMED 0.03
/* The share of a round's rate left by a stall, which the only round of a point may have had. */
#define STALLED 0.4

/* Share of the budget after which exploring ends. */
#define EXPLORE_SHARE 0.55
/* The grid has points with at most this part of the bytes in flight. */
#define GRID_SHARE 4
/* The required precision, as a relative half interval, and the least rounds of a point. */
#define DOUBT_ENOUGH 0.03
#define LEAST_ROUNDS 2u
/* A point has at most one in so many of the rounds that the budget has time for. */
#define ROUNDS_A_BUDGET 200u
/* Longer climbs follow noise. */
#define CLIMBS 24
/* Of all blocks and every second depth. */
#define RACE_MAX (TUNE_VALUES_MAX * (TUNE_VALUES_MAX / 2 + 1))
/* Each climb enters two points with less than 32 around each. */
#define TRIALS_MAX (RACE_MAX + CLIMBS * 64)

#define FINALISTS 8u
/* The fastest so many are finalists whatever their intervals, which rely on few rounds. */
#define SURE_PLACES 4u
#define PASSES_MIN  6u
/* After these shares of the finals there are places for half of the finalists, and for three. */
#define SHARE_HALF  0.33
#define SHARE_THREE 0.67
/* Excluding a finalist takes this many intervals: one that is tested often misses eventually. */
#define WIDER 2

#define POINT_TEXT 160

struct cost {
	uint64_t ns, written;
};

struct trial {
	struct tune_trial known;
	struct middle rate;						     /* bytes a second */
	struct cost spent;						     /* in all its rounds */
	double rates[ROUNDS_KEPT], p50_ns[ROUNDS_KEPT], p99_ns[ROUNDS_KEPT]; /* by round */
	/* Of a finalist: */
	unsigned before; /* rounds before the finals */
	bool out;	 /* can't be chosen, or has left its place */
	double doubt;	 /* of known.to_best: half its interval, relative */
};

struct search {
	const struct tune_space *space;
	const struct tune_rules *rules;
	const struct tune_meter *meter;
	struct nvs_error *error;
	const char *phase;

	struct trial *trials; /* TRIALS_MAX, whose pages are used as far as there are trials */
	size_t n;
	struct noise noise;	       /* over all points; applies to a point with a single round */
	struct trial *turns[RACE_MAX]; /* those that take turns */
	size_t nturns;

	uint64_t random;
	struct cost began;   /* clock and bytes written at the begin */
	struct cost until;   /* no round may begin that would exceed these costs */
	const char *lacking; /* "time" or "writes", for which the last round had no room */
	uint64_t round_ns;

	struct trial *finalists[FINALISTS];
	size_t nfinalists;
	unsigned passes;
	struct trial *fastest, *chosen;
	bool explored;	 /* every neighbour of the candidates was measured */
	double width;	 /* of the widest interval between finalists that may win; 1: no rounds */
	bool told_apart; /* the width is within the tolerance */
};

/* ---- Points ---- */

static uint64_t depth_of(const struct tune_point *point)
{
	return (uint64_t)point->queue_depth * point->thread_count;
}

bool tune_space_has(const struct tune_space *space, const struct tune_point *point)
{
	return point->block_size * depth_of(point) <= space->in_flight_max;
}

bool tune_point_same(const struct tune_point *a, const struct tune_point *b)
{
	return a->ioengine == b->ioengine && a->block_size == b->block_size &&
	       a->queue_depth == b->queue_depth && a->thread_count == b->thread_count &&
	       a->single_submit == b->single_submit && a->overlap_events == b->overlap_events;
}

bool tune_prefers(const struct tune_space *space, const struct tune_point *a,
		  const struct tune_point *b)
{
	const uint64_t keys[][2] = {
		{depth_of(a), depth_of(b)},
		{a->block_size, b->block_size},
		{a->thread_count, b->thread_count},
		{a->ioengine != space->ioengines[0], b->ioengine != space->ioengines[0]},
		{a->ioengine, b->ioengine},
		{a->single_submit, b->single_submit},
		{!a->overlap_events, !b->overlap_events},
	};

	for (size_t i = 0; i < COUNT_OF(keys); i++)
		if (keys[i][0] != keys[i][1])
			return keys[i][0] < keys[i][1];
	return false;
}

/* Half of the trial's confidence interval, relative to its mean. */
static double doubt_of(const struct search *search, const struct trial *trial)
{
	double mean = trial->rate.mean;

	return mean <= 0 ? 0
			 : half_width(&trial->rate, search->noise.variance * mean * mean,
				      search->noise.freedom) /
				   mean;
}

static double low_of(const struct search *search, const struct trial *trial)
{
	return trial->rate.mean / (1 + doubt_of(search, trial));
}

/* Whether the trial is within the latency limit; true without a limit or a round. */
static bool is_allowed(const struct search *search, const struct trial *trial)
{
	uint64_t most = search->rules->latency_max_ns;

	return !most || trial->known.p99_ns <= most;
}

/* Whether the trial is measured and allowed, and its interval reaches into the tolerance. The
 * interval is that of the ratio of both means, with the noise of both. */
static bool keeps_up(const struct search *search, const struct trial *trial,
		     const struct trial *best)
{
	return trial->known.rounds && is_allowed(search, trial) &&
	       trial->rate.mean * (1 + hypot(doubt_of(search, trial), doubt_of(search, best))) >=
		       best->rate.mean * (1 - search->rules->tolerance);
}

/* The allowed trial with the highest low end of its interval; if none is allowed, the one with the
 * lowest latency; NULL if nothing was measured. */
static struct trial *best_of_all(const struct search *search)
{
	struct trial *best = NULL, *lowest = NULL;

	for (struct trial *trial = search->trials; trial < search->trials + search->n; trial++) {
		if (!trial->known.rounds)
			continue;
		if (!lowest || trial->known.p99_ns < lowest->known.p99_ns)
			lowest = trial;
		if (is_allowed(search, trial) &&
		    (!best || low_of(search, trial) > low_of(search, best)))
			best = trial;
	}
	return best ? best : lowest;
}

/* ---- A round ---- */

static struct cost cost_so_far(const struct search *search)
{
	const struct tune_meter *meter = search->meter;

	return (struct cost){meter->now_ns(meter->arg) - search->began.ns,
			     *meter->written - search->began.written};
}

static double share_spent(const struct search *search)
{
	struct cost spent = cost_so_far(search);

	return fmin(fmax((double)spent.ns / (double)search->rules->budget_ns,
			 (double)spent.written / (double)search->rules->writes_max),
		    1);
}

static uint64_t round_length(const struct search *search, const struct trial *trial, double rate)
{
	const struct tune_point *point = &trial->known.point;
	enum tune_objective objective = search->rules->objective;
	double length = (double)search->round_ns;
	double wanted = ROUND_IOS + QUEUES_FULL * (double)depth_of(point);
	double ios = rate / point->block_size * 1e-9 * length;
	double writes = rate * 1e-9 *
			(objective == TUNE_READ	  ? 0
			 : objective == TUNE_SWAP ? 0.5
						  : 1);

	if (trial->known.rounds && ios < wanted)
		length *= ios * ROUND_STRETCH > wanted ? wanted / ios : ROUND_STRETCH;
	if (search->rules->writes_max != UINT64_MAX && length > ROUND_NS_MIN) {
		double most = (double)search->rules->writes_max / ROUNDS_IN_BUDGET;

		if (rate <= 0 || length * writes > most)
			length = fmax(ROUND_NS_MIN, writes > 0 ? most / writes : 0);
	}
	return (uint64_t)length;
}

/* Runs one more round. -ETIME: the budget has no room for it. Errors of the meter. A trial without
 * rounds is expected to be as fast as the fastest, and to cost as much. */
static int run_round(struct search *search, struct trial *trial)
{
	const struct tune_meter *meter = search->meter;
	const struct trial *example = trial;
	struct tune_trial *known = &trial->known;
	struct cost before = cost_so_far(search), cost = {0}, after;
	struct tune_sample sample;
	uint64_t for_ns;
	bool late;
	int rc;

	if (known->rounds == ROUNDS_KEPT)
		return -ETIME;
	for (size_t i = 0; i < search->n && !known->rounds; i++)
		if (search->trials[i].rate.mean > example->rate.mean)
			example = &search->trials[i];
	for_ns = round_length(search, trial, example->rate.mean);
	cost.ns = for_ns + for_ns / 2;
	if (example->known.rounds) {
		cost.ns = example->spent.ns / example->known.rounds;
		cost.written = example->spent.written / example->known.rounds;
	}
	late = before.ns + cost.ns >= search->until.ns;
	if (late || (cost.written && before.written + cost.written > search->until.written)) {
		search->lacking = late ? "time" : "writes";
		return -ETIME;
	}

	rc = meter->measure(meter->arg, &known->point, search->rules->objective, for_ns, &sample,
			    search->error);
	after = cost_so_far(search);
	trial->spent.ns += after.ns - before.ns;
	trial->spent.written += after.written - before.written;
	if (rc == -EDQUOT) {
		search->lacking = "writes";
		return -ETIME;
	}
	if (rc)
		return rc;
	/* The deviation from the rounds before, whose mean is uncertain itself. */
	if (known->rounds && trial->rate.mean > 0)
		noise_add(&search->noise, (sample.bytes_per_s / trial->rate.mean - 1) *
						  sqrt(known->rounds / (known->rounds + 1.0)));
	trial->rates[known->rounds] = sample.bytes_per_s;
	trial->p50_ns[known->rounds] = (double)sample.p50_ns;
	trial->p99_ns[known->rounds++] = (double)sample.p99_ns;
	trial->rate = middle_of(trial->rates, known->rounds);
	known->p50_ns = (uint64_t)median(trial->p50_ns, known->rounds);
	known->p99_ns = (uint64_t)median(trial->p99_ns, known->rounds);
	known->cpu_ms_per_gib += (sample.cpu_ms_per_gib - known->cpu_ms_per_gib) / known->rounds;
	if (meter->progress)
		meter->progress(meter->arg, search->phase, share_spent(search));
	return 0;
}

/* Puts those that take turns into random order: Fisher-Yates, with the numbers of SplitMix64. */
static void shuffle_turns(struct search *search)
{
	for (size_t i = search->nturns; i > 1; i--) {
		struct trial *last = search->turns[i - 1];
		uint64_t mixed;

		search->random += UINT64_C(0x9e3779b97f4a7c15);
		mixed = (search->random ^ (search->random >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
		mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
		mixed = (mixed ^ (mixed >> 31)) % i;
		search->turns[i - 1] = search->turns[mixed];
		search->turns[mixed] = last;
	}
}

/* ---- Exploring ---- */

/* Enters the point into the race, if the space has it and the race does not. */
static void enter(struct search *search, const struct tune_point *point)
{
	struct trial *trial = search->trials, *const end = trial + search->n;
	size_t i = 0;

	if (!tune_space_has(search->space, point))
		return;
	while (trial < end && !tune_point_same(&trial->known.point, point))
		trial++;
	if (trial == end) {
		assert(search->n < TRIALS_MAX);
		search->n++;
		trial->known.point = *point;
	}
	while (i < search->nturns && search->turns[i] != trial)
		i++;
	if (i < search->nturns)
		return;
	assert(i < RACE_MAX);
	search->turns[search->nturns++] = trial;
}

/* Enters the point and its neighbours: a step on either axis, on both with the same bytes in
 * flight, and a smaller depth with a block that makes up for it. */
static void enter_neighbours(struct search *search, struct tune_point point)
{
	static const int steps[][2] = {{0, 0}, {-1, 0}, {1, 0},	 {0, -1},
				       {0, 1}, {-1, 1}, {1, -1}, {2, -1}};
	const struct tune_space *space = search->space;
	int b = 0, d = 0;

	while (space->block_sizes[b] != point.block_size)
		b++;
	while (space->queue_depths[d] != point.queue_depth)
		d++;
	for (size_t i = 0; i < COUNT_OF(steps); i++) {
		int block = b + steps[i][0], depth = d + steps[i][1];

		if (block < 0 || block >= (int)space->nblock_sizes || depth < 0 ||
		    depth >= (int)space->nqueue_depths)
			continue;
		point.block_size = space->block_sizes[block];
		point.queue_depth = space->queue_depths[depth];
		enter(search, &point);
	}
}

static void enter_settings(struct search *search, const struct tune_point *centre)
{
	const struct tune_space *space = search->space;
	struct tune_point workers = *centre, single = *centre, drained = *centre, engine = *centre;

	single.single_submit = !centre->single_submit;
	drained.overlap_events = !centre->overlap_events;
	for (unsigned i = 0; i < space->nthread_counts; i++) {
		workers.thread_count = space->thread_counts[i];
		enter(search, &workers);
	}
	if (space->single_submits)
		enter(search, &single);
	if (space->overlap_events)
		enter(search, &drained);
	for (unsigned i = 0; i < space->nioengines; i++) {
		engine.ioengine = space->ioengines[i];
		enter(search, &engine);
	}
}

/* Runs rounds in turn until each has LEAST_ROUNDS and is known well enough, or has had `most`. */
static int run_race(struct search *search, uint64_t most)
{
	for (bool measured = true; measured && search->nturns;) {
		const struct trial *best;
		double least;
		size_t n = search->nturns;

		measured = false;
		shuffle_turns(search);
		for (size_t i = 0; i < n; i++) {
			struct trial *trial = search->turns[i];
			int rc;

			if (trial->known.rounds >= LEAST_ROUNDS &&
			    (trial->known.rounds >= most ||
			     doubt_of(search, trial) <= DOUBT_ENOUGH))
				continue;
			rc = run_round(search, trial);
			if (rc)
				return rc;
			measured = true;
		}
		/* Slower points and those over the latency limit leave, but not by one round. */
		best = best_of_all(search);
		least = low_of(search, best) * (1 - search->rules->tolerance);
		search->nturns = 0;
		for (size_t i = 0; i < n; i++) {
			struct trial *trial = search->turns[i];
			bool once = trial->known.rounds < LEAST_ROUNDS;
			double high = trial->rate.mean * (1 + doubt_of(search, trial));

			if (trial == best || ((once ? high / STALLED : high) >= least &&
					      (once || is_allowed(search, trial))))
				search->turns[search->nturns++] = trial;
		}
	}
	return 0;
}

/* The point from which to climb on: `top` unless one is faster by more than noise can explain. */
static struct trial *climb(const struct search *search, struct trial *top)
{
	struct trial *best = best_of_all(search);
	double luck = (doubt_of(search, best) + doubt_of(search, top)) / 3;
	double least = 1 + fmax(luck, search->rules->tolerance / 2);

	return is_allowed(search, top) && best->rate.mean <= top->rate.mean * least ? top : best;
}

static int explore(struct search *search)
{
	const struct tune_space *space = search->space;
	uint64_t most = search->rules->budget_ns / (search->round_ns + 1) / ROUNDS_A_BUDGET;
	struct tune_point point = {.ioengine = space->ioengines[0],
				   .thread_count = space->thread_counts[0],
				   .overlap_events = true};
	struct trial *top;
	int rc;

	search->phase = "looking around";
	for (unsigned b = 0; b < space->nblock_sizes; b++)
		for (unsigned d = 0; d < space->nqueue_depths;
		     d += d + 2 < space->nqueue_depths ? 2 : 1) {
			point.block_size = space->block_sizes[b];
			point.queue_depth = space->queue_depths[d];
			/* A round takes long to fill deep queues of large blocks; climb there. */
			if (!d || (uint64_t)point.block_size * point.queue_depth <=
					  space->in_flight_max / GRID_SHARE)
				enter(search, &point);
		}
	assert(search->nturns);
	rc = run_race(search, LEAST_ROUNDS);
	top = best_of_all(search);
	search->phase = "closing in";
	for (int i = 0; i < CLIMBS && !rc && !search->explored; i++) {
		size_t known = search->n;
		struct trial *small;

		/* The most preferred trial that keeps up with the top, possibly the top itself. */
		small = top = climb(search, top);
		for (size_t t = 0; t < search->n; t++)
			if (keeps_up(search, &search->trials[t], top) &&
			    tune_prefers(space, &search->trials[t].known.point,
					 &small->known.point))
				small = &search->trials[t];
		search->nturns = 0;
		enter_neighbours(search, top->known.point);
		enter_neighbours(search, small->known.point);
		if (search->n == known) {
			enter_settings(search, &top->known.point);
			enter_settings(search, &small->known.point);
		}
		search->explored = search->n == known;
		rc = run_race(search, min_u64(max_u64(most, LEAST_ROUNDS), ROUNDS_KEPT / 2));
	}
	return rc;
}

/* ---- The finals ---- */

/* Adds a candidate that is no finalist yet: the most preferred with default settings, or the
 * fastest with a block size that no finalist has, as equal points of one block crowd out others. */
static void add_finalist(struct search *search, const struct trial *best, bool by_speed)
{
	struct trial *found = NULL;

	for (struct trial *trial = search->trials; trial < search->trials + search->n; trial++) {
		const struct tune_point *point = &trial->known.point;
		bool fits = trial->known.rounds && is_allowed(search, trial) &&
			    (by_speed || (point->ioengine == search->space->ioengines[0] &&
					  !point->single_submit && point->overlap_events));

		for (size_t i = 0; i < search->nfinalists; i++)
			fits &= search->finalists[i] != trial &&
				!(by_speed && search->finalists[i]->known.point.block_size ==
						      point->block_size);
		if (!fits || (search->nfinalists >= SURE_PLACES && !keeps_up(search, trial, best)))
			continue;
		if (!found || (by_speed ? trial->rate.mean > found->rate.mean
					: tune_prefers(search->space, point, &found->known.point)))
			found = trial;
	}
	if (found && search->nfinalists < FINALISTS) {
		search->finalists[search->nfinalists++] = found;
		found->before = found->known.rounds;
	}
}

/* The trimmed mean of the log ratios of two finalists that have had all passes. */
static struct middle log_ratio(const struct search *search, const struct trial *a,
			       const struct trial *b)
{
	double logs[ROUNDS_KEPT];

	for (unsigned i = 0; i < search->passes; i++)
		logs[i] = log(fmax(a->rates[a->before + i], 1)) -
			  log(fmax(b->rates[b->before + i], 1));
	return middle_of(logs, search->passes);
}

static struct trial *smallest_equal(const struct search *search)
{
	struct trial *smallest = search->fastest;

	for (size_t i = 0; i < search->nfinalists; i++) {
		struct trial *trial = search->finalists[i];

		if (!trial->out && trial->known.to_best >= 1 - search->rules->tolerance &&
		    tune_prefers(search->space, &trial->known.point, &smallest->known.point))
			smallest = trial;
	}
	return smallest;
}

/* Compares the finalists with the fastest. Those that are out keep the ratio that excluded them. */
static void compare_finalists(struct search *search)
{
	for (size_t i = 0; i < search->nfinalists; i++) {
		struct trial *trial = search->finalists[i];

		if (!trial->out &&
		    (search->fastest->out || log_ratio(search, trial, search->fastest).mean > 0))
			search->fastest = trial;
	}
	for (size_t i = 0; i < search->nfinalists; i++) {
		struct trial *trial = search->finalists[i];
		struct middle ratio;

		if (trial->out)
			continue;
		ratio = log_ratio(search, trial, search->fastest);
		trial->known.to_best = exp(ratio.mean);
		/* The variance of a log ratio is that of two rounds. */
		trial->doubt = trial == search->fastest
				       ? 0
				       : half_width(&ratio, 2 * search->noise.variance,
						    search->noise.freedom);
		trial->known.to_best_half_width = trial->known.to_best * trial->doubt;
	}
}

/* Excludes those that can't be chosen: clearly slower ones, and of those that need more than the
 * smallest equal, ones that are clearly not faster by the tolerance. Of those that are neither the
 * fastest nor its smallest equal, the slowest leave for the places of this share. */
static void thin_out(struct search *search, double share)
{
	size_t places = share < SHARE_HALF ? FINALISTS : share < SHARE_THREE ? FINALISTS / 2 : 3;
	const struct trial *equal = smallest_equal(search);
	size_t n = 0;

	for (size_t i = 0; i < search->nfinalists; i++) {
		struct trial *trial = search->finalists[i];
		bool larger = tune_prefers(search->space, &equal->known.point, &trial->known.point);

		trial->out |= !is_allowed(search, trial) ||
			      (trial != search->fastest && search->passes >= PASSES_MIN &&
			       trial->known.to_best * (1 + WIDER * trial->doubt) <
				       1 + (larger ? 1 : -1) * search->rules->tolerance);
		n += !trial->out;
	}
	equal = smallest_equal(search);
	for (; n > places && !search->fastest->out; n--) {
		struct trial *slowest = NULL;

		for (size_t i = 0; i < search->nfinalists; i++) {
			struct trial *trial = search->finalists[i];

			if (!trial->out && trial != search->fastest && trial != equal &&
			    (!slowest || trial->known.to_best < slowest->known.to_best))
				slowest = trial;
		}
		assert(slowest); /* there are three places at least */
		slowest->out = true;
	}
}

/* Measures the candidates against each other, and chooses, also with -ETIME. */
static int hold_finals(struct search *search)
{
	double tolerance = search->rules->tolerance, from = share_spent(search);
	struct trial *best = best_of_all(search);
	size_t known;
	int rc = 0;

	search->phase = "finalists";
	search->chosen = search->fastest = best;
	search->width = 1;
	do {
		known = search->nfinalists;
		add_finalist(search, best, true);
		if (search->nfinalists == known || search->nfinalists > SURE_PLACES)
			add_finalist(search, best, false);
	} while (search->nfinalists > known);
	if (search->nfinalists)
		search->fastest = search->finalists[0];
	while (!search->told_apart) {
		search->nturns = 0;
		for (size_t i = 0; i < search->nfinalists; i++)
			if (!search->finalists[i]->out)
				search->turns[search->nturns++] = search->finalists[i];
		if (!search->nturns)
			break;
		/* The rounds of an interrupted pass do not count. */
		shuffle_turns(search);
		for (size_t i = 0; i < search->nturns && !rc; i++)
			rc = run_round(search, search->turns[i]);
		if (rc)
			break;
		search->passes++;
		compare_finalists(search);
		thin_out(search, (share_spent(search) - from) / (1 - from));
		search->width = 0;
		for (size_t i = 0; i < search->nfinalists; i++)
			if (!search->finalists[i]->out)
				search->width = fmax(search->width, search->finalists[i]->doubt);
		search->told_apart = search->passes >= PASSES_MIN && !search->fastest->out &&
				     search->width <= tolerance;
	}
	for (size_t i = 0; i < search->nfinalists && search->passes; i++) {
		struct tune_trial *trial = &search->finalists[i]->known;

		trial->finalist = true;
		trial->fate = trial->to_best >= 1 - tolerance ? TUNE_TIE : TUNE_SLOWER;
	}
	if (search->passes)
		search->chosen = search->told_apart ? smallest_equal(search) : search->fastest;
	else
		search->fastest = best;
	if (!is_allowed(search, search->chosen)) {
		search->chosen = search->fastest = best_of_all(search);
		search->told_apart = false;
	}
	assert(search->chosen);
	return rc == -ETIME ? 0 : rc;
}

static const char *point_text(const struct search *search, const struct tune_point *point,
			      char text[POINT_TEXT])
{
	bool other = point->ioengine != search->space->ioengines[0];

	snprintf(text, POINT_TEXT, "%s%s%s%sblock_size %u, queue_depth %u and %u worker%s",
		 other ? nvs_ioengine_name(point->ioengine) : "", other ? ", " : "",
		 point->single_submit ? "single_submit, " : "",
		 point->overlap_events ? "" : "no overlap_events, ", point->block_size,
		 point->queue_depth, point->thread_count, plural(point->thread_count));
	return text;
}

static int run_search(struct search *search)
{
	const struct tune_rules *rules = search->rules;
	char point[POINT_TEXT];
	int rc;

	search->until = (struct cost){
		.ns = (uint64_t)((double)rules->budget_ns * EXPLORE_SHARE),
		.written = (uint64_t)((double)rules->writes_max * EXPLORE_SHARE),
	};
	rc = explore(search);
	/* -ETIME means that this share of the budget is spent. */
	if (rc && rc != -ETIME)
		return rc;
	if (!best_of_all(search))
		return error_set(search->error, -ETIME,
				 "there was not enough %s for a single measurement",
				 search->lacking);
	search->until = (struct cost){rules->budget_ns, rules->writes_max};
	rc = hold_finals(search);
	if (rc || is_allowed(search, search->chosen))
		return rc;
	return error_set(
		search->error, -ERANGE,
		"nothing that was measured completes 99 %% of its I/Os within %.4g ms: the lowest "
		"99th percentile is %.4g ms, with %s",
		(double)rules->latency_max_ns / 1e6, (double)search->chosen->known.p99_ns / 1e6,
		point_text(search, &search->chosen->known.point, point));
}

static void explain(const struct search *search, struct tune_outcome *outcome)
{
	const struct tune_trial *chosen = outcome->chosen;
	const char *more = search->lacking;
	char point[POINT_TEXT], compared[POINT_TEXT + 80];

	if (!chosen->finalist)
		snprintf(compared, sizeof(compared),
			 ", the fastest point that there was time to measure");
	else if (chosen == outcome->fastest)
		snprintf(compared, sizeof(compared), ", the fastest of %zu finalist%s%s",
			 search->nfinalists, plural(search->nfinalists),
			 outcome->certain ? "; no smaller one is as fast" : "");
	else
		snprintf(compared, sizeof(compared),
			 ": %.1f %% (+- %.1f) of the fastest (%s), which is less preferred",
			 100 * chosen->to_best, 100 * chosen->to_best_half_width,
			 point_text(search, &outcome->fastest->point, point));
	snprintf(outcome->why, sizeof(outcome->why), "%s move %.3g GB/s%s. %zu setting%s measured.",
		 point_text(search, &chosen->point, point), chosen->mean / 1e9, compared,
		 outcome->n, outcome->n == 1 ? " was" : "s were");
	if (!chosen->finalist)
		snprintf(outcome->unsure, sizeof(outcome->unsure),
			 "There was not enough %s to compare finalists. More %s may help.", more,
			 more);
	else if (!search->told_apart)
		snprintf(outcome->unsure, sizeof(outcome->unsure),
			 "The finalists are known within +- %.1f %%, and %.3g %% is needed to tell "
			 "which are as fast: the best mean is chosen. More %s may help.",
			 100 * search->width, 100 * search->rules->tolerance, more);
	else if (!search->explored)
		snprintf(outcome->unsure, sizeof(outcome->unsure),
			 "The search for candidates ended early. More %s may find a better one.",
			 more);
}

int tune_search(const struct tune_space *space, const struct tune_rules *rules,
		const struct tune_meter *meter, struct tune_outcome *outcome,
		struct nvs_error *error)
{
	uint64_t budget_ns = rules->budget_ns;
	struct search search = {
		.space = space,
		.rules = rules,
		.meter = meter,
		.error = error,
		.trials = calloc(TRIALS_MAX, sizeof(*search.trials)),
		.noise = {.variance = NOISE_ASSUMED * NOISE_ASSUMED, .freedom = 2},
		.random = rules->seed,
		.lacking = "time",
		.began = {meter->now_ns(meter->arg), *meter->written},
		.round_ns = min_u64(
			max_u64(budget_ns / ROUNDS_IN_BUDGET, min_u64(budget_ns / 4, ROUND_NS_MIN)),
			ROUND_NS_MAX),
	};
	int rc;

	*outcome = (struct tune_outcome){.trials = calloc(TRIALS_MAX, sizeof(*outcome->trials))};
	if (!search.trials || !outcome->trials) {
		free(search.trials);
		return error_set(error, -ENOMEM, "out of memory for the measurements");
	}
	rc = run_search(&search);
	for (size_t i = 0; i < search.n; i++) {
		struct trial *trial = &search.trials[i];
		struct tune_trial *known = &outcome->trials[outcome->n];

		if (!trial->known.rounds)
			continue;
		*known = trial->known;
		outcome->n++;
		known->mean = trial->rate.mean;
		known->half_width = trial->rate.mean * doubt_of(&search, trial);
		if (!is_allowed(&search, trial))
			known->fate = TUNE_OVER;
		if (!rc && trial == search.chosen) {
			known->fate = TUNE_CHOSEN;
			outcome->chosen = known;
		}
		if (!rc && trial == search.fastest)
			outcome->fastest = known;
	}
	outcome->spent_ns = cost_so_far(&search).ns;
	if (!rc) {
		outcome->certain = search.told_apart && search.explored;
		explain(&search, outcome);
	}
	free(search.trials);
	return rc;
}

void tune_outcome_free(struct tune_outcome *outcome)
{
	free(outcome->trials);
	*outcome = (struct tune_outcome){0};
}
