/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that wait for room in the pool: in which order they get it, which calls may pass them, and
 * how often. Work is counted in bytes that other calls pin, never in time.
 */
#include "support/support.h"
#include "support/tests.h"
#include "support/turns.h"
#include "swap/swap_fixture.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

ONE_ENGINE

#define PART  (64 * KIB)
#define PARTS 16 /* of the pool */
#define LARGE 12

/* An engine whose calls are never passed because they wait for long. */
struct room {
	struct nvs_tensor *parts[PARTS + 4], *large, *larger;
};
static struct room one_room, *const room = &one_room;

static void room_open(bool simulated)
{
	uint64_t nbytes[LENGTH(room->parts)];

	for (size_t i = 0; i < LENGTH(nbytes); i++)
		nbytes[i] = PART;
	OPEN(f, .place = PLACE_DISK, .pool_bytes = PARTS * PART, .simulated = simulated);
	f->engine->queue.patience_ns = UINT64_MAX;
	tensors_add(f, "t", nbytes, LENGTH(nbytes), room->parts);
	room->large = tensor_add(f, "large", LARGE * PART);
	room->larger = tensor_add(f, "larger", (LARGE + 1) * PART);
	for (size_t i = 0; i < LENGTH(nbytes); i++)
		tensor_store(f, room->parts[i], i);
	tensor_store(f, room->large, 100);
	tensor_store(f, room->larger, 101);
	assert_int_equal(stats_of(f).pool.used, 0);
}

static size_t calls_waiting(void)
{
	struct nvs_engine *engine = f->engine;
	const struct ticket *ticket;
	size_t n = 0;

	engine_lock(engine);
	TAILQ_FOREACH(ticket, &engine->queue.tickets, link)
	n++;
	engine_unlock(engine);
	return n;
}

static void await_waiting(size_t n)
{
	while (calls_waiting() != n)
		sched_yield();
}

/* ---- Other threads ---- */

/* A thread that pins some tensors, then waits for room for one more, and releases all. */
struct caller {
	struct nvs_tensor **held;
	size_t n;
	struct nvs_tensor *wanted;
	atomic_bool go;
	uint64_t pin; /* pins are numbered in the order in which they are made */
	pthread_t thread;
};

static void *call(void *arg)
{
	struct caller *c = arg;
	struct nvs_engine *engine = f->engine;
	uint64_t held;

	MUST(!nvs_tensor_swap_in(engine, c->held, c->n, -1, &held, NULL));
	MUST(!nvs_tensor_wait(engine, c->held, c->n, held, -1, NULL));
	while (!c->go)
		sched_yield();
	MUST(!nvs_tensor_swap_in(engine, &c->wanted, 1, -1, &c->pin, NULL));
	MUST(!nvs_tensor_wait(engine, &c->wanted, 1, c->pin, -1, NULL));
	MUST(!nvs_tensor_release(engine, &c->wanted, 1, c->pin, NVS_CLEAN, NULL));
	MUST(!nvs_tensor_release(engine, c->held, c->n, held, NVS_CLEAN, NULL));
	return NULL;
}

static void caller_start(struct caller *c, struct nvs_tensor *wanted, bool go)
{
	c->wanted = wanted;
	c->go = go;
	assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
}

/* Starts a call that waits for room. */
static void caller_wait(struct caller *c, struct nvs_tensor *wanted)
{
	size_t before = calls_waiting();

	caller_start(c, wanted, true);
	await_waiting(before + 1);
}

static void *pin_parts(void *n)
{
	MUST(!sole_swap_in(f->engine, room->parts, *(size_t *)n, -1, NULL));
	MUST(!sole_wait(f->engine, room->parts, *(size_t *)n, -1, NULL));
	return NULL;
}

/* Another thread, which doesn't wait, pins the first n parts. */
static void pin_elsewhere(size_t n)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, pin_parts, &n), 0);
	pthread_join(thread, NULL);
}

static void release_parts(size_t n)
{
	OK(f, sole_release(f->engine, room->parts, n, NVS_CLEAN, &f->error));
}

/* A call waits for the large tensor, for which what other threads have pinned leaves one part too
 * little. */
static void begin_short_of_a_part(struct caller *waiting)
{
	room_open(false);
	pin_elsewhere(PARTS - LARGE + 1);
	caller_wait(waiting, room->large);
}

