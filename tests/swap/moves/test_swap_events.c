/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's thread of events: a call that starts something leaves checksums to it, and the log
 * function is called with no lock held.
 */
#include "support/inject.h"
#include "swap/swap_fixture.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

ONE_ENGINE

#define LARGE (512 * KIB)

/* A log function that waits at a gate, and calls the engine if asked to. */
static struct gate {
	sem_t entered, open, left;
	struct nvs_engine *asks;  /* call it from the log function; or NULL */
	uint64_t tensors;	  /* its result */
	struct nvs_tensor *reads; /* swapped in by the log function; or NULL */
	int rc;			  /* of that */
} gate;

static void await(sem_t *sem)
{
	while (sem_wait(sem))
		;
}

static void pass_gate(void *arg, enum nvs_log_level level, const char *text)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	(void)arg, (void)level, (void)text;
	sem_post(&gate.entered);
	await(&gate.open);
	/* It stays open. */
	sem_post(&gate.open);
	if (gate.asks) {
		nvs_engine_get_stats(gate.asks, &stats);
		gate.tensors = stats.tensors;
	}
	if (gate.reads)
		gate.rc = sole_swap_in(gate.reads->engine, &gate.reads, 1, -1, NULL)
				  ?: sole_wait(gate.reads->engine, &gate.reads, 1, -1, NULL)
				  ?: sole_release(gate.reads->engine, &gate.reads, 1, NVS_CLEAN,
						  NULL);
	sem_post(&gate.left);
}

static void gate_init(const struct setup *setup)
{
	gate = (struct gate){.asks = NULL};
	sem_init(&gate.entered, 0, 0);
	sem_init(&gate.open, 0, 1);
	sem_init(&gate.left, 0, 0);
	fixture_init(f, setup);
	f->config.log = (struct nvs_log){pass_gate, NULL};
	OK(f, fixture_reopen(f));
	/* What opening has logged has passed. */
	log_await_told(&f->engine->log);
	await(&gate.open);
	while (!sem_trywait(&gate.entered) || !sem_trywait(&gate.left))
		;
}

static void gate_close(void)
{
	sem_post(&gate.open);
	fixture_close(f);
}

/* A write-back that fails is logged. */
static void fail_a_write(struct nvs_tensor *tensor)
{
	sim_fail(f->sim, NVS_WRITE, 0, EIO, SIM_ALWAYS);
	OK(f, nvs_tensor_swap_out(f->engine, &tensor, 1, &f->error));
	FAILS(f, -EIO, "writing", sole_wait, &tensor, 1, -1);
	sim_no_faults(f->sim);
}

TEST(a_log_function_may_wait_for_a_lock_that_a_waiting_call_holds)
{
	struct nvs_tensor *t[3];

	gate_init(&(const struct setup){.place = PLACE_DISK, .simulated = true, .verify = true});
	tensors_add(f, "t", (uint64_t[]){LARGE, LARGE, 5000}, 3, t);
	tensors_store(f, t, 3, 0);
	tensor_write(f, t[0], 10);
	/* This thread opens the gate only after its calls, which wait for long checksums too. */
	fail_a_write(t[0]);
	await(&gate.entered);
	tensor_compare(f, t[1], 1);
	tensor_compare(f, t[2], 2);
	tensor_store(f, t[1], 11);
	tensor_compare(f, t[1], 11);
	assert_int_equal(sem_trywait(&gate.left), -1);
	gate_close();
}

TEST(a_log_function_may_call_the_engine)
{
	struct nvs_tensor *t;

	gate_init(&(const struct setup){.place = PLACE_DISK, .simulated = true});
	t = tensor_add(f, "t", LARGE);
	gate.asks = f->engine;
	sem_post(&gate.open);
	tensor_write(f, t, 1);
	fail_a_write(t);
	await(&gate.left);
	assert_int_equal(gate.tensors, 1);
	gate_close();
}

static atomic_int closer;

static void *close_engine(void *arg)
{
	struct nvs_engine *engine = arg;

	atomic_store(&closer, gettid());
	OK(f, nvs_engine_close(engine, &f->error));
	return NULL;
}

