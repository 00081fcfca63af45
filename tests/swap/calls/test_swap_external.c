/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Swapping between the store and external memory: any alignment and length, whatever the pool holds
 * of the tensor, and no byte beyond the tensor is touched.
 */
#include "swap/swap_fixture.h"

ONE_ENGINE

#define N	40
#define GUARD	64
#define OUTSIDE 0x5a

/* External memory for each tensor, at odd alignments, with guard bytes around it. */
struct callers {
	char *memory;
	void *data[N];
};

static void callers_make(struct callers *c, const uint64_t *nbytes, size_t n, uint64_t *seed)
{
	uint64_t sum = GUARD;

	for (size_t i = 0; i < n; i++)
		sum += nbytes[i] + 4096 + 2 * GUARD;
	c->memory = malloc(sum);
	assert_non_null(c->memory);
	memset(c->memory, OUTSIDE, sum);
	sum = GUARD;
	for (size_t i = 0; i < n; i++) {
		sum += below(seed, 4096);
		c->data[i] = c->memory + sum;
		sum += nbytes[i] + GUARD;
	}
}

static void assert_guarded(const struct callers *c, const uint64_t *nbytes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const char *before = (const char *)c->data[i] - GUARD;
		const char *behind = (const char *)c->data[i] + nbytes[i];

		for (int k = 0; k < GUARD; k++)
			assert_true(before[k] == OUTSIDE && behind[k] == OUTSIDE);
	}
}

static size_t some_lengths(uint64_t nbytes[N], uint64_t *seed)
{
	const uint64_t edges[] = {0,	 1,	511,   512,    513,    4095,   4096,   4097,
				  65535, 65536, 65537, 131071, 524289, 700001, 262143, 1048577};
	size_t n = 0;

	for (size_t i = 0; i < LENGTH(edges); i++)
		nbytes[n++] = edges[i];
	while (n < N)
		nbytes[n++] = below(seed, 100000);
	return n;
}

static void there_and_back(const struct setup *setup)
{
	struct nvs_tensor *t[N];
	struct callers out, in;
	uint64_t nbytes[N], seed = seed_of_run();
	size_t n = some_lengths(nbytes, &seed);

	fixture_open(f, setup);
	tensors_add(f, "t", nbytes, n, t);
	callers_make(&out, nbytes, n, &seed);
	callers_make(&in, nbytes, n, &seed);
	for (size_t i = 0; i < n; i++)
		fill(out.data[i], nbytes[i], i);
	OK(f, nvs_tensor_swap_out_from(f->engine, t, (const void *const *)out.data, n, &f->error));
	OK(f, sole_wait(f->engine, t, n, -1, &f->error));
	for (size_t i = 0; i < n; i++) {
		STATE(f, t[i], NVS_ON_DRIVE, false, 0);
		assert_null(nvs_tensor_data(t[i]));
		assert_true(filled(out.data[i], nbytes[i], i));
	}
	OK(f, nvs_tensor_swap_in_to(f->engine, t, in.data, n, &f->error));
	OK(f, sole_wait(f->engine, t, n, -1, &f->error));
	for (size_t i = 0; i < n; i++)
		assert_true(filled(in.data[i], nbytes[i], i));
	assert_guarded(&in, nbytes, n);
	/* Read through the pool, the contents are the same. */
	tensors_compare(f, t, n, 0);
	free(out.memory);
	free(in.memory);
	fixture_close(f);
}

TEST(moves_every_length_at_any_alignment)
{
	there_and_back(&(struct setup){.place = PLACE_DISK, .verify = true});
	there_and_back(&(struct setup){.place = PLACE_TMPFS});
	there_and_back(&(struct setup){.place = PLACE_EXT4,
				       .npaths = 3,
				       .stripe_size = 5 * 4096,
				       .thread_count = 2,
				       .verify = true});
}

TEST(reads_of_resident_tensors_copy_from_the_pool)
{
	struct nvs_tensor *t[3];
	struct callers c;
	uint64_t nbytes[3] = {70001, 70001, 70001}, seed = 1;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	tensors_add(f, "t", nbytes, 3, t);
	callers_make(&c, nbytes, 3, &seed);
	tensor_store(f, t[0], 0);
	tensor_compare(f, t[0], 0); /* clean and resident */
	tensor_store(f, t[1], 7);
	tensor_write(f, t[1], 1); /* dirty; older contents on the drive */
	tensor_store(f, t[2], 2); /* only on the drive */
	sim_forget_counts(f->sim);
	OK(f, nvs_tensor_swap_in_to(f->engine, t, c.data, 3, &f->error));
	OK(f, sole_wait(f->engine, t, 3, -1, &f->error));
	assert_true(sim_ios(f->sim, NVS_READ) > 0);
	for (uint64_t i = 0; i < 3; i++)
		assert_true(filled(c.data[i], nbytes[i], i));
	assert_guarded(&c, nbytes, 3);
	STATE(f, t[0], NVS_RESIDENT, false, 0);
	STATE(f, t[1], NVS_RESIDENT, true, 0);
	STATE(f, t[2], NVS_ON_DRIVE, false, 0);
	tensors_swap_out(f, t, 3);
	tensor_compare(f, t[1], 1);
	free(c.memory);
}

