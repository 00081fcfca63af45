/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search of `nvswap tune` on simulated drives of several kinds, in virtual time: what it
 * chooses, against a sweep of the same space, and in what share of its time; ties, budgets, errors;
 * and the workload that it measures with.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tune_search.h"
#include "support.h"
#include "tune_drives.h"

#define S UINT64_C(1000000000)

/* Of virtual time: a round is as long as it ever gets, in a search and in a sweep. */
#define SEARCH_NS (600 * S)
#define SWEEP_NS  (1000000 * S)
/* Of noise. */
#define SEEDS 10u
#define MIB   (UINT64_C(1) << 20)

/* That many tests are about, and the time that it takes to get to know it is long. */
static const struct drive_kind *const saturating_kind = &drive_kinds[0];
static struct drive *saturating;

static int open_saturating(void **state)
{
	(void)state;
	saturating = drive_open(saturating_kind, &drive_space);
	return 0;
}

static int close_saturating(void **state)
{
	(void)state;
	drive_close(saturating);
	return 0;
}

static struct tune_rules rules_of(const struct drive_kind *kind)
{
	return (struct tune_rules){
		.objective = kind->objective, .tolerance = 0.02, .budget_ns = SEARCH_NS, .seed = 1};
}

static const char *point_text(const struct tune_point *point, char text[64])
{
	snprintf(text, 64, "%5uk x%3u x%2u%s%s", point->block_size >> 10, point->queue_depth,
		 point->thread_count, point->single_submit ? " single" : "",
		 point->overlap_events ? "" : " drain");
	return text;
}

static void search(struct drive *drive, const struct tune_space *space, double noise,
		   const struct tune_rules *rules, struct tune_outcome *outcome)
{
	struct tune_meter meter = drive_meter(drive, noise, rules->seed);
	struct nvs_error error = {0};

	SUCCEEDS(tune_search(space, rules, &meter, outcome, &error), &error);
	assert_non_null(outcome->chosen);
}

/* ---- Against a sweep ---- */

/* Of the best of the whole space, and of the time of the sweep. */
#define OF_BEST 0.97
#define OF_TIME 0.2

static bool is_close(struct drive *drive, const struct tune_outcome *outcome)
{
	return drive_rate(drive, &outcome->chosen->point) >= OF_BEST * drive_best_rate(drive);
}

static void tell(const struct drive_kind *kind, struct drive *drive, const char *how,
		 const struct tune_outcome *outcome, uint64_t of_ns)
{
	char text[64];

	print_message("%-16s %-9s %-26s %6.4f %6.3f %4zu%s\n", kind->name, how,
		      point_text(&outcome->chosen->point, text),
		      drive_rate(drive, &outcome->chosen->point) / drive_best_rate(drive),
		      (double)outcome->spent_ns / (double)of_ns, outcome->n,
		      outcome->certain ? "" : " not certain");
}

static void sweep(struct drive *drive, const struct drive_kind *kind, double noise,
		  struct tune_outcome *outcome)
{
	struct tune_rules rules = rules_of(kind);

	rules.exhaustive = true;
	rules.budget_ns = SWEEP_NS;
	search(drive, &drive_space, noise, &rules, outcome);
	tell(kind, drive, "sweep", outcome, outcome->spent_ns);
	assert_true(is_close(drive, outcome));
	if (noise == 0)
		assert_true(outcome->certain);
}

/* Points that are far from the best cost next to nothing. */
static void assert_drops_early(struct drive *drive, const struct tune_outcome *outcome,
			       unsigned most)
{
	for (size_t i = 0; i < outcome->n; i++) {
		const struct tune_trial *trial = &outcome->trials[i];
		double of_best = drive_rate(drive, &trial->point) / drive_best_rate(drive);
		char text[64];

		if (of_best >= 0.5 || trial->rounds <= most)
			continue;
		fail_msg("%s, %.3f of the best, was measured %u times",
			 point_text(&trial->point, text), of_best, trial->rounds);
	}
}

