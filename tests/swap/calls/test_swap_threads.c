/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one engine, with private and shared tensors and a pool that is too small, also on
 * a drive that stalls while every wait has a limit. A thread that changes a shared tensor locks out
 * the others, as callers must; all other calls come from any thread at any time.
 */
#include "swap/swap_fixture.h"

#include <sched.h>
#include <stdatomic.h>

ONE_ENGINE

#define THREADS 8
#define SHARED	24
#define OWN	8
#define TURNS	at_length(SANITIZED ? 150 : 600, SANITIZED ? 60 : 200)

static struct nvs_tensor *tensors[SHARED];
static uint64_t nbytes[SHARED];
static pthread_rwlock_t locks[SHARED];
static uint64_t seeds[SHARED]; /* seeds of the contents; under the locks */
static bool stalls;	       /* the drive, from time to time, and no wait is without a limit */

struct worker {
	pthread_t thread;
	uint64_t random;
	unsigned number;
	struct nvs_tensor *own[OWN];
	uint64_t nbytes[OWN], seeds[OWN];
	uint64_t run_out; /* calls that timed out */
};

#define DONE(call) must_be_ok(call, &error)

static void must_be_ok(int rc, struct nvs_error *error)
{
	if (rc)
		fprintf(stderr, "%s: %s\n", nvs_strerror(rc), error->text);
	MUST(!rc);
}

/* Whether the call timed out, which is harmless; then the drive goes on. */
static bool ran_out(struct worker *w, int rc, struct nvs_error *error)
{
	if (!stalls || (rc != -ETIMEDOUT && rc != -EAGAIN)) {
		must_be_ok(rc, error);
		return false;
	}
	w->run_out++;
	sim_go(f->sim, SIM_ALL);
	sched_yield();
	return true;
}

static int limit(struct worker *w)
{
	return stalls ? (int)below(&w->random, 3) : -1;
}

static void wait_for(struct worker *w, struct nvs_tensor **t, size_t n, uint64_t pin)
{
	struct nvs_error error = {.size = sizeof(error)};

	while (ran_out(w, nvs_tensor_wait(f->engine, t, n, pin, limit(w), &error), &error))
		;
}

/* Pins the tensors, for new contents or with the old ones; returns the pin. */
static uint64_t pin(struct worker *w, struct nvs_tensor **t, size_t n, bool fresh)
{
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t pin;

	while (ran_out(w,
		       fresh ? nvs_tensor_pin(f->engine, t, n, limit(w), &pin, &error)
			     : nvs_tensor_swap_in(f->engine, t, n, limit(w), &pin, &error),
		       &error))
		;
	if (!fresh)
		wait_for(w, t, n, pin);
	return pin;
}

static void release(struct nvs_tensor **t, size_t n, uint64_t pin, enum nvs_how how)
{
	struct nvs_error error = {.size = sizeof(error)};

	DONE(nvs_tensor_release(f->engine, t, n, pin, how, &error));
}

static void read_shared(struct worker *w)
{
	size_t i = below(&w->random, SHARED);
	uint64_t number;

	pthread_rwlock_rdlock(&locks[i]);
	number = pin(w, &tensors[i], 1, false);
	MUST(filled(nvs_tensor_data(tensors[i]), nbytes[i], seeds[i]));
	release(&tensors[i], 1, number, NVS_CLEAN);
	pthread_rwlock_unlock(&locks[i]);
}

static void change_shared(struct worker *w)
{
	size_t i = below(&w->random, SHARED);
	uint64_t number;

	pthread_rwlock_wrlock(&locks[i]);
	number = pin(w, &tensors[i], 1, below(&w->random, 2));
	seeds[i] = next_random(&w->random);
	fill(nvs_tensor_data(tensors[i]), nbytes[i], seeds[i]);
	release(&tensors[i], 1, number, NVS_DIRTY);
	pthread_rwlock_unlock(&locks[i]);
}

/* Calls that need no lock: each succeeds, or fails with a transient error. */
static void meddle(struct worker *w)
{
	size_t at = below(&w->random, SHARED), n = 1 + below(&w->random, SHARED - at);
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_tensor_info info = {.size = sizeof(info)};
	long rc;

	switch (below(&w->random, 8)) {
	case 0:
		rc = nvs_tensor_prefetch(f->engine, &tensors[at], n, NULL);
		MUST(rc >= 0 && rc <= (long)n);
		break;
	case 1:
		rc = nvs_tensor_swap_out(f->engine, &tensors[at], n, NULL);
		MUST(rc == 0 || rc == -EBUSY);
		break;
	case 2:
		rc = nvs_tensor_wait(f->engine, &tensors[at], n, 0, (int)below(&w->random, 3) - 1,
				     NULL);
		MUST(rc == 0 || rc == -EAGAIN || rc == -ETIMEDOUT);
		break;
	case 3:
		rc = nvs_engine_commit(f->engine, NULL);
		MUST(rc == 0 || rc == -EBUSY);
		break;
	case 4:
		rc = nvs_engine_step_begin(f->engine, NULL);
		MUST(rc == 0 || rc == -EBUSY);
		break;
	case 5:
		rc = nvs_engine_step_end(f->engine, NULL, NULL);
		MUST(rc == 0 || rc == -EBUSY);
		break;
	case 6:
		nvs_tensor_get_info(f->engine, tensors[at], &info);
		MUST(info.nbytes == nbytes[at] && !info.status);
		break;
	default:
		nvs_engine_get_stats(f->engine, &stats);
		MUST(stats.pool.used <= stats.pool.bytes && !stats.verify_errors);
	}
}

