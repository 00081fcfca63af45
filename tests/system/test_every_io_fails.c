/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th I/O of a transfer fails, and the n-th system call or allocation of an open and a commit,
 * for n = 1, 2, 3, ... until a run makes no more. Each time, the error names the place, a repeated
 * call succeeds, every tensor has its contents, and no file or memory is leaked.
 */

#include "system/nth_fixture.h"

#define PLAIN_CALLS (INJECT_FILES | INJECT_MMAP)

/* ---- Operations with faults ---- */

static void prefetches(struct world *w)
{
	long n;

	/* Clean tensors, so that later reads evict earlier ones. */
	world_swaps_out(w);
	n = nvs_tensor_prefetch(w->f.engine, w->t, TENSORS / 2, &w->f.error);
	if (n < 0)
		world_failed(w, (int)n);
	world_failed(w, sole_wait(w->f.engine, w->t, TENSORS / 2, -1, &w->f.error));
	if (!world_failed(w, sole_swap_in(w->f.engine, w->t, TENSORS / 2, -1, &w->f.error)))
		world_check(w, 0, TENSORS / 2);
}

/* More than the pool holds, all dirty. */
static void leases_evict(struct world *w)
{
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < TENSORS; i++)
			world_change(w, i);
}

/* Odd addresses and lengths, so some I/Os use the bounce buffer. */
static char own_memory[TENSORS][PART + 1];

