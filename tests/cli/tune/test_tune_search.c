/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search of `nvswap tune` on simulated drives of several kinds, in virtual time: its choice and
 * duration; ties, budgets, bounds, errors; and the workload that it measures with.
 */
#include <math.h>

#include "cli/tune/search/search.h"
#include "cli/tune/tune_drives.h"
#include "support/support.h"

#define S UINT64_C(1000000000)

/* Virtual time; long enough for rounds of the maximum length. */
#define SEARCH_NS (600 * S)
/* Number of seeds of noise. */
#define SEEDS 10u
#define MIB   (UINT64_C(1) << 20)

/* Used by most tests; computing a drive's rates takes long, so they are shared: one with all of the
 * space, and one with few points. */
static struct drive *saturating, *small;
static struct nvs_error error = {.size = sizeof(error)};

static int open_drives(void **state)
{
	struct tune_space space = drive_space;

	(void)state;
	saturating = drive_open(&drive_kinds[0], &space);
	space.nblock_sizes = space.nqueue_depths = 4;
	space.nthread_counts = 1;
	space.single_submits = space.overlap_events = false;
	small = drive_open(&drive_kinds[0], &space);
	return 0;
}

static int close_drives(void **state)
{
	(void)state;
	drive_close(saturating);
	drive_close(small);
	return 0;
}

static struct tune_rules rules_of(const struct drive_kind *kind)
{
	return (struct tune_rules){.objective = kind->objective,
				   .tolerance = 0.03,
				   .budget_ns = SEARCH_NS,
				   .writes_max = UINT64_MAX,
				   .seed = 1};
}

static struct tune_outcome found; /* of the last search */

static int try_search(struct drive *drive, double noise, const struct tune_rules *rules)
{
	struct tune_meter meter = drive_meter(drive, noise, rules->seed);

	drive->writes_max = rules->writes_max;
	tune_outcome_free(&found);
	return tune_search(&drive->space, rules, &meter, &found, &error);
}

static void search(struct drive *drive, double noise, const struct tune_rules *rules)
{
	SUCCEEDS(try_search(drive, noise, rules), &error);
	assert_non_null(found.chosen);
}

static int end_search(void **state)
{
	tune_outcome_free(&found);
	return cleanup(state);
}

/* ---- Against the known rates of the drive ---- */

/* Required share of the fastest rate; limit on the share of the time of a full sweep. */
#define OF_BEST 0.97
#define OF_TIME 0.2
/* Well within the tolerance, so that no point at its edge decides. */
#define SURELY_WITHIN 0.015
/* Length of a round with the budget SEARCH_NS. */
#define ROUND_NS (S / 4)
#define RUNS	 30u

static bool is_close(const struct drive *drive)
{
	return drive_rate(drive, &found.chosen->point) >= OF_BEST * drive_best_rate(drive, 0);
}

static uint64_t depth_of(const struct tune_point *point)
{
	return (uint64_t)point->queue_depth * point->thread_count;
}

/* Points far below the best one take little of the time. */
static void assert_drops_early(const struct drive *drive)
{
	for (size_t i = 0; i < found.n; i++) {
		const struct tune_trial *trial = &found.trials[i];

		assert_true(trial->rounds <= 12 ||
			    drive_rate(drive, &trial->point) >= 0.5 * drive_best_rate(drive, 0));
	}
}

/* Outcomes of runs that differ only in their noise. */
struct tally {
	unsigned close, certain;
	unsigned same, deeper; /* than the point that should be chosen */
	unsigned astray;       /* certain of another point */
};