#define ONE 70001 /* bytes */

TEST(an_external_transfer_that_fails_leaves_no_wrong_contents)
{
	static char memory[ONE];
	const void *from = memory;
	void *to = memory;
	struct nvs_tensor *t = OPEN_ONE(f, ONE, .place = PLACE_DISK, .simulated = true);

	/* A write replaces the resident copy. */
	tensor_write(f, t, 1);
	fill(memory, ONE, 2);
	tensor_from(f, t, memory);
	STATE(f, t, NVS_ON_DRIVE, false, 0);
	assert_int_equal(stats_of(f).pool.used, 0);
	tensor_compare(f, t, 2);
	fill(memory, ONE, 3);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	OK(f, nvs_tensor_swap_out_from(f->engine, &t, &from, 1, &f->error));
	FAILS(f, -EIO, "t: writing /", sole_wait, &t, 1, -1);
	STATE(f, t, NVS_EMPTY, false, 0);
	assert_int_equal(info_of(f, t).status, -EIO);
	FAILS(f, -ENODATA, "last write failed", sole_swap_in, &t, 1, 0);
	assert_true(filled(memory, ONE, 3));
	tensor_from(f, t, memory);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	OK(f, nvs_tensor_swap_in_to(f->engine, &t, &to, 1, &f->error));
	FAILS(f, -EIO, "t: reading /", sole_wait, &t, 1, -1);
	STATE(f, t, NVS_ON_DRIVE, false, 0);
	memset(memory, 0, ONE);
	tensor_to(f, t, memory);
	assert_true(filled(memory, ONE, 3));
}

/* ---- Write-backs that no call has asked for ---- */

static void *let_writes_go(void *arg)
{
	(void)arg;
	usleep(20000);
	sim_go(f->sim, SIM_WRITES);
	return NULL;
}

static void *make_room(void *arg)
{
	struct nvs_tensor *other = nvs_tensor_find(f->engine, "other");
	uint64_t pin;

	(void)arg;
	MUST(!nvs_tensor_pin(f->engine, &other, 1, -1, &pin, NULL));
	MUST(!nvs_tensor_release(f->engine, &other, 1, pin, NVS_CLEAN, NULL));
	return NULL;
}

static void *commit(void *arg)
{
	(void)arg;
	MUST(!nvs_engine_commit(f->engine, NULL));
	return NULL;
}

static int swap_in_to(struct nvs_tensor *t, void *data)
{
	return nvs_tensor_swap_in_to(f->engine, &t, &data, 1, &f->error);
}

static int swap_out_from(struct nvs_tensor *t, void *data)
{
	return nvs_tensor_swap_out_from(f->engine, &t, (const void *const *)&data, 1, &f->error);
}

static int read_range(struct nvs_tensor *t, void *data)
{
	const struct nvs_tensor_range range = {sizeof(range), t, 0, 3 * MIB, data};

	return nvs_tensor_read(f->engine, &range, 1, &f->error);
}

static int forget(struct nvs_tensor *t, void *data)
{
	(void)data;
	return nvs_tensor_forget(f->engine, &t, 1, &f->error);
}

/* Has the engine write "t" back, for a call of another thread or none, and calls meanwhile. */
static void call_during_write_back(const struct setup *setup, void *(*start)(void *),
				   int (*call)(struct nvs_tensor *, void *))
{
	struct nvs_tensor *t;
	pthread_t starter, letter;
	char *data = malloc(3 * MIB);

	assert_non_null(data);
	fixture_open(f, setup);
	t = tensor_add(f, "t", 3 * MIB);
	tensor_add(f, "other", 3 * MIB);
	sim_hold(f->sim, SIM_WRITES);
	tensor_write(f, t, 1);
	if (start)
		assert_int_equal(pthread_create(&starter, NULL, start, NULL), 0);
	assert_true(sim_await_in_flight(f->sim, 1));
	STATE(f, t, NVS_WRITING, false, 0);
	assert_int_equal(pthread_create(&letter, NULL, let_writes_go, NULL), 0);
	OK(f, call(t, data));
	pthread_join(letter, NULL);
	if (start)
		pthread_join(starter, NULL);
	if (call != forget)
		OK(f, nvs_tensor_wait(f->engine, &t, 1, 0, -1, &f->error));
	if (call == swap_in_to || call == read_range)
		assert_true(filled(data, 3 * MIB, 1));
	free(data);
	fixture_close(f);
}