/* It gets its room. */
static void end_short_of_a_part(struct caller *waiting)
{
	release_parts(PARTS - LARGE + 1);
	pthread_join(waiting->thread, NULL);
}

/* After each change, the first call in the queue looks first. */
static void await_first(void)
{
	struct nvs_engine *engine = f->engine;
	const struct ticket *first;
	bool looked = false;

	while (!looked) {
		engine_lock(engine);
		first = TAILQ_FIRST(&engine->queue.tickets);
		looked = !first || first->tried == engine->queue.changes;
		engine_unlock(engine);
		if (!looked)
			sched_yield();
	}
}

/* Pins and releases the last part until a call that waits is not passed any more: how often. */
static unsigned pass_while_possible(void)
{
	struct nvs_tensor **last = &room->parts[LENGTH(room->parts) - 1];
	struct nvs_engine *engine = f->engine;
	unsigned n = 0;
	int rc;

	while (!(rc = sole_swap_in(engine, last, 1, 0, &f->error))) {
		assert_true(++n < 10000);
		OK(f, sole_wait(engine, last, 1, -1, &f->error));
		OK(f, sole_release(engine, last, 1, NVS_CLEAN, &f->error));
		await_first();
	}
	assert_int_equal(rc, -EAGAIN);
	return n;
}

/* ---- The order ---- */

TEST(calls_that_wait_for_room_are_served_in_their_order)
{
	struct caller first = {0}, second = {0}, third = {0};

	room_open(false);
	pin_elsewhere(PARTS);
	caller_wait(&first, room->large);
	caller_wait(&second, room->larger);
	caller_wait(&third, room->parts[PARTS]);
	release_parts(PARTS);
	pthread_join(first.thread, NULL);
	pthread_join(second.thread, NULL);
	pthread_join(third.thread, NULL);
	assert_true(first.pin < second.pin && first.pin < third.pin);
	assert_true(queue_empty(f->engine) && !f->engine->pinners.all);
}

TEST(a_call_that_waits_is_passed_by_as_many_bytes_as_the_pool_has_at_most)
{
	struct caller waiting = {0};
	struct nvs_tensor **another = &room->parts[PARTS];

	begin_short_of_a_part(&waiting);
	assert_int_equal(pass_while_possible(), PARTS);
	expect_error(f, sole_swap_in(f->engine, another, 1, 0, &f->error), -EAGAIN,
		     "before calls that came earlier");
	expect_error(f, sole_pin(f->engine, another, 1, 3, &f->error), -ETIMEDOUT,
		     "before calls that came earlier");
	/* Tensors that are pinned already count as well: pinning them again keeps them. */
	expect_error(f, sole_swap_in(f->engine, room->parts, 1, 0, &f->error), -EAGAIN,
		     "before calls that came earlier");
	STATE(f, *another, NVS_ON_DRIVE, false, 0);
	assert_int_equal(calls_waiting(), 1);
	end_short_of_a_part(&waiting);
	OK(f, sole_swap_in(f->engine, another, 1, 0, &f->error));
	OK(f, sole_wait(f->engine, another, 1, -1, &f->error));
	OK(f, sole_release(f->engine, another, 1, NVS_CLEAN, &f->error));
}

TEST(a_call_that_takes_no_room_never_waits_for_others)
{
	struct caller waiting = {0};
	struct nvs_tensor *empty;

	begin_short_of_a_part(&waiting);
	empty = tensor_add(f, "empty", 0);
	(void)pass_while_possible();
	OK(f, sole_pin(f->engine, &empty, 1, 0, &f->error));
	OK(f, sole_release(f->engine, &empty, 1, NVS_DIRTY, &f->error));
	end_short_of_a_part(&waiting);
}

static void *give_up(void *arg)
{
	int rc = sole_pin(f->engine, &room->large, 1, 100, NULL);

	(void)arg;
	MUST(rc == -ETIMEDOUT);
	return NULL;
}

TEST(a_call_that_gives_up_makes_way_for_those_behind_it)
{
	struct nvs_tensor **behind = &room->parts[PARTS];
	struct ticket *first;
	pthread_t thread;

	room_open(false);
	pin_elsewhere(PARTS - LARGE + 1);
	assert_int_equal(pthread_create(&thread, NULL, give_up, NULL), 0);
	await_waiting(1);
	engine_lock(f->engine);
	first = TAILQ_FIRST(&f->engine->queue.tickets);
	if (first)
		first->passed = PARTS * PART;
	engine_unlock(f->engine);
	OK(f, sole_swap_in(f->engine, behind, 1, -1, &f->error));
	pthread_join(thread, NULL);
	OK(f, sole_wait(f->engine, behind, 1, -1, &f->error));
	OK(f, sole_release(f->engine, behind, 1, NVS_CLEAN, &f->error));
	release_parts(PARTS - LARGE + 1);
}