/* If a search is certain, its choice is close. Certain or not, the loss of each choice is known. */
static struct tally run_seeds(struct drive *drive, enum drive_temper temper, double noise,
			      uint64_t budget_s, unsigned seeds)
{
	struct tune_rules rules = rules_of(drive->kind);
	struct tune_point answer = drive_answer(drive, rules.tolerance, 0);
	struct tally tally = {0};

	drive->temper = temper;
	rules.budget_ns = budget_s * S;
	for (rules.seed = 1; rules.seed <= seeds; rules.seed++) {
		const struct tune_point *point;
		double of_best;
		bool same;

		search(drive, noise, &rules);
		point = &found.chosen->point;
		of_best = drive_rate(drive, point) / drive_best_rate(drive, 0);
		print_message("%s, temper %d, noise %.2f, %" PRIu64 " s, seed %" PRIu64
			      ": %uk x %u x %u, %.4f%s\n",
			      drive->kind->name, (int)temper, noise, budget_s, rules.seed,
			      point->block_size >> 10, point->queue_depth, point->thread_count,
			      of_best, found.certain ? "" : " not certain");
		same = point->block_size == answer.block_size &&
		       depth_of(point) == depth_of(&answer);
		tally.close += is_close(drive);
		tally.certain += found.certain;
		tally.same += same;
		tally.deeper += depth_of(point) > depth_of(&answer);
		tally.astray += found.certain && !same;
		assert_int_equal(found.certain, !found.unsure[0]);
		assert_true(found.certain || !strstr(found.why, "no smaller one"));
		assert_true(!found.certain || of_best >= 0.95);
		if (temper == DRIVE_STEADY && noise <= 0.1 && rules.budget_ns == SEARCH_NS)
			assert_drops_early(drive);
	}
	drive->temper = DRIVE_STEADY;
	return tally;
}

/* Without noise, the search is certain and chooses the expected point. 10 % noise in each round
 * sometimes misleads the search; so do stalls or drift with little noise. */
TEST(finds_a_point_within_the_tolerance_of_the_best)
{
	unsigned in_stalls = 0, in_drift = 0;

	for (size_t i = 0; i < ndrive_kinds; i++) {
		struct drive *drive = drive_open(&drive_kinds[i], &drive_space);
		struct tune_rules rules = rules_of(drive->kind);
		struct tune_point answer = drive_answer(drive, SURELY_WITHIN, 0);
		struct tally tally;

		search(drive, 0, &rules);
		assert_true(is_close(drive));
		assert_true((double)found.spent_ns <=
			    OF_TIME * (double)drive_sweep_ns(drive, ROUND_NS));
		assert_true(found.certain);
		assert_drops_early(drive);
		if (strcmp(drive->kind->name, "far away") != 0)
			assert_false(tune_prefers(&drive_space, &answer, &found.chosen->point));
		tally = run_seeds(drive, DRIVE_STEADY, 0.1, 600, SEEDS);
		assert_true(tally.close >= SEEDS - 1);
		tally = run_seeds(drive, DRIVE_STALLS, 0.01, 600, SEEDS);
		assert_true(tally.close >= SEEDS - 1);
		in_stalls += tally.certain;
		tally = run_seeds(drive, DRIVE_DRIFTS, 0.01, 600, SEEDS);
		assert_true(tally.close >= SEEDS - 1);
		in_drift += tally.certain;
		drive_close(drive);
	}
	assert_true(in_stalls >= SEEDS * ndrive_kinds * 7 / 10);
	assert_true(in_drift >= SEEDS * ndrive_kinds / 2);
}

TEST(rounds_that_differ_by_a_fifth_lose_at_most_3_percent)
{
	for (size_t i = 0; i < ndrive_kinds; i++) {
		struct drive *drive = drive_open(&drive_kinds[i], &drive_space);

		assert_int_equal(run_seeds(drive, DRIVE_STEADY, 0.2, 60, SEEDS).close, SEEDS);
		assert_int_equal(run_seeds(drive, DRIVE_STEADY, 0.2, 600, SEEDS).close, SEEDS);
		drive_close(drive);
	}
}

/* A minute is too short for a drive with rounds of a second. */
TEST(runs_agree_or_report_uncertainty)
{
	for (size_t i = 0; i < ndrive_kinds; i++) {
		bool is_far = !strcmp(drive_kinds[i].name, "far away");
		struct drive *drive = drive_open(&drive_kinds[i], &drive_space);
		struct tally tally = run_seeds(drive, DRIVE_STEADY, 0.02, 60, RUNS);

		assert_true(is_far || tally.same >= RUNS * 4 / 5);
		assert_true(is_far || tally.deeper <= RUNS / 5);
		assert_true(tally.astray <= RUNS / 10);
		tally = run_seeds(drive, DRIVE_STEADY, 0.1, 60, RUNS);
		assert_true(tally.astray <= RUNS / 10);
		drive_close(drive);
	}
}

/* ---- Bounds ---- */

