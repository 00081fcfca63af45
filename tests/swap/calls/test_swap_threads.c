/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one engine, with private and shared tensors and a pool that is too small. A
 * thread that changes a shared tensor locks out the others, as callers must; all other calls come
 * from any thread at any time.
 */
#include "support/support.h"
#include "support/tests.h"
#include "swap/swap_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS 8
#define SHARED	24
#define OWN	8
#define TURNS	at_length(SANITIZED ? 150 : 600, SANITIZED ? 60 : 200)

struct shared {
	struct fixture f;
	struct nvs_tensor *tensors[SHARED];
	uint64_t nbytes[SHARED];
	pthread_rwlock_t locks[SHARED];
	uint64_t seeds[SHARED]; /* seeds of the contents; under the locks */
	uint64_t seed;
};

struct worker {
	struct shared *shared;
	pthread_t thread;
	uint64_t random;
	unsigned number;
	struct nvs_tensor *own[OWN];
	uint64_t nbytes[OWN], seeds[OWN];
	uint64_t moved;
};

static void must_be_ok(struct shared *s, int rc, struct nvs_error *error)
{
	(void)s;
	if (rc)
		fprintf(stderr, "%s: %s\n", nvs_strerror(rc), error->text);
	MUST(!rc);
}

static void read_shared(struct worker *w)
{
	struct shared *s = w->shared;
	struct nvs_error error = {.size = sizeof(error)};
	size_t i = below(&w->random, SHARED);
	uint64_t pin;

	pthread_rwlock_rdlock(&s->locks[i]);
	must_be_ok(s, nvs_tensor_swap_in(s->f.engine, &s->tensors[i], 1, -1, &pin, &error), &error);
	must_be_ok(s, nvs_tensor_wait(s->f.engine, &s->tensors[i], 1, pin, -1, &error), &error);
	MUST(filled(nvs_tensor_data(s->tensors[i]), s->nbytes[i], s->seeds[i]));
	must_be_ok(s, nvs_tensor_release(s->f.engine, &s->tensors[i], 1, pin, NVS_CLEAN, &error),
		   &error);
	pthread_rwlock_unlock(&s->locks[i]);
	w->moved += s->nbytes[i];
}

static void change_shared(struct worker *w)
{
	struct shared *s = w->shared;
	struct nvs_error error = {.size = sizeof(error)};
	size_t i = below(&w->random, SHARED);
	uint64_t pin;

	pthread_rwlock_wrlock(&s->locks[i]);
	if (below(&w->random, 2)) {
		must_be_ok(s, nvs_tensor_pin(s->f.engine, &s->tensors[i], 1, -1, &pin, &error),
			   &error);
	} else {
		must_be_ok(s, nvs_tensor_swap_in(s->f.engine, &s->tensors[i], 1, -1, &pin, &error),
			   &error);
		must_be_ok(s, nvs_tensor_wait(s->f.engine, &s->tensors[i], 1, pin, -1, &error),
			   &error);
	}
	s->seeds[i] = next_random(&w->random);
	fill(nvs_tensor_data(s->tensors[i]), s->nbytes[i], s->seeds[i]);
	must_be_ok(s, nvs_tensor_release(s->f.engine, &s->tensors[i], 1, pin, NVS_DIRTY, &error),
		   &error);
	pthread_rwlock_unlock(&s->locks[i]);
}

/* Calls that need no lock: each succeeds, or fails with a transient error. */
static void meddle(struct worker *w)
{
	struct shared *s = w->shared;
	size_t at = below(&w->random, SHARED), n = 1 + below(&w->random, SHARED - at);
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_tensor_info info = {.size = sizeof(info)};
	long rc;

	switch (below(&w->random, 6)) {
	case 0:
		rc = nvs_tensor_prefetch(s->f.engine, &s->tensors[at], n, NULL);
		MUST(rc >= 0 && rc <= (long)n);
		break;
	case 1:
		rc = nvs_tensor_swap_out(s->f.engine, &s->tensors[at], n, NULL);
		MUST(rc == 0 || rc == -EBUSY);
		break;
	case 2:
		rc = nvs_tensor_wait(s->f.engine, &s->tensors[at], n, 0,
				     (int)below(&w->random, 3) - 1, NULL);
		MUST(rc == 0 || rc == -EAGAIN || rc == -ETIMEDOUT);
		break;
	case 3:
		rc = nvs_engine_commit(s->f.engine, NULL);
		MUST(rc == 0 || rc == -EBUSY);
		break;
	case 4:
		nvs_tensor_get_info(s->f.engine, s->tensors[at], &info);
		MUST(info.nbytes == s->nbytes[at] && !info.status);
		break;
	default:
		nvs_engine_get_stats(s->f.engine, &stats);
		MUST(stats.pool.used <= stats.pool.bytes && !stats.verify_errors);
	}
}

