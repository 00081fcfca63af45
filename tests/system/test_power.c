/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power failures of the simulated drive: at every I/O, plain write, sync and change of a name of a
 * short run, and at random ones of longer runs; writes and names that were not durable are kept,
 * lost, torn, or any of these.
 * The contents found afterwards are those of one commit: the last that returned, or the one in
 * progress.
 */
#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "support/sim/sim_drive.h"
#include "swap/swap.h"
#include "swap/swap_fixture.h"

#include <limits.h>

static const enum sim_crash ways[] = {SIM_KEEP, SIM_LOSE, SIM_TEAR, SIM_ANY};
static const char *const way_names[] = {"kept", "lost", "torn", "any of these"};

/* The current or last run, for messages. */
static char where[128];

static int say_where(void **state)
{
	(void)state;
	print_message("last: %s\n", where);
	return 0;
}

/* ---- A store of tensors and their expected contents ---- */

static const uint64_t lengths[] = {100, 5000, 70 * KIB, 200 * KIB, 64 * KIB, 0};
#define TENSORS	 LENGTH(lengths)
#define CONTENTS (TENSORS - 1) /* tensors with elements */

/* For each tensor, the number of its contents; 0: none. */
struct versions {
	unsigned of[TENSORS];
};

#define DAMAGED UINT_MAX /* reported as damaged */
#define COMMITS 64

struct run {
	struct fixture fixture; /* on its simulated drive */
	struct nvs_tensor *tensors[TENSORS];
	struct versions present, committed;
	struct versions begun[COMMITS]; /* all commits so far; the first is of an empty store */
	unsigned nbegun;
	unsigned last; /* number of the newest contents */
	char *memory;  /* external memory of the longest tensor's size */
	uint64_t seed, random;
	bool lies;
	unsigned damaged; /* tensors reported as damaged */
};

static uint64_t seed_of(size_t tensor, unsigned version)
{
	return version * UINT64_C(1000) + tensor;
}

/* In memory if possible, because runs write a lot and keep nothing. */
static enum place fast_place(void)
{
	return access("/dev/shm", W_OK) ? PLACE_DISK : PLACE_TMPFS;
}

static void run_begin(struct run *run, uint64_t seed, unsigned npaths, bool lies)
{
	static char *directory; /* of all runs with one path */
	char store[512];

	if (!directory)
		directory = place_make(fast_place());
	assert_non_null(directory);
	snprintf(store, sizeof(store), "%s/nvswap", directory);
	(void)remove_tree(store);
	*run = (struct run){.seed = seed, .random = seed, .lies = lies, .nbegun = 1};
	run->memory = malloc(200 * KIB);
	assert_non_null(run->memory);
	INIT(&run->fixture, .in = npaths == 1 ? directory : NULL, .npaths = npaths,
	     .place = fast_place(), .keep = true, .stripe_size = 32 * KIB, .verify = seed & 1,
	     .pool_bytes = 512 * KIB, .max_in_cpu = seed & 2 ? NONE_STAYS : 0,
	     .block_size = 16 * KIB);
	run->fixture.sim =
		sim_open(&(const struct sim_drive){.seed = seed,
						   .latency_ns = 50000,
						   .jitter_ns = 100000,
						   .bytes_per_s = {1000000000, 1000000000},
						   .reorder = true,
						   .lies = lies});
}

static void run_end(struct run *run)
{
	fixture_close(&run->fixture);
	free(run->memory);
}

static int open_store(struct run *run)
{
	struct nvs_tensor_spec specs[TENSORS];
	char names[TENSORS][8];
	int rc = fixture_reopen(&run->fixture);

	if (rc)
		return rc;
	for (size_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t%zu", i);
		specs[i] = (struct nvs_tensor_spec)U8_TENSOR(names[i], lengths[i]);
	}
	return nvs_tensor_register(run->fixture.engine, specs, TENSORS, run->tensors,
				   &run->fixture.error);
}

/* ---- Operations: 0, or the error that the power failure caused ---- */

static int write_one(struct run *run, size_t i)
{
	struct nvs_engine *engine = run->fixture.engine;
	struct nvs_tensor **tensor = &run->tensors[i];
	int rc = sole_pin(engine, tensor, 1, -1, &run->fixture.error);

	if (rc)
		return rc;
	fill(nvs_tensor_data(*tensor), lengths[i], seed_of(i, ++run->last));
	run->present.of[i] = run->last;
	return sole_release(engine, tensor, 1, NVS_DIRTY, &run->fixture.error);
}