TEST(a_bound_on_latency_is_kept)
{
	static const uint64_t bounds_ms[] = {10, 20, 100};
	struct tune_rules rules = rules_of(saturating->kind);

	for (size_t i = 0; i < COUNT(bounds_ms) * 2; i++) {
		struct tune_point answer;
		double best, noise = i % 2 ? 0.02 : 0;

		rules.latency_max_ns = bounds_ms[i / 2] * (S / 1000);
		answer = drive_answer(saturating, SURELY_WITHIN, rules.latency_max_ns);
		/* Noise decides about a point whose latency is just below the bound. */
		best = drive_best_rate(saturating, noise > 0 ? rules.latency_max_ns * 9 / 10
							     : rules.latency_max_ns);
		search(saturating, noise, &rules);
		assert_true(found.chosen->p99_ns <= rules.latency_max_ns);
		assert_true(drive_rate(saturating, &found.chosen->point) >=
			    (noise > 0 ? 0.9 : OF_BEST) * best);
		if (noise == 0)
			assert_false(tune_prefers(&drive_space, &answer, &found.chosen->point));
		for (size_t j = 0; j < found.n; j++)
			assert_int_equal(found.trials[j].fate == TUNE_OVER,
					 found.trials[j].p99_ns > rules.latency_max_ns);
	}
}

TEST(a_bound_that_no_setting_keeps_is_refused_with_the_lowest)
{
	struct tune_rules rules = rules_of(saturating->kind);
	uint64_t lowest = UINT64_MAX;
	char text[32];

	rules.latency_max_ns = S / 1000;
	assert_int_equal(try_search(saturating, 0, &rules), -ERANGE);
	assert_null(found.chosen);
	assert_true(found.n > 0);
	for (size_t i = 0; i < found.n; i++)
		lowest = found.trials[i].p99_ns < lowest ? found.trials[i].p99_ns : lowest;
	snprintf(text, sizeof(text), "is %.4g ms", (double)lowest / 1e6);
	assert_says(error.text, "within 1 ms");
	assert_says(error.text, text);
	assert_says(error.text, "with block_size 65536");
}

TEST(a_limit_of_writes_is_shared_and_never_exceeded)
{
	static const uint64_t limits_mib[] = {16, 64, 256, 1024, 8192};
	struct tune_rules rules = rules_of(saturating->kind);

	rules.budget_ns = 60 * S;
	for (size_t i = 0; i < COUNT(limits_mib); i++) {
		double of_best;

		rules.writes_max = limits_mib[i] * MIB;
		search(saturating, 0.02, &rules);
		of_best = drive_rate(saturating, &found.chosen->point) /
			  drive_best_rate(saturating, 0);
		assert_true(saturating->written <= rules.writes_max);
		assert_true(limits_mib[i] < 1024 || of_best >= 0.9);
		if (limits_mib[i] < 256)
			assert_says(found.unsure, "More writes");
	}
}

/* ---- Statistics of rounds ---- */

/* How many of a thousand intervals contain the mean of normally distributed values about 1, some of
 * which a stall halves. */
static unsigned holding(unsigned n, double noise, unsigned stalls_percent, double known)
{
	uint64_t random = n;
	unsigned held = 0;

	for (int i = 0; i < 1000; i++) {
		double values[64];
		struct middle middle;

		for (unsigned k = 0; k < n; k++)
			values[k] = (1 + noise * drive_deviation(&random)) *
				    (random_below(&random, 100) < stalls_percent ? 0.5 : 1);
		middle = middle_of(values, n);
		held += fabs(middle.mean - 1) <= half_width(&middle, known * known, 8);
	}
	return held;
}

TEST(intervals_contain_the_mean)
{
	static const unsigned counts[] = {1, 2, 3, 4, 5, 6, 9, 14, 25, 64};

	for (size_t i = 0; i < COUNT(counts); i++) {
		unsigned n = counts[i];
		unsigned steady = holding(n, 0.03, 0, 0.03);
		unsigned underrated = holding(n, 0.03, 0, 0.003);
		unsigned stalls = holding(n, 0.03, 5, 0.03);

		assert_true(steady >= 930);
		/* Two values that agree by chance prove nothing. */
		if (n > 2)
			assert_true(underrated >= 800);
		assert_true(stalls >= 900);
	}
}

/* Of rounds that agree, so that the known noise alone makes it. Those that are trimmed take some
 * freedom. */
TEST(another_round_widens_no_interval)
{
	double values[64], width, last = INFINITY;

	for (unsigned n = 1; n <= 64; n++) {
		struct middle middle;

		values[n - 1] = 1;
		middle = middle_of(values, n);
		width = half_width(&middle, 1e-4, 8);
		assert_true(width > 0 && width < 1.01 * last);
		last = width;
	}
}