/* Without noise it is certain, and takes no more than the sweep does where both are as fast. */
static void find(struct drive *drive, const struct drive_kind *kind)
{
	struct tune_rules rules = rules_of(kind);
	struct tune_outcome all, found;

	sweep(drive, kind, 0, &all);
	search(drive, &drive_space, 0, &rules, &found);
	tell(kind, drive, "search", &found, all.spent_ns);
	assert_true(is_close(drive, &found));
	assert_true((double)found.spent_ns <= OF_TIME * (double)all.spent_ns);
	assert_true(found.certain);
	assert_drops_early(drive, &found, 3);
	if (strcmp(kind->name, "far away") != 0)
		assert_false(space_prefers(&drive_space, &all.chosen->point, &found.chosen->point));
	tune_outcome_free(&all);
	tune_outcome_free(&found);
}

/* A tenth of noise in each round: now and then it is unlucky. */
static void find_in_noise(struct drive *drive, const struct drive_kind *kind)
{
	struct tune_rules rules = rules_of(kind);
	struct tune_outcome all, found;
	unsigned close = 0;
	char how[16];

	sweep(drive, kind, 0.1, &all);
	for (rules.seed = 1; rules.seed <= SEEDS; rules.seed++) {
		search(drive, &drive_space, 0.1, &rules, &found);
		snprintf(how, sizeof(how), "seed %" PRIu64, rules.seed);
		tell(kind, drive, how, &found, all.spent_ns);
		close += is_close(drive, &found);
		assert_drops_early(drive, &found, 6);
		assert_true((double)found.spent_ns <= OF_TIME * (double)all.spent_ns);
		tune_outcome_free(&found);
	}
	assert_true(close >= SEEDS - 1);
	tune_outcome_free(&all);
}

static uint64_t sweep_in_stalls(struct drive *drive, const struct drive_kind *kind)
{
	struct tune_outcome all;
	uint64_t ns;

	drive_set_temper(drive, DRIVE_STALLS);
	sweep(drive, kind, 0.01, &all);
	ns = all.spent_ns;
	tune_outcome_free(&all);
	return ns;
}

/* On a drive that does not stay as it is: how often it is certain, with little noise beside that.
 * Never where it is wrong. */
static unsigned find_in_temper(struct drive *drive, const struct drive_kind *kind,
			       enum drive_temper temper, uint64_t budget_ns)
{
	struct tune_rules rules = rules_of(kind);
	struct tune_outcome found;
	unsigned close = 0, certain = 0;
	char how[16];

	drive_set_temper(drive, temper);
	rules.budget_ns = budget_ns < SEARCH_NS ? budget_ns : SEARCH_NS;
	for (rules.seed = 1; rules.seed <= SEEDS; rules.seed++) {
		search(drive, &drive_space, 0.01, &rules, &found);
		snprintf(how, sizeof(how), "%s %" PRIu64,
			 temper == DRIVE_STALLS ? "stalls" : "drifts", rules.seed);
		tell(kind, drive, how, &found, rules.budget_ns);
		close += is_close(drive, &found);
		certain += found.certain;
		assert_true(!found.certain || is_close(drive, &found));
		for (size_t i = 0; i < found.n; i++)
			assert_true(!found.certain || found.trials[i].fate != TUNE_OPEN);
		tune_outcome_free(&found);
	}
	drive_set_temper(drive, DRIVE_STEADY);
	assert_true(close >= SEEDS - 1);
	return certain;
}

static void finds_what_a_sweep_finds(void **state)
{
	unsigned in_stalls = 0, in_drift = 0;

	(void)state;
	print_message(
		"kind             seed      block x depth x workers   of best of time points\n");
	for (size_t i = 0; i < ndrive_kinds; i++) {
		struct drive *drive = i ? drive_open(&drive_kinds[i], &drive_space) : saturating;

		find(drive, &drive_kinds[i]);
		find_in_noise(drive, &drive_kinds[i]);
		in_stalls += find_in_temper(
			drive, &drive_kinds[i], DRIVE_STALLS,
			(uint64_t)(OF_TIME * (double)sweep_in_stalls(drive, &drive_kinds[i])));
		in_drift += find_in_temper(drive, &drive_kinds[i], DRIVE_DRIFTS, SEARCH_NS);
		if (i)
			drive_close(drive);
	}
	print_message("certain in stalls %u, in drift %u, of %zu\n", in_stalls, in_drift,
		      SEEDS * ndrive_kinds);
	assert_true(in_stalls >= SEEDS * ndrive_kinds * 7 / 10);
	assert_true(in_drift >= SEEDS * ndrive_kinds / 2);
}

/* ---- What rounds say ---- */