static int wait_for(struct run *run, size_t i)
{
	return sole_wait(run->fixture.engine, &run->tensors[i], 1, -1, &run->fixture.error);
}

static int swap_out_one(struct run *run, size_t i)
{
	int rc = nvs_tensor_swap_out(run->fixture.engine, &run->tensors[i], 1, &run->fixture.error);

	/* Sometimes the transfer stays in flight during the next operations. */
	return rc || below(&run->random, 3) == 0 ? rc : wait_for(run, i);
}

static int write_from_memory(struct run *run, size_t i)
{
	const void *data = run->memory;
	int rc = wait_for(run, i);

	if (rc)
		return rc;
	fill(run->memory, lengths[i], seed_of(i, ++run->last));
	run->present.of[i] = run->last;
	rc = nvs_tensor_swap_out_from(run->fixture.engine, &run->tensors[i], &data, 1,
				      &run->fixture.error);
	return rc ?: wait_for(run, i);
}

static int forget_one(struct run *run, size_t i)
{
	struct nvs_engine *engine = run->fixture.engine;
	char name[8];
	const struct nvs_tensor_spec spec = U8_TENSOR(name, lengths[i]);
	int rc = wait_for(run, i);

	snprintf(name, sizeof(name), "t%zu", i);
	rc = rc ?: nvs_tensor_forget(engine, &run->tensors[i], 1, &run->fixture.error);
	if (rc)
		return rc;
	run->present.of[i] = 0;
	return nvs_tensor_register(engine, &spec, 1, &run->tensors[i], &run->fixture.error);
}

static int swap_in_one(struct run *run, size_t i)
{
	int rc = sole_swap_in(run->fixture.engine, &run->tensors[i], 1, -1, &run->fixture.error);

	return rc ?: wait_for(run, i);
}

static int read_one(struct run *run, size_t i)
{
	int rc = swap_in_one(run, i);

	if (!run->present.of[i] && lengths[i] && !sim_has_crashed(run->fixture.sim))
		assert_int_equal(rc, -ENODATA);
	if (rc)
		return rc == -ENODATA ? 0 : rc;
	assert_true(filled(nvs_tensor_data(run->tensors[i]), lengths[i],
			   seed_of(i, run->present.of[i])));
	return sole_release(run->fixture.engine, &run->tensors[i], 1, NVS_CLEAN,
			    &run->fixture.error);
}

/* The commit, or the one of closing, has the present contents, and says so in its note. */
static int commit_all(struct run *run, bool closing)
{
	struct nvs_engine *engine = run->fixture.engine;
	int rc;

	if (!engine)
		return 0;
	if (!sim_has_crashed(run->fixture.sim)) {
		OK(&run->fixture, nvs_engine_set_note(engine, &run->present, sizeof(run->present),
						      &run->fixture.error));
		assert_true(run->nbegun < COMMITS);
		run->begun[run->nbegun++] = run->present;
	}
	if (closing)
		run->fixture.engine = NULL;
	rc = closing ? nvs_engine_close(engine, &run->fixture.error)
		     : nvs_engine_commit(engine, &run->fixture.error);
	if (!rc)
		run->committed = run->begun[run->nbegun - 1];
	return rc;
}

/* ---- Runs ---- */

/* Uses every function of a store once. */
static int short_run(struct run *run)
{
	int rc = 0;

	for (size_t i = 0; i < TENSORS && !rc; i++)
		rc = write_one(run, i);
	rc = rc ?: swap_out_one(run, 2);
	rc = rc ?: commit_all(run, false);
	for (size_t i = 1; i < TENSORS && !rc; i += 2)
		rc = write_one(run, i);
	rc = rc ?: swap_out_one(run, 3);
	rc = rc ?: write_from_memory(run, 2);
	rc = rc ?: commit_all(run, false);
	rc = rc ?: forget_one(run, 4);
	rc = rc ?: write_one(run, 0);
	return rc;
}

static int long_run(struct run *run)
{
	int rc = 0;

	for (unsigned calls = 0; calls < 60 && !rc; calls++) {
		size_t i = below(&run->random, CONTENTS);
		uint64_t call = below(&run->random, 12);

		rc = call == 0	 ? commit_all(run, false)
		     : call == 1 ? forget_one(run, i)
		     : call == 2 ? write_from_memory(run, i)
		     : call <= 4 ? read_one(run, i)
		     : call <= 7 ? swap_out_one(run, i)
				 : write_one(run, i);
	}
	return rc;
}