/* At the first round of each point with the best block, the drive stalls. */
static double stall_first(void *arg, const struct tune_point *point)
{
	struct tune_point *seen = arg;

	if (point->block_size != 512 << 10)
		return 1;
	for (; seen->block_size; seen++)
		if (tune_point_same(seen, point))
			return 1;
	*seen = *point;
	return 0.45;
}

TEST(one_stalled_round_drops_nothing)
{
	const struct drive_kind *kind = &drive_kinds[4]; /* split blocks */
	struct tune_rules rules = rules_of(kind);
	struct tune_space space = drive_space;
	struct drive *drive;

	space.nthread_counts = 1;
	space.single_submits = space.overlap_events = false;
	drive = drive_open(kind, &space);
	for (rules.seed = 1; rules.seed <= SEEDS; rules.seed++) {
		struct tune_point seen[64] = {{.block_size = 0}};

		drive->disturb = stall_first;
		drive->disturb_arg = seen;
		search(drive, 0.01, &rules);
		assert_int_equal(found.chosen->point.block_size, 512 << 10);
		assert_true(is_close(drive));
	}
	drive_close(drive);
}

TEST(keeps_the_budget)
{
	static const uint64_t budgets_ms[] = {1, 30, 200, 1000, 3000, 10000, 60000};
	struct tune_rules rules = rules_of(saturating->kind);

	for (size_t i = 0; i < COUNT(budgets_ms); i++) {
		rules.budget_ns = budgets_ms[i] * (S / 1000);
		search(small, 0.1, &rules);
		assert_true(found.spent_ns <= rules.budget_ns + small->longest_ns);
		if (budgets_ms[i] <= 1000)
			assert_false(found.certain);
		if (found.spent_ns + 2 * small->longest_ns < rules.budget_ns / 2)
			assert_true(found.certain);
	}
	rules.budget_ns = 0;
	assert_int_equal(try_search(small, 0.1, &rules), -ETIME);
	assert_true(error.code == -ETIME && !found.n);
}

TEST(a_seed_gives_the_same_search)
{
	struct tune_rules rules = rules_of(saturating->kind);
	struct tune_outcome first;

	search(small, 0.05, &rules);
	first = found;
	found = (struct tune_outcome){0};
	search(small, 0.05, &rules);
	assert_int_equal(first.n, found.n);
	assert_int_equal(first.chosen - first.trials, found.chosen - found.trials);
	for (size_t i = 0; i < found.n; i++)
		assert_true(tune_point_same(&first.trials[i].point, &found.trials[i].point) &&
			    first.trials[i].rounds == found.trials[i].rounds &&
			    first.trials[i].mean == found.trials[i].mean);
	tune_outcome_free(&first);
}

/* ---- On a drive with very noisy rounds ---- */

/* The choice follows from the table of finalists, and the text from the choice. */
static void assert_reason_fits(double noise, double tolerance)
{
	const struct tune_trial *chosen = found.chosen;
	unsigned nchosen = 0, finalists = 0;
	char per_cent[32];

	assert_int_equal(found.certain, !found.unsure[0]);
	for (size_t i = 0; i < found.n; i++) {
		const struct tune_trial *trial = &found.trials[i];
		double truly = drive_rate(saturating, &trial->point);

		assert_true(trial->rounds > 0 && trial->half_width > 0);
		assert_true(noise > 0.02 || fabs(trial->mean / truly - 1) < 0.1);
		assert_true(!trial->finalist || trial->to_best > 0);
		nchosen += trial->fate == TUNE_CHOSEN;
		finalists += trial->finalist;
	}
	assert_int_equal(nchosen, 1);
	assert_int_equal(chosen->fate, TUNE_CHOSEN);
	assert_says(found.why, "GB/s");
	assert_int_equal(chosen->finalist, found.fastest->finalist);
	if (!chosen->finalist)
		return;
	assert_true(finalists >= 2 && found.fastest->to_best == 1);
	snprintf(per_cent, sizeof(per_cent), "%.1f %%", 100 * chosen->to_best);
	assert_says(found.why, chosen != found.fastest ? (const char *)per_cent : "the fastest of");
	if (strstr(found.unsure, "the best mean is chosen"))
		assert_ptr_equal(chosen, found.fastest);
	for (size_t i = 0; i < found.n; i++) {
		const struct tune_trial *trial = &found.trials[i];
		bool equal = trial->to_best >= 1 - tolerance;

		assert_true(trial->finalist || trial->fate == TUNE_DROPPED);
		if (trial->finalist && trial != chosen)
			assert_int_equal(trial->fate, equal ? TUNE_TIE : TUNE_SLOWER);
		if (found.certain && trial->fate == TUNE_TIE &&
		    trial->to_best_half_width <= tolerance * trial->to_best)
			assert_false(tune_prefers(&drive_space, &trial->point, &chosen->point));
	}
}