/* The read needs a checksum that the engine's thread computes. */
TEST(a_log_function_may_call_the_engine_while_that_is_closed)
{
	struct nvs_tensor *t[2];
	pthread_t thread;

	gate_init(&(const struct setup){.place = PLACE_DISK, .simulated = true, .verify = true});
	tensors_add(f, "t", (uint64_t[]){LARGE, LARGE}, 2, t);
	tensor_store(f, t[1], 1);
	gate.reads = t[1];
	tensor_write(f, t[0], 1);
	fail_a_write(t[0]);
	await(&gate.entered);
	atomic_store(&closer, 0);
	alarm(120);
	assert_int_equal(pthread_create(&thread, NULL, close_engine, f->engine), 0);
	while (!atomic_load(&closer) || !thread_sleeps(atomic_load(&closer)))
		sched_yield();
	sem_post(&gate.open);
	pthread_join(thread, NULL);
	alarm(0);
	f->engine = NULL;
	assert_int_equal(gate.rc, 0);
	gate_close();
}

/* The space of one path is reserved, that of the other is not, and the former can't be undone. */
TEST(a_log_function_may_call_the_engine_while_tensors_are_registered)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_U8, .numel = LARGE};
	struct nvs_tensor *t;
	int rc;

	gate_init(&(const struct setup){.place = PLACE_DISK, .npaths = 2, .stripe_size = 64 * KIB});
	gate.asks = f->engine;
	sem_post(&gate.open);
	/* A call of the engine that waits for the lock of the registering call never returns. */
	alarm(120);
	inject_fail(INJECT_SPACE, 2, INJECT_ALWAYS, EIO);
	rc = nvs_tensor_register(f->engine, &spec, 1, &t, &f->error);
	inject_stop(NULL);
	alarm(0);
	assert_int_equal(rc, -EIO);
	assert_non_null(strstr(f->error.text, "cannot set the size of"));
	assert_non_null(strstr(f->error.text, "; then cannot set the size of"));
	OK(f, nvs_tensor_register(f->engine, &spec, 1, &t, &f->error));
	tensor_store(f, t, 1);
	tensor_compare(f, t, 1);
	gate_close();
}

/* Access to the tensor's memory then ends the test with SIGSEGV. */
static void forbid(struct nvs_tensor *tensor, bool forbidden)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *data = tensor->data;

	assert_int_equal((uintptr_t)data % page, 0);
	assert_int_equal(
		mprotect(data, LARGE / page * page, forbidden ? PROT_NONE : PROT_READ | PROT_WRITE),
		0);
}

TEST(a_swap_out_starts_writing_before_any_checksum)
{
	struct nvs_tensor *t[1];

	OPEN(f, .place = PLACE_DISK, .simulated = true, .verify = true);
	t[0] = tensor_add(f, "t", LARGE);
	tensor_write(f, t[0], 1);
	events_stop(f->engine);
	sim_hold(f->sim, SIM_ALL);
	forbid(t[0], true);
	OK(f, nvs_tensor_swap_out(f->engine, t, 1, &f->error));
	assert_true(sim_await_in_flight(f->sim, 1));
	forbid(t[0], false);
	sim_go(f->sim, SIM_ALL);
	assert_int_equal(events_start(f->engine), 0);
	OK(f, sole_wait(f->engine, t, 1, -1, &f->error));
	tensor_compare(f, t[0], 1);
}

/* A call that waits for a tensor being read and one being written on a drive that is held. */
struct several {
	struct nvs_tensor *read, *written;
	uint64_t pin;
	pthread_t thread;
	int rc;
};

static void *wait_for_several(void *arg)
{
	struct several *several = arg;
	struct nvs_tensor *both[] = {several->read, several->written};

	several->rc = nvs_tensor_wait(f->engine, both, 2, 0, -1, NULL);
	return NULL;
}

/* Waits until a call sleeps for several runs. */
static void await_patience(struct nvs_engine *engine)
{
	bool patient = false;

	while (!patient) {
		engine_lock(engine);
		patient = engine->events.patient;
		engine_unlock(engine);
		sched_yield();
	}
}

static void several_begin(struct several *several)
{
	OPEN(f, .place = PLACE_DISK, .simulated = true);
	several->read = tensor_add(f, "read", LARGE);
	several->written = tensor_add(f, "written", LARGE);
	tensor_store(f, several->read, 0);
	tensor_write(f, several->written, 1);
	sim_hold(f->sim, SIM_ALL);
	OK(f, nvs_tensor_swap_in(f->engine, &several->read, 1, -1, &several->pin, &f->error));
	OK(f, nvs_tensor_swap_out(f->engine, &several->written, 1, &f->error));
	assert_int_equal(pthread_create(&several->thread, NULL, wait_for_several, several), 0);
	await_patience(f->engine);
}