TEST(waits_for_write_backs_that_no_call_asked_for)
{
	int (*const calls[])(struct nvs_tensor *, void *) = {swap_in_to, swap_out_from, read_range,
							     forget};

	for (size_t i = 0; i < LENGTH(calls); i++) {
		const struct setup room = {.place = PLACE_DISK, .simulated = true};
		struct setup budget = room, kept = room;

		budget.max_in_cpu = NONE_STAYS;
		kept.keep = true;
		call_during_write_back(&budget, NULL, calls[i]);
		call_during_write_back(&room, make_room, calls[i]);
		call_during_write_back(&kept, commit, calls[i]);
	}
}

/* Calls that no tensor pinned or in flight may be named in. */
static void refuses_both(struct nvs_tensor **t, void **data, const char *words)
{
	FAILS(f, -EBUSY, words, nvs_tensor_swap_out_from, t, (const void *const *)data, 2);
	FAILS(f, -EBUSY, words, nvs_tensor_swap_in_to, t, data, 2);
	FAILS(f, -EBUSY, words, nvs_tensor_forget, t, 2);
}

TEST(refuses_tensors_pinned_or_in_flight)
{
	struct nvs_tensor *t[2];
	struct callers c;
	uint64_t nbytes[2] = {5000, 5000}, seed = 1;

	OPEN(f, .place = PLACE_DISK, .simulated = true);
	tensors_add(f, "t", nbytes, 2, t);
	callers_make(&c, nbytes, 2, &seed);
	tensors_store(f, t, 2, 0);

	OK(f, sole_pin(f->engine, &t[1], 1, 0, &f->error));
	refuses_both(t, c.data, "t1 is pinned");
	FAILS(f, -EBUSY, "t1 is pinned", nvs_tensor_swap_out, t, 2);
	FAILS(f, -EBUSY, "t1 is pinned for new contents", sole_swap_in, &t[1], 1, 0);
	OK(f, sole_release(f->engine, &t[1], 1, NVS_CLEAN, &f->error));

	sim_hold(f->sim, SIM_READS);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &t[1], 1, &f->error), 1);
	refuses_both(t, c.data, "t1");
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, t, 2, -1, &f->error));
	OK(f, nvs_tensor_swap_out(f->engine, t, 2, &f->error));

	tensor_write(f, t[1], 1);
	sim_hold(f->sim, SIM_WRITES);
	OK(f, nvs_tensor_swap_out(f->engine, &t[1], 1, &f->error));
	refuses_both(t, c.data, "t1");
	sim_go(f->sim, SIM_WRITES);
	OK(f, sole_wait(f->engine, t, 2, -1, &f->error));
	STATE(f, t[0], NVS_ON_DRIVE, false, 0);

	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_tensor_swap_in_to(f->engine, &t[1], &c.data[1], 1, &f->error));
	STATE(f, t[1], NVS_READING, false, 0);
	assert_null(nvs_tensor_data(t[1]));
	FAILS(f, -EBUSY, "external memory", sole_pin, t, 2, 0);
	FAILS(f, -EBUSY, "t1", sole_swap_in, t, 2, 0);
	FAILS(f, -EBUSY, "t1", nvs_tensor_swap_out, t, 2);
	refuses_both(t, c.data, "t1");
	FAILS(f, -EINVAL, "t1", sole_release, &t[1], 1, NVS_CLEAN);
	FAILS(f, -EBUSY, "t1", nvs_engine_commit);
	sim_go(f->sim, SIM_READS);
	OK(f, sole_wait(f->engine, t, 2, -1, &f->error));
	assert_true(filled(c.data[1], 5000, 1));

	sim_hold(f->sim, SIM_WRITES);
	OK(f,
	   nvs_tensor_swap_out_from(f->engine, &t[1], (const void *const *)c.data, 1, &f->error));
	STATE(f, t[1], NVS_WRITING, false, 0);
	FAILS(f, -EBUSY, "t1", sole_swap_in, t, 2, 0);
	sim_go(f->sim, SIM_WRITES);
	OK(f, sole_wait(f->engine, t, 2, -1, &f->error));
	tensor_compare(f, t[0], 0);
	OK(f, nvs_tensor_forget(f->engine, t, 2, &f->error));
	assert_null(nvs_tensor_find(f->engine, "t0"));
	free(c.memory);
}