/* Of values about 1: Gauss's, made worse by a stall now and then. */
static void draw(double *values, unsigned n, double noise, unsigned stalls_percent,
		 uint64_t *random)
{
	for (unsigned i = 0; i < n; i++) {
		values[i] = 1 + noise * drive_deviation(random);
		if (random_below(random, 100) < stalls_percent)
			values[i] *= 0.5;
	}
}

/* How many of a thousand intervals have the mean in them. */
static unsigned holding(unsigned n, double noise, unsigned stalls_percent, double known)
{
	uint64_t random = n;
	unsigned held = 0;

	for (int i = 0; i < 1000; i++) {
		double values[64];
		struct middle middle;

		draw(values, n, noise, stalls_percent, &random);
		middle = middle_of(values, n);
		held += fabs(middle.mean - 1) <= half_width(&middle, known * known, 8);
	}
	return held;
}

static void intervals_hold_what_is_true(void **state)
{
	static const unsigned counts[] = {1, 2, 3, 4, 5, 6, 9, 14, 25, 64};

	(void)state;
	for (size_t i = 0; i < COUNT(counts); i++) {
		unsigned n = counts[i];
		unsigned steady = holding(n, 0.03, 0, 0.03);
		unsigned underrated = holding(n, 0.03, 0, 0.003);
		unsigned stalls = holding(n, 0.03, 5, 0.03);

		print_message("of %u: %u, %u where noise was underrated, %u with stalls\n", n,
			      steady, underrated, stalls);
		assert_true(steady >= 930);
		/* Two that agree by luck can't tell. */
		if (n > 2)
			assert_true(underrated >= 800);
		assert_true(stalls >= 900);
	}
}

/* A steady drive, on which the first round of each point with the best block is in a stall. */
struct stalls_first {
	struct tune_meter meter;
	struct tune_point seen[64];
	size_t nseen;
};

static int measure_stalled(void *arg, const struct tune_point *point, enum tune_objective objective,
			   uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct stalls_first *stalls = arg;
	int rc = stalls->meter.measure(stalls->meter.arg, point, objective, for_ns, sample, error);

	if (point->block_size != 512 << 10)
		return rc;
	for (size_t i = 0; i < stalls->nseen; i++)
		if (space_same(&stalls->seen[i], point))
			return rc;
	assert_true(stalls->nseen < COUNT(stalls->seen));
	stalls->seen[stalls->nseen++] = *point;
	sample->bytes_per_s *= 0.45;
	return rc;
}

static uint64_t now_of_stalled(void *arg)
{
	struct stalls_first *stalls = arg;

	return stalls->meter.now_ns(stalls->meter.arg);
}

static void one_stalled_round_drops_nothing(void **state)
{
	const struct drive_kind *kind = drive_kind("split blocks");
	struct tune_rules rules = rules_of(kind);
	struct tune_space space = drive_space;
	struct drive *drive;

	(void)state;
	space.nthread_counts = 1;
	space.single_submits = space.overlap_events = false;
	drive = drive_open(kind, &space);
	for (rules.seed = 1; rules.seed <= SEEDS; rules.seed++) {
		struct stalls_first stalls = {.meter = drive_meter(drive, 0.01, rules.seed)};
		struct tune_meter meter = {
			.measure = measure_stalled, .now_ns = now_of_stalled, .arg = &stalls};
		struct tune_outcome outcome;
		struct nvs_error error;

		SUCCEEDS(tune_search(&space, &rules, &meter, &outcome, &error), &error);
		assert_int_equal(outcome.chosen->point.block_size, 512 << 10);
		assert_true(is_close(drive, &outcome));
		tune_outcome_free(&outcome);
	}
	drive_close(drive);
}

static void a_stall_moves_a_mean_no_further_than_noise(void **state)
{
	double values[] = {1.01, 0.98, 1, 1.02, 0.99};
	struct middle before = middle_of(values, COUNT(values)), after;

	(void)state;
	values[1] = 0.3;
	after = middle_of(values, COUNT(values));
	assert_true(fabs(after.mean - before.mean) < 0.001);
	assert_true(half_width(&after, 1e-4, 2) < 2 * half_width(&before, 1e-4, 2));
}