/* Takes the lock, because no other thread can pin a tensor in flight to external memory. */
static void move_shared_past_the_pool(struct worker *w)
{
	struct shared *s = w->shared;
	size_t i = below(&w->random, SHARED);
	char *memory = malloc(s->nbytes[i] + 1);
	void *data = memory + 1;
	int rc;

	MUST(memory);
	pthread_rwlock_wrlock(&s->locks[i]);
	rc = nvs_tensor_swap_in_to(s->f.engine, &s->tensors[i], &data, 1, NULL);
	MUST(rc == 0 || rc == -EBUSY);
	MUST(!nvs_tensor_wait(s->f.engine, &s->tensors[i], 1, 0, -1, NULL));
	if (!rc)
		MUST(filled(data, s->nbytes[i], s->seeds[i]));
	pthread_rwlock_unlock(&s->locks[i]);
	free(memory);
}

static void work_on_own(struct worker *w)
{
	struct nvs_engine *engine = w->shared->f.engine;
	size_t at = below(&w->random, OWN), n = 1 + below(&w->random, OWN - at);
	struct nvs_error error = {.size = sizeof(error)};
	enum nvs_how how = below(&w->random, 2) ? NVS_DIRTY : NVS_CLEAN;
	uint64_t pin;

	if (n > 3)
		n = 3;
	must_be_ok(w->shared, nvs_tensor_swap_in(engine, &w->own[at], n, -1, &pin, &error), &error);
	must_be_ok(w->shared, nvs_tensor_wait(engine, &w->own[at], n, pin, -1, &error), &error);
	for (size_t i = at; i < at + n; i++) {
		MUST(filled(nvs_tensor_data(w->own[i]), w->nbytes[i], w->seeds[i]));
		if (how == NVS_CLEAN)
			continue;
		w->seeds[i] = next_random(&w->random);
		fill(nvs_tensor_data(w->own[i]), w->nbytes[i], w->seeds[i]);
	}
	must_be_ok(w->shared, nvs_tensor_release(engine, &w->own[at], n, pin, how, &error), &error);
	if (below(&w->random, 2))
		must_be_ok(w->shared, nvs_tensor_swap_out(engine, &w->own[at], n, &error), &error);
	else if (nvs_tensor_prefetch(engine, &w->own[at], n, &error) < 0)
		MUST(false);
}

static void register_own(struct worker *w)
{
	struct nvs_engine *engine = w->shared->f.engine;
	struct nvs_tensor_spec specs[OWN];
	struct nvs_error error = {.size = sizeof(error)};
	char names[OWN][32];

	for (size_t i = 0; i < OWN; i++) {
		w->nbytes[i] = 1 + below(&w->random, 60000);
		snprintf(names[i], sizeof(names[i]), "own.%u.%zu", w->number, i);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = names[i],
						    .dtype = NVS_U8,
						    .numel = w->nbytes[i]};
	}
	must_be_ok(w->shared, nvs_tensor_register(engine, specs, OWN, w->own, &error), &error);
	for (size_t i = 0; i < OWN; i++) {
		uint64_t pin;

		w->seeds[i] = next_random(&w->random);
		must_be_ok(w->shared, nvs_tensor_pin(engine, &w->own[i], 1, -1, &pin, &error),
			   &error);
		fill(nvs_tensor_data(w->own[i]), w->nbytes[i], w->seeds[i]);
		must_be_ok(w->shared,
			   nvs_tensor_release(engine, &w->own[i], 1, pin, NVS_DIRTY, &error),
			   &error);
	}
}

static void forget_own(struct worker *w)
{
	struct nvs_engine *engine = w->shared->f.engine;

	/* Evictions for other threads can put the tensors in flight at any time, so retry. */
	for (;;) {
		int rc;

		MUST(!nvs_tensor_wait(engine, w->own, OWN, 0, -1, NULL));
		rc = nvs_tensor_forget(engine, w->own, OWN, NULL);
		if (!rc)
			return;
		MUST(rc == -EBUSY);
	}
}

static void *work(void *arg)
{
	struct worker *w = arg;

	register_own(w);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		switch (below(&w->random, 7)) {
		case 0:
		case 1:
			read_shared(w);
			break;
		case 2:
			change_shared(w);
			break;
		case 3:
			move_shared_past_the_pool(w);
			break;
		case 4:
		case 5:
			work_on_own(w);
			break;
		default:
			meddle(w);
		}
		if (turn == TURNS / 2) {
			forget_own(w);
			register_own(w);
		}
	}
	return NULL;
}