/* ---- Contents found after the failure ---- */

/* The number of the tensor's contents: found by the first bytes, then compared in full. */
static unsigned found_version(struct run *run, size_t i)
{
	int rc = swap_in_one(run, i);
	unsigned version;

	if (rc == -ENODATA)
		return 0;
	if (rc == -EBADMSG && run->lies) {
		run->damaged++;
		return DAMAGED;
	}
	OK(&run->fixture, rc);
	for (version = run->last; version; version--)
		if (filled(nvs_tensor_data(run->tensors[i]), lengths[i] < 16 ? lengths[i] : 16,
			   seed_of(i, version)))
			break;
	assert_true(version &&
		    filled(nvs_tensor_data(run->tensors[i]), lengths[i], seed_of(i, version)));
	OK(&run->fixture,
	   sole_release(run->fixture.engine, &run->tensors[i], 1, NVS_CLEAN, &run->fixture.error));
	return version;
}

static bool is(const struct versions *wanted, const struct versions *found)
{
	for (size_t i = 0; i < CONTENTS; i++)
		if (found->of[i] != DAMAGED && found->of[i] != wanted->of[i])
			return false;
	return true;
}

static void print_versions(const char *what, const struct versions *versions)
{
	print_error("%s:", what);
	for (size_t i = 0; i < CONTENTS; i++)
		print_error(" %d", (int)versions->of[i]);
	print_error("\n");
}

/* The last commit or the one in progress; on a drive that lies, any commit. */
static bool may_be_found(const struct run *run, const struct versions *found)
{
	if (is(&run->committed, found) || is(&run->begun[run->nbegun - 1], found))
		return true;
	for (unsigned i = 0; i < run->nbegun && run->lies; i++)
		if (is(&run->begun[i], found))
			return true;
	return false;
}

static void expect_a_commit(struct run *run)
{
	struct versions found = {{0}}, note = {{0}};
	size_t nbytes = sizeof(note);

	/* Without a commit there is no note. */
	assert_int_equal(nvs_engine_get_note(run->fixture.engine, &note, &nbytes), 0);
	assert_true(nbytes == sizeof(note) || !nbytes);
	for (size_t i = 0; i < CONTENTS; i++)
		found.of[i] = found_version(run, i);
	if (!is(&note, &found)) {
		print_versions("note", &note);
		print_versions("found", &found);
		fail_msg("the note is not of the same commit as the contents");
	}
	if (may_be_found(run, &found)) {
		run->present = found;
		return;
	}
	print_versions("committed", &run->committed);
	print_versions("under way", &run->begun[run->nbegun - 1]);
	print_versions("found", &found);
	fail_msg("the contents are neither those of the last commit nor of the one in progress");
}

/* The store works like a new one. */
static void expect_it_works(struct run *run)
{
	for (size_t i = 0; i < TENSORS; i += 2)
		OK(&run->fixture, write_one(run, i));
	OK(&run->fixture, commit_all(run, false));
	OK(&run->fixture, write_one(run, 1));
	OK(&run->fixture, commit_all(run, true));
	OK(&run->fixture, open_store(run));
	for (size_t i = 0; i < CONTENTS; i++)
		if (run->present.of[i] != DAMAGED)
			OK(&run->fixture, read_one(run, i));
	OK(&run->fixture, commit_all(run, true));
}

/*
 * Runs until the power failure, and checks the contents found. Returns whether the run ended before
 * it. `at` 0: the run ends, and then the power fails.
 */
static bool power_fails(struct run *run, int (*calls)(struct run *), uint64_t at,
			enum sim_crash how)
{
	bool ended;
	int rc;

	snprintf(where, sizeof(where), "seed %" PRIu64 ", power failure %" PRIu64 ", writes %s",
		 run->seed, at, way_names[how]);
	sim_remember(run->fixture.sim, at);
	rc = open_store(run);
	rc = rc ?: calls(run);
	assert_true(!rc || sim_has_crashed(run->fixture.sim));
	rc = commit_all(run, true);
	ended = !sim_has_crashed(run->fixture.sim);
	assert_true(!rc || !ended);
	sim_crashed(run->fixture.sim, how);
	rc = open_store(run);
	if (run->lies && (rc == -EUCLEAN || rc == -EMEDIUMTYPE)) {
		run->damaged++;
		return ended;
	}
	OK(&run->fixture, rc);
	expect_a_commit(run);
	if (at % 3 == 0)
		expect_it_works(run);
	else
		OK(&run->fixture, commit_all(run, true));
	return ended;
}

