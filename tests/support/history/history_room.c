/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that wait for room in one pool. Each operation runs some of them, which swap batches in
 * and release them, and ends when all of their calls have. A call may be passed by calls that began
 * while it waited, but by no more of their bytes than the pool has. That holds of threads that have
 * nothing pinned while they wait; in some histories they have, and must come to an end all the
 * same. There a call is passed as well when nothing changes for long, which is when no thread can
 * run (support/turns.h), so no result depends on time.
 */
#include "config/config.h"
#include "support/history/history.h"
#include "swap/swap_fixture.h"

#include <sched.h>
#include <stdatomic.h>

#define PART	    (16 * KIB)
#define PARTS	    16 /* of the pool */
#define PARTS_LEAST 7  /* the same if threads have tensors pinned while they wait */
#define SMALL	    10 /* tensors of a part */
#define THREADS	    5
#define CALLS	    8 /* of a thread in an operation */
#define BATCH	    6
#define MILLISECOND UINT64_C(1000000)
#define HOUR	    (3600000 * MILLISECOND)

#ifdef __SANITIZE_THREAD__
#define WITHOUT_TURNS true
#else
#define WITHOUT_TURNS false
#endif

static const uint64_t large[] = {3, 6, 9, 12, 15}; /* parts of the other tensors */

/* A call to swap a batch in, and which calls waited when it began. */
struct call {
	struct nvs_tensor *batch[BATCH];
	size_t n;
	uint64_t nbytes;
	uint64_t pin; /* in the order in which the calls were served; 0: none, it didn't wait */
	unsigned waited[THREADS]; /* of each thread, the call that waited, from 1; 0: none */
	uint64_t passed;	  /* bytes of the calls that began then and were served before */
};

struct room {
	struct history_drive drive;
	struct nvs_config config;
	struct nvs_engine *engine;
	struct nvs_error error;
	struct nvs_tensor *small[SMALL], *large[LENGTH(large)], *own[THREADS];
	uint64_t random, parts;
	bool nested; /* threads have a tensor pinned while they wait */
	struct caller {
		struct room *room;
		pthread_t thread;
		uint64_t random;
		unsigned number;
		atomic_uint begun;	  /* calls */
		const void *_Atomic here; /* on its stack */
		struct call calls[CALLS];
	} callers[THREADS];
};

/* ---- A thread ---- */

static bool nests(const struct caller *caller)
{
	return caller->room->nested && caller->number % 2;
}

static void choose_batch(struct caller *caller, struct call *call)
{
	struct room *room = caller->room;
	size_t at = below(&caller->random, SMALL);
	/* A thread with a pin asks for what always fits beside those of the others. */
	size_t most = nests(caller) ? PARTS_LEAST - THREADS / 2 : BATCH;

	*call = (struct call){.n = 1 + below(&caller->random, most)};
	call->nbytes = call->n * PART;
	for (size_t i = 0; i < call->n; i++)
		call->batch[i] = room->small[(at + i) % SMALL];
	if (room->nested || below(&caller->random, 3))
		return;
	at = below(&caller->random, LENGTH(large));
	call->n = 1;
	call->batch[0] = room->large[at];
	call->nbytes = large[at] * PART;
}

/* Notes which calls wait already when this one begins. */
static void see_waiting(struct room *room, struct call *call)
{
	const struct ticket *ticket;

	engine_lock(room->engine);
	queue_check(room->engine);
	TAILQ_FOREACH(ticket, &room->engine->queue.tickets, link)
	{
		for (unsigned i = 0; i < THREADS; i++)
			if (ticket_is_of(ticket, room->callers[i].here))
				call->waited[i] = room->callers[i].begun;
	}
	engine_unlock(room->engine);
}

static void make_call(struct caller *caller, struct call *call)
{
	struct nvs_engine *engine = caller->room->engine;
	enum nvs_how how = below(&caller->random, 2) ? NVS_DIRTY : NVS_CLEAN;
	int timeout_ms = below(&caller->random, 4) ? -1 : 0, rc;

	choose_batch(caller, call);
	see_waiting(caller->room, call);
	caller->begun++;
	rc = nvs_tensor_swap_in(engine, call->batch, call->n, timeout_ms, &call->pin, NULL);
	HOLDS(rc == 0 || (rc == -EAGAIN && !timeout_ms));
	if (rc)
		return;
	for (uint64_t i = below(&caller->random, 4); i; i--)
		sched_yield();
	HOLDS(!nvs_tensor_wait(engine, call->batch, call->n, call->pin, -1, NULL));
	for (size_t i = 0; i < call->n; i++) {
		struct nvs_tensor *tensor = call->batch[i];

		HOLDS(filled(nvs_tensor_data(tensor), tensor->nbytes, tensor->nbytes));
	}
	HOLDS(!nvs_tensor_release(engine, call->batch, call->n, call->pin, how, NULL));
}

/* Makes the call while one more tensor is pinned. */
static void make_nested(struct caller *caller, struct call *call)
{
	struct nvs_engine *engine = caller->room->engine;
	struct nvs_tensor **own = &caller->room->own[caller->number];
	uint64_t pin;

	HOLDS(!nvs_tensor_swap_in(engine, own, 1, -1, &pin, NULL));
	HOLDS(!nvs_tensor_wait(engine, own, 1, pin, -1, NULL));
	make_call(caller, call);
	HOLDS(!nvs_tensor_release(engine, own, 1, pin, NVS_CLEAN, NULL));
}

static void *make_calls(void *arg)
{
	struct caller *caller = arg;

	caller->here = &caller;
	for (unsigned i = 0; i < CALLS; i++)
		if (nests(caller))
			make_nested(caller, &caller->calls[i]);
		else
			make_call(caller, &caller->calls[i]);
	return NULL;
}