/*
 * Reads a tensor into external memory and gives it other contents from there. Takes the lock,
 * because no other thread can pin a tensor in flight to external memory.
 */
static void move_shared_past_the_pool(struct worker *w)
{
	size_t i = below(&w->random, SHARED);
	char *memory = malloc(nbytes[i] + 1);
	const void *from = memory + 1;
	void *data = memory + 1;
	int rc;

	MUST(memory);
	pthread_rwlock_wrlock(&locks[i]);
	rc = nvs_tensor_swap_in_to(f->engine, &tensors[i], &data, 1, NULL);
	MUST(rc == 0 || rc == -EBUSY);
	wait_for(w, &tensors[i], 1, 0);
	if (!rc)
		MUST(filled(data, nbytes[i], seeds[i]));
	fill(data, nbytes[i], w->random);
	rc = nvs_tensor_swap_out_from(f->engine, &tensors[i], &from, 1, NULL);
	MUST(rc == 0 || rc == -EBUSY);
	if (!rc)
		seeds[i] = w->random;
	wait_for(w, &tensors[i], 1, 0);
	pthread_rwlock_unlock(&locks[i]);
	free(memory);
}

static void work_on_own(struct worker *w)
{
	size_t at = below(&w->random, OWN), n = 1 + below(&w->random, OWN - at);
	struct nvs_error error = {.size = sizeof(error)};
	enum nvs_how how = below(&w->random, 2) ? NVS_DIRTY : NVS_CLEAN;
	uint64_t number;

	if (n > 3)
		n = 3;
	number = pin(w, &w->own[at], n, false);
	for (size_t i = at; i < at + n; i++) {
		MUST(filled(nvs_tensor_data(w->own[i]), w->nbytes[i], w->seeds[i]));
		if (how == NVS_CLEAN)
			continue;
		w->seeds[i] = next_random(&w->random);
		fill(nvs_tensor_data(w->own[i]), w->nbytes[i], w->seeds[i]);
	}
	release(&w->own[at], n, number, how);
	if (below(&w->random, 2))
		DONE(nvs_tensor_swap_out(f->engine, &w->own[at], n, &error));
	else
		MUST(nvs_tensor_prefetch(f->engine, &w->own[at], n, &error) >= 0);
}

static void register_own(struct worker *w)
{
	struct nvs_tensor_spec specs[OWN];
	struct nvs_error error = {.size = sizeof(error)};
	char names[OWN][32];

	for (size_t i = 0; i < OWN; i++) {
		w->nbytes[i] = 1 + below(&w->random, 60000);
		snprintf(names[i], sizeof(names[i]), "own.%u.%zu", w->number, i);
		specs[i] = (struct nvs_tensor_spec)U8_TENSOR(names[i], w->nbytes[i]);
	}
	DONE(nvs_tensor_register(f->engine, specs, OWN, w->own, &error));
	for (size_t i = 0; i < OWN; i++) {
		uint64_t number = pin(w, &w->own[i], 1, true);

		w->seeds[i] = next_random(&w->random);
		fill(nvs_tensor_data(w->own[i]), w->nbytes[i], w->seeds[i]);
		release(&w->own[i], 1, number, NVS_DIRTY);
	}
}

static void forget_own(struct worker *w)
{
	int rc;

	/* Evictions for other threads can put the tensors in flight at any time, so retry. */
	do {
		wait_for(w, w->own, OWN, 0);
		rc = nvs_tensor_forget(f->engine, w->own, OWN, NULL);
		MUST(!rc || rc == -EBUSY);
	} while (rc);
}

static void *work(void *arg)
{
	static void (*const works[])(struct worker *) = {
		read_shared, read_shared, change_shared, move_shared_past_the_pool,
		work_on_own, work_on_own, meddle};
	struct worker *w = arg;

	register_own(w);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		void (*turns_work)(struct worker *) = works[below(&w->random, LENGTH(works))];

		/* A stall ends with the turn in which it began, so waits without a limit end, which
		 * no turn has that stalls the drive. */
		if (stalls && turns_work != meddle && below(&w->random, 2))
			sim_hold(f->sim, SIM_ALL);
		turns_work(w);
		if (stalls)
			sim_go(f->sim, SIM_ALL);
		if (turn == TURNS / 2) {
			forget_own(w);
			register_own(w);
		}
	}
	return NULL;
}