/* ---- Pins that stand in the way ---- */

static uint64_t pinned_bytes(void)
{
	struct nvs_engine *engine = f->engine;
	uint64_t nbytes;

	engine_lock(engine);
	nbytes = engine->pinners.all;
	engine_unlock(engine);
	return nbytes;
}

/* The first call lacks a part that the second one's thread has pinned. */
TEST(a_call_passes_one_that_waits_for_its_own_pins)
{
	struct caller waiting = {0}, holder = {.held = room->parts, .n = PARTS - LARGE + 1};

	room_open(false);
	caller_start(&holder, room->parts[PARTS], false);
	while (pinned_bytes() < holder.n * PART)
		sched_yield();
	caller_wait(&waiting, room->large);
	(void)pass_while_possible();
	holder.go = true;
	pthread_join(holder.thread, NULL);
	pthread_join(waiting.thread, NULL);
	assert_true(holder.pin < waiting.pin);
}

static uint64_t oldest_pin(const struct nvs_tensor *tensor)
{
	uint64_t pin = 0;

	assert_int_equal(pins_list(tensor, &pin, 1), 1);
	return pin;
}

/* There are bytes enough beside the one part that the second one's thread has pinned, but not in
 * one piece. */
TEST(a_call_passes_one_whose_room_its_own_pins_divide)
{
	struct caller waiting = {0}, holder = {.held = &room->parts[PARTS / 2], .n = 1};

	room_open(false);
	pin_elsewhere(PARTS);
	caller_start(&holder, room->parts[PARTS], false);
	while (pinned_bytes() != PARTS * PART || info_of(f, *holder.held).pins != 2)
		sched_yield();
	release_parts(PARTS / 2);
	OK(f, sole_release(f->engine, &room->parts[PARTS / 2 + 1], PARTS / 2 - 1, NVS_CLEAN,
			   &f->error));
	/* The newest pin is the other thread's. */
	engine_lock(f->engine);
	assert_int_equal(f->engine->pinners.all, PART);
	engine_unlock(f->engine);
	OK(f, nvs_tensor_release(f->engine, holder.held, 1, oldest_pin(*holder.held), NVS_CLEAN,
				 &f->error));
	caller_wait(&waiting, room->large);
	(void)pass_while_possible();
	holder.go = true;
	pthread_join(holder.thread, NULL);
	pthread_join(waiting.thread, NULL);
	assert_true(holder.pin < waiting.pin);
}

/*
 * A thread that waits has ended its pin of a tensor, which another one has pinned before and still
 * has. So the one that waits holds nothing, and the call before it is passed no more than usual.
 */
TEST(a_tensor_counts_for_a_thread_that_still_has_it_pinned)
{
	struct caller waiting = {0};
	uint64_t bytes, pin;

	room_open(false);
	pin_elsewhere(PARTS - LARGE + 1);
	OK(f, nvs_tensor_swap_in(f->engine, room->parts, 1, -1, &pin, &f->error));
	OK(f, nvs_tensor_release(f->engine, room->parts, 1, pin, NVS_CLEAN, &f->error));
	engine_lock(f->engine);
	bytes = f->engine->pinners.held[pinner_self()];
	pinners_check(&f->engine->pinners);
	engine_unlock(f->engine);
	assert_int_equal(bytes, 0);
	caller_wait(&waiting, room->large);
	assert_int_equal(pass_while_possible(), PARTS);
	end_short_of_a_part(&waiting);
}

/* The engine can't know that the thread which has the pins waits for another. */
TEST(a_call_is_passed_once_more_when_nothing_changes_for_long)
{
	struct caller waiting = {0};
	struct nvs_tensor **another = &room->parts[PARTS];
	struct ticket *ticket;

	begin_short_of_a_part(&waiting);
	(void)pass_while_possible();
	ticket = TAILQ_FIRST(&f->engine->queue.tickets);
	ticket->patience_ns = 1000;
	OK(f, sole_swap_in(f->engine, another, 1, -1, &f->error));
	/* The next one has to wait longer. */
	assert_int_equal(ticket->patience_ns, 2000);
	OK(f, sole_wait(f->engine, another, 1, -1, &f->error));
	OK(f, sole_release(f->engine, another, 1, NVS_CLEAN, &f->error));
	end_short_of_a_part(&waiting);
}

