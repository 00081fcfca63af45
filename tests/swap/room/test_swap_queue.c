/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that wait for room in the pool: in which order they get it, which calls may pass them, and
 * how often. Work is counted in bytes that other calls pin, never in time.
 */
#include "support/turns.h"
#include "swap/swap_fixture.h"

#include <sched.h>
#include <stdatomic.h>

ONE_ENGINE

#define PART  (64 * KIB)
#define PARTS 16 /* of the pool */
#define LARGE 12
#define SHORT (PARTS - LARGE + 1) /* pinned parts that leave the large tensor one too little */
#define NEVER (UINT64_MAX / 8)	  /* a patience that does not end, also when it has doubled */

struct room {
	struct nvs_tensor *parts[PARTS + 4], *large, *larger;
};
static struct room one_room, *const room = &one_room;

static void room_open(bool simulated, uint64_t patience_ns)
{
	OPEN(f, .place = PLACE_DISK, .pool_bytes = PARTS * PART, .simulated = simulated);
	f->engine->queue.patience_ns = patience_ns;
	tensors_make(f, "t", PART, LENGTH(room->parts), room->parts);
	room->large = tensor_add(f, "large", LARGE * PART);
	room->larger = tensor_add(f, "larger", (LARGE + 1) * PART);
	tensor_store(f, room->large, 100);
	tensor_store(f, room->larger, 101);
	assert_int_equal(stats_of(f).pool.used, 0);
}

static void pin_parts(size_t n)
{
	tensors_pin(f, room->parts, n);
}

static void release_parts(size_t n)
{
	OK(f, sole_release(f->engine, room->parts, n, NVS_CLEAN, &f->error));
}

static size_t calls_waiting(void)
{
	const struct ticket *ticket;
	size_t n = 0;

	engine_lock(f->engine);
	TAILQ_FOREACH(ticket, &f->engine->queue.tickets, link)
	n++;
	engine_unlock(f->engine);
	return n;
}

/* ---- Other threads ---- */

/* A thread that waits for room for a tensor, and releases it. */
struct caller {
	struct nvs_tensor *wanted;
	uint64_t pin; /* pins are numbered in the order in which they are made */
	pthread_t thread;
};

static void *call(void *arg)
{
	struct caller *c = arg;
	struct nvs_engine *engine = f->engine;

	MUST(!nvs_tensor_swap_in(engine, &c->wanted, 1, -1, &c->pin, NULL));
	MUST(!nvs_tensor_wait(engine, &c->wanted, 1, c->pin, -1, NULL));
	MUST(!nvs_tensor_release(engine, &c->wanted, 1, c->pin, NVS_CLEAN, NULL));
	return NULL;
}

static void caller_start(struct caller *c, struct nvs_tensor *wanted)
{
	c->wanted = wanted;
	MUST(!pthread_create(&c->thread, NULL, call, c));
}

/* Starts a call that waits for room. */
static void caller_wait(struct caller *c, struct nvs_tensor *wanted)
{
	size_t before = calls_waiting();

	caller_start(c, wanted);
	while (calls_waiting() == before)
		sched_yield();
}

/* A call waits for the large tensor, for which what is pinned leaves one part too little. */
static void begin_short_of_a_part(struct caller *waiting, uint64_t patience_ns)
{
	room_open(false, patience_ns);
	pin_parts(SHORT);
	caller_wait(waiting, room->large);
}

/* It gets its room. */
static void end_short_of_a_part(struct caller *waiting)
{
	release_parts(SHORT);
	pthread_join(waiting->thread, NULL);
	assert_true(queue_empty(f->engine));
}