TEST(the_reason_agrees_with_the_table)
{
	static const double noises[] = {0.02, 0.1, 0.3, 1};
	static const uint64_t budgets_s[] = {5, 20, 60};
	struct tune_rules rules = rules_of(saturating->kind);

	for (rules.seed = 1; rules.seed <= SEEDS; rules.seed++)
		for (size_t i = 0; i < COUNT(noises) * COUNT(budgets_s); i++) {
			rules.budget_ns = budgets_s[i % COUNT(budgets_s)] * S;
			search(saturating, noises[i / COUNT(budgets_s)], &rules);
			assert_reason_fits(noises[i / COUNT(budgets_s)], rules.tolerance);
		}
}

static double slow_down_smaller(void *ratio, const struct tune_point *point)
{
	return point->queue_depth == 16 ? *(double *)ratio : 1;
}

/* Of two points, the smaller has `ratio` of the rate of the larger. Counts how often it is
 * chosen. */
static struct tally choose_of_two(double ratio, double noise, uint64_t budget_ns)
{
	struct tally tally = {0};
	struct tune_rules rules = rules_of(saturating->kind);
	struct tune_space space = drive_space;
	struct drive *drive;

	space.block_sizes[0] = MIB;
	space.queue_depths[0] = 16;
	space.queue_depths[1] = 32;
	space.nblock_sizes = space.nthread_counts = 1;
	space.nqueue_depths = 2;
	space.single_submits = space.overlap_events = false;
	drive = drive_open(saturating->kind, &space);
	drive->disturb = slow_down_smaller;
	drive->disturb_arg = &ratio;
	rules.budget_ns = budget_ns;
	for (rules.seed = 1; rules.seed <= SEEDS; rules.seed++) {
		search(drive, noise, &rules);
		tally.same += found.chosen->point.queue_depth == 16;
		tally.certain += found.certain;
		assert_true(found.certain || found.chosen == found.fastest);
		if (!found.certain)
			assert_says(found.unsure, "the best mean is chosen");
	}
	drive_close(drive);
	return tally;
}

TEST(of_means_within_3_percent_the_smallest_is_chosen)
{
	struct tally tally = choose_of_two(0.99, 0.01, 60 * S);

	assert_int_equal(tally.same, SEEDS);
	assert_int_equal(tally.certain, SEEDS);
	tally = choose_of_two(0.94, 0.01, 60 * S);
	assert_int_equal(tally.same, 0);
	assert_int_equal(tally.certain, SEEDS);
}

TEST(if_the_interval_stays_wider_the_best_mean_is_chosen_and_reported)
{
	struct tally tally = choose_of_two(0.98, 0.3, 20 * S);

	assert_true(tally.certain <= 1);
	/* A longer search measures on until it can tell. */
	tally = choose_of_two(0.84, 0.2, 600 * S);
	assert_int_equal(tally.same, 0);
	assert_int_equal(tally.certain, SEEDS);
}

TEST(errors_end_the_search)
{
	static const int errors[] = {-EIO, -EINTR, -ENOMEM};
	struct tune_rules rules = rules_of(saturating->kind);

	/* While exploring, and in the finals. */
	for (uint64_t nth = 1; nth < 60; nth += 7)
		for (size_t i = 0; i < COUNT(errors); i++) {
			small->fails = nth;
			small->error = errors[i];
			assert_int_equal(try_search(small, 0.1, &rules), errors[i]);
			assert_int_equal(error.code, errors[i]);
			assert_null(found.chosen);
			assert_true(nth == 1 ? !found.n : found.n > 0);
		}
	small->fails = 0;
}

/* ---- The workload ---- */

static struct drive_load load;

static int measure(const struct tune_point *point, enum tune_objective objective, uint64_t for_ns,
		   struct tune_sample *sample)
{
	return tune_workload_measure(&load.load, point, objective, for_ns, sample, &error);
}

