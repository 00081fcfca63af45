/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th I/O, call or allocation of the optimizer fails, for n = 1, 2, 3, ... until it makes no
 * more. A repeated step ends with the bits of an undisturbed one, and a failed commit leaves the
 * previous one.
 */

#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "system/nth_fixture.h"

#define PLAIN_CALLS (INJECT_FILES | INJECT_QUEUE)

static const struct group groups[] = {
	{"layers.0", 3001, NVS_BF16}, {"layers.1", 1999, NVS_F32}, {"layers.2", 1337, NVS_F16}};

/* An optimizer on a simulated drive. */
struct run {
	struct optim o;
	uint64_t steps; /* steps in its last commit */
	bool unmarked;	/* the log says that a commit could not be marked */
};

static void take_log(void *arg, enum nvs_log_level level, const char *text)
{
	struct run *run = arg;

	(void)level;
	run->unmarked |= strstr(text, "could not be marked so") != NULL;
}

static void run_make(struct run *run)
{
	memset(run, 0, sizeof(*run));
	optim_init(&run->o, groups, LENGTH(groups));
	run->o.sim = sim_open(&(const struct sim_drive){.seed = 1, .reorder = true});
	run->o.config.log = (struct nvs_log){take_log, run};
	run->o.config.aio.block_size = 4096;
}

static void run_open(struct run *run)
{
	run_make(run);
	DONE(&run->o, optim_open(&run->o));
}

/* The same steps without faults, in host memory. */
static void twin_open(struct optim *twin)
{
	optim_init(twin, groups, LENGTH(groups));
	twin->offload->device = NVS_DEVICE_CPU;
	DONE(twin, optim_open(twin));
}

/* ---- Faults ---- */

static const struct faulty ways[] = {
	{.ios = SIM_READS, .error = EIO},
	{.ios = SIM_WRITES, .error = ENOSPC},
	{.kinds = PLAIN_CALLS, .error = EIO},
	{.kinds = INJECT_ALLOCATIONS, .error = ENOMEM},
};

static void arm(struct run *run, const struct faulty *what, uint64_t n)
{
	run->o.error = (struct nvs_error){.size = sizeof(run->o.error)};
	nth_arm(run->o.sim, what, n);
}

/*
 * Whether the call failed; then its error must be the injected one, and name the place of an I/O or
 * file.
 */
static bool failed_as_injected(struct run *run, const struct faulty *what, int rc)
{
	const struct nvs_error *error = &run->o.error;
	bool place = what->kinds & INJECT_ALLOCATIONS || strstr(error->text, run->o.path) ||
		     !strncmp(inject_failed_call(), "getrandom", 9);

	if (!rc)
		return false;
	if (rc != -what->error || error->code != rc || !error->text[0] || !place)
		fail_msg("%d instead of %d (%s): %d \"%s\"", rc, -what->error, inject_failed_call(),
			 error->code, error->text);
	return true;
}

/* ---- Steps ---- */

/*
 * Of each direction, and from then on all of them if it lasts: then no retry finishes the step
 * until the drive is repaired.
 */
static void every_io_of_a_step_fails(bool lasts)
{
	for (int direction = NVS_READ; direction <= NVS_WRITE; direction++) {
		struct inject_held before = inject_held();
		const struct faulty what = {.ios = 1u << direction, .error = EIO, .lasts = lasts};
		bool failed = true;
		struct optim twin;
		struct run run;
		uint64_t n;
		int rc;

		run_open(&run);
		twin_open(&twin);
		/* The first step makes the state and reads nothing. */
		optim_run(&run.o, 1, 1);
		optim_run(&twin, 1, 1);
		for (n = 1; failed && n < N_LIMIT; n++) {
			arm(&run, &what, n);
			optim_run(&twin, n + 1, n + 1);
			inject_pause();
			optim_lend(&run.o, n + 1, 1);
			inject_resume();
			rc = optim_step(&run.o, n + 1);
			for (unsigned i = 0; i < 4 && lasts && failed_as_injected(&run, &what, rc);
			     i++)
				rc = optim_step(&run.o, n + 1);
			failed = nth_disarm(run.o.sim);
			if (failed && !rc && (lasts || direction == NVS_WRITE))
				fail_msg("I/O %" PRIu64 " failed, and the step is done", n);
			assert_true(failed || !rc);
			if (failed_as_injected(&run, &what, rc))
				DONE(&run.o, optim_step(&run.o, n + 1));
			assert_int_equal(run.o.result.step, n + 1);
			IS_LIKE(&run.o, &twin);
		}
		assert_in_range(n, 12, N_LIMIT - 1);
		optim_close(&run.o);
		optim_close(&twin);
		assert_same_held(&before, "steps", n);
	}
}