/* Three of four that are spread alike, and one in four that is far off. */
static void noise_is_that_of_most_rounds(void **state)
{
	struct noise noise = {.variance = 0.25, .freedom = 2};
	uint64_t random = 1;

	(void)state;
	noise_add(&noise, 0);
	assert_true(noise.variance == 0.25 && noise.freedom == 2);
	for (int i = 0; i < 1000; i++) {
		noise_add(&noise, i % 4 ? 0.01 * drive_deviation(&random) : 0.5);
		if (i > 64)
			assert_true(noise.variance < 0.03 * 0.03);
	}
	assert_true(noise.variance > 0.007 * 0.007 && noise.freedom > 8);
}

/* ---- Promises of the outcome ---- */

/* One kind will do for these, in a small space, on which they agree. */
static struct tune_space small_space(void)
{
	struct tune_space space = drive_space;

	space.nblock_sizes = space.nqueue_depths = 4;
	space.nthread_counts = 1;
	space.single_submits = space.overlap_events = false;
	return space;
}

static void keeps_the_budget(void **state)
{
	const struct tune_space space = small_space();
	static const uint64_t budgets_ms[] = {1, 30, 200, 1000, 3000, 10000, 60000};
	struct drive *drive = drive_open(saturating_kind, &space);

	(void)state;
	for (size_t i = 0; i < 2 * COUNT(budgets_ms); i++) {
		struct tune_rules rules = rules_of(saturating_kind);
		struct tune_outcome outcome;

		rules.budget_ns = budgets_ms[i / 2] * (S / 1000);
		rules.exhaustive = i % 2;
		search(drive, &space, 0.1, &rules, &outcome);
		print_message("budget %" PRIu64 " ms: %" PRIu64 " ms, %zu points%s: %s\n",
			      budgets_ms[i / 2], outcome.spent_ns / 1000000, outcome.n,
			      outcome.certain ? "" : ", not certain", outcome.why);
		assert_true(outcome.spent_ns <= rules.budget_ns + drive_longest_ns(drive));
		if (budgets_ms[i / 2] <= 1000)
			assert_false(outcome.certain);
		if (outcome.spent_ns + 2 * drive_longest_ns(drive) < rules.budget_ns / 2)
			assert_true(outcome.certain);
		tune_outcome_free(&outcome);
	}
	drive_close(drive);
}

static void no_time_is_an_error(void **state)
{
	const struct tune_space space = small_space();
	struct tune_rules rules = rules_of(saturating_kind);
	struct drive *drive = drive_open(saturating_kind, &space);
	struct tune_meter meter = drive_meter(drive, 0, 1);
	struct tune_outcome outcome;
	struct nvs_error error = {0};

	(void)state;
	rules.budget_ns = 0;
	assert_int_equal(tune_search(&space, &rules, &meter, &outcome, &error), -ETIME);
	assert_int_equal(error.code, -ETIME);
	assert_int_equal(outcome.n, 0);
	tune_outcome_free(&outcome);
	drive_close(drive);
}

static void assert_same_trials(const struct tune_outcome *a, const struct tune_outcome *b)
{
	assert_int_equal(a->n, b->n);
	assert_int_equal(a->chosen - a->trials, b->chosen - b->trials);
	for (size_t i = 0; i < a->n; i++) {
		assert_true(space_same(&a->trials[i].point, &b->trials[i].point));
		assert_int_equal(a->trials[i].rounds, b->trials[i].rounds);
		assert_int_equal(a->trials[i].fate, b->trials[i].fate);
	}
}

static void a_seed_gives_the_same_search(void **state)
{
	const struct tune_space space = small_space();
	struct tune_rules rules = rules_of(saturating_kind);
	struct drive *drive = drive_open(saturating_kind, &space);
	struct tune_outcome a, b;

	(void)state;
	search(drive, &space, 0.05, &rules, &a);
	search(drive, &space, 0.05, &rules, &b);
	assert_same_trials(&a, &b);
	tune_outcome_free(&a);
	tune_outcome_free(&b);
	drive_close(drive);
}