static void swaps_to_and_from_own_memory(struct world *w)
{
	uint64_t first = w->seeds;
	const void *from[TENSORS];
	void *to[TENSORS];

	for (unsigned i = 0; i < TENSORS; i++) {
		from[i] = to[i] = own_memory[i] + 1;
		fill(to[i], info_of(&w->f, w->t[i]).nbytes, ++w->seeds);
	}
	if (world_failed(w,
			 nvs_tensor_swap_out_from(w->f.engine, w->t, from, TENSORS, &w->f.error)))
		return;
	world_failed(w, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
	for (unsigned i = 0; i < TENSORS; i++) {
		struct nvs_tensor_info info = info_of(&w->f, w->t[i]);

		/* A tensor that was not written has the contents of the last commit, or none. */
		if (!info.status)
			w->seed[i] = first + i + 1;
		else if (info.state == NVS_EMPTY && !w->f.config.keep)
			w->seed[i] = 0;
		if (!w->seed[i])
			continue;
		memset(to[i], 0, PART);
		if (!world_failed(w, nvs_tensor_swap_in_to(w->f.engine, &w->t[i], &to[i], 1,
							   &w->f.error)) &&
		    !world_failed(w, sole_wait(w->f.engine, &w->t[i], 1, -1, &w->f.error)))
			assert_true(filled(to[i], info_of(&w->f, w->t[i]).nbytes, w->seed[i]));
	}
}

/* ---- The drive ---- */

typedef void act_fn(struct world *w);

/* Fails the n-th I/O, or all from it on; returns whether there was an n-th. */
static bool nth_io_fails(struct world *w, act_fn *act, enum nvs_direction direction, uint64_t n,
			 bool alone)
{
	/* A failed read-ahead is repeated by the pin. */
	bool may_be_unreported = act == world_step && direction == NVS_READ, failed, reported;
	const struct faulty io = {.ios = 1u << direction, .error = w->error, .lasts = !alone};

	w->failures = 0;
	w->f.log[0] = 0;
	nth_arm(w->f.sim, &io, n);
	act(w);
	failed = nth_disarm(w->f.sim);
	events_await_idle(w->f.engine);
	/* A call has returned the error, or, since no call waits for an eviction, the log has it. */
	reported = w->failures || strstr(w->f.log, "could not be written back");
	if (failed ? !reported && !may_be_unreported : reported)
		fail_msg("%s %" PRIu64 " %s: %u calls failed, and the log has \"%s\"",
			 direction ? "write" : "read", n, failed ? "failed" : "did not fail",
			 w->failures, w->f.log);
	world_check_all(w);
	return failed;
}

/* For every LASTING-th n, all later I/Os fail, too. */
#define LASTING 3

static void in_all_ways(act_fn *act, enum nvs_direction direction)
{
	const struct setup setups[] = {{.place = PLACE_TMPFS, SMALL, .verify = true},
				       {.place = PLACE_DISK, SMALL},
				       {.place = PLACE_TMPFS, SMALL, .keep = true}};

	for (size_t i = 0; i < LENGTH(setups); i++) {
		struct inject_held before = inject_held();
		struct world w;
		uint64_t n = 1;

		world_open(&w, &setups[i]);
		w.error = i == 1 ? ENOSPC : EIO;
		world_swaps(&w);
		world_check_all(&w);
		while (n < N_LIMIT && nth_io_fails(&w, act, direction, n, true) &&
		       (n % LASTING || nth_io_fails(&w, act, direction, n, false)))
			n++;
		if (n <= TENSORS / 2 || n == N_LIMIT)
			fail_msg("there were %" PRIu64 " I/Os", n - 1);
		fixture_close(&w.f);
		assert_same_held(&before, "closing", n);
	}
}

TEST(the_nth_io_of_a_swap_fails)
{
	in_all_ways(world_swaps, NVS_READ);
	in_all_ways(world_swaps, NVS_WRITE);
}

TEST(the_nth_io_of_a_prefetch_fails)
{
	in_all_ways(prefetches, NVS_READ);
}

TEST(the_nth_io_of_an_eviction_fails)
{
	in_all_ways(leases_evict, NVS_WRITE);
}

TEST(the_nth_io_of_a_planned_step_fails)
{
	in_all_ways(world_step, NVS_READ);
	in_all_ways(world_step, NVS_WRITE);
}

TEST(the_nth_io_to_the_callers_memory_fails)
{
	in_all_ways(swaps_to_and_from_own_memory, NVS_READ);
	in_all_ways(swaps_to_and_from_own_memory, NVS_WRITE);
}

/* ---- Plain calls: opening ---- */

/* A store that is found has its contents; a new one has none. */
static void works(struct world *w)
{
	world_add_tensors(w);
	for (unsigned i = 0; i < TENSORS; i++)
		if (w->seed[i] && w->f.config.keep)
			tensor_compare(&w->f, w->t[i], w->seed[i]);
	world_swaps(w);
	assert_int_equal(w->failures, 0);
	world_check_all(w);
}

static void every_call_of_open_fails_once(const struct setup *setup, unsigned kinds, bool found,
					  int error)
{
	uint64_t failed = 1, n;
	const char *call;
	struct world w;
	int rc;

	world_make(&w, setup);
	w.error = error;
	if (found) {
		OK(&w.f, world_try_open(&w));
		works(&w);
		fixture_shut(&w.f);
	}
	for (n = 1; failed && n < N_LIMIT; n += N_STEP) {
		struct inject_held before = inject_held();

		inject_fail(kinds, n, 1, error);
		rc = world_try_open(&w);
		inject_stop(&failed);
		call = inject_failed_call();
		assert_true(failed || !rc);
		/* One copy of the metadata that can't be read is not needed; works() compares. */
		if (failed && !rc && !(w.f.config.keep && !strcmp(call, "pread")) &&
		    !survives_at(w.f.paths[0], call))
			fail_msg("%s failed, n %" PRIu64 ", but no error was reported", call, n);
		if (world_failed(&w, rc)) {
			assert_null(w.f.engine);
			assert_same_held(&before, "a failed opening", n);
			OK(&w.f, world_try_open(&w));
		}
		w.failures = 0;
		works(&w);
		fixture_shut(&w.f);
		assert_same_held(&before, "closing", n);
	}
	assert_true(n > 10 && n < N_LIMIT);
	fixture_close(&w.f);
}

#define OPENS(kinds, found, error, ...)                                                            \
	every_call_of_open_fails_once(&(const struct setup){__VA_ARGS__}, kinds, found, error)

TEST(the_nth_call_of_open_fails)
{
	OPENS(PLAIN_CALLS, false, EIO, .place = PLACE_TMPFS, SMALL);
	OPENS(PLAIN_CALLS, false, ENOMEM, .place = PLACE_TMPFS, SMALL, .device = NVS_DEVICE_CPU);
	OPENS(PLAIN_CALLS, false, EACCES, .place = PLACE_TMPFS, SMALL, .npaths = 2);
	OPENS(PLAIN_CALLS, true, EIO, .place = PLACE_TMPFS, SMALL, .keep = true);
	OPENS(PLAIN_CALLS, true, EMFILE, .place = PLACE_DISK, SMALL);
}

TEST(opening_an_engine_succeeds_or_leaves_nothing)
{
	OPENS(INJECT_ALLOCATIONS, false, ENOMEM, .place = PLACE_TMPFS, SMALL);
	OPENS(INJECT_ALLOCATIONS, true, ENOMEM, .place = PLACE_TMPFS, SMALL, .keep = true,
	      .npaths = 2);
	OPENS(INJECT_ALLOCATIONS, false, ENOMEM, .place = PLACE_TMPFS, SMALL,
	      .device = NVS_DEVICE_CPU);
}

/* A kept store whose data are on another path is refused, and its files stay. */
TEST(the_nth_call_removes_no_manifest)
{
	char data[512], elsewhere[600], manifests[2][512];
	uint64_t failed = 1;
	struct world w;

	world_open(&w, &(const struct setup){.place = PLACE_TMPFS, SMALL, .keep = true});
	world_swaps(&w);
	fixture_shut(&w.f);
	fixture_store_file(&w.f, "data", data);
	fixture_store_file(&w.f, "manifest.0", manifests[0]);
	fixture_store_file(&w.f, "manifest.1", manifests[1]);
	snprintf(elsewhere, sizeof(elsewhere), "%s.elsewhere", data);
	assert_int_equal(rename(data, elsewhere), 0);
	for (uint64_t n = 1; failed; n++) {
		inject_fail(PLAIN_CALLS, n, 1, EIO);
		assert_int_not_equal(world_try_open(&w), 0);
		inject_stop(&failed);
		assert_true(!access(manifests[0], F_OK) || !access(manifests[1], F_OK));
	}
	assert_int_equal(w.f.error.code, -EUCLEAN);
	assert_int_equal(rename(elsewhere, data), 0);
	OK(&w.f, world_try_open(&w));
	world_add_tensors(&w);
	world_check_all(&w);
	fixture_close(&w.f);
}

/*
 * A refused batch registers nothing and takes no space. A new store each time, because registering
 * must reserve space.
 */
static void every_call_of_register_fails_once(const struct setup *setup)
{
	const struct nvs_tensor_spec specs[] = {U8_TENSOR("new.0", 36000), U8_TENSOR("new.1", 1)};
	struct nvs_engine_stats before, now;
	uint64_t failed = 1, n;
	struct nvs_tensor *t[2];
	struct world w;
	int rc;

	for (n = 1; failed && n < N_LIMIT; n++) {
		world_open(&w, setup);
		w.error = n % 2 ? ENOSPC : EIO;
		before = stats_of(&w.f);
		inject_fail(PLAIN_CALLS, n, 1, w.error);
		rc = nvs_tensor_register(w.f.engine, specs, 2, t, &w.f.error);
		inject_stop(&failed);
		/* Space reserved ahead of need is optional. */
		if (failed && !rc && strcmp(inject_failed_call(), "posix_fallocate") != 0 &&
		    !survives_at(w.f.paths[0], inject_failed_call()))
			fail_msg("%s failed, but no error was reported", inject_failed_call());
		if (world_failed(&w, rc)) {
			now = stats_of(&w.f);
			assert_int_equal(now.tensors, before.tensors);
			assert_int_equal(now.tensor_bytes, before.tensor_bytes);
			assert_int_equal(now.store_bytes, before.store_bytes);
			assert_null(nvs_tensor_find(w.f.engine, "new.0"));
			assert_null(nvs_tensor_find(w.f.engine, "new.1"));
			OK(&w.f, nvs_tensor_register(w.f.engine, specs, 2, t, &w.f.error));
		}
		tensor_store(&w.f, t[1], n);
		tensor_compare(&w.f, t[1], n);
		OK(&w.f, nvs_tensor_forget(w.f.engine, t, 2, &w.f.error));
		world_swaps(&w);
		world_check_all(&w);
		fixture_close(&w.f);
	}
	assert_true(n > 2 && !failed);
}

TEST(the_nth_call_of_register_fails)
{
	static const struct setup setups[] = {
		{.place = PLACE_TMPFS, SMALL},
		{.place = PLACE_TMPFS, SMALL, .npaths = 3, .keep = true},
		{.place = PLACE_TMPFS, SMALL, .device = NVS_DEVICE_CPU}};

	for (size_t i = 0; i < LENGTH(setups); i++)
		every_call_of_register_fails_once(&setups[i]);
}

/* ---- Commits of a kept store ---- */

/* The contents of the previous commit, and of the one that fails. */
struct commits {
	uint64_t before[TENSORS], after[TENSORS];
};

/* The next run finds one of the two commits complete. `must`: the newer one. */
static void one_of_them_is_found(struct world *w, const struct commits *commits, bool must)
{
	bool after = must;

	OK(&w->f, world_try_open(w));
	world_add_tensors(w);
	for (unsigned i = 0; i < TENSORS; i++) {
		OK(&w->f, sole_swap_in(w->f.engine, &w->t[i], 1, -1, &w->f.error));
		OK(&w->f, sole_wait(w->f.engine, &w->t[i], 1, -1, &w->f.error));
		w->seed[i] = commits->after[i];
		if (!i)
			after = world_has_bytes(w, i);
		if (!after)
			w->seed[i] = commits->before[i];
		assert_true(world_has_bytes(w, i));
		OK(&w->f, sole_release(w->f.engine, &w->t[i], 1, NVS_CLEAN, &w->f.error));
	}
	assert_true(!must || after);
	for (unsigned i = 0; i < TENSORS; i++)
		assert_true(world_change(w, i));
}

/* Returns whether there was an n-th. */
static bool nth_fails_in_commit(struct world *w, unsigned kinds, bool closing, uint64_t n)
{
	const struct faulty what = {.ios = kinds ? 0 : SIM_ALL, .kinds = kinds, .error = w->error};
	struct inject_held before = inject_held();
	struct nvs_engine *engine;
	struct commits commits;
	bool failed, done;
	int rc;

	OK(&w->f, world_try_open(w));
	world_add_tensors(w);
	OK(&w->f, nvs_engine_commit(w->f.engine, &w->f.error));
	memcpy(commits.before, w->seed, sizeof(w->seed));
	/* Some of every second tensor is on the drive already. */
	for (unsigned i = 0; i < TENSORS; i += 2)
		assert_true(world_change(w, i));
	OK(&w->f, nvs_tensor_swap_out(w->f.engine, w->t, 4, &w->f.error));
	OK(&w->f, sole_wait(w->f.engine, w->t, TENSORS, -1, &w->f.error));
	memcpy(commits.after, w->seed, sizeof(w->seed));
	engine = w->f.engine;
	w->f.log[0] = 0;
	w->failures = 0;
	nth_arm(w->f.sim, &what, n);
	rc = closing ? nvs_engine_close(engine, &w->f.error)
		     : nvs_engine_commit(engine, &w->f.error);
	failed = nth_disarm(w->f.sim);
	assert_true(failed || !rc);
	if (!closing)
		events_await_idle(engine);
	/*
	 * Closing the file unlocks it, even if the unlock fails; a commit counts without its mark.
	 */
	if (!world_failed(w, rc) && failed && strcmp(inject_failed_call(), "flock") != 0 &&
	    !strstr(w->f.log, "could not be marked so"))
		fail_msg("%s failed, n %" PRIu64 ", but no error was reported",
			 inject_failed_call(), n);
	done = !rc;
	/* A commit can be repeated, unless data may have been lost; that must stay an error. */
	if (rc && !closing && n % 2) {
		rc = nvs_engine_commit(engine, &w->f.error);
		assert_true(!rc || (rc == -EIO && !strcmp(inject_failed_call(), "fdatasync")));
		done = !rc;
	}
	if (!closing) {
		engine_abandon(engine);
		OK(&w->f, nvs_engine_close(engine, &w->f.error));
	}
	w->f.engine = NULL;
	assert_same_held(&before, "closing", n);
	one_of_them_is_found(w, &commits, done);
	fixture_shut(&w->f);
	return failed;
}

/* With kinds 0: every I/O. */
static void every_fault_in_commit_comes_once(unsigned kinds, bool closing, int error)
{
	const struct setup setup = {.place = PLACE_TMPFS, SMALL, .keep = true, .npaths = 2};
	struct world w;
	uint64_t n = 1;

	world_make(&w, &setup);
	w.error = error;
	OK(&w.f, world_try_open(&w));
	works(&w);
	fixture_shut(&w.f);
	while (n < N_LIMIT && nth_fails_in_commit(&w, kinds, closing, n))
		n++;
	assert_true(n > (kinds & INJECT_MEMORY ? 1 : 5) && n < N_LIMIT);
	fixture_close(&w.f);
}

TEST(the_nth_call_or_io_of_commit_fails)
{
	every_fault_in_commit_comes_once(PLAIN_CALLS, false, EIO);
	every_fault_in_commit_comes_once(INJECT_ALLOCATIONS, false, ENOMEM);
	every_fault_in_commit_comes_once(0, false, ENOSPC);
}

TEST(the_nth_call_or_io_of_close_fails)
{
	every_fault_in_commit_comes_once(PLAIN_CALLS, true, ENOSPC);
	every_fault_in_commit_comes_once(INJECT_ALLOCATIONS, true, ENOMEM);
	every_fault_in_commit_comes_once(0, true, EIO);
}