/* The write is still held. */
static void several_end(struct several *several)
{
	STATE(f, several->written, NVS_WRITING, false, 0);
	sim_go(f->sim, SIM_WRITES);
	pthread_join(several->thread, NULL);
	assert_int_equal(several->rc, 0);
	OK(f, nvs_tensor_release(f->engine, &several->read, 1, several->pin, NVS_CLEAN, &f->error));
	fixture_close(f);
}

TEST(a_wait_for_several_tensors_delays_no_other_call)
{
	struct several s;

	several_begin(&s);
	sim_go(f->sim, SIM_READS);
	OK(f, nvs_tensor_wait(f->engine, &s.read, 1, s.pin, 20000, &f->error));
	several_end(&s);
}

TEST(a_tensor_has_landed_as_soon_as_a_call_asks_for_its_state)
{
	struct several s;

	several_begin(&s);
	sim_go(f->sim, SIM_READS);
	alarm(120);
	while (info_of(f, s.read).state == NVS_READING)
		sched_yield();
	alarm(0);
	STATE(f, s.read, NVS_RESIDENT, false, 1);
	several_end(&s);
}

/* ---- Parts that follow others ---- */

/* Completes as many reads of a drive that is held, and lets the workers start what is next. */
static void complete(unsigned n)
{
	assert_true(sim_await_in_flight(f->sim, n));
	assert_int_equal(sim_complete(f->sim, n), n);
	sim_await_workers(f->sim);
}

#define NOBODY 2u

/*
 * Two parts of each of two tensors are read, and others are read ahead behind the first parts, two
 * I/Os at a time. The first parts land together, when a call has waited for tensor `awaited`.
 */
static void read_parts_before_others(unsigned awaited)
{
	char memory[4][100];
	struct nvs_tensor_range ranges[4];
	struct nvs_tensor *t[2], *others[3];

	OPEN(f, .place = PLACE_DISK, .simulated = true, .queue_depth = 2, .thread_count = 1);
	tensors_add(f, "t", (uint64_t[]){30000, 30000}, 2, t);
	tensors_add(f, "other", (uint64_t[]){4096, 4096, 4096}, 3, others);
	tensors_store(f, t, 2, 0);
	tensors_store(f, others, 3, 0);
	for (unsigned i = 0; i < 4; i++)
		ranges[i] = (struct nvs_tensor_range){sizeof(ranges[i]), t[i / 2], i % 2 * 20000,
						      sizeof(memory[i]), memory[i]};
	/* Completions pile up. */
	events_stop(f->engine);
	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_tensor_read(f->engine, ranges, 4, &f->error));
	if (awaited != NOBODY)
		FAILS(f, -ETIMEDOUT, "in flight", nvs_tensor_wait, &t[awaited], 1, 0, 1);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(nvs_tensor_prefetch(f->engine, &others[i], 1, &f->error), 1);
	complete(2);
	events_await_idle(f->engine);
	/* The first two of the others were started when the first parts completed. */
	complete(2);
	complete(2);
	events_await_idle(f->engine);
	STATE(f, others[1], NVS_RESIDENT, false, 0);
	STATE(f, others[2], awaited == NOBODY ? NVS_RESIDENT : NVS_READING, false, 0);
	sim_go(f->sim, SIM_READS);
	OK(f, nvs_tensor_wait(f->engine, t, 2, 0, -1, &f->error));
	fixture_close(f);
}

TEST(the_next_part_of_a_read_goes_first_if_a_call_waits_for_it)
{
	read_parts_before_others(NOBODY);
	read_parts_before_others(0);
	read_parts_before_others(1);
}

TEST(whichever_thread_cannot_be_made_the_limit_is_named)
{
	uint64_t failed;
	unsigned nth = 1;

	INIT(f, .place = PLACE_DISK);
	for (;; nth++) {
		int rc;

		inject_fail(INJECT_THREAD, nth, INJECT_ALWAYS, EAGAIN);
		rc = fixture_reopen(f);
		inject_stop(&failed);
		if (!failed)
			break;
		expect_error(f, rc, -EAGAIN, "the limit on threads is reached");
	}
	/* The worker, the log's and the engine's. */
	assert_true(nth > 3);
}