TEST_WITH(after_a_power_failure_anywhere_one_commit_is_found, NULL, say_where)
{
	uint64_t seed = seed_of_run(), runs = 0;

	for (size_t way = 0; way < LENGTH(ways); way++) {
		bool ended = false;

		for (uint64_t at = 1; !ended;
		     at += at_length(SANITIZED ? 7 : 1, SANITIZED ? 14 : 5)) {
			struct run run;

			run_begin(&run, seed + way, 1, false);
			ended = power_fails(&run, short_run, at, ways[way]);
			run_end(&run);
			runs++;
		}
	}
	print_message("%" PRIu64 " runs\n", runs);
}

/* Both copies of the manifest that the next commit replaces are missing. */
TEST_WITH(a_manifest_that_is_made_again_has_a_durable_name, NULL, say_where)
{
	for (unsigned turn = 0; turn < 2; turn++) {
		char path[512], name[16];
		struct run run;

		run_begin(&run, 1, 1, false);
		OK(&run.fixture, open_store(&run));
		for (unsigned commits = 0; commits < 2 + turn; commits++) {
			OK(&run.fixture, write_one(&run, 0));
			OK(&run.fixture, commit_all(&run, false));
		}
		OK(&run.fixture, commit_all(&run, true));
		for (unsigned i = turn; i < 4; i += 2) {
			snprintf(name, sizeof(name), "manifest.%u", i);
			fixture_store_file(&run.fixture, name, path);
			assert_false(unlink(path));
		}
		sim_remember(run.fixture.sim, 0);
		OK(&run.fixture, open_store(&run));
		OK(&run.fixture, write_one(&run, 0));
		OK(&run.fixture, commit_all(&run, false));
		/* After everything was durable that a commit makes so: all else is lost. */
		sim_crash(run.fixture.sim);
		(void)commit_all(&run, true);
		sim_crashed(run.fixture.sim, SIM_LOSE);
		OK(&run.fixture, open_store(&run));
		expect_a_commit(&run);
		OK(&run.fixture, commit_all(&run, true));
		assert_int_equal(run.present.of[0], 3 + turn);
		run_end(&run);
	}
}

#define LONG_RUNS at_length(SANITIZED ? 12 : 40, 12)
#define LONG_IOS  200 /* I/Os, writes and syncs of a typical long run */

/* How many tensors are reported as damaged. */
static unsigned at_random(bool lies)
{
	uint64_t seed = seed_of_run();
	unsigned damaged = 0;

	for (unsigned i = 0; i < LONG_RUNS; i++) {
		struct run run;

		run_begin(&run, seed + i, 1 + i / 2 % 2, lies);
		for (unsigned failures = lies ? 1 : 3; failures; failures--)
			power_fails(&run, long_run, 1 + below(&run.random, LONG_IOS),
				    ways[(i + failures) % LENGTH(ways)]);
		damaged += run.damaged;
		run_end(&run);
	}
	print_message("%u reported as damaged\n", damaged);
	return damaged;
}

TEST_WITH(after_every_power_failure_at_random_one_commit_is_found, NULL, say_where)
{
	assert_int_equal(at_random(false), 0);
}

/* Syncs do nothing, so anything can be lost; only checksums detect it. */
TEST_WITH(checksums_detect_a_drive_that_lies_about_syncs, NULL, say_where)
{
	assert_int_not_equal(at_random(true), 0);
}

/* ---- An optimizer ---- */

#define STEPS	  4
#define MORE	  2 /* steps after the power failure */
#define NO_COMMIT 0 /* found_steps() of a store without a commit */

static const struct group groups[] = {
	{"a", 6001, NVS_BF16}, {"b", 1, NVS_F32}, {"c", 2999, NVS_F16}, {"d", 4097, NVS_F32}};

/* Indexed by steps: the contents of a run without interruption. */
static struct snapshot due[STEPS + MORE + 1];

struct training {
	struct optim o;
	uint64_t begun, committed; /* steps in the commit in progress and in the last one */
};