/* Each trial's fate fits its numbers, and numbers fit the rounds that were measured. */
static void fates_fit_the_numbers(void **state)
{
	const struct tune_space space = small_space();
	struct tune_rules rules = rules_of(saturating_kind);
	struct drive *drive = drive_open(saturating_kind, &space);
	struct tune_outcome outcome;
	unsigned chosen = 0, finalists = 0;

	(void)state;
	search(drive, &space, 0.02, &rules, &outcome);
	for (size_t i = 0; i < outcome.n; i++) {
		const struct tune_trial *trial = &outcome.trials[i];
		double truly = drive_rate(drive, &trial->point);

		assert_true(trial->rounds > 0 && trial->spent_ns > 0);
		assert_true(trial->mean > 0.9 * truly && trial->mean < 1.1 * truly);
		assert_true(trial->half_width > 0);
		chosen += trial->fate == TUNE_CHOSEN;
		finalists += trial->finalist;
		if (trial->finalist)
			assert_true(trial->to_best > 0.2 && trial->to_best < 1.1);
		if (trial->fate == TUNE_TIE && !trial->finalist)
			assert_true(trial->mean >= 0.98 * outcome.fastest->mean);
		assert_int_not_equal(trial->fate, TUNE_ONLY_MAP);
	}
	assert_int_equal(chosen, 1);
	assert_int_equal(outcome.chosen->fate, TUNE_CHOSEN);
	assert_true(finalists >= 2 && outcome.chosen->finalist && outcome.fastest->finalist);
	assert_says(outcome.why, "GB/s");
	tune_outcome_free(&outcome);
	drive_close(drive);
}

/* However little time is left for it, the choice's blocks are there at all depths before others. */
static void a_map_begins_with_the_row_of_the_choice(void **state)
{
	struct tune_space space = drive_space;
	struct tune_rules rules = rules_of(saturating_kind);
	struct drive *drive;

	(void)state;
	space.nthread_counts = 1;
	space.single_submits = space.overlap_events = false;
	drive = drive_open(saturating_kind, &space);
	rules.map = true;
	for (rules.budget_ns = 6 * S; rules.budget_ns < 14 * S; rules.budget_ns += S) {
		struct tune_outcome outcome;
		size_t row = 0, others = 0;

		search(drive, &space, 0, &rules, &outcome);
		for (size_t i = 0; i < outcome.n; i++) {
			bool in_row = outcome.trials[i].point.block_size ==
				      outcome.chosen->point.block_size;

			if (outcome.trials[i].objective == rules.objective)
				continue;
			row += in_row && !others;
			others += !in_row;
		}
		print_message("%zu cells in the row of the choice, then %zu others\n", row, others);
		/* The deepest may take more time than is left. */
		assert_true(row >= 6);
		tune_outcome_free(&outcome);
	}
	drive_close(drive);
}

/* ---- On a drive whose rounds tell little ---- */

#define LITTLE_SEEDS 30u

/* That of another setting than its default which is not surely the faster. */
static bool stands_for_one_that_departs(const struct tune_outcome *outcome)
{
	const struct tune_trial *chosen = outcome->chosen;

	for (size_t i = 0; i < outcome->n; i++) {
		const struct tune_trial *trial = &outcome->trials[i];

		if (!space_as_deep(&trial->point, &chosen->point) ||
		    !space_prefers(&drive_space, &chosen->point, &trial->point))
			continue;
		if (!chosen->finalist && trial->mean >= 0.98 * outcome->fastest->mean)
			return true;
		if (trial->finalist && trial->to_best >= 0.98)
			return chosen->to_best + 2 * chosen->to_best_half_width >= 0.98;
	}
	return false;
}

/* What is said of a trial is what its numbers say, beside those of the choice. */
static void assert_fate_fits(const struct tune_trial *trial, const struct tune_outcome *outcome)
{
	const struct tune_trial *chosen = outcome->chosen;
	bool asks_less = space_prefers(&drive_space, &trial->point, &chosen->point);
	double ratio = trial->finalist ? trial->to_best : trial->mean / outcome->fastest->mean;

	if (trial == chosen) {
		assert_int_equal(trial->fate, TUNE_CHOSEN);
		if (ratio < 0.98)
			assert_true(stands_for_one_that_departs(outcome));
	} else if (trial->finalist) {
		assert_int_equal(trial->fate, ratio < 0.98 ? TUNE_SLOWER : TUNE_TIE);
		assert_true(ratio < 0.98 || !asks_less);
	} else {
		assert_int_equal(trial->fate, ratio < 0.98 ? TUNE_DROPPED
					      : asks_less  ? TUNE_OPEN
							   : TUNE_TIE);
		if (trial->fate == TUNE_OPEN) {
			assert_says(outcome->why, "not measured against");
			assert_false(outcome->certain);
		}
	}
}