TEST(the_nth_io_of_a_step_fails)
{
	every_io_of_a_step_fails(false);
}

TEST(a_step_is_not_done_while_the_drive_fails)
{
	every_io_of_a_step_fails(true);
}

TEST(a_step_allocates_nothing)
{
	struct optim twin;
	struct run run;

	run_open(&run);
	twin_open(&twin);
	for (uint64_t step = 1; step < 4; step++) {
		uint64_t n;

		optim_lend(&run.o, step, 1);
		inject_fail(INJECT_ALLOCATIONS, 0, 0, ENOMEM);
		DONE(&run.o, optim_step(&run.o, step));
		n = inject_stop(NULL);
		if (n)
			fail_msg("step %" PRIu64 " allocated %" PRIu64 " times", step, n);
		optim_run(&twin, step, step);
		IS_LIKE(&run.o, &twin);
	}
	optim_close(&run.o);
	optim_close(&twin);
}

/* ---- Opening ---- */

/* Also without space that is reserved early, binding, and one copy of the metadata (pread). */
static bool survived(const struct run *run)
{
	const char *call = inject_failed_call();

	return survives_at(run->o.path, call) || !strncmp(call, "posix_fal", 9) ||
	       !strncmp(call, "hwloc_bitmap", 12) || !strncmp(call, "pread", 5);
}

static void every_fault_in_open_comes_once(const struct faulty *what, bool keep)
{
	struct snapshot due;
	bool failed = true;
	struct run run;
	uint64_t n;
	int rc;

	run_make(&run);
	run.o.offload->fast_init = false;
	run.o.offload->ratio = 0.6;
	run.o.config.keep = keep;
	optim_open_run(&run.o, keep ? 3 : 0);
	snapshot_take(&run.o, &due);
	optim_shut(&run.o);
	for (n = 1; failed && n < N_LIMIT; n += N_STEP) {
		struct inject_held before = inject_held();

		arm(&run, what, n);
		rc = optim_open(&run.o);
		failed = nth_disarm(run.o.sim);
		assert_true(failed || !rc);
		if (failed_as_injected(&run, what, rc)) {
			assert_null(run.o.optimizer);
			assert_same_held(&before, "a failed opening", n);
			DONE(&run.o, optim_open(&run.o));
		} else if (failed && (what->ios || !survived(&run))) {
			fail_msg("%s failed, n %" PRIu64 ", but no error was reported",
				 inject_failed_call(), n);
		}
		IS_AS(&run.o, &due);
		optim_shut(&run.o);
		assert_same_held(&before, "closing", n);
	}
	assert_true(n < N_LIMIT);
	snapshot_free(&due);
	optim_close(&run.o);
}

TEST(the_nth_fault_in_open_is_reported)
{
	for (size_t i = 0; i < 2 * LENGTH(ways); i++)
		every_fault_in_open_comes_once(&ways[i / 2], i % 2);
}

/* ---- Commits ---- */