/* ---- The promise ---- */

static void check_calls(struct room *room, const struct caller *caller)
{
	history_log_more("%u:", caller->number);
	for (unsigned i = 0; i < CALLS; i++) {
		const struct call *call = &caller->calls[i];

		history_log_more(" %" PRIu64 " KiB %s%" PRIu64, call->nbytes / KIB,
				 call->pin ? "pin " : "not ", call->pin);
		if (call->passed)
			history_log_more(" passed by %" PRIu64 " KiB", call->passed / KIB);
		if (!room->nested && call->passed > room->parts * PART)
			history_fail(__FILE__, __LINE__,
				     "%" PRIu64 " KiB of later calls passed one that waited, and "
				     "the pool has %" PRIu64 " KiB",
				     call->passed / KIB, room->parts * PART / KIB);
		history_log_more(";");
	}
	history_log_more("\n");
}

static void check_room(struct room *room)
{
	for (unsigned i = 0; i < THREADS * CALLS; i++) {
		const struct call *call = &room->callers[i / CALLS].calls[i % CALLS];

		/* Those that waited when it began and were served later. */
		for (unsigned k = 0; k < THREADS && call->pin; k++) {
			unsigned nth = call->waited[k];
			struct call *waited = nth ? &room->callers[k].calls[nth - 1] : NULL;

			HOLDS(nth <= CALLS);
			if (waited && waited->pin > call->pin)
				waited->passed += call->nbytes;
		}
	}
	for (unsigned i = 0; i < THREADS; i++)
		check_calls(room, &room->callers[i]);
	engine_lock(room->engine);
	engine_check(room->engine);
	HOLDS(queue_empty(room->engine));
	engine_unlock(room->engine);
}

static void operation(void *world, uint64_t seed)
{
	struct room *room = world;

	room->random = seed;
	history_log("%u threads of %u calls\n", THREADS, CALLS);
	for (unsigned i = 0; i < THREADS; i++) {
		room->callers[i] = (struct caller){
			.room = room, .number = i, .random = next_random(&room->random)};
		for (unsigned k = 0; k < CALLS; k++)
			room->callers[i].calls[k] = (struct call){.n = 0};
	}
	for (unsigned i = 0; i < THREADS; i++)
		HOLDS(!pthread_create(&room->callers[i].thread, NULL, make_calls,
				      &room->callers[i]));
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(room->callers[i].thread, NULL);
	check_room(room);
}

/* ---- Worlds ---- */

static void configure(struct room *room, const char *directory, uint64_t seed)
{
	struct nvs_config *config = &room->config;

	config_init(config);
	config->aio.block_size = (uint32_t)PART;
	config->aio.queue_depth = 1 + (uint32_t)below(&room->random, 8);
	config->aio.thread_count = 1;
	config->param_dtype = NVS_U8;
	config->offload[NVS_OFFLOAD_PARAM].buffer_count = 1;
	config->offload[NVS_OFFLOAD_PARAM].buffer_size = room->parts * PART;
	config->rank = (uint32_t)(seed % 1000000);
	HOLDS(!nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, &directory, 1, &room->error));
}

static struct nvs_tensor *add(struct room *room, const char *kind, size_t number, uint64_t parts)
{
	char name[32];
	struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = name, .dtype = NVS_U8, .numel = parts * PART};
	struct nvs_tensor *tensor;
	uint64_t pin;

	snprintf(name, sizeof(name), "%s%zu", kind, number);
	HOLDS(!nvs_tensor_register(room->engine, &spec, 1, &tensor, &room->error));
	if (parts > room->parts)
		return tensor;
	HOLDS(!nvs_tensor_pin(room->engine, &tensor, 1, -1, &pin, &room->error));
	fill(nvs_tensor_data(tensor), spec.numel, spec.numel);
	HOLDS(!nvs_tensor_release(room->engine, &tensor, 1, pin, NVS_DIRTY, &room->error));
	return tensor;
}

static void *begin_room(const struct history_model *model, const char *directory, uint64_t seed)
{
	struct room *room = calloc(1, sizeof(*room));

	(void)model;
	HOLDS(room);
	room->error.size = sizeof(room->error);
	room->random = seed;
	room->nested = below(&room->random, 3) == 0;
	room->parts = room->nested ? PARTS_LEAST : PARTS;
	configure(room, directory, seed);
	history_drive_open(&room->drive, next_random(&room->random), false, false);
	history_drive_mend(&room->drive);
	HOLDS(!engine_open_with(&room->engine, &room->config, NVS_OFFLOAD_PARAM, &engine_sim,
				room->drive.sim, &room->error));
	room->engine->queue.patience_ns = room->nested && WITHOUT_TURNS ? MILLISECOND : HOUR;
	room->engine->room.shortage_after_ns = UINT64_MAX / 2;
	for (size_t i = 0; i < SMALL; i++)
		room->small[i] = add(room, "small", i, 1);
	for (size_t i = 0; i < THREADS; i++)
		room->own[i] = add(room, "own", i, 1);
	for (size_t i = 0; i < LENGTH(large); i++)
		room->large[i] = add(room, "large", i, large[i]);
	HOLDS(pool_bytes(room->engine->pool) == room->parts * PART);
	return room;
}

static void end_room(void *world)
{
	struct room *room = world;

	HOLDS(!nvs_engine_close(room->engine, &room->error));
	history_drive_close(&room->drive);
	config_free(&room->config);
	free(room);
}

const struct history_model history_room = {"room", begin_room, operation, end_room, false};