static int commits(struct training *training, uint64_t steps, bool closing)
{
	struct nvs_optimizer *optimizer = training->o.optimizer;
	int rc;

	if (!sim_has_crashed(training->o.sim))
		training->begun = steps;
	if (closing)
		training->o.optimizer = NULL;
	rc = closing ? nvs_optimizer_close(optimizer, &training->o.error)
		     : nvs_optimizer_commit(optimizer, &training->o.error);
	if (!rc)
		training->committed = steps;
	return rc;
}

static bool same_bits(const struct snapshot *a, const struct snapshot *b)
{
	for (size_t i = 0; i < a->n; i++) {
		for (int part = 0; part < 3; part++)
			if (memcmp(a->parts[i][part], b->parts[i][part], a->numel[i] * 4) != 0)
				return false;
		if (memcmp(a->weights[i], b->weights[i], a->numel[i] * a->width[i]) != 0)
			return false;
	}
	return true;
}

/* The number of steps of the state found, all of which must be of one commit. */
static uint64_t found_steps(struct training *training)
{
	struct snapshot found;
	uint64_t steps = training->committed;

	snapshot_take(&training->o, &found);
	if (!same_bits(&found, &due[steps]))
		steps = training->begun;
	if (!same_bits(&found, &due[steps]))
		fail_msg("state is neither that after %" PRIu64 " steps, as committed, nor that "
			 "after %" PRIu64 ", whose commit was under way",
			 training->committed, training->begun);
	snapshot_free(&found);
	return steps;
}

/* Returns whether the run ended before the power failure. */
static bool train_until_power_fails(struct training *training, uint64_t at, enum sim_crash how)
{
	uint64_t steps = 0;
	bool ended;
	int rc;

	sim_remember(training->o.sim, at);
	rc = optim_open(&training->o);
	if (!rc) {
		/* There is a commit after every second step. */
		while (steps < STEPS && !rc) {
			optim_lend(&training->o, steps + 1, 1);
			rc = optim_step(&training->o, steps + 1);
			if (!rc && ++steps % 2)
				rc = commits(training, steps, false);
		}
		assert_true(!rc || sim_has_crashed(training->o.sim));
		rc = commits(training, steps, true);
	}
	ended = !sim_has_crashed(training->o.sim);
	assert_true(!rc || !ended);
	sim_crashed(training->o.sim, how);
	return ended;
}

TEST_WITH(an_optimizer_has_the_state_of_one_commit, NULL, say_where)
{
	uint64_t seed = seed_of_run(), runs = 0;
	struct optim straight;

	optim_init(&straight, groups, LENGTH(groups));
	straight.offload->device = NVS_DEVICE_CPU;
	DONE(&straight, optim_open(&straight));
	for (uint64_t step = 0; step <= STEPS + MORE; step++) {
		if (step)
			optim_run(&straight, step, step);
		snapshot_take(&straight, &due[step]);
	}
	optim_close(&straight);
	for (size_t way = 0; way < LENGTH(ways); way++) {
		bool ended = false;

		for (uint64_t at = 1; !ended; at += at_length(SANITIZED ? 29 : 7, 29)) {
			struct training training;
			struct optim *o = &training.o;
			uint64_t steps;

			snprintf(where, sizeof(where),
				 "seed %" PRIu64 ", power failure %" PRIu64 ", writes %s",
				 seed + runs, at, way_names[way]);
			training = (struct training){.begun = NO_COMMIT, .committed = NO_COMMIT};
			optim_init(o, groups, LENGTH(groups));
			o->sim = sim_open(&(const struct sim_drive){.seed = seed + runs,
								    .latency_ns = 50000,
								    .jitter_ns = 100000,
								    .reorder = true});
			o->config.keep = true;
			o->config.verify = (seed + runs) & 1;
			o->offload->fast_init = (seed + runs) & 2;
			o->config.optimizer_max_in_cpu = (seed + runs) & 4 ? 3000 : 0;
			o->offload->ratio = (seed + runs) & 8 ? 0.6 : 1;
			ended = train_until_power_fails(&training, at, ways[way]);
			optim_first_weights(o);
			optim_reopen(o);
			DOES(o, get_weights);
			steps = found_steps(&training);
			optim_run(o, steps + 1, steps + MORE);
			IS_AS(o, &due[steps + MORE]);
			optim_close(o);
			runs++;
		}
	}
	print_message("%" PRIu64 " runs\n", runs);
	for (size_t i = 0; i < LENGTH(due); i++)
		snapshot_free(&due[i]);
}