/* After a failed commit another one succeeds, unless data may not be durable. */
static bool nth_fails_in_commit(struct run *run, const struct faulty *what, bool closing,
				uint64_t n)
{
	struct nvs_optimizer *optimizer = run->o.optimizer;
	struct snapshot before, after;
	bool failed;
	int rc;

	DONE(&run->o, nvs_optimizer_commit(optimizer, &run->o.error));
	snapshot_take(&run->o, &before);
	optim_run(&run->o, run->steps + 1, run->steps + 1);
	snapshot_take(&run->o, &after);
	run->unmarked = false;
	arm(run, what, n);
	rc = closing ? nvs_optimizer_close(optimizer, &run->o.error)
		     : nvs_optimizer_commit(optimizer, &run->o.error);
	failed = nth_disarm(run->o.sim);
	assert_true(failed || !rc);
	if (!closing)
		events_await_idle(nvs_optimizer_engine(optimizer));
	/* Closing the file unlocks it, even if the unlock fails. One copy of the metadata that
	 * can't be read is not needed. A commit counts without its mark. */
	if (!failed_as_injected(run, what, rc) && failed && !run->unmarked &&
	    strcmp(inject_failed_call(), "flock") != 0 &&
	    strcmp(inject_failed_call(), "pread") != 0)
		fail_msg("%s failed, n %" PRIu64 ", but no error was reported",
			 inject_failed_call(), n);
	if (!closing) {
		IS_AS(&run->o, &after);
		rc = nvs_optimizer_close(optimizer, &run->o.error);
		assert_true(!rc || (rc == -EIO && !strcmp(inject_failed_call(), "fdatasync")));
	}
	run->o.optimizer = NULL;
	DONE(&run->o, optim_open(&run->o));
	if (rc)
		DONE(&run->o, nvs_optimizer_get_weights(run->o.optimizer, &run->o.error));
	run->steps += !rc;
	run->o.result.norm = rc ? before.norm : after.norm;
	IS_AS(&run->o, rc ? &before : &after);
	snapshot_free(&before);
	snapshot_free(&after);
	return failed;
}

static void every_fault_in_commit_comes_once(bool closing)
{
	/* Nothing is read. */
	for (size_t i = 1; i < LENGTH(ways); i++) {
		struct inject_held before = inject_held();
		struct run run;
		uint64_t n = 1;

		run_make(&run);
		run.o.config.keep = true;
		run.o.offload->ratio = 0.6;
		run.o.config.optimizer_max_in_cpu = 2048;
		DONE(&run.o, optim_open(&run.o));
		while (n < N_LIMIT && nth_fails_in_commit(&run, &ways[i], closing, n))
			n++;
		assert_true(n < N_LIMIT);
		optim_close(&run.o);
		assert_same_held(&before, "commits", n);
	}
}

TEST(the_nth_fault_in_commit_leaves_the_previous_one)
{
	every_fault_in_commit_comes_once(false);
}

TEST(the_nth_fault_in_close_leaves_the_last_commit)
{
	every_fault_in_commit_comes_once(true);
}

/* A store of bf16 has the values that it has in fp32: they are the same after a failure or not. */
static void every_fault_in_a_conversion_comes_once(const struct faulty *what)
{
	struct nvs_state_conversion result = {.size = sizeof(result)};
	struct snapshot due;
	bool failed = true;
	struct run run;
	enum nvs_optimizer_state *now = &run.o.config.optimizer_state, wanted;
	uint64_t n;
	int rc;

	run_make(&run);
	run.o.config.keep = true;
	*now = NVS_STATE_BF16;
	run.o.offload->ratio = 0.6;
	optim_open_run(&run.o, 2);
	snapshot_take(&run.o, &due);
	optim_shut(&run.o);
	for (n = 1; failed && n < N_LIMIT; n += what->ios ? 1 : at_length(1, 5)) {
		struct inject_held before = inject_held();

		wanted = *now == NVS_STATE_BF16 ? NVS_STATE_FP32 : NVS_STATE_BF16;
		run.unmarked = false;
		arm(&run, what, n);
		rc = optimizer_convert_with(&run.o.config, wanted, &result, &engine_sim, run.o.sim,
					    &run.o.error);
		failed = nth_disarm(run.o.sim);
		assert_true(failed || !rc);
		assert_same_held(&before, "a conversion", n);
		if (!failed_as_injected(&run, what, rc)) {
			/* What is read ahead is read again, and what is written before the commit
			 * is written again. */
			if (failed && !run.unmarked && !what->ios && !survived(&run) &&
			    strcmp(inject_failed_call(), "flock") != 0)
				fail_msg("%s failed, n %" PRIu64 ", but no error was reported",
					 inject_failed_call(), n);
			*now = wanted;
		}
		DONE(&run.o, optim_open(&run.o));
		IS_AS(&run.o, &due);
		optim_shut(&run.o);
	}
	assert_in_range(n, 3, N_LIMIT - 1);
	snapshot_free(&due);
	optim_close(&run.o);
}

TEST(the_nth_fault_in_a_conversion_leaves_the_format_before)
{
	for (size_t i = 0; i < LENGTH(ways); i++)
		every_fault_in_a_conversion_comes_once(&ways[i]);
}