static uint64_t all_threads(const struct setup *setup)
{
	static struct worker workers[THREADS];
	uint64_t random = seed_of_run(), run_out = 0;

	memset(workers, 0, sizeof(workers));
	fixture_open(f, setup);
	stalls = setup->simulated;
	for (size_t i = 0; i < SHARED; i++) {
		nbytes[i] = below(&random, 100000);
		pthread_rwlock_init(&locks[i], NULL);
	}
	tensors_add(f, "shared", nbytes, SHARED, tensors);
	for (size_t i = 0; i < SHARED; i++) {
		seeds[i] = next_random(&random);
		tensor_write(f, tensors[i], seeds[i]);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){.number = i, .random = next_random(&random)};
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		run_out += workers[i].run_out;
	}
	for (size_t i = 0; i < SHARED; i++) {
		tensor_compare(f, tensors[i], seeds[i]);
		pthread_rwlock_destroy(&locks[i]);
	}
	for (unsigned k = 0; k < THREADS; k++)
		for (size_t i = 0; i < OWN; i++)
			tensor_compare(f, workers[k].own[i], workers[k].seeds[i]);
	return run_out;
}

TEST(threads_share_an_engine)
{
	const struct setup setups[] = {{.place = PLACE_EXT4, .pool_bytes = MIB, .thread_count = 2},
				       {.place = PLACE_TMPFS,
					.pool_bytes = MIB,
					.verify = true,
					.keep = true,
					.ioengine = NVS_IOENGINE_POSIX},
				       {.place = PLACE_TMPFS,
					.pool_bytes = 2 * MIB,
					.max_in_cpu = NONE_STAYS,
					.verify = true,
					.thread_count = 2}};

	for (size_t i = 0; i < LENGTH(setups); i++) {
		all_threads(&setups[i]);
		fixture_close(f);
	}
}

TEST(waits_that_time_out_lose_nothing)
{
	uint64_t times = all_threads(&(struct setup){.place = PLACE_TMPFS,
						     .pool_bytes = MIB,
						     .verify = true,
						     .keep = true,
						     .thread_count = 2,
						     .simulated = true});

	print_message("time ran out %" PRIu64 " times\n", times);
	assert_true(times > 0);
}

/* ---- Names ---- */

#define READS (SANITIZED ? 100 : 300)

struct renamed {
	struct nvs_tensor *t;
	atomic_bool ended;
};

static void *rename_often(void *arg)
{
	struct renamed *r = arg;

	for (unsigned i = 0; !r->ended; i++) {
		char name[32];

		snprintf(name, sizeof(name), "name%u", i);
		MUST(!nvs_tensor_rename(f->engine, r->t, name, NULL));
		sched_yield();
	}
	return NULL;
}

/* Calls that are refused, a transfer that is traced, and an export under the tensor's name. */
static void read_name(struct renamed *r)
{
	struct nvs_tensor_range beyond = {.size = sizeof(beyond), .tensor = r->t, .offset = 101};
	const struct nvs_checkpoint_item item = {.size = sizeof(item), .tensor = r->t};
	const struct nvs_tensor_info info = info_of(f, r->t);
	char data[100], path[4096];
	void *none = NULL;

	fill(data, sizeof(data), 7);
	FAILS(f, -EINVAL, "name", nvs_tensor_read, &beyond, 1);
	FAILS(f, -EINVAL, "name", nvs_tensor_swap_in_to, &r->t, &none, 1);
	tensor_from(f, r->t, data);
	snprintf(path, sizeof(path), "%s/named.safetensors", f->paths[0]);
	OK(f, nvs_checkpoint_export(f->engine, &item, 1, path, NULL, &f->error));
	assert_int_equal(unlink(path), 0);
	assert_memory_equal(info.name, "name", strlen("name"));
}

TEST(a_tensor_is_renamed_while_its_name_is_read)
{
	static struct renamed r;
	struct nvs_trace *trace;
	pthread_t thread;

	memset(&r, 0, sizeof(r));
	INIT(f, .place = PLACE_DISK);
	OK(f, nvs_trace_open(&trace, 100000, &f->error));
	nvs_config_set_trace(&f->config, trace);
	OK(f, fixture_reopen(f));
	r.t = tensor_add(f, "name", 100);
	assert_int_equal(pthread_create(&thread, NULL, rename_often, &r), 0);
	for (unsigned i = 0; i < READS; i++)
		read_name(&r);
	r.ended = true;
	pthread_join(thread, NULL);
	tensor_compare(f, r.t, 7);
	fixture_close(f);
	nvs_trace_close(trace);
}