static void assert_reason_fits(const struct tune_outcome *outcome)
{
	const struct tune_trial *chosen = outcome->chosen;
	char per_cent[32];
	unsigned finalists = 0;

	for (size_t i = 0; i < outcome->n; i++) {
		assert_fate_fits(&outcome->trials[i], outcome);
		finalists += outcome->trials[i].finalist;
	}
	assert_int_equal(chosen->finalist, outcome->fastest->finalist);
	if (!chosen->finalist)
		return;
	assert_true(outcome->fastest->to_best == 1);
	snprintf(per_cent, sizeof(per_cent), "%.1f %%", 100 * chosen->to_best);
	assert_says(outcome->why, chosen != outcome->fastest ? (const char *)per_cent
				  : finalists > 1	     ? "fastest of the"
						  : "what else was measured is clearly slower");
}

/* However wide the intervals, and however soon time is up. */
static void the_reason_agrees_with_the_table(void **state)
{
	static const double noises[] = {0.02, 0.1, 0.3, 1};
	static const uint64_t budgets_s[] = {5, 20, 60};
	struct tune_rules rules = rules_of(saturating_kind);

	(void)state;
	for (rules.seed = 1; rules.seed <= LITTLE_SEEDS / 3; rules.seed++)
		for (size_t i = 0; i < COUNT(noises) * COUNT(budgets_s); i++) {
			struct tune_outcome outcome;

			rules.budget_ns = budgets_s[i % COUNT(budgets_s)] * S;
			search(saturating, &drive_space, noises[i / COUNT(budgets_s)], &rules,
			       &outcome);
			assert_reason_fits(&outcome);
			tune_outcome_free(&outcome);
		}
}

/* From defaults with as much in flight that are of the space. */
static bool departs(const struct tune_point *point)
{
	return point->single_submit || !point->overlap_events ||
	       (point->thread_count > 1 && point->queue_depth * point->thread_count <= 64);
}

/* One submission for each I/O is as fast here, and so are more workers with as much in flight. */
static void defaults_stay_but_for_more_than_luck(void **state)
{
	struct tune_rules rules = rules_of(saturating_kind);
	unsigned departed = 0;

	(void)state;
	rules.budget_ns = 60 * S;
	for (rules.seed = 1; rules.seed <= LITTLE_SEEDS; rules.seed++) {
		struct tune_outcome outcome;
		char text[64];

		search(saturating, &drive_space, 0.3, &rules, &outcome);
		print_message("seed %" PRIu64 ": %s, %.2f of the best\n", rules.seed,
			      point_text(&outcome.chosen->point, text),
			      drive_rate(saturating, &outcome.chosen->point) /
				      drive_best_rate(saturating));
		departed += departs(&outcome.chosen->point);
		tune_outcome_free(&outcome);
	}
	assert_true(departed <= LITTLE_SEEDS / 10);
}

/* Where time was too short for rounds in turn, too. */
static void a_lucky_round_moves_no_default(void **state)
{
	struct tune_rules rules = rules_of(saturating_kind);
	struct tune_space space = small_space();
	struct drive *drive;
	unsigned without_finals = 0;

	(void)state;
	space.nblock_sizes = space.nqueue_depths = 1;
	space.single_submits = space.overlap_events = true;
	drive = drive_open(saturating_kind, &space);
	rules.exhaustive = true;
	for (rules.seed = 1; rules.seed <= LITTLE_SEEDS; rules.seed++) {
		bool known = false;
		struct tune_outcome outcome;

		rules.budget_ns = (1 + rules.seed % 4) * S / 8;
		search(drive, &space, 0.3, &rules, &outcome);
		for (size_t i = 0; i < outcome.n; i++)
			known |= !departs(&outcome.trials[i].point);
		if (known && !outcome.chosen->finalist) {
			print_message("%s\n", outcome.why);
			assert_false(departs(&outcome.chosen->point));
			without_finals++;
		}
		tune_outcome_free(&outcome);
	}
	assert_true(without_finals > 0);
	drive_close(drive);
}