/* ---- What does not wait takes nothing ---- */

TEST(a_prefetch_takes_no_room_while_a_call_waits)
{
	struct caller waiting = {0};
	struct nvs_tensor *list[2];

	begin_short_of_a_part(&waiting);
	list[0] = room->parts[0];
	list[1] = room->parts[PARTS];
	assert_int_equal(nvs_tensor_prefetch(f->engine, list, 2, &f->error), 1);
	assert_int_equal(nvs_tensor_prefetch(f->engine, list + 1, 1, &f->error), 0);
	STATE(f, list[1], NVS_ON_DRIVE, false, 0);
	end_short_of_a_part(&waiting);
	assert_int_equal(nvs_tensor_prefetch(f->engine, list + 1, 1, &f->error), 1);
	OK(f, nvs_tensor_wait(f->engine, list + 1, 1, 0, -1, &f->error));
}

/* The dirty part is being written to make the room. */
TEST(a_prefetch_keeps_nothing_that_makes_room_for_a_call)
{
	struct caller waiting = {0};

	room_open(true);
	pin_elsewhere(PARTS - LARGE);
	tensor_write(f, room->parts[PARTS], 7);
	sim_hold(f->sim, 1U << NVS_WRITE);
	caller_wait(&waiting, room->large);
	assert_true(sim_await_in_flight(f->sim, 1));
	assert_int_equal(nvs_tensor_prefetch(f->engine, &room->parts[PARTS], 1, &f->error), 0);
	/* Nobody passes a call whose room is coming. */
	expect_error(f, sole_swap_in(f->engine, &room->parts[PARTS + 1], 1, 0, &f->error), -EAGAIN,
		     "before calls that came earlier");
	sim_go(f->sim, 1U << NVS_WRITE);
	pthread_join(waiting.thread, NULL);
	release_parts(PARTS - LARGE);
	tensor_compare(f, room->parts[PARTS], 7);
}

/* ---- Progress ---- */

#define THREADS	   8
#define MANY	   100000
#define SMALL_PART (256 * KIB)

struct crowd {
	struct fixture f;
	struct nvs_tensor *large;
	atomic_bool end;
	atomic_uint begun, passes;
};

struct one_of_crowd {
	struct crowd *crowd;
	struct nvs_tensor *tensor;
	pthread_t thread;
};

static bool large_waits(struct nvs_engine *engine)
{
	const struct ticket *first;
	bool waits;

	engine_lock(engine);
	first = TAILQ_FIRST(&engine->queue.tickets);
	waits = first && first->need == 3 * MIB;
	engine_unlock(engine);
	return waits;
}

static void *swap_small(void *arg)
{
	struct one_of_crowd *one = arg;
	struct crowd *crowd = one->crowd;
	struct nvs_engine *engine = crowd->f.engine;
	uint64_t pin;

	crowd->begun++;
	while (!crowd->end && crowd->passes < MANY) {
		MUST(!nvs_tensor_swap_in(engine, &one->tensor, 1, -1, &pin, NULL));
		if (large_waits(engine))
			crowd->passes++;
		MUST(!nvs_tensor_wait(engine, &one->tensor, 1, pin, -1, NULL));
		MUST(!nvs_tensor_release(engine, &one->tensor, 1, pin, NVS_CLEAN, NULL));
	}
	return NULL;
}