TEST(counts_what_moves)
{
	static const struct tune_point points[] = {
		{NVS_IOENGINE_IO_URING, 64 << 10, 1, 1, false, true},
		{NVS_IOENGINE_IO_URING, 1 << 20, 8, 1, false, true},
		{NVS_IOENGINE_IO_URING, 256 << 10, 16, 2, true, false},
	};

	drive_load_open(&load, saturating->kind, &drive_space);
	for (size_t i = 0; i < COUNT(points) * TUNE_OBJECTIVES; i++) {
		const struct tune_point *point = &points[i / TUNE_OBJECTIVES];
		enum tune_objective objective = i % TUNE_OBJECTIVES;
		double in_flight = (double)point->block_size * point->queue_depth *
				   point->thread_count;
		/* A full queue moves each I/O in the latency plus its transfer time, unless the bus
		 * is the bottleneck. */
		double most = in_flight / (3e-3 + point->block_size / 400e6);
		double expected = most < 400e6 ? most : 400e6;
		double total = in_flight + fmin(fmax(in_flight, 4 << 20), 32 << 20);
		struct tune_sample sample;

		SUCCEEDS(measure(point, objective, S / 2, &sample), &error);
		assert_true(sample.ns >= S / 2 && sample.ns < S);
		assert_true(sample.bytes_per_s <= 1.05 * expected);
		assert_true(sample.bytes_per_s >= (point->overlap_events ? 0.9 : 0.5) * expected);
		assert_int_equal(!sample.bytes[NVS_READ], objective == TUNE_WRITE);
		assert_int_equal(!sample.bytes[NVS_WRITE], objective == TUNE_READ);
		/* As many of each are submitted, and reads go first: the difference is at most what
		 * is submitted, between 4 and 32 MiB more than the queues hold, and not complete at
		 * either end of the window. */
		if (objective == TUNE_SWAP)
			assert_true(fabs((double)sample.bytes[NVS_READ] -
					 (double)sample.bytes[NVS_WRITE]) <=
				    2 * (total * 33 / 32 + point->block_size));
		assert_true(sample.p50_ns > 0 && sample.p50_ns <= sample.p99_ns);
	}
	drive_load_close(&load);
}

/* In a mix, no read goes to the half that is written, and no write to the other half. */
TEST(reads_and_writes_lie_apart)
{
	const struct tune_point point = {NVS_IOENGINE_IO_URING, 256 << 10, 32, 2, false, true};
	struct tune_sample sample;
	uint64_t half;

	drive_load_open(&load, saturating->kind, &drive_space);
	half = load.load.working_set / 2;
	sim_fault(load.sim, &(struct sim_rule){.fault = SIM_ERROR,
					       .error = EIO,
					       .reads = true,
					       .from = half,
					       .to = UINT64_MAX});
	sim_fault(load.sim,
		  &(struct sim_rule){
			  .fault = SIM_ERROR, .error = EIO, .writes = true, .to = half - 4 * MIB});
	SUCCEEDS(measure(&point, TUNE_SWAP, 2 * S, &sample), &error);
	/* Without writes, the whole file is read. */
	assert_int_equal(measure(&point, TUNE_READ, 4 * S, &sample), -EIO);
	assert_says(error.text, "/file)");
	drive_load_close(&load);
}

static int stopped(void)
{
	return true;
}

TEST(the_workload_reports_its_errors)
{
	struct tune_point point = {NVS_IOENGINE_IO_URING, 1 << 20, 8, 1, false, true};
	struct sim_counts counts;
	struct tune_sample sample;

	drive_load_open(&load, saturating->kind, &drive_space);
	load.load.stopped = stopped;
	assert_int_equal(measure(&point, TUNE_SWAP, S, &sample), -EINTR);
	load.load.stopped = NULL;
	load.load.memory_bytes = 8 * MIB;
	assert_int_equal(measure(&point, TUNE_SWAP, S, &sample), -EINVAL);
	assert_says(error.text, "memory");
	load.load.memory_bytes = 64 * MIB;
	load.load.working_set = 16 * MIB;
	assert_int_equal(measure(&point, TUNE_SWAP, S, &sample), -EINVAL);
	assert_says(error.text, "working set");
	load.load.working_set = 256 * MIB;
	close(load.load.fd);
	load.load.fd = -1;
	assert_int_equal(measure(&point, TUNE_SWAP, S, &sample), -EBADF);
	sim_get(load.sim, &counts);
	assert_int_equal(counts.in_flight, 0);
	load.load.memory_bytes = drive_space.in_flight_max + 64 * MIB;
	drive_load_close(&load);
}

EACH_TEST(NULL, end_search)
AROUND_TESTS(open_drives, close_drives)