static void errors_end_the_search(void **state)
{
	static const int errors[] = {-EIO, -EINTR, -ENOMEM};
	struct tune_rules rules = rules_of(saturating_kind);
	const struct tune_space space = small_space();
	struct drive *drive = drive_open(saturating_kind, &space);

	(void)state;
	rules.map = true;
	/* In the midst of exploring, of the finals, and of the map. */
	for (uint64_t nth = 1; nth < 60; nth += 7)
		for (size_t i = 0; i < COUNT(errors); i++) {
			struct tune_meter meter = drive_meter(drive, 0.1, 1);
			struct tune_outcome outcome;
			struct nvs_error error = {0};

			drive_fail(drive, nth, errors[i]);
			assert_int_equal(tune_search(&space, &rules, &meter, &outcome, &error),
					 errors[i]);
			assert_int_equal(error.code, errors[i]);
			assert_null(outcome.chosen);
			assert_true(nth == 1 ? !outcome.n : outcome.n > 0);
			tune_outcome_free(&outcome);
		}
	drive_close(drive);
}

/* ---- Through the workload, round by round ---- */

static void counts_what_moves(void **state)
{
	static const struct tune_point points[] = {
		{NVS_IOENGINE_IO_URING, 64 << 10, 1, 1, false, true},
		{NVS_IOENGINE_IO_URING, 1 << 20, 8, 1, false, true},
		{NVS_IOENGINE_IO_URING, 256 << 10, 16, 2, true, false},
	};
	const struct drive_kind *kind = drive_kind("saturating");
	struct drive_load load;

	(void)state;
	drive_load_open(&load, kind, &drive_space);
	for (size_t i = 0; i < COUNT(points) * TUNE_OBJECTIVES; i++) {
		const struct tune_point *point = &points[i / TUNE_OBJECTIVES];
		enum tune_objective objective = i % TUNE_OBJECTIVES;
		double in_flight = (double)point->block_size * point->queue_depth *
				   point->thread_count;
		/* A full queue moves each I/O in the latency and its own time, or the bus is full.
		 */
		double most = in_flight / (3e-3 + point->block_size / 400e6);
		double expected = most < 400e6 ? most : 400e6;
		struct tune_sample sample;
		struct nvs_error error;

		SUCCEEDS(tune_load_measure(&load.load, point, objective, S / 2, &sample, &error),
			 &error);
		print_message("objective %d, %u x %u x %u: %.1f MB/s of %.1f\n", (int)objective,
			      point->block_size, point->queue_depth, point->thread_count,
			      sample.bytes_per_s / 1e6, expected / 1e6);
		assert_true(sample.ns >= S / 2 && sample.ns < S);
		assert_true(sample.bytes_per_s <= 1.05 * expected);
		assert_true(sample.bytes_per_s >= (point->overlap_events ? 0.9 : 0.5) * expected);
		assert_int_equal(!sample.bytes[NVS_READ], objective == TUNE_WRITE);
		assert_int_equal(!sample.bytes[NVS_WRITE], objective == TUNE_READ);
		if (objective == TUNE_SWAP) {
			double reads = (double)sample.bytes[NVS_READ];
			double writes = (double)sample.bytes[NVS_WRITE];

			assert_true(reads > 0.8 * writes && writes > 0.8 * reads);
		}
		assert_true(sample.p50_ns > 0 && sample.p50_ns <= sample.p99_ns);
	}
	drive_load_close(&load);
}

/* No read of a mix goes to the half that is written, and no write to the other. */
static void reads_and_writes_lie_apart(void **state)
{
	const struct tune_point point = {NVS_IOENGINE_IO_URING, 256 << 10, 32, 2, false, true};
	struct drive_load load;
	struct tune_sample sample;
	struct nvs_error error;
	uint64_t half;

	(void)state;
	drive_load_open(&load, drive_kind("saturating"), &drive_space);
	half = load.load.working_set / 2;
	sim_fault(load.sim, &(struct sim_rule){.fault = SIM_ERROR,
					       .error = EIO,
					       .reads = true,
					       .from = half,
					       .to = UINT64_MAX});
	sim_fault(load.sim,
		  &(struct sim_rule){
			  .fault = SIM_ERROR, .error = EIO, .writes = true, .to = half - 4 * MIB});
	SUCCEEDS(tune_load_measure(&load.load, &point, TUNE_SWAP, 2 * S, &sample, &error), &error);
	/* And the whole of it is read where nothing is written. */
	assert_int_equal(tune_load_measure(&load.load, &point, TUNE_READ, 4 * S, &sample, &error),
			 -EIO);
	assert_says(error.text, load.load.path);
	drive_load_close(&load);
}