TEST(a_large_tensor_gets_room_while_small_ones_swap_without_end)
{
	static struct crowd crowd;
	struct one_of_crowd ones[THREADS];
	uint64_t nbytes = SMALL_PART, pin;

	memset(&crowd, 0, sizeof(crowd));
	OPEN(&crowd.f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	crowd.large = tensor_add(&crowd.f, "large", 3 * MIB);
	tensor_store(&crowd.f, crowd.large, 3);
	for (unsigned i = 0; i < THREADS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "small%u", i);
		ones[i].crowd = &crowd;
		ones[i].tensor = tensor_add(&crowd.f, name, nbytes);
		tensor_store(&crowd.f, ones[i].tensor, i);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&ones[i].thread, NULL, swap_small, &ones[i]), 0);
	while (crowd.begun < THREADS)
		sched_yield();
	for (int round = 0; round < 20; round++) {
		OK(&crowd.f,
		   nvs_tensor_swap_in(crowd.f.engine, &crowd.large, 1, -1, &pin, &crowd.f.error));
		OK(&crowd.f,
		   nvs_tensor_wait(crowd.f.engine, &crowd.large, 1, pin, -1, &crowd.f.error));
		OK(&crowd.f, nvs_tensor_release(crowd.f.engine, &crowd.large, 1, pin, NVS_CLEAN,
						&crowd.f.error));
	}
	crowd.end = true;
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(ones[i].thread, NULL);
	/* A pool of bytes, and what each thread had pinned before and looked at after. */
	assert_in_range(crowd.passes, 0, 20 * (4 * MIB / SMALL_PART + THREADS));
	fixture_close(&crowd.f);
}

/* ---- Random calls, in turns ---- */

#define CALLERS	  5
#define TENSORS	  12
#define CALLS	  30
#define BATCH_MAX 3

struct load {
	struct fixture f;
	struct nvs_tensor *tensors[CALLERS * TENSORS];
	uint64_t nbytes[CALLERS * TENSORS];
	/* Threads take turns at their locks and here; atomic for ThreadSanitizer, which sees no
	 * turns. */
	_Atomic uint64_t pinned; /* bytes pinned so far */
	_Atomic uint64_t longest;
};

struct load_thread {
	struct load *load;
	unsigned number;
	uint64_t random;
	pthread_t thread;
};

static void *call_at_random(void *arg)
{
	struct load_thread *t = arg;
	struct load *load = t->load;
	struct nvs_engine *engine = load->f.engine;

	for (int i = 0; i < CALLS; i++) {
		size_t n = 1 + below(&t->random, BATCH_MAX);
		size_t at = t->number * TENSORS + below(&t->random, TENSORS - n);
		enum nvs_how how = below(&t->random, 2) ? NVS_DIRTY : NVS_CLEAN;
		uint64_t before = load->pinned, own = 0, pin;

		MUST(!nvs_tensor_swap_in(engine, &load->tensors[at], n, -1, &pin, NULL));
		if (load->pinned - before > load->longest)
			load->longest = load->pinned - before;
		for (size_t k = at; k < at + n; k++)
			own += load->nbytes[k];
		load->pinned += own;
		MUST(!nvs_tensor_wait(engine, &load->tensors[at], n, pin, -1, NULL));
		sched_yield();
		MUST(!nvs_tensor_release(engine, &load->tensors[at], n, pin, how, NULL));
	}
	return NULL;
}

/* Those before it in the queue, a pool of bytes that pass it, and what runs before it is there. */
#define WORK_OF_OTHERS ((CALLERS + 2) * MIB)

static void play_load(uint64_t seed)
{
	static struct load load;
	struct load_thread threads[CALLERS];

	memset(&load, 0, sizeof(load));
	turns_begin(seed);
	OPEN(&load.f, .place = PLACE_DISK, .pool_bytes = MIB, .simulated = true);
	for (size_t i = 0; i < LENGTH(load.tensors); i++)
		load.nbytes[i] = (1 + below(&seed, 5)) * PART;
	tensors_add(&load.f, "t", load.nbytes, LENGTH(load.tensors), load.tensors);
	for (size_t i = 0; i < LENGTH(load.tensors); i++)
		tensor_store(&load.f, load.tensors[i], i);
	for (unsigned i = 0; i < CALLERS; i++) {
		threads[i] = (struct load_thread){&load, i, next_random(&seed), 0};
		MUST(!pthread_create(&threads[i].thread, NULL, call_at_random, &threads[i]));
	}
	for (unsigned i = 0; i < CALLERS; i++)
		pthread_join(threads[i].thread, NULL);
	assert_true(queue_empty(load.f.engine) && !load.f.engine->pinners.all);
	fixture_close(&load.f);
	turns_end();
	assert_in_range(load.longest, 0, WORK_OF_OTHERS);
}

TEST(every_call_that_waits_ends_within_a_bound_of_work_by_others)
{
	uint64_t seed = seed_of_run();

	for (unsigned i = 0; i < at_length(SANITIZED ? 3 : 12, 3); i++)
		play_load(seed + i);
}