static void all_threads(const struct setup *setup)
{
	static struct shared s;
	static struct worker workers[THREADS];
	uint64_t random = seed_of_run();

	memset(&s, 0, sizeof(s));
	memset(workers, 0, sizeof(workers));
	fixture_open(&s.f, setup);
	for (size_t i = 0; i < SHARED; i++) {
		s.nbytes[i] = below(&random, 100000);
		pthread_rwlock_init(&s.locks[i], NULL);
	}
	tensors_add(&s.f, "shared", s.nbytes, SHARED, s.tensors);
	for (size_t i = 0; i < SHARED; i++) {
		s.seeds[i] = next_random(&random);
		tensor_write(&s.f, s.tensors[i], s.seeds[i]);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] =
			(struct worker){.shared = &s, .number = i, .random = next_random(&random)};
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	for (size_t i = 0; i < SHARED; i++) {
		tensor_compare(&s.f, s.tensors[i], s.seeds[i]);
		pthread_rwlock_destroy(&s.locks[i]);
	}
	for (unsigned k = 0; k < THREADS; k++)
		for (size_t i = 0; i < OWN; i++)
			tensor_compare(&s.f, workers[k].own[i], workers[k].seeds[i]);
	fixture_close(&s.f);
}

TEST(threads_share_an_engine)
{
	all_threads(&(struct setup){.place = PLACE_EXT4, .pool_bytes = MIB, .thread_count = 2});
}

TEST(threads_share_a_verified_engine)
{
	all_threads(&(struct setup){.place = PLACE_TMPFS,
				    .pool_bytes = MIB,
				    .verify = true,
				    .keep = true,
				    .ioengine = NVS_IOENGINE_POSIX});
}

TEST(threads_share_an_engine_that_keeps_nothing_resident)
{
	all_threads(&(struct setup){.place = PLACE_TMPFS,
				    .pool_bytes = 2 * MIB,
				    .max_in_cpu = NONE_STAYS,
				    .verify = true,
				    .thread_count = 2});
}

/* ---- Names ---- */

#define READS (SANITIZED ? 100 : 300)

struct renamed {
	struct fixture f;
	struct nvs_tensor *t;
	atomic_bool ended;
};

static void *rename_often(void *arg)
{
	struct renamed *r = arg;

	for (unsigned i = 0; !r->ended; i++) {
		char name[32];

		snprintf(name, sizeof(name), "name%u", i);
		MUST(!nvs_tensor_rename(r->f.engine, r->t, name, NULL));
		sched_yield();
	}
	return NULL;
}

/* Calls that are refused, a transfer that is traced, and an export under the tensor's name. */
static void read_name(struct renamed *r)
{
	struct nvs_tensor_range beyond = {.size = sizeof(beyond), .tensor = r->t, .offset = 101};
	const struct nvs_checkpoint_item item = {.size = sizeof(item), .tensor = r->t};
	const struct nvs_tensor_info info = info_of(&r->f, r->t);
	char data[100], path[4096];
	const void *from = data;
	void *none = NULL;

	fill(data, sizeof(data), 7);
	expect_error(&r->f, nvs_tensor_read(r->f.engine, &beyond, 1, &r->f.error), -EINVAL, "name");
	expect_error(&r->f, nvs_tensor_swap_in_to(r->f.engine, &r->t, &none, 1, &r->f.error),
		     -EINVAL, "name");
	OK(&r->f, nvs_tensor_swap_out_from(r->f.engine, &r->t, &from, 1, &r->f.error));
	OK(&r->f, nvs_tensor_wait(r->f.engine, &r->t, 1, 0, -1, &r->f.error));
	snprintf(path, sizeof(path), "%s/named.safetensors", r->f.paths[0]);
	OK(&r->f, nvs_checkpoint_export(r->f.engine, &item, 1, path, NULL, &r->f.error));
	assert_int_equal(unlink(path), 0);
	assert_memory_equal(info.name, "name", strlen("name"));
}

TEST(a_tensor_is_renamed_while_its_name_is_read)
{
	static struct renamed r;
	struct nvs_trace *trace;
	pthread_t thread;

	memset(&r, 0, sizeof(r));
	INIT(&r.f, .place = PLACE_DISK);
	OK(&r.f, nvs_trace_open(&trace, 100000, &r.f.error));
	nvs_config_set_trace(&r.f.config, trace);
	OK(&r.f, fixture_reopen(&r.f));
	r.t = tensor_add(&r.f, "name", 100);
	assert_int_equal(pthread_create(&thread, NULL, rename_often, &r), 0);
	for (unsigned i = 0; i < READS; i++)
		read_name(&r);
	r.ended = true;
	pthread_join(thread, NULL);
	tensor_compare(&r.f, r.t, 7);
	fixture_close(&r.f);
	nvs_trace_close(trace);
}