/* After each change, the first call in the queue tries before others may pass it. */
static void await_first(void)
{
	struct nvs_engine *engine = f->engine;
	bool tried = false;

	while (!tried) {
		engine_lock(engine);
		tried = queue_empty(engine) || engine->queue.first_stuck;
		engine_unlock(engine);
		if (!tried)
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

/* Whichever thread runs first after the release. */
TEST(calls_that_wait_for_room_are_served_in_their_order)
{
	uint64_t seed = seed_of_run();

	for (unsigned i = 0; i < 10; i++) {
		struct caller first = {0}, second = {0}, third = {0};

		turns_begin(seed + i);
		room_open(true, NEVER);
		pin_parts(PARTS);
		caller_wait(&first, room->large);
		caller_wait(&second, room->larger);
		caller_wait(&third, room->parts[PARTS]);
		release_parts(PARTS);
		pthread_join(first.thread, NULL);
		pthread_join(second.thread, NULL);
		pthread_join(third.thread, NULL);
		assert_true(first.pin < second.pin && first.pin < third.pin);
		assert_true(queue_empty(f->engine));
		fixture_close(f);
		turns_end();
	}
}

TEST(a_call_that_waits_is_passed_by_as_many_bytes_as_the_pool_has_at_most)
{
	struct caller waiting = {0};
	struct nvs_tensor **another = &room->parts[PARTS], *list[2], *empty;

	begin_short_of_a_part(&waiting, NEVER);
	list[0] = room->parts[0];
	list[1] = *another;
	/* Prefetches take no room. */
	assert_int_equal(nvs_tensor_prefetch(f->engine, list, 2, &f->error), 1);
	assert_int_equal(nvs_tensor_prefetch(f->engine, another, 1, &f->error), 0);
	assert_int_equal(pass_while_possible(), PARTS);
	FAILS(f, -EAGAIN, "before calls that came earlier", sole_swap_in, another, 1, 0);
	FAILS(f, -ETIMEDOUT, "before calls that came earlier", sole_pin, another, 1, 3);
	/* Tensors that are pinned already count as well: pinning them again keeps them. */
	FAILS(f, -EAGAIN, "before calls that came earlier", sole_swap_in, room->parts, 1, 0);
	STATE(f, *another, NVS_ON_DRIVE, false, 0);
	/* A call that takes no room never waits. */
	empty = tensor_add(f, "empty", 0);
	OK(f, sole_pin(f->engine, &empty, 1, 0, &f->error));
	OK(f, sole_release(f->engine, &empty, 1, NVS_DIRTY, &f->error));
	await_first();
	/* As many again when nothing has changed for long, and then only after twice the time. */
	engine_lock(f->engine);
	f->engine->queue.quiet_until_ns = 0;
	engine_unlock(f->engine);
	OK(f, sole_swap_in(f->engine, another, 1, 0, &f->error));
	assert_true(f->engine->queue.quiet_until_ns >= 2 * NEVER);
	OK(f, sole_wait(f->engine, another, 1, -1, &f->error));
	OK(f, sole_release(f->engine, another, 1, NVS_CLEAN, &f->error));
	await_first();
	assert_int_equal(pass_while_possible(), PARTS - 1);
	assert_int_equal(calls_waiting(), 1);
	end_short_of_a_part(&waiting);
	tensors_load(f, another, 1);
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

	room_open(false, NEVER);
	pin_parts(SHORT);
	assert_int_equal(pthread_create(&thread, NULL, give_up, NULL), 0);
	while (!calls_waiting())
		sched_yield();
	engine_lock(f->engine);
	first = TAILQ_FIRST(&f->engine->queue.tickets);
	if (first)
		first->passed = PARTS * PART;
	engine_unlock(f->engine);
	OK(f, sole_swap_in(f->engine, behind, 1, -1, &f->error));
	pthread_join(thread, NULL);
	OK(f, sole_wait(f->engine, behind, 1, -1, &f->error));
	OK(f, sole_release(f->engine, behind, 1, NVS_CLEAN, &f->error));
	release_parts(SHORT);
}

/* ---- A place that is kept ---- */

struct keeper {
	struct caller caller;
	atomic_uint timeouts;
};

static void await_timeouts(struct keeper *k, unsigned n)
{
	for (n += k->timeouts; k->timeouts < n;)
		sched_yield();
}

/* A call that is made again after each timeout, until it gets room. */
static void *call_again(void *arg)
{
	struct keeper *k = arg;
	struct caller *c = &k->caller;
	struct nvs_engine *engine = f->engine;
	int rc;

	MUST(!nvs_engine_keep_place(engine, true, NULL));
	while ((rc = nvs_tensor_swap_in(engine, &c->wanted, 1, 1, &c->pin, NULL)) == -ETIMEDOUT)
		k->timeouts++;
	MUST(!rc);
	MUST(!nvs_engine_keep_place(engine, false, NULL));
	MUST(!nvs_tensor_wait(engine, &c->wanted, 1, c->pin, -1, NULL));
	MUST(!nvs_tensor_release(engine, &c->wanted, 1, c->pin, NVS_CLEAN, NULL));
	return NULL;
}

TEST(a_thread_that_calls_again_after_its_timeout_keeps_its_place)
{
	struct keeper keeper = {.caller.wanted = NULL};
	struct caller later = {0};

	room_open(false, NEVER);
	keeper.caller.wanted = room->large;
	pin_parts(SHORT);
	MUST(!pthread_create(&keeper.caller.thread, NULL, call_again, &keeper));
	await_timeouts(&keeper, 1);
	/* The bound holds across the calls. */
	assert_int_equal(pass_while_possible(), PARTS);
	await_timeouts(&keeper, 2);
	assert_int_equal(pass_while_possible(), 0);
	assert_int_equal(nvs_tensor_prefetch(f->engine, &room->parts[PARTS], 1, &f->error), 0);
	caller_wait(&later, room->larger);
	await_timeouts(&keeper, 2);
	release_parts(SHORT);
	pthread_join(keeper.caller.thread, NULL);
	pthread_join(later.thread, NULL);
	assert_true(keeper.caller.pin < later.pin);
	assert_true(queue_empty(f->engine));
}

static void time_out(void)
{
	FAILS(f, -ETIMEDOUT, "no room in time", sole_swap_in, &room->large, 1, 1);
}

/* A place between two calls is passed by a pool of bytes at once, and then as by time. */
TEST(a_place_is_kept_until_it_is_given_up)
{
	struct caller later = {0};

	room_open(false, 1000);
	pin_parts(SHORT);
	OK(f, nvs_engine_keep_place(f->engine, false, &f->error));
	OK(f, nvs_engine_keep_place(f->engine, true, &f->error));
	FAILS(f, -EEXIST, "already", nvs_engine_keep_place, true);
	time_out();
	assert_int_equal(calls_waiting(), 1);
	assert_int_equal(f->engine->room.waiting, 0);
	for (unsigned i = 0; i < 3 * PARTS; i++) {
		caller_start(&later, room->parts[PARTS]);
		pthread_join(later.thread, NULL);
	}
	assert_int_equal(f->engine->queue.refills, 2);
	OK(f, nvs_engine_keep_place(f->engine, false, &f->error));
	assert_true(queue_empty(f->engine));
	/* The engine is closed while a place is kept. */
	OK(f, nvs_engine_keep_place(f->engine, true, &f->error));
	time_out();
	release_parts(SHORT);
	assert_int_equal(calls_waiting(), 1);
}

/*
 * This thread has pinned what the first call lacks, and keeps it until others have been served that
 * came later. The engine can't know that it waits for them.
 */
TEST(calls_that_a_thread_with_pins_waits_for_are_served_before_those_that_wait_for_its_pins)
{
	struct caller waiting = {0}, later = {0};

	begin_short_of_a_part(&waiting, 1000);
	for (unsigned i = 0; i < 3 * PARTS; i++) {
		caller_start(&later, room->parts[PARTS]);
		pthread_join(later.thread, NULL);
	}
	assert_int_equal(f->engine->queue.refills, 2);
	end_short_of_a_part(&waiting);
	assert_true(later.pin < waiting.pin);
	assert_int_equal(f->engine->queue.refills, 0);
}

/* The dirty part is being written to make the room. */
TEST(a_prefetch_keeps_nothing_that_makes_room_for_a_call)
{
	struct caller waiting = {0};

	room_open(true, NEVER);
	pin_parts(PARTS - LARGE);
	tensor_write(f, room->parts[PARTS], 7);
	sim_hold(f->sim, 1U << NVS_WRITE);
	caller_wait(&waiting, room->large);
	assert_true(sim_await_in_flight(f->sim, 1));
	assert_int_equal(nvs_tensor_prefetch(f->engine, &room->parts[PARTS], 1, &f->error), 0);
	/* Nobody passes a call whose room is coming. */
	FAILS(f, -EAGAIN, "before calls that came earlier", sole_swap_in, &room->parts[PARTS + 1],
	      1, 0);
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
	const void *here; /* on the stack of the thread that swaps the large tensor */
	struct nvs_tensor *large, *small[THREADS];
	atomic_bool end;
	atomic_uint begun, passes;
};
static struct crowd *crowd;

static void *swap_small(void *tensor)
{
	struct nvs_tensor *small = tensor;
	const struct ticket *first;
	uint64_t pin;

	crowd->begun++;
	while (!crowd->end && crowd->passes < MANY) {
		MUST(!nvs_tensor_swap_in(f->engine, &small, 1, -1, &pin, NULL));
		engine_lock(f->engine);
		first = TAILQ_FIRST(&f->engine->queue.tickets);
		crowd->passes += first && ticket_is_of(first, crowd->here);
		engine_unlock(f->engine);
		MUST(!nvs_tensor_wait(f->engine, &small, 1, pin, -1, NULL));
		MUST(!nvs_tensor_release(f->engine, &small, 1, pin, NVS_CLEAN, NULL));
	}
	return NULL;
}

TEST(a_large_tensor_gets_room_while_small_ones_swap_without_end)
{
	static const uint64_t nbytes[THREADS] = {[0 ... THREADS - 1] = SMALL_PART};
	struct crowd c = {.here = &c};
	pthread_t threads[THREADS];

	crowd = &c;
	OPEN(f, .place = PLACE_DISK, .pool_bytes = 4 * MIB);
	f->engine->queue.patience_ns = NEVER;
	c.large = tensor_add(f, "large", 3 * MIB);
	tensor_store(f, c.large, 3);
	tensors_add(f, "small", nbytes, THREADS, c.small);
	for (unsigned i = 0; i < THREADS; i++) {
		tensor_store(f, c.small[i], i);
		assert_int_equal(pthread_create(&threads[i], NULL, swap_small, c.small[i]), 0);
	}
	while (c.begun < THREADS)
		sched_yield();
	for (int round = 0; round < 20; round++)
		tensor_compare(f, c.large, 3);
	c.end = true;
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	/* A pool of bytes, and what each thread had pinned before and looked at after. */
	assert_in_range(c.passes, 0, 20 * (4 * MIB / SMALL_PART + THREADS));
}