static bool stopped(void)
{
	return true;
}

static void the_workload_says_what_ails_it(void **state)
{
	struct tune_point point = {NVS_IOENGINE_IO_URING, 1 << 20, 8, 1, false, true};
	struct drive_load load;
	struct sim_counts counts;
	struct tune_sample sample;
	struct nvs_error error;

	(void)state;
	drive_load_open(&load, drive_kind("saturating"), &drive_space);
	load.load.stopped = stopped;
	assert_int_equal(tune_load_measure(&load.load, &point, TUNE_SWAP, S, &sample, &error),
			 -EINTR);
	load.load.stopped = NULL;
	load.load.memory_bytes = 8 * MIB;
	assert_int_equal(tune_load_measure(&load.load, &point, TUNE_SWAP, S, &sample, &error),
			 -EINVAL);
	assert_says(error.text, "memory");
	load.load.memory_bytes = 64 * MIB;
	load.load.working_set = 16 * MIB;
	assert_int_equal(tune_load_measure(&load.load, &point, TUNE_SWAP, S, &sample, &error),
			 -EINVAL);
	assert_says(error.text, "working set");
	load.load.working_set = 256 * MIB;
	load.load.path = "/nonexistent/file";
	assert_int_equal(tune_load_measure(&load.load, &point, TUNE_SWAP, S, &sample, &error),
			 -ENOENT);
	sim_get(load.sim, &counts);
	assert_int_equal(counts.in_flight, 0);
	load.load.memory_bytes = drive_space.in_flight_max + 64 * MIB;
	drive_load_close(&load);
}

/* Nothing is made up: every round is run by the aio layer, one of them fails. */
static void a_search_through_the_workload(void **state)
{
	const struct tune_space space = small_space();
	struct tune_rules rules = {.tolerance = 0.02, .budget_ns = 20 * S, .seed = 1, .map = true};
	struct tune_outcome outcome;
	struct drive_load load;
	struct tune_meter meter = {.measure = tune_load_measure, .arg = &load.load};
	struct nvs_error error;
	size_t cells[TUNE_OBJECTIVES] = {0};

	(void)state;
	drive_load_open(&load, drive_kind("saturating"), &space);
	meter.now_ns = load.load.now_ns;
	meter.arg = &load;
	SUCCEEDS(tune_search(&space, &rules, &meter, &outcome, &error), &error);
	print_message("%s\n", outcome.why);
	assert_int_equal(outcome.chosen->point.block_size, 512 << 10);
	assert_int_equal(outcome.chosen->point.queue_depth, 4);
	for (size_t i = 0; i < outcome.n; i++) {
		cells[outcome.trials[i].objective]++;
		if (outcome.trials[i].objective != TUNE_SWAP)
			assert_int_equal(outcome.trials[i].fate, TUNE_ONLY_MAP);
	}
	for (int o = 0; o < TUNE_OBJECTIVES; o++)
		assert_int_equal(cells[o], 16);
	tune_outcome_free(&outcome);

	sim_fault(load.sim, &(struct sim_rule){.fault = SIM_ERROR, .error = EIO, .first = 5000});
	assert_int_equal(tune_search(&space, &rules, &meter, &outcome, &error), -EIO);
	assert_says(error.text, load.load.path);
	assert_null(outcome.chosen);
	assert_true(outcome.n > 0);
	tune_outcome_free(&outcome);
	drive_load_close(&load);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(counts_what_moves),
		test(reads_and_writes_lie_apart),
		test(the_workload_says_what_ails_it),
		test(a_search_through_the_workload),
		test(intervals_hold_what_is_true),
		test(one_stalled_round_drops_nothing),
		test(a_stall_moves_a_mean_no_further_than_noise),
		test(noise_is_that_of_most_rounds),
		test(no_time_is_an_error),
		test(keeps_the_budget),
		test(a_seed_gives_the_same_search),
		test(fates_fit_the_numbers),
		test(a_map_begins_with_the_row_of_the_choice),
		test(the_reason_agrees_with_the_table),
		test(defaults_stay_but_for_more_than_luck),
		test(a_lucky_round_moves_no_default),
		test(errors_end_the_search),
		test(finds_what_a_sweep_finds),
	};

	return cmocka_run_group_tests(tests, open_saturating, close_saturating);
}
